"""float32 decides most rounded sums with independent normal noise; the released numbers are those of the definition."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import torch

from fedpriv.errors import PrivacyError
from fedpriv.privacy import exact_rounding, rounding_stages
from fedpriv.privacy.exact_rounding import add_and_round
from fedpriv.privacy.real_noise import GaussianRows
from fedpriv.privacy.rounding_stages import round_doubtful, round_in_float32
from fedpriv.randomness import single_precision
from fedpriv.randomness.keystream import BLOCK, Keystream
from fedpriv.randomness.single_precision import DRAW_ERROR, check_single_functions, normals_in_float32

KEYS = [bytes([k]) * 32 for k in (1, 2)]
SCALES = [1.3, 0.004]
DIM = 3001  # an odd number: the last word of a row gives no draw


class InFloat64(GaussianRows):
    """The same noise, which float32 does not round."""


def grids_of(scales: list[float], bits: int) -> np.ndarray:
    return np.array([[2.0 ** (math.ceil(math.log2(scale)) - bits)] for scale in scales])


def rounded_by_definition(values: np.ndarray, noise: GaussianRows, grids: np.ndarray) -> np.ndarray:
    result = np.empty_like(values)
    with mpmath.workprec(300):
        for (row, column), value in np.ndenumerate(values):
            grid = mpmath.mpf(float(grids[row, 0]))
            interval = noise.interval(row, column, 2)
            low, high = (mpmath.floor((+mpmath.mpf(end) + float(value)) / grid + 0.5) for end in interval)
            assert low == high
            result[row, column] = float(low * grid)
    return result


def rounded(values: np.ndarray, noise: GaussianRows, grids: np.ndarray) -> np.ndarray:
    result = np.empty_like(values)
    add_and_round(values, noise, slice(0, len(values)), grids, result)
    return result


def doubtful_numbers(values: np.ndarray, grids: np.ndarray, dim: int = DIM) -> tuple[np.ndarray, np.ndarray]:
    """Returns the float32 result, and the rows and columns that it does not decide."""
    words = np.stack([Keystream(key).words(dim + dim % 2) for key in KEYS])
    result = np.empty_like(values)
    scales = np.array(SCALES)[:, None]
    numbers = round_in_float32(values, words, scales, grids, result)
    rest = round_doubtful(values, numbers, scales, grids, result)
    assert len(rest.rows) == 0
    return result, np.stack([numbers.rows, numbers.columns])


@pytest.mark.parametrize("bits", [8, 14])
@pytest.mark.parametrize("size", [1.0, 1e6, 1e16])
def test_float32_rounding_equals_rounded_real_sum(bits: int, size: float) -> None:
    """On a finer grid than usual, float32 leaves many numbers to float64."""
    values = size * np.random.default_rng(1).normal(size=(2, DIM)) * np.array(SCALES)[:, None]
    grids = grids_of(SCALES, bits)
    result, doubtful = doubtful_numbers(values, grids)
    np.testing.assert_array_equal(result, rounded_by_definition(values, GaussianRows(KEYS, SCALES, DIM), grids))
    share = doubtful.shape[1] / values.size
    assert share < 0.01 if bits == 8 else 0.1 < share < 0.5


@pytest.mark.parametrize("dim", [20_000, BLOCK, 5 * BLOCK + 77])
@pytest.mark.parametrize("n_threads", [1, 3])
def test_long_rows_same_numbers_as_in_float64(dim: int, n_threads: int) -> None:
    values = np.random.default_rng(2).normal(size=(2, dim)) * 3
    grids = grids_of(SCALES, 8)
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        result = rounded(values, GaussianRows(KEYS, SCALES, dim), grids)
    finally:
        torch.set_num_threads(before)
    np.testing.assert_array_equal(result, rounded(values, InFloat64(KEYS, SCALES, dim), grids))


def test_float32_used_for_long_rows_on_coarse_grids_only(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[int]()

    def counted(values: np.ndarray, *rest: np.ndarray) -> rounding_stages.Doubtful:
        calls.append(values.size)
        return round_in_float32(values, *rest)

    monkeypatch.setattr(exact_rounding, "round_in_float32", counted)
    for dim, bits, scale in [(30_000, 8, 1.0), (30_000, 12, 1.0), (100, 8, 1.0), (30_000, 8, 2.0**-70)]:
        rounded(np.zeros((1, dim)), GaussianRows(KEYS[:1], [scale], dim), grids_of([scale], bits))
    assert calls == [30_000]


def test_float32_draw_error_within_bound() -> None:
    words = Keystream(KEYS[0]).words(BLOCK)[None]
    draws, inside = normals_in_float32(words, np.ones((1, 1), np.float32))
    exact = Keystream(KEYS[0]).standard_normal(BLOCK)
    kept = np.concatenate([inside, inside], 1)[0]
    error = np.abs(draws[0].astype(np.float64) - exact)[kept].max()
    assert DRAW_ERROR / 10 < error < DRAW_ERROR
    assert 0 < (~kept).mean() < 1e-3


def test_sums_close_to_rounding_boundary_decided_correctly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values that put each sum on the boundary, or a little beside it."""
    grids = grids_of(SCALES, 8)
    draws = np.stack([scale * Keystream(key).standard_normal(DIM) for key, scale in zip(KEYS, SCALES, strict=True)])
    offsets = np.resize([0.0, 1e-12, -1e-12, 1e-5, -1e-5, 1e-3, -1e-3], DIM)
    values = (7.5 + offsets) * grids - draws
    noise = GaussianRows(KEYS, SCALES, DIM)
    monkeypatch.setattr(exact_rounding, "_FEW_NUMBERS", 0)
    result = rounded(values, noise, grids)
    np.testing.assert_array_equal(result, rounded_by_definition(values, noise, grids))
    assert set(np.unique(result / grids)) == {7.0, 8.0}


@pytest.mark.parametrize("strange", [math.nan, math.inf, -math.inf, 1e300, 1e-300])
def test_strange_value_leaves_others_unchanged(strange: float) -> None:
    dim = 20_000
    values = np.random.default_rng(3).normal(size=(2, dim))
    grids, noise = grids_of(SCALES, 8), GaussianRows(KEYS, SCALES, dim)
    usual = rounded(values, noise, grids)
    values[0, 5] = strange
    with np.errstate(invalid="ignore"):
        disturbed = rounded(values, noise, grids)
        expected = rounded(values, InFloat64(KEYS, SCALES, dim), grids)
    np.testing.assert_array_equal(disturbed, expected)
    disturbed[0, 5] = usual[0, 5]
    np.testing.assert_array_equal(disturbed, usual)


def test_float32_bound_too_small_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    dim = 4 * BLOCK
    values, grids = np.zeros((1, dim)), grids_of([1.0], 8)
    expected = rounded(values, InFloat64(KEYS[:1], [1.0], dim), grids)
    noise = GaussianRows(KEYS[:1], [1.0], dim)
    assert np.array_equal(rounded(values, noise, grids), expected)
    monkeypatch.setattr(rounding_stages, "DRAW_ERROR", DRAW_ERROR / 1000)
    monkeypatch.setattr(rounding_stages, "UNIT", 0.0)
    assert (rounded(values, noise, grids) != expected).sum() > 2


@pytest.mark.parametrize(("name", "function"), [("_WORST_LOGARITHM", "numpy.log"), ("_WORST_DIRECTION", "numpy.cos")])
def test_inexact_float32_function_refused(name: str, function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single_precision, name, 0.1)
    with pytest.raises(PrivacyError, match=f"{function} of float32 numbers differs"):
        check_single_functions.__wrapped__()
