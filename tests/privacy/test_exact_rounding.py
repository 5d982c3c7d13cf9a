"""What is released is the real sum, rounded: float64 decides, and multiple precision where float64 cannot."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from functools import partial

import mpmath
import numpy as np
import pytest
import torch

import fedpriv as fp
from fedpriv.errors import PrivacyError
from fedpriv.privacy.correlated import Factor
from fedpriv.privacy.exact_rounding import add_and_round
from fedpriv.privacy.mechanisms import add_noise, is_rounded_exactly
from fedpriv.privacy.noise_history import NoiseHistory
from fedpriv.privacy.normal_combinations import NormalCombinations
from fedpriv.privacy.pair_noise import draw_pair_noise
from fedpriv.privacy.pairwise import Pairs
from fedpriv.privacy.real_noise import GaussianRows, LaplaceRows, LaplaceSumRows, RealNoise, SumOfNoise
from fedpriv.privacy.record import Record
from fedpriv.privacy.rounding_stages import round_in_float64
from fedpriv.randomness.keystream import Keystream
from fedpriv.randomness.real_draws import Interval
from fedpriv.randomness.short_rows import BoundedRows
from fedpriv.randomness.streams import Randomness

RECORD = Record(0, "gradient", 0, "gaussian", 1.0, "sample", "replace_one")
RANDOM = Randomness(secret_seed=5)
DIM = 4000
LAWS = {
    "gaussian": (GaussianRows, fp.Gaussian()),
    "laplace": (LaplaceRows, fp.Laplace()),
    "sums of laplace": (partial(LaplaceSumRows, amount=1.7), fp.Laplace()),
}


def keys_of(count: int, round_index: int = 0) -> list[bytes]:
    return [key.tobytes() for key in RANDOM.keys("noise", round_index, 0, list(range(count))).numpy()]


def noise_of(law: str, scales: list[float]) -> RealNoise:
    return LAWS[law][0](keys_of(len(scales)), scales, length_of(law))


def length_of(law: str) -> int:
    """Multiple precision takes long for sums of Laplace draws."""
    return 500 if law == "sums of laplace" else DIM


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
@pytest.mark.parametrize("is_fine", [False, True])
@pytest.mark.parametrize("size", [1.0, 1e6, 1e16])
def test_values_equal_rounded_real_sum(law: str, is_fine: bool, size: float):
    """On a much finer grid than usual, float64 may be wrong, and is always repaired."""
    scales, dim = [1.3, 0.004], length_of(law)
    fineness = 20
    if is_fine:
        fineness = 37 if law == "sums of laplace" else 40  # whose bound is larger
    noise = noise_of(law, scales)
    grids = np.array([[2.0 ** (math.ceil(math.log2(scale)) - fineness)] for scale in scales])
    values = size * np.random.default_rng(1).normal(size=(2, dim)) * np.array(scales)[:, None]
    result = np.empty_like(values)
    repaired = add_and_round(values, noise, slice(0, 2), grids, result)
    expected = rounded_in_multiple_precision(values, noise, grids)
    assert np.array_equal(result, expected)
    if is_fine:
        float64 = np.rint((noise.approximate(slice(0, 2)).draws + values) / grids) * grids
        assert dim / 40 < repaired < dim
        # sums of this size lose enough bits for that to be seen in so few numbers
        assert (float64 != expected).any() or size != 1e6 or law == "sums of laplace"


@dataclass(frozen=True)
class UnderstatedError(GaussianRows):
    """Promises a smaller error than its draws have."""

    def approximate(self, rows: slice) -> BoundedRows:
        draws, errors, _ = super().approximate(rows)
        return BoundedRows(draws, errors * 2.0**-12, 0.0)


def test_rounding_bound_too_small_detected():
    noise = noise_of("gaussian", [1.0])
    grids = np.array([[2.0**-46]])
    values = np.zeros((1, DIM))
    expected = rounded_in_multiple_precision(values, noise, grids)
    result = np.empty_like(values)
    for promised, is_right in ((noise, True), (UnderstatedError(noise.keys, noise.scales, DIM), False)):
        add_and_round(values, promised, slice(0, 1), grids, result)
        assert np.array_equal(result, expected) == is_right


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
@pytest.mark.parametrize("amount", [1.0, 1.7])
def test_releases_rounded_exactly(law: str, amount: float):
    """Through the function that adds noise, for more numbers than it handles at once."""
    scales = [0.7, 1.0, 30.0]
    dim = DIM if law == "gaussian" or amount == 1 else 500
    sums = torch.randn(3, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    released = add_noise(sums, scales, LAWS[law][1], RECORD, RANDOM, [0, 1, 2], amount)._value.numpy()
    if law == "gaussian":
        noise = noise_of(law, [scale * math.sqrt(amount) for scale in scales])
    elif amount == 1:
        noise = LaplaceRows(keys_of(3), scales, dim)
    else:
        noise = LaplaceSumRows(keys_of(3), scales, dim, math.nextafter(amount, 2.0))
    bits = 8 if law == "gaussian" else 20
    grids = np.array([[2.0 ** (math.ceil(math.log2(scale)) - bits)] for scale in scales])
    assert np.array_equal(released, rounded_in_multiple_precision(sums.numpy(), noise, grids))


@pytest.mark.parametrize("law", LAWS)
def test_few_values_need_multiple_precision(law: str):
    """Some in ten million, of sums of Laplace draws some in a million: a cost that is not noticed."""
    count = 40 * 2**16
    dim = count // 4
    noise = LAWS[law][0](keys_of(4, round_index=1), [1.0] * 4, dim)
    repaired = []
    for row in range(4):
        result = np.empty((1, dim))
        values = np.zeros((1, dim))
        repaired.append(add_and_round(values, noise, slice(row, row + 1), np.array([[2.0**-20]]), result))
        assert np.isfinite(result).all()
    expected = 10 if law == "sums of laplace" else 2
    assert sum(repaired) <= 5 * expected


def test_nan_sum_leaves_other_values_unchanged():
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


def test_undecided_rounding_raises():
    noise = Undecided(keys_of(1), [1.0], DIM)
    with pytest.raises(PrivacyError, match="needed more than 64 random words: the random stream is broken"):
        add_and_round(np.zeros((1, DIM)), noise, slice(0, 1), np.array([[2.0**-70]]), np.empty((1, DIM)))


class Custom(fp.Gaussian):
    """A subclass may draw anything."""


def test_gaussian_subclass_not_rounded_exactly():
    processor = torch.device("cpu")
    assert is_rounded_exactly(fp.Gaussian(), processor, None)
    assert is_rounded_exactly(fp.Laplace(), processor, None)
    assert not is_rounded_exactly(Custom(), processor, None)
    assert not is_rounded_exactly(fp.Gaussian(), torch.device("meta"), None)
    assert is_rounded_exactly(fp.Gaussian(), processor, NoiseHistory(Factor((0.5,))))
    assert not is_rounded_exactly(fp.Laplace(), processor, NoiseHistory(Factor((0.5,))))
    assert is_rounded_exactly(fp.Gaussian(), processor, NoiseHistory(Factor((), (0.5,), (0.5,))))
    sums = torch.zeros(1, 100_000, dtype=torch.float64)
    exact, custom = (
        add_noise(sums, [1.0], mechanism, replace(RECORD, round=7), RANDOM, [0])._value
        for mechanism in (fp.Gaussian(), Custom())
    )
    assert torch.equal(exact, custom)  # none of so few numbers is undecided


# noise of pairs, between organisations


class Secrets:
    """The secrets of all pairs, as whoever holds both ends would know them."""

    def pair_secret(self, i: int, j: int, purpose: str) -> bytes:
        return hashlib.blake2b(f"{min(i, j)}/{max(i, j)}/{purpose}".encode(), digest_size=32).digest()


PAIRS = Pairs(ratio=3.0, colluders=1, secrets="complete")


def own_pairs(client: int, count: int, pairs: Pairs = PAIRS, randomness: Randomness = RANDOM) -> NormalCombinations:
    noise = draw_pair_noise(pairs, randomness, 0, 0, range(count), [client], DIM, Secrets())
    assert noise is not None
    return noise.times(0.7)


@pytest.mark.parametrize("fineness", [20, 36])
def test_row_with_pair_noise_rounded_exactly(fineness: int):
    noise = SumOfNoise(GaussianRows(keys_of(1), [0.7], DIM), own_pairs(2, 5))
    values = np.random.default_rng(2).normal(size=(1, DIM))
    grids = np.array([[2.0**-fineness]])
    result = np.empty_like(values)
    repaired = add_and_round(values, noise, slice(0, 1), grids, result)
    assert np.array_equal(result, rounded_in_multiple_precision(values, noise, grids))
    assert (repaired > 10) == (fineness == 36)


def test_pair_noise_opposite_at_both_clients():
    first, second = own_pairs(0, 2), own_pairs(1, 2)
    assert np.array_equal(first.approximate(slice(0, 1)).draws, -second.approximate(slice(0, 1)).draws)
    for column in range(30):
        low, high = first.interval(0, column, 1)
        other_low, other_high = second.interval(0, column, 1)
        assert (low, high) == (mpmath.libmp.mpf_neg(other_high), mpmath.libmp.mpf_neg(other_low))


def test_pair_noise_equals_streams_of_partners():
    """Over the graph of those who share secrets."""
    edges = ((0, 2), (1, 2), (2, 3))
    graph = Pairs(ratio=3.0, colluders=1, secrets="some", edges=edges)
    for pairs, partners in ((PAIRS, (0, 1, 3, 4)), (graph, (0, 1, 3))):
        noise = own_pairs(2, 5, pairs).approximate(slice(0, 1))
        expected = np.zeros(DIM)
        for other in partners:
            draw = RANDOM.pair_stream(2, other, 0, 0, Secrets()).standard_normal(DIM)
            expected += 3.0 * 0.7 * (draw if other > 2 else -draw)
        assert np.abs(noise.draws - expected).max() < 1e-13
    alone = draw_pair_noise(graph, RANDOM, 0, 0, range(5), [4], DIM, Secrets())
    assert alone is not None and not alone.in_float64().any() and not alone.keys


def test_pair_noise_always_added():
    """Wherever sums are rounded."""
    zeros = torch.zeros(1, DIM, dtype=torch.float64)
    for mechanism in (fp.Gaussian(), Custom()):
        noise = own_pairs(2, 5).times(1 / 0.7)
        added = add_noise(zeros, [0.7], mechanism, RECORD, RANDOM, [2], pair_noise=lambda *_, noise=noise: noise)._value
        assert float(added.std()) == pytest.approx(0.7 * math.sqrt(1 + 4 * 9), rel=0.05)
    with pytest.raises(PrivacyError, match="both clients of a pair add the same noise"):
        two = torch.zeros(2, DIM, dtype=torch.float64)
        add_noise(two, [0.7, 0.8], fp.Gaussian(), RECORD, RANDOM, [2, 3], pair_noise=lambda *_: None)


# what the bounds are made of


@pytest.mark.parametrize("side", [1, -1])
@pytest.mark.parametrize(
    ("value", "error", "gap", "is_certain"),
    [
        (0.0, 0.01, 0.011, True),
        (0.0, 0.01, 0.009, False),
        (2.0**33, 0.0, 2.0**-18, True),
        (2.0**33, 0.0, 2.0**-22, False),  # the sum of such numbers is wrong by 2^-20
        (2.0**60, 0.01, 0.011, True),
        (2.0**60, 0.01, 0.009, False),
    ],
)
def test_sums_near_rounding_boundary_uncertain(side: int, value: float, error: float, gap: float, is_certain: bool):
    noise = np.array([[0.1, side * (0.5 - gap), 0.2]])
    result = np.empty((1, 3))
    uncertain = round_in_float64(np.full((1, 3), value), noise, np.ones((1, 1)), np.full((1, 1), error), 1.0, result)
    assert uncertain.tolist() == ([] if is_certain else [[0, 1]])
    assert result.tolist() == [[value] * 3]


def test_repaired_values_use_noise_of_row():
    noise = noise_of("gaussian", [1.0, 1.0, 1.0])
    grids, values = np.array([[2.0**-50]]), np.zeros((1, DIM))
    result = np.empty_like(values)
    assert add_and_round(values, noise, slice(2, 3), grids, result) == DIM
    assert np.abs(result - noise.approximate(slice(2, 3)).draws).max() < 2.0**-45


def test_sum_of_noise_bounds_add():
    own, pairs = GaussianRows(keys_of(1), [0.7], DIM), own_pairs(2, 5)
    parts = [Keystream(key).bounded_normal(DIM, pairs.factor) for key in pairs.keys]
    together = pairs.approximate(slice(0, 1))
    assert len(parts) == 4 and together.largest >= sum(part.largest for part in parts)
    assert together.errors.item() > sum(part.error for part in parts)
    total, alone = SumOfNoise(own, pairs).approximate(slice(0, 1)), own.approximate(slice(0, 1))
    assert total.largest == alone.largest + together.largest
    assert total.errors.item() > (alone.errors + together.errors).item()


def test_pair_noise_same_across_attempts():
    later = replace(RANDOM, attempt=9)
    assert own_pairs(2, 5, randomness=later) == own_pairs(2, 5)


@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_long_row_same_bits_any_thread_count(n_threads: int) -> None:
    """Pieces of a row begin in the middle of its random stream."""
    dim, scale = 3 * 2**17 + 5, 3.0
    (key,) = keys_of(1)
    values = np.random.default_rng(0).normal(size=(1, dim))
    rounded = np.empty_like(values)
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        noise = GaussianRows([key], [scale], dim)
        drawn = noise.approximate(slice(0, 1))
        add_and_round(values, noise, slice(0, 1), np.array([[2.0**-18]]), rounded)
    finally:
        torch.set_num_threads(before)
    at_once = Keystream(key).bounded_normal(dim, scale)
    np.testing.assert_array_equal(drawn.draws[0], at_once.draws)
    assert (float(drawn.errors[0, 0]), drawn.largest) == (at_once.error, at_once.largest)
    np.testing.assert_array_equal(rounded, np.rint((values + at_once.draws) * 2.0**18) / 2.0**18)
