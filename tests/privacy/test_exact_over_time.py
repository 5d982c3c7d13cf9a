"""Noise over time is rounded as the real numbers that the streams of all rounds determine."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest
import torch

import fedpriv as fp
from fedpriv.privacy import exact_over_time
from fedpriv.privacy.correlated import Factor
from fedpriv.privacy.exact_over_time import CorrelatedRows, error_of_filter, inverse_column
from fedpriv.privacy.exact_rounding import add_and_round
from fedpriv.privacy.mechanisms import add_noise
from fedpriv.privacy.noise_history import NoiseHistory
from fedpriv.privacy.record import Record
from fedpriv.randomness import keystream
from fedpriv.randomness.real_draws import real_normal
from fedpriv.randomness.streams import Randomness

RANDOM, DIM, ROUNDS = Randomness(secret_seed=7), 100, 5
SCALES = [1.3, 0.004]
BANDS = {"short": (0.5, 0.25), "growing": (-1.5, 0.9, 0.3), "long": tuple(0.4 / (k + 1) for k in range(20)), "none": ()}
RECORD = Record(0, "gradient", 0, "gaussian", 1.0, "sample", "add_remove")


def keys_of(round_index: int) -> list[bytes]:
    return [key.tobytes() for key in RANDOM.keys("noise", round_index, 0, [0, 1]).numpy()]


def inverse(band: tuple[float, ...]) -> mpmath.matrix:
    """C^-1 by a general solver."""
    with mpmath.workprec(400):
        c = mpmath.eye(ROUNDS)
        for row in range(ROUNDS):
            for back, number in enumerate(band[:row], start=1):
                c[row, row - back] = mpmath.mpf(number)
        return c**-1


def real_noise(band: tuple[float, ...], t: int, dim: int = DIM) -> list[list[mpmath.mpf]]:
    """The definition, number by number."""
    h = inverse(band)
    rows = []
    with mpmath.workprec(400):
        for row, scale in enumerate(SCALES):
            numbers = []
            for column in range(dim):
                draws = [+mpmath.mpf(real_normal(keys_of(s)[row], dim, column, 3)[0]) for s in range(t + 1)]
                numbers.append(scale * mpmath.fsum(h[t, s] * draw for s, draw in enumerate(draws)))
            rows.append(numbers)
    return rows


def noise_of(history: NoiseHistory, t: int, dim: int = DIM) -> CorrelatedRows:
    return CorrelatedRows(history, inverse_column(tuple(history.band)), keys_of, t, SCALES, dim)


def history_before(band: tuple[float, ...], t: int, dim: int = DIM) -> NoiseHistory:
    history = NoiseHistory(Factor(band))
    for earlier in history.missing(t, 2, dim, torch.device("cpu")):
        noise_of(history, earlier, dim).approximate(slice(0, 2))
        history.finish(earlier)
    return history


@pytest.mark.parametrize("band", BANDS.values(), ids=BANDS)
@pytest.mark.parametrize("fineness", [20, 42])
def test_every_number_is_the_real_sum_rounded(band: tuple[float, ...], fineness: int):
    """With a grid that is far finer than the usual one float64 is often undecided, and is always put right."""
    t = ROUNDS - 1
    grids = np.array([[2.0 ** (math.ceil(math.log2(scale)) - fineness)] for scale in SCALES])
    values = np.random.default_rng(1).normal(size=(2, DIM)) * np.array(SCALES)[:, None]
    result = np.empty_like(values)
    repaired = add_and_round(values, noise_of(history_before(band, t), t), slice(0, 2), grids, result)
    expected = np.empty_like(values)
    with mpmath.workprec(400):
        for row, numbers in enumerate(real_noise(band, t)):
            grid = mpmath.mpf(float(grids[row, 0]))
            for column, number in enumerate(numbers):
                steps = mpmath.floor((number + float(values[row, column])) / grid + 0.5)
                expected[row, column] = float(steps * grid)
    assert np.array_equal(result, expected)
    if fineness == 42:
        assert repaired > 3
    else:
        assert repaired < 3


@pytest.mark.parametrize("band", BANDS.values(), ids=BANDS)
def test_float64_is_as_near_to_the_real_noise_as_its_bound_says(band: tuple[float, ...]):
    history, ratios = NoiseHistory(Factor(band)), []
    for t in range(ROUNDS):
        assert not [*history.missing(t, 2, DIM, torch.device("cpu"))] or t == 0
        draws, errors, largest = noise_of(history, t).approximate(slice(0, 2))
        history.finish(t)
        with mpmath.workprec(400):
            for row, numbers in enumerate(real_noise(band, t)):
                distances = [float(abs(number - float(draws[row, k]))) for k, number in enumerate(numbers)]
                assert max(distances) <= errors[row, 0]
                ratios.append(max(distances) / errors[row, 0])
        assert np.abs(draws).max() <= largest
    assert max(ratios) > 2e-4  # a bound that is far too large would send every number to multiple precision


def test_a_draw_without_a_bound_does_not_spoil_later_rounds(monkeypatch: pytest.MonkeyPatch):
    band = BANDS["short"]
    monkeypatch.setattr(keystream, "_LARGEST_RADIUS", 1.5)  # the true one is passed by some in a billion
    history = history_before(band, 3, 40)
    draws, errors, _ = noise_of(history, 3, 40).approximate(slice(0, 2))
    assert not np.isnan(draws).any()
    with mpmath.workprec(400):
        for row, numbers in enumerate(real_noise(band, 3, 40)):
            assert max(float(abs(number - float(draws[row, k]))) for k, number in enumerate(numbers)) <= errors[row, 0]


def test_a_draw_far_in_the_tails_is_as_near_as_all_others():
    """A radius of 6.75, which its first word leaves open by 5000 times the bound on the other draws."""
    key, dim, positions = hashlib.sha256(b"row 420").digest(), 65536, [20821, 53589]
    history = NoiseHistory(Factor((0.5,)))
    assert [*history.missing(0, 1, dim, torch.device("cpu"))] == []
    noise = CorrelatedRows(history, inverse_column((0.5,)), lambda _: [key], 0, [1.0], dim)
    draws, errors, _ = noise.approximate(slice(0, 1))
    with mpmath.workprec(400):
        for position in positions:
            exact = +mpmath.mpf(real_normal(key, dim, position, 4)[0])
            assert float(abs(exact - float(draws[0, position]))) <= errors[0, 0] < 1e-13


@pytest.mark.parametrize("band", BANDS.values(), ids=BANDS)
def test_the_inverse_column_is_that_of_a_general_solver(band: tuple[float, ...]):
    column, exact = inverse_column(band), inverse(band)
    with mpmath.workprec(400):
        for t in range(ROUNDS):
            lower, upper = (+mpmath.mpf(end) for end in column.number(t))
            assert lower <= upper
            assert abs(lower - exact[t, 0]) < 1e-100
        total = float(mpmath.fsum(abs(exact[t, 0]) for t in range(ROUNDS)))
    assert total <= column.absolute_sum(ROUNDS) <= total * 1.00001


def test_a_matrix_whose_inverse_grows_beyond_all_bounds_decides_nothing_by_float64():
    assert error_of_filter((1e6, 1e6), 1e30, 1e-13, 5.0) == (math.inf, math.inf)
    error, size = error_of_filter((0.5,), 2.0, 1e-13, 5.0)
    assert 2e-13 < error < 3e-13
    assert size == pytest.approx(10.1)


def test_releases_over_time_are_rounded_exactly_also_with_extra_shares(monkeypatch: pytest.MonkeyPatch):
    """And a run that draws its noise again after a stop releases the same."""
    calls = []
    original = exact_over_time.CorrelatedRows.approximate
    monkeypatch.setattr(
        exact_over_time.CorrelatedRows,
        "approximate",
        lambda noise, rows: calls.append(noise.round) or original(noise, rows),
    )

    def released(history: NoiseHistory, t: int) -> torch.Tensor:
        record = replace(RECORD, round=t)
        zeros = torch.zeros(2, 50, dtype=torch.float64)
        made = add_noise(zeros, [2.0, 2.0], fp.Gaussian(), record, RANDOM, [0, 1], amount=1.7, past=history)
        return made._value

    history = NoiseHistory(Factor((0.5, 0.25)))
    values = [released(history, t) for t in range(4)]
    assert calls == [0, 1, 2, 3]
    assert torch.equal(released(NoiseHistory(Factor((0.5, 0.25))), 3), values[3])
    deviations = torch.stack(values).std() / (2 * math.sqrt(1.7))
    assert 0.8 < float(deviations) < 1.5
