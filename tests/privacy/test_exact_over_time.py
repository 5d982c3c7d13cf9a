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
from fedpriv.privacy.correlated import invert_column as correlated_inverse
from fedpriv.privacy.exact_over_time import CorrelatedRows, UnitNoise, bound_band_error, bound_buffer_error
from fedpriv.privacy.exact_rounding import add_and_round
from fedpriv.privacy.inverse_column import inverse_column
from fedpriv.privacy.mechanisms import add_noise
from fedpriv.privacy.noise_history import NoiseHistory
from fedpriv.privacy.record import Record
from fedpriv.randomness.keystream import RadiusLimits
from fedpriv.randomness.real_draws import real_normal
from fedpriv.randomness.streams import Randomness

RANDOM, DIM, ROUNDS = Randomness(secret_seed=7), 100, 5
SCALES = [1.3, 0.004]
FACTORS = {
    "short": Factor((0.5, 0.25)),
    "growing": Factor((-1.5, 0.9, 0.3)),
    "long": Factor(tuple(0.4 / (k + 1) for k in range(20))),
    "none": Factor(),
    "buffered": Factor((), (0.3, 0.2, 0.05), (0.99, 0.6, 0.0)),
    "buffered, growing": Factor((), (2.5, 1.0), (0.9, 0.3)),
}
RECORD = Record(0, "gradient", 0, "gaussian", 1.0, "sample", "add_remove")


def keys_of(round_index: int) -> list[bytes]:
    return [key.tobytes() for key in RANDOM.keys("noise", round_index, 0, [0, 1]).numpy()]


def inverse(factor: Factor, rounds: int = ROUNDS) -> mpmath.matrix:
    """C^-1 by a general solver."""
    with mpmath.workprec(400):
        c = mpmath.eye(rounds)
        for row in range(rounds):
            for back, number in enumerate(factor.band[:row], start=1):
                c[row, row - back] = mpmath.mpf(number)
            if factor.scales:
                for back in range(1, row + 1):
                    terms = zip(factor.scales, factor.decays, strict=True)
                    c[row, row - back] = mpmath.fsum(mpmath.mpf(s) * mpmath.mpf(d) ** (back - 1) for s, d in terms)
        return c**-1


def real_noise(factor: Factor, t: int, dim: int = DIM) -> list[list[mpmath.mpf]]:
    """The definition, number by number."""
    h = inverse(factor)
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
    return CorrelatedRows(history, inverse_column(history.factor), UnitNoise(RANDOM, 0, [0, 1], dim), t, SCALES)


def history_before(factor: Factor, t: int, dim: int = DIM) -> NoiseHistory:
    history = NoiseHistory(factor)
    for earlier in range(t):
        history.begin(earlier, 2, dim, torch.device("cpu"))
        noise_of(history, earlier, dim).approximate(slice(0, 2))
        history.finish(earlier)
    history.begin(t, 2, dim, torch.device("cpu"))
    return history


@pytest.mark.parametrize("factor", FACTORS.values(), ids=FACTORS)
@pytest.mark.parametrize("fineness", [20, 42])
def test_values_equal_rounded_real_sum(factor: Factor, fineness: int):
    """On a much finer grid than usual, float64 is often undecided, and each such number is repaired."""
    t = ROUNDS - 1
    grids = np.array([[2.0 ** (math.ceil(math.log2(scale)) - fineness)] for scale in SCALES])
    values = np.random.default_rng(1).normal(size=(2, DIM)) * np.array(SCALES)[:, None]
    result = np.empty_like(values)
    repaired = add_and_round(values, noise_of(history_before(factor, t), t), slice(0, 2), grids, result)
    expected = np.empty_like(values)
    with mpmath.workprec(400):
        for row, numbers in enumerate(real_noise(factor, t)):
            grid = mpmath.mpf(float(grids[row, 0]))
            for column, number in enumerate(numbers):
                steps = mpmath.floor((number + float(values[row, column])) / grid + 0.5)
                expected[row, column] = float(steps * grid)
    assert np.array_equal(result, expected)
    if fineness == 42:
        assert repaired > 3
    else:
        assert repaired < 3


@pytest.mark.parametrize("factor", FACTORS.values(), ids=FACTORS)
def test_float64_noise_error_within_bound(factor: Factor):
    history, ratios = NoiseHistory(factor), []
    for t in range(ROUNDS):
        history.begin(t, 2, DIM, torch.device("cpu"))
        draws, errors, largest = noise_of(history, t).approximate(slice(0, 2))
        history.finish(t)
        with mpmath.workprec(400):
            for row, numbers in enumerate(real_noise(factor, t)):
                distances = [float(abs(number - float(draws[row, k]))) for k, number in enumerate(numbers)]
                assert max(distances) <= errors[row, 0]
                ratios.append(max(distances) / errors[row, 0])
        assert np.abs(draws).max() <= largest
    assert max(ratios) > 2e-4  # a bound that is far too large would send every number to multiple precision


@pytest.mark.parametrize("name", ["short", "buffered"])
def test_unbounded_draw_later_rounds_unaffected(name: str, monkeypatch: pytest.MonkeyPatch):
    factor = FACTORS[name]
    monkeypatch.setattr(exact_over_time, "_LIMITS", RadiusLimits(2.0**-8, 1.5))  # the true ones are seldom passed
    history = history_before(factor, 3, 40)
    draws, errors, _ = noise_of(history, 3, 40).approximate(slice(0, 2))
    assert not np.isnan(draws).any()
    with mpmath.workprec(400):
        for row, numbers in enumerate(real_noise(factor, 3, 40)):
            assert max(float(abs(number - float(draws[row, k]))) for k, number in enumerate(numbers)) <= errors[row, 0]


class OneKey(Randomness):
    """Streams of a key that was searched for."""

    def __init__(self, key: bytes) -> None:
        super().__init__(secret_seed=1)
        object.__setattr__(self, "fixed", key)

    def key_bytes(self, *name: object) -> list[bytes]:
        return [self.fixed]


def test_far_tail_draw_error_within_bound():
    """A radius of 6.75, which its first word leaves open by 5000 times the bound on the other draws."""
    key, dim, positions = hashlib.sha256(b"row 420").digest(), 65536, [20821, 53589]
    history = NoiseHistory(Factor((0.5,)))
    history.begin(0, 1, dim, torch.device("cpu"))
    noise = CorrelatedRows(history, inverse_column(Factor((0.5,))), UnitNoise(OneKey(key), 0, [0], dim), 0, [1.0])
    draws, errors, _ = noise.approximate(slice(0, 1))
    with mpmath.workprec(400):
        for position in positions:
            exact = +mpmath.mpf(real_normal(key, dim, position, 4)[0])
            assert float(abs(exact - float(draws[0, position]))) <= errors[0, 0] < 1e-13


@pytest.mark.parametrize("factor", FACTORS.values(), ids=FACTORS)
def test_inverse_column_equals_general_solver(factor: Factor):
    column, exact = inverse_column(factor), inverse(factor)
    with mpmath.workprec(400):
        for t in range(ROUNDS):
            lower, upper = (+mpmath.mpf(end) for end in column.number(t))
            assert lower <= upper
            assert abs(lower - exact[t, 0]) < 1e-100
        total = float(mpmath.fsum(abs(exact[t, 0]) for t in range(ROUNDS)))
    assert total <= column.absolute_sum(ROUNDS) <= total * 1.00001


def test_unbounded_inverse_error_infinite():
    assert bound_band_error((1e6, 1e6), math.inf, 1e-13, 5.0, 1e30)[0] == math.inf
    error, size = bound_band_error((0.5,), 2.0, 1e-13, 5.0, 10.0)
    assert 2e-13 < error < 3e-13
    assert size == pytest.approx(10.1)
    assert inverse_column(Factor((-1000.0,))).absolute_sum(200) == math.inf


def test_inverse_column_precise_over_4000_rounds():
    """Intervals that widen from round to round would hold nothing after some 1500 rounds of these matrices."""
    for factor in (fp.BSR(32).factor(4000, 1), fp.BLT(4).factor(4000, 1)):
        column = inverse_column(factor)
        with mpmath.workprec(700):
            lower, upper = (+mpmath.mpf(end) for end in column.number(3999))
            assert 0 < upper - lower < mpmath.mpf(2) ** -600
        assert column.absolute_sum(4000) < 3
        by_scipy = correlated_inverse(factor.column(4000))
        assert column.absolute_sum(4000) == pytest.approx(float(np.abs(by_scipy).sum()), rel=1e-9)


def test_buffer_errors_accumulate_by_decay():
    """A buffer that forgets nothing carries its rounding error into all later rounds."""
    few, many = (
        bound_buffer_error(Factor((), (0.5,), (0.9999,)), rounds, 2.0, 0.0, 5.0, [30.0])[0] for rounds in (1, 100)
    )
    assert many > 30 * few
    short = [bound_buffer_error(Factor((), (0.5,), (0.0,)), rounds, 2.0, 0.0, 5.0, [5.0])[0] for rounds in (1, 100)]
    assert short[0] <= short[1] <= 1.01 * short[0]


@pytest.mark.parametrize("factor", [Factor((0.5, 0.25)), Factor((), (0.3, 0.2), (0.9, 0.1))], ids=["band", "buffers"])
def test_releases_with_extra_shares_rounded_exactly(factor: Factor, monkeypatch: pytest.MonkeyPatch):
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

    history = NoiseHistory(factor)
    values = [released(history, t) for t in range(4)]
    assert calls == [0, 1, 2, 3]
    # another process begins C anew: its first round has the noise of that round alone
    restarted = NoiseHistory(factor)
    assert not torch.equal(released(restarted, 3), values[3])
    assert restarted.first == 3
    assert torch.equal(released(NoiseHistory(factor), 0), values[0])
    deviations = torch.stack(values).std() / (2 * math.sqrt(1.7))
    assert 0.8 < float(deviations) < 1.5


def test_buffers_within_bounds():
    """Also in the seven of eight rounds without a check; the bounds are less than 10 times too large."""
    factor = Factor((), (0.3, 0.2, 0.05), (0.999, 0.6, 0.0))
    history, generator = NoiseHistory(factor), torch.Generator().manual_seed(3)
    rows, reached = slice(0, 3), np.zeros(3)
    for t in range(40):
        history.begin(t, 3, 500, torch.device("cpu"))
        unit = torch.randn(3, 500, dtype=torch.float64, generator=generator)
        bounds = history.largest_in_buffers(rows, history.filtered(unit, rows, t), t)
        history.finish(t)
        reached = np.maximum(reached, history._state.abs().amax((1, 2)).numpy())
        assert (np.array(bounds) >= reached).all()
    assert (np.array(bounds) < 10 * reached).all()
