"""What is released is the real sum, rounded: float64 decides, and multiple precision where float64 cannot."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import mpmath
import numpy as np
import pytest
import torch

import fedpriv as fp
from fedpriv.errors import PrivacyError
from fedpriv.privacy.exact_rounding import GaussianRows, Interval, LaplaceRows, RealNoise, add_and_round
from fedpriv.privacy.mechanisms import add_noise, real_noise
from fedpriv.privacy.record import Record
from fedpriv.randomness.streams import Randomness

RECORD = Record(0, "gradient", 0, "gaussian", 1.0, "sample", "replace_one")
RANDOM = Randomness(secret_seed=5)
DIM = 4000
LAWS = {"gaussian": (GaussianRows, fp.Gaussian()), "laplace": (LaplaceRows, fp.Laplace())}


def noise_of(law: str, scales: list[float]) -> RealNoise:
    keys = RANDOM.keys("noise", 0, 0, list(range(len(scales))))
    return LAWS[law][0](keys, scales, DIM)


def rounded_in_multiple_precision(values: np.ndarray, noise: RealNoise, grids: np.ndarray) -> np.ndarray:
    """The definition, number by number."""
    result = np.empty_like(values)
    with mpmath.workprec(300):
        for (row, column), value in np.ndenumerate(values):
            grid = mpmath.mpf(float(grids[row, 0]))
            ends = [
                mpmath.floor((+mpmath.mpf(end) + float(value)) / grid + 0.5) for end in noise.interval(row, column, 2)
            ]
            assert ends[0] == ends[1]
            result[row, column] = float(ends[0] * grid)
    return result


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("fineness", [20, 37])
@pytest.mark.parametrize("size", [1.0, 1e6, 1e16])
def test_every_number_is_the_real_sum_rounded(law: str, fineness: int, size: float):
    """With a grid that is far finer than the usual one float64 may be wrong, and is always put right."""
    scales = [1.3, 0.004]
    noise = noise_of(law, scales)
    grids = np.array([[2.0 ** (math.ceil(math.log2(scale)) - fineness)] for scale in scales])
    values = size * np.random.default_rng(1).normal(size=(2, DIM)) * np.array(scales)[:, None]
    result = np.empty_like(values)
    repaired = add_and_round(values, noise, slice(0, 2), grids, result)
    expected = rounded_in_multiple_precision(values, noise, grids)
    assert np.array_equal(result, expected)
    if fineness == 37:
        float64 = np.rint((noise.approximate(slice(0, 2)) + values) / grids) * grids
        assert 100 < repaired < DIM
        # sums of this size lose enough bits for that to be seen in so few numbers
        assert (float64 != expected).any() or size != 1e6


@dataclass(frozen=True)
class TooSure(GaussianRows):
    """Promises a smaller error than its draws have."""

    def errors(self, rows: slice) -> np.ndarray:
        return super().errors(rows) * 2.0**-12

    def largest(self, rows: slice) -> float:
        return 0.0


def test_a_bound_that_is_too_small_is_found():
    noise = noise_of("gaussian", [1.0])
    grids = np.array([[2.0**-46]])
    values = np.zeros((1, DIM))
    expected = rounded_in_multiple_precision(values, noise, grids)
    result = np.empty_like(values)
    for promised, is_right in ((noise, True), (TooSure(noise.keys, noise.scales, DIM), False)):
        add_and_round(values, promised, slice(0, 1), grids, result)
        assert np.array_equal(result, expected) == is_right


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("amount", [1.0, 1.7])
def test_releases_are_rounded_exactly(law: str, amount: float):
    """Through the function that adds noise, for more numbers than it handles at once."""
    scales = [0.7, 1.0, 30.0]
    sums = torch.randn(3, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    released = add_noise(sums, scales, LAWS[law][1], RECORD, RANDOM, [0, 1, 2], amount)._value.numpy()
    if law == "laplace" and amount != 1:
        return  # sums of several Laplace draws are not known as real numbers
    noise = noise_of(law, [scale * math.sqrt(amount) for scale in scales])
    grids = np.array([[2.0 ** (math.ceil(math.log2(scale)) - 20)] for scale in scales])
    assert np.array_equal(released, rounded_in_multiple_precision(sums.numpy(), noise, grids))


@pytest.mark.parametrize("law", LAWS)
def test_few_numbers_need_multiple_precision(law: str):
    """Two in a million: a cost that is not noticed."""
    count = 40 * 2**16
    dim = count // 4
    keys = RANDOM.keys("noise", 1, 0, list(range(4)))
    noise = LAWS[law][0](keys, [1.0] * 4, dim)
    repaired = []
    for row in range(4):
        result = np.empty((1, dim))
        values = np.zeros((1, dim))
        repaired.append(add_and_round(values, noise, slice(row, row + 1), np.array([[2.0**-20]]), result))
        assert np.isfinite(result).all()
    assert sum(repaired) <= 20  # about 4 are expected


def test_sums_that_are_no_numbers_stay_none_and_disturb_no_others():
    noise = noise_of("gaussian", [1.0, 1.0])
    grids = np.full((2, 1), 2.0**-20)
    values = np.zeros((2, DIM))
    result, disturbed = np.empty_like(values), np.empty_like(values)
    add_and_round(values, noise, slice(0, 2), grids, result)
    values[0, 3] = math.nan
    add_and_round(values, noise, slice(0, 2), grids, disturbed)
    assert math.isnan(disturbed[0, 3])
    disturbed[0, 3] = result[0, 3]
    assert np.array_equal(result, disturbed)


@dataclass(frozen=True)
class Undecided(GaussianRows):
    """A stream without further bits."""

    def interval(self, row: int, column: int, extra: int) -> Interval | None:
        return super().interval(row, column, 0)


def test_what_is_never_decided_is_not_released():
    noise = Undecided(RANDOM.keys("noise", 0, 0, [0]), [1.0], DIM)
    with pytest.raises(PrivacyError, match="not decided"):
        add_and_round(np.zeros((1, DIM)), noise, slice(0, 1), np.array([[2.0**-70]]), np.empty((1, DIM)))


class Custom(fp.Gaussian):
    """A subclass may draw anything."""


def test_a_subclass_is_not_taken_for_the_gaussian():
    keys = RANDOM.keys("noise", 0, 0, [0])
    assert real_noise(fp.Gaussian(), keys, [1.0], 3, 1.0) is not None
    assert real_noise(Custom(), keys, [1.0], 3, 1.0) is None
    assert real_noise(fp.Laplace(), keys, [1.0], 3, 1.5) is None
    sums = torch.zeros(1, 100_000, dtype=torch.float64)
    exact, custom = (
        add_noise(sums, [1.0], mechanism, replace(RECORD, round=7), RANDOM, [0])._value
        for mechanism in (fp.Gaussian(), Custom())
    )
    assert torch.equal(exact, custom)  # none of so few numbers is undecided
