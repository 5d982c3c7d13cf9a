"""Sums of several Laplace draws are differences of Gamma draws, and float64 is as near to them as its bounds say."""

from __future__ import annotations

import hashlib
import math

import mpmath
import numpy as np
import pytest
from scipy import stats

from fedpriv.errors import PrivacyError
from fedpriv.randomness import gamma_draws
from fedpriv.randomness.gamma_draws import bounded_laplace_sums, laplace_sums, real_laplace_sum
from fedpriv.randomness.keystream import Keystream

SIZE = 5000  # more than a block
SHAPES = [1.0000000000000002, 1.7, 50.0, 4000.0]
rng = np.random.default_rng(3)


def key_of(number: int) -> bytes:
    return hashlib.sha256(b"gamma %d" % number).digest()


def candidate(radius: int, angle: int, uniform: int, shape: float) -> tuple[bool, mpmath.mpf]:
    """The definition, of the middle of each word: whether the candidate is accepted, and which draw it would be."""
    with mpmath.workprec(250):
        x = mpmath.sqrt(-2 * mpmath.log(mpmath.mpf(abs(radius | 1)) / 2**63))
        x *= mpmath.cos(mpmath.pi * (mpmath.mpf(angle) + 0.5) / 2**63)
        d = mpmath.mpf(shape) - mpmath.mpf(1) / 3
        root = 1 + x / mpmath.sqrt(9 * d)
        if root <= 0:
            return False, root
        log_u = mpmath.log(mpmath.mpf(abs(uniform | 1)) / 2**63)
        return bool(log_u < x**2 / 2 + d * (1 - root**3 + 3 * mpmath.log(root))), d * root**3


def draw_by_definition(key: bytes, size: int, index: int, shape: float) -> mpmath.mpf:
    """A draw from the words of its stream, one after the other."""
    first = index // 4096 * 4096
    padded = -(-size // 8) * 8
    length = min(4096, padded - first)
    sides = []
    for side in (0, 1):
        for number in range(50):
            start = number * 6 * padded + 6 * first
            words = Keystream(key, start).words(6 * length).reshape(2, 3, length)
            is_accepted, draw = candidate(*(int(word) for word in words[side, :, index - first]), shape)
            if is_accepted:
                sides.append(draw)
                break
    return sides[0] - sides[1]


@pytest.mark.parametrize("shape", SHAPES)
def test_gamma_draws_follow_distribution(shape: float) -> None:
    blocks = [
        gamma_draws._gamma_block(key_of(number), gamma_draws._Words.in_block(4096, 0), shape)[0] for number in range(25)
    ]
    for side in (0, 1):
        draws = np.concatenate([block[side] for block in blocks])
        assert stats.kstest(draws[np.isfinite(draws)], stats.gamma(shape).cdf).pvalue > 1e-4
    correlation = np.corrcoef(np.nan_to_num(np.concatenate(blocks, 1)))[0, 1]
    assert abs(correlation) < 5 / math.sqrt(25 * 4096)


def test_laplace_sum_shape_near_one_is_laplace() -> None:
    draws = np.concatenate([laplace_sums(key_of(number), 20_000, 1 + 2.0**-52) for number in range(5)])
    assert stats.kstest(draws, stats.laplace.cdf).pvalue > 1e-4


@pytest.mark.parametrize("shape", SHAPES)
def test_float64_laplace_sum_error_within_bound(shape: float) -> None:
    """Against the definition, and so is the interval of multiple precision, which is far narrower."""
    key = key_of(7)
    draws, error, largest = bounded_laplace_sums(key, SIZE, shape, 0.7)
    assert np.nanmax(np.abs(draws)) <= largest
    ratios = []
    for index in [0, 1, 4095, 4096, SIZE - 1, *rng.integers(SIZE, size=60).tolist()]:
        exact = draw_by_definition(key, SIZE, index, shape)
        with mpmath.workprec(250):
            ratios.append(float(abs(mpmath.mpf(0.7) * exact - float(draws[index]))) / error)
            interval = real_laplace_sum(key, SIZE, index, 1, shape)
            assert interval is not None
            lower, upper = (+mpmath.mpf(end) for end in interval)
            # the definition above takes the middle of the first words
            assert abs((lower + upper) / 2 - exact) < 1e-13 * max(shape, 1) and upper - lower < 1e-25 * shape
    assert 1e-4 < max(ratios) <= 1


def words_near_boundary(shape: float, count: int) -> list[tuple[int, int, int]]:
    """Candidates that are accepted or refused by a hair, also with small roots."""
    cases = []
    c = 1 / math.sqrt(9 * (shape - 1 / 3))
    while len(cases) < count:
        radius, angle = (int(word) for word in rng.integers(-(2**63), 2**63, size=2))
        least = 1 - 2.0 ** -rng.integers(1, 20)
        length = math.sqrt(-2 * math.log(abs(radius | 1) / 2**63))
        if len(cases) % 2 and least < c * length:  # a root of 1 - least
            angle = round(math.acos(-least / (c * length)) / math.pi * 2**63)
        with mpmath.workprec(250):
            x = length * mpmath.cos(mpmath.pi * mpmath.mpf(angle) / 2**63)
            root = 1 + c * x
            if root <= 0:
                continue
            border = x**2 / 2 + (mpmath.mpf(shape) - 1 / 3) * (1 - root**3 + 3 * mpmath.log(root))
            if not -19 < border < -1e-6:
                continue
            uniform = int(mpmath.exp(border) * 2**63)
        for power in range(1, 45, 2):
            cases += [(radius, angle, uniform + 2**power), (radius, angle, uniform - 2**power)]
    return [words for words in cases if 0 < words[2] < 2**63]


def wrong_decisions(shape: float) -> tuple[int, int]:
    """How many candidates are accepted or refused by mistake, and how many are left open; one at a time."""
    wrong, undecided = 0, 0
    for radius, angle, uniform in words_near_boundary(shape, 1200):
        _, is_accepted, is_refused, _ = gamma_draws._candidates(
            *(np.array([word], dtype=np.int64) for word in (radius, angle, uniform)), shape
        )
        is_right, _ = candidate(radius, angle, uniform, shape)
        wrong += bool(is_accepted[0]) != is_right and bool(is_accepted[0] or is_refused[0])
        undecided += not (is_accepted[0] or is_refused[0])
    return wrong, undecided


@pytest.mark.parametrize("shape", [1.0, 3.0, 1000.0])
def test_gamma_rejection_decisions_correct(shape: float) -> None:
    wrong, undecided = wrong_decisions(shape)
    assert wrong == 0
    assert undecided > 20


@pytest.mark.parametrize("shape", [1.0, 1000.0])
def test_gamma_bound_too_small_detected(shape: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gamma_draws, "_UNIT", 2.0**-62)
    for name in ("normal_error", "exponential_error"):
        monkeypatch.setattr(gamma_draws, name, lambda size: 2.0**-62)
    assert wrong_decisions(shape)[0] > 0


def test_laplace_sums_resolve_undecided_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """With limits so narrow that a quarter of the candidates have no bound."""
    key, expected = key_of(9), bounded_laplace_sums(key_of(9), 100, 1.7, 1.0).draws
    monkeypatch.setattr(gamma_draws, "_LIMITS", gamma_draws.RadiusLimits(0.7, 2.5))
    assert 20 < np.isnan(bounded_laplace_sums(key, 100, 1.7, 1.0).draws).sum() < 90
    assert np.abs(laplace_sums(key, 100, 1.7) - expected).max() < 1e-12


def test_laplace_sums_without_more_bits_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gamma_draws, "_LIMITS", gamma_draws.RadiusLimits(0.7, 0.8))
    monkeypatch.setattr(gamma_draws, "real_laplace_sum", lambda *_: None)
    with pytest.raises(PrivacyError, match="used up all its random words"):
        laplace_sums(key_of(9), 100, 1.7)
