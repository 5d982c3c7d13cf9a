"""The sensitivity of correlated noise against brute force over all rounds in which a unit may take part."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import pld_privacy_accountant
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm

from fedpriv.errors import ConfigError
from fedpriv.privacy.accounting import gaussian
from fedpriv.privacy.accounting.accountant import account
from fedpriv.privacy.correlated import (
    CorrelatedNoise,
    Factor,
    compute_row_variances,
    compute_sensitivity,
    compute_shares,
    invert_column,
)
from fedpriv.privacy.matrices import BLT, BSR, Banded
from fedpriv.privacy.record import Record

Triple = tuple[Factor, int, int]


def matrix_of(column: np.ndarray) -> np.ndarray:
    rounds = len(column)
    return np.array([[column[t - j] if t >= j else 0.0 for j in range(rounds)] for t in range(rounds)])


@lru_cache
def patterns(rounds: int, separation: int) -> list[tuple[int, ...]]:
    """All sets of rounds in which a unit may take part."""
    every = (p for size in range(1, rounds + 1) for p in combinations(range(rounds), size))
    return [p for p in every if all(b - a >= separation for a, b in pairwise(p))]


def brute(matrix: np.ndarray, separation: int) -> float:
    """Square of the largest norm, where every answer changes by 1 in the worst direction: sums of absolute values."""
    gram = np.abs(matrix.T @ matrix)
    return max(float(gram[np.ix_(p, p)].sum()) for p in patterns(len(matrix), separation))


def _numbers(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high, allow_subnormal=False)


@st.composite
def _decreasing(draw: st.DrawFn) -> Triple:
    rounds, separation = draw(st.integers(1, 8)), draw(st.integers(1, 5))
    if draw(st.booleans()):
        band = draw(st.lists(_numbers(0, 1), max_size=9))
        return Factor(tuple(sorted(band, reverse=True))), rounds, separation
    decays = draw(st.lists(_numbers(0, 0.99), min_size=1, max_size=3))
    return Factor((), tuple(1 / len(decays) for _ in decays), tuple(decays)), rounds, separation


@st.composite
def _within(draw: st.DrawFn) -> Triple:
    separation = draw(st.integers(1, 5))
    band = draw(st.lists(_numbers(-2, 2), max_size=separation - 1))
    return Factor(tuple(band)), draw(st.integers(1, 8)), separation


@st.composite
def _any(draw: st.DrawFn) -> Triple:
    band = draw(st.lists(_numbers(-2, 2), max_size=9))
    return Factor(tuple(band)), draw(st.integers(1, 8)), draw(st.integers(1, 5))


@settings(max_examples=300)
@given(_decreasing() | _within())
def test_sensitivity_equals_brute_force(case: Triple) -> None:
    """For decreasing columns and for bands within the separation."""
    factor, rounds, separation = case
    assert compute_sensitivity(*case) ** 2 == pytest.approx(
        brute(matrix_of(factor.column(rounds)), separation), rel=1e-10
    )


@settings(max_examples=200)
@given(_any())
@example((Factor((0.0, 0.0, 1.0)), 4, 2))  # the worst unit is in rounds 0 and 3, not in 0 and 2
@example((Factor((0.2, -0.9)), 5, 1))
def test_sensitivity_upper_bound_for_any_band(case: Triple) -> None:
    factor, rounds, separation = case
    found = compute_sensitivity(factor, rounds, separation) ** 2
    assert found >= brute(matrix_of(factor.column(rounds)), separation) * (1 - 1e-12)


@settings(max_examples=100)
@given(_decreasing() | _within() | _any())
def test_prefix_sensitivity_equals_leading_block(case: Triple) -> None:
    factor, rounds, separation = case
    over_time, whole = CorrelatedNoise(factor, separation), compute_shares(factor, 10, separation)
    told = sum(over_time.share(t) for t in range(rounds))
    assert told == pytest.approx(whole[:rounds].sum(), rel=1e-12)
    assert math.sqrt(told) == pytest.approx(compute_sensitivity(*case), rel=1e-12)


@settings(max_examples=100)
@given(_any(), st.integers(0, 2**32 - 1))
@example((Factor((0.0, 0.0, 1.0)), 4, 2), 1)
@example((Factor((0.0, 0.0, 1.0)), 4, 2), 2)
def test_unit_change_within_sensitivity(case: Triple, seed: int) -> None:
    factor, rounds, separation = case
    draw, matrix = np.random.default_rng(seed), matrix_of(factor.column(rounds))
    for allowed in patterns(rounds, separation):
        chosen = list(allowed)
        change = np.zeros((rounds, 3))
        change[chosen] = draw.normal(size=(len(chosen), 3))
        if draw.random() < 0.5:
            change[chosen] = change[chosen[0]]  # an example whose gradient is always the same
        change[chosen] /= np.linalg.norm(change[chosen], axis=1, keepdims=True)
        assert np.linalg.norm(matrix @ change) <= compute_sensitivity(*case) * (1 + 1e-12)


def test_hundred_participations_known_epsilon() -> None:
    """Ten bands of columns with norm 1, 1000 rounds, each unit in every tenth, deviation 1."""
    for matrix in (BSR(10), Banded(10), BSR(1)):
        factor = matrix.factor(1000, 10)
        column = np.linalg.norm(factor.column(1000))
        mu = compute_sensitivity(factor, 1000, 10) / column
        # the last columns are cut off by the end of the run, but not those of the first block
        assert mu == pytest.approx(10, rel=1e-9)
        assert gaussian.compute_epsilon(mu, 1e-5) == pytest.approx(91.817, abs=1e-3)


def test_independent_noise_charged_per_participation() -> None:
    """Of C = I opake 0.16.1 reports 4.377, as if each unit took part once; it does ten times, which costs 17.857."""
    (turns, once), plain = (100, 10), Record(0, "gradient", 0, "gaussian", 1.0, "sample", "add_remove")
    for rounds, epsilon in ((once, 4.377), (turns, 17.857)):
        records = [replace(plain, round=t, time=CorrelatedNoise(Factor(), 10, t % 10)) for t in range(rounds)]
        assert account(records, 1, 1e-5).epsilon == pytest.approx(epsilon, abs=1e-3)


def drawn(matrix: BSR | Banded | BLT, rounds: int, separation: int, rate: float, **changes: object) -> list[Record]:
    """Records of a run whose examples are drawn in secret from the block of each round, deviation 1 for a column."""
    factor = matrix.factor(rounds, separation)
    column = float(np.linalg.norm(factor.column(rounds)))
    facts: dict[str, Any] = {"query": "gradient", "index": 0, "mechanism": "gaussian", "noise_multiplier": column}
    facts |= {"unit": "sample", "relation": "add_remove", "sampling": "poisson", "rate": rate, **changes}
    time = CorrelatedNoise(factor, separation)
    return [Record(round=t, time=time.for_round(t), **facts) for t in range(rounds)]


def test_slot_sampling_known_epsilon() -> None:
    """As above, with a draw of rate 0.1 in each block: one hundred amplified answers (Choquette-Choo et al. 2023)."""
    event = PoissonSampledDpEvent(0.1, GaussianDpEvent(1.0))
    exact = pld_privacy_accountant.PLDAccountant().compose(event, 100).get_epsilon(1e-5)
    assert exact == pytest.approx(7.0466, abs=1e-3)
    for matrix in (BSR(10), Banded(10), BSR(1)):
        assert account(drawn(matrix, 1000, 10, 0.1), 1, 1e-5).epsilon == pytest.approx(exact, abs=1e-3)
    # up to any round: the first block has had as many turns as any
    for rounds in (1, 10, 11, 205):
        event_count = -(-rounds // 10)
        known = pld_privacy_accountant.PLDAccountant().compose(event, event_count).get_epsilon(1e-5)
        assert account(drawn(BSR(10), 1000, 10, 0.1)[:rounds], 1, 1e-5).epsilon == pytest.approx(known, rel=2e-3)


def test_slot_sampling_epsilon_increases_with_rate() -> None:
    whole = account(drawn(BSR(4), 40, 4, 1.0, sampling="full"), 1, 1e-5).epsilon
    found = [account(drawn(BSR(4), 40, 4, rate, relation="replace_one"), 1, 1e-5).epsilon for rate in (0.1, 0.5, 0.99)]
    assert 0 < found[0] < found[1] < found[2] < whole


@pytest.mark.parametrize("matrix", [BSR(5), BLT(2)], ids=str)
def test_slot_sampling_wide_band_raises(matrix: BSR | BLT) -> None:
    with pytest.raises(ConfigError, match="over at most 4 rounds, the number of blocks"):
        account(drawn(matrix, 40, 4, 0.1), 1, 1e-5)


@pytest.mark.parametrize("matrix", [BSR(8), Banded(8), BLT(3), BSR(64)], ids=str)
@pytest.mark.parametrize("separation", [1, 8, 20])
def test_epsilon_equals_numerical_gaussian(matrix: BSR | Banded | BLT, separation: int) -> None:
    """Against a two-point test between Gaussians, with scipy's distribution and root finder."""
    mu, delta = compute_sensitivity(matrix.factor(40, separation), 40, separation) / 3.7, 1e-5

    def gap(epsilon: float) -> float:
        return norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu) - delta

    assert gaussian.compute_epsilon(mu, delta) == pytest.approx(brentq(gap, 0, 200), rel=1e-6)


@pytest.mark.parametrize("matrix", [BSR(6), BSR(6, momentum=0.9, decay=0.99), Banded(6), BLT(2)], ids=str)
def test_inverse_column_and_noise_variance(matrix: BSR | Banded | BLT) -> None:
    factor = matrix.factor(30, 5)
    exact = np.linalg.inv(matrix_of(factor.column(30)))
    assert invert_column(factor.column(30)) == pytest.approx(exact[:, 0], abs=1e-12)
    assert compute_row_variances(factor, 30) == pytest.approx((exact**2).sum(1))


def test_banded_square_root_squared_equals_sums() -> None:
    factor = BSR(50, momentum=0.5, decay=0.9).factor(50, 5)
    matrix, at = matrix_of(factor.column(50)), np.arange(50)
    sums = matrix_of(0.9**at) @ matrix_of(0.5**at)
    assert matrix @ matrix == pytest.approx(sums, abs=1e-6)


def _errors(factor: Factor, rounds: int, separation: int) -> tuple[float, float]:
    """Of all iterates, and of the last one, where the noise is as large as the sensitivity."""
    steps = np.tril(np.ones((rounds, rounds))) @ np.linalg.inv(matrix_of(factor.column(rounds)))
    squared = (steps**2).sum(1) * compute_sensitivity(factor, rounds, separation) ** 2
    return float(squared.mean()), float(squared[-1])


@pytest.mark.parametrize(("rounds", "separation"), [(200, 20), (100, 100)])
def test_optimised_matrices_beat_square_root(rounds: int, separation: int) -> None:
    """The error here is computed with dense matrices, not with power series as in the optimiser."""
    independent = _errors(Factor(), rounds, separation)
    root = _errors(BSR(separation).factor(rounds, separation), rounds, separation)
    mean = _errors(Banded(separation).factor(rounds, separation), rounds, separation)
    last = _errors(Banded(separation, "last").factor(rounds, separation), rounds, separation)
    buffers = _errors(BLT(4).factor(rounds, separation), rounds, separation)
    assert mean[0] < root[0] < independent[0] / 4
    assert last[1] <= root[1] * (1 + 1e-9)  # of matrices with one participation the root is best for the last
    assert mean[0] <= last[0] * (1 + 1e-9) and last[1] <= mean[1] * (1 + 1e-9)
    assert buffers[0] < 1.15 * mean[0]


def test_invalid_factor_raises() -> None:
    for numbers in (
        {"band": (math.nan,)},
        {"band": (math.inf,)},
        {"scales": (1.0,)},
        {"scales": (-0.1,), "decays": (0.5,)},
        {"scales": (0.1,), "decays": (1.0,)},
        {"band": (0.5,), "scales": (0.1,), "decays": (0.5,)},
    ):
        with pytest.raises(ValueError, match="not a factor"):
            Factor(**numbers)
    with pytest.raises(ValueError, match="no block takes part"):
        CorrelatedNoise(Factor(), 0)
