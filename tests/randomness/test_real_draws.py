"""float64 draws are as near to the real numbers of their stream as the proof in docs/design/0012 says."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats

from fedpriv.errors import PrivacyError
from fedpriv.randomness import keystream, real_draws
from fedpriv.randomness.keystream import BLOCK, Keystream
from fedpriv.randomness.real_draws import LAPLACE, NORMAL, LeadingBits, box_muller, real_laplace, real_normal

KEY = bytes(range(32))


def number(end: Any) -> mpmath.mpf:
    with mpmath.workprec(400):
        return +mpmath.mpf(end)


def distance(interval: tuple[Any, Any], draw: float) -> float:
    """The largest distance of a draw from a number of the interval."""
    with mpmath.workprec(400):
        return float(max(abs(number(end) - draw) for end in interval))


@pytest.mark.parametrize("size", [1, 2, 7, 999, 70_001])
def test_normal_draws_are_near_the_real_ones_in_every_position(size: int):
    draws = Keystream(KEY).bounded_normal(size, 1.0)
    plain = Keystream(KEY).standard_normal(size)
    assert np.array_equal(draws[~np.isnan(draws)], plain[~np.isnan(draws)])
    indices = {*range(0, size, max(size // 500, 1)), size - 1, min(size - 1, BLOCK - 1), min(size - 1, BLOCK)}
    for index in indices:
        interval = real_normal(KEY, size, index, 0)
        assert interval is not None and not distance(interval, draws[index]) > 2.0**-48


@pytest.mark.parametrize("size", [1, 8, 70_001])
def test_laplace_draws_are_near_the_real_ones_in_every_position(size: int):
    stream = Keystream(KEY)
    draws = stream.bounded_exponential(size, 1.0) - stream.bounded_exponential(size, 1.0)
    for index in {*range(0, size, max(size // 500, 1)), size - 1}:
        interval = real_laplace(KEY, size, index, 0)
        assert interval is not None and not distance(interval, draws[index]) > 2.0**-46


@pytest.mark.parametrize("draw", [real_normal, real_laplace])
def test_further_bits_shrink_the_interval_and_stay_inside(draw: Callable[..., Any]):
    for index in range(50):
        wide = draw(KEY, 100, index, 0)
        for extra in (1, 2, 5):
            narrow = draw(KEY, 100, index, extra)
            assert number(wide[0]) <= number(narrow[0]) < number(narrow[1]) <= number(wide[1])
            assert number(narrow[1]) - number(narrow[0]) < 2.0 ** (-50 - 60 * extra)
            wide = narrow


def test_further_bits_are_new_and_fair():
    """No word has the further bits of another one, nor are they words of the stream; half of them are ones."""
    bits = [real_draws._leading_bits(KEY, word, 1).number & (2**64 - 1) for word in range(2000)]
    words = Keystream(KEY).words(20_000)
    assert len({*bits}) == 2000 and not {*bits} & {int(word) % 2**64 for word in words}
    ones = sum(int.bit_count(number) for number in bits)
    assert stats.binomtest(ones, 64 * 2000).pvalue > 1e-4


# the bound of the proof, for words that are chosen to be bad


def words_of(radius: float) -> int:
    """A word whose radius is about this."""
    return int(math.exp(-(radius**2) / 2) * 2.0**63)


RADII = [
    *(
        words_of(r) + step
        for r in (2.0**-9.99, 2.0**-9, 0.01, 0.5, 1.0, 3.0, 5.0, 5.45, 5.499)
        for step in range(-3, 4)
    ),
    *(-words_of(r) for r in (2.0**-9.99, 1.0, 5.499)),
    2**63 - 2**20,
    2**62 + 1,
]
STEPS = (0, 1, 3, 2**9 + 1, 2**10 - 1, 2**30 + 7, 2**55 + 1)
ANGLES = [
    *(quarter * 2**62 + step for quarter in (-2, -1, 0, 1) for step in STEPS),
    2**63 - 1,
    2**63 - 2**9,
    2**61,
    2**61 + 12345,
    -(2**61),
]


def adversarial_errors() -> list[float]:
    radii, angles = (axis.ravel() for axis in np.meshgrid(np.array(RADII, np.int64), np.array(ANGLES, np.int64)))
    draws = np.empty(2 * len(radii))
    keystream._normal_pairs(np.concatenate([radii, angles]), draws, 1.0)
    errors = list[float]()
    for index, draw in enumerate(draws.tolist()):
        pair = index % len(radii)
        first, second = LeadingBits(int(radii[pair]), 63), LeadingBits(int(angles[pair]), 63)
        interval = box_muller(first, second, is_cosine=index < len(radii))
        assert interval is not None
        if not math.isnan(draw):
            assert abs(draw) <= NORMAL.largest
            errors.append(distance(interval, draw))
    assert len(errors) > 0.8 * len(draws)
    return errors


def test_the_bound_holds_for_adversarial_words_and_a_smaller_one_does_not():
    errors = adversarial_errors()
    assert max(errors) <= NORMAL.error
    assert max(errors) > NORMAL.error / 64, "the test is too weak to find a bound that is too small"


def test_draws_without_a_bound_are_no_numbers():
    words = np.array([2**63 - 1, -(2**63), 1, 0, words_of(2.0**-11), words_of(5.6), words_of(1.0)], np.int64)
    draws = np.empty(2 * len(words))
    keystream._normal_pairs(np.concatenate([words, np.full(len(words), 12345, np.int64)]), draws, 1.0)
    assert [math.isnan(draw) for draw in draws[: len(words)].tolist()] == [True] * 6 + [False]
    stream = Keystream(KEY)
    plain = Keystream(KEY).standard_exponential(3_000_000)
    draws = stream.bounded_exponential(3_000_000, 1.0)
    assert np.isnan(draws).sum() == (plain > 14.5).sum() > 0
    assert np.array_equal(draws[plain <= 14.5], plain[plain <= 14.5])


def errors_of_many(size: int, seed: int) -> tuple[float, float]:
    """Largest errors of normal and of exponential draws against the processor's 80-bit arithmetic."""
    key = seed.to_bytes(32, "little")
    with np.errstate(all="ignore"):
        words = Keystream(key).words(size).copy()
        half = size // 2
        uniform = (words[:half] | 1).astype(np.longdouble) * np.longdouble(2) ** -63
        radius = np.sqrt(-2 * np.log(np.abs(uniform)))
        pi = np.longdouble("3.14159265358979323846264338327950288")
        angle = words[half:].astype(np.longdouble) * (pi * np.longdouble(2) ** -63)
        exact = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
        # what further bits may change
        bits = np.longdouble(2) ** -63 * (1 / (np.abs(uniform) * radius) + pi * radius)
        draws = np.empty(size)
        keystream._normal_pairs(words, draws, 1.0)
        normal = float(np.nanmax(np.abs(draws - exact) + np.concatenate([bits, bits])))
        exponentials = Keystream(key).bounded_exponential(half, 1.0)
        bits = np.longdouble(2) ** -63 / np.abs(uniform)
        exponential = float(np.nanmax(np.abs(exponentials + np.log(np.abs(uniform))) + bits))
    return normal, exponential


LONG = np.finfo(np.longdouble).nmant >= 63


@pytest.mark.skipif(not LONG, reason="long double has no more bits than double here")
@pytest.mark.parametrize("blocks", [8, pytest.param(160, marks=pytest.mark.slow)])
def test_the_bound_holds_for_ten_million_draws(blocks: int):
    errors = [errors_of_many(BLOCK, seed) for seed in range(blocks)]  # 160 of 65 536
    assert max(normal for normal, _ in errors) <= NORMAL.error
    assert 2 * max(exponential for _, exponential in errors) <= LAPLACE.error


def test_functions_that_are_less_exact_are_found(monkeypatch: pytest.MonkeyPatch):
    real_draws.check_functions()
    real_draws.check_functions.cache_clear()
    cos = torch.cos
    monkeypatch.setattr(torch, "cos", lambda angle: cos(angle + 2.0**-48))
    with pytest.raises(PrivacyError, match=r"torch\.cos differs"):
        real_draws.check_functions()
    monkeypatch.undo()
    real_draws.check_functions()
