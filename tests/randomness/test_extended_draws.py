"""Draws in extended precision are as near to the real ones as their bounds say, for ordinary words and for the ends."""

from __future__ import annotations

import hashlib
from itertools import product

import mpmath
import numpy as np
import pytest

from fedpriv.privacy.real_noise import WeightedDraws, compute_extended_sum
from fedpriv.randomness import extended_draws, normal_rows
from fedpriv.randomness.extended_draws import extended_normals
from fedpriv.randomness.real_draws import LeadingBits, box_muller, locate_normal_words, real_normal

KEYS = [hashlib.sha256(b"extended %d" % number).digest() for number in range(1500)]
SIZE = 70_001  # a block and a part of another

pytestmark = pytest.mark.skipif(not extended_draws.is_available(), reason="no long doubles of 64 bits")


def exact(number: np.longdouble) -> mpmath.mpf:
    upper = float(number)
    return mpmath.mpf(upper) + mpmath.mpf(float(number - np.longdouble(upper)))


def test_extended_draw_error_within_bound() -> None:
    ratios = []
    with mpmath.workprec(300):
        for index in (0, 40_000, 65_536, SIZE - 1):
            draws, errors = extended_normals(KEYS, SIZE, index)
            for key, draw, error in zip(KEYS, draws, errors, strict=True):
                real = +mpmath.mpf(real_normal(key, SIZE, index, 2)[0])
                ratios.append(float(abs(real - exact(draw))) / error)
    # where bits that the word leaves open decide, the bound is nearly reached: a smaller one would be found here
    assert 0.25 < max(ratios) <= 1
    assert np.isfinite(errors).all() and np.median(errors) < 100 * 2.0**-64


ENDS = [1, -1, 2**19, 2**21, 2**40, 2**62, -(2**62) + 1, 2**63 - 1, -(2**63), 2**63 - 2**50, 2**63 - 2**30]
ANGLES = [0, 1, -1, 2**61, 2**62, -(2**62), 2**62 + 1, 2**63 - 1, -(2**63), 3 * 2**60]


@pytest.mark.parametrize("is_cosine", [True, False])
def test_extended_draw_extreme_words_within_bound(is_cosine: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever further bits follow; draws that could be wrong by more than that have no bound."""
    index = 0 if is_cosine else SIZE - 1
    without_bound = 0
    cases = list(product(ENDS, ANGLES, (0, 2**64 - 1)))
    for radius, angle, bits in cases:
        words = {locate_normal_words(SIZE, index).radius: radius, locate_normal_words(SIZE, index).angle: angle}

        def leading(key: bytes, word: int, extra: int, words: dict[int, int] = words, bits: int = bits) -> LeadingBits:
            return LeadingBits((words[word] << 64 * extra) + bits * extra, 63 + 64 * extra)

        monkeypatch.setattr(extended_draws, "leading_bits", leading)
        (draw,), (error,) = extended_normals(KEYS[:1], SIZE, index)
        if not np.isfinite(error):
            without_bound += 1
            continue
        for further in (0, 2**64 - 1):
            parts = [LeadingBits((((word << 64) + bits) << 64) + further, 191) for word in (radius, angle)]
            with mpmath.workprec(300):
                real = +mpmath.mpf(box_muller(*parts, is_cosine=is_cosine)[0])
                assert float(abs(real - exact(draw))) <= error
    assert 0 < without_bound < len(cases) / 2


def test_extended_sum_error_within_bound() -> None:
    rng = np.random.default_rng(4)
    for count in (1, 7, 700):
        weights = rng.normal(size=count).astype(np.longdouble) * 10.0 ** rng.integers(-9, 3, size=count)
        total, error = compute_extended_sum(WeightedDraws(KEYS[:count], weights), SIZE, 77)
        with mpmath.workprec(300):
            terms = [
                exact(weight) * +mpmath.mpf(real_normal(key, SIZE, 77, 2)[0])
                for key, weight in zip(KEYS, weights, strict=False)
            ]
            distance = float(abs(mpmath.fsum(terms) - exact(total)))
        assert distance <= error < 2.0**-52 * float(np.abs(weights).sum())


def test_extended_draws_unavailable_returns_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without suitable long doubles, the nearest draw is found by other means and is the same."""
    try:
        for name, value in (("_LEAST_BITS", 200), ("WORST_UNITS", 0)):
            extended_draws.is_available.cache_clear()
            with monkeypatch.context() as patch:
                patch.setattr(extended_draws, name, value)
                assert extended_normals(KEYS[:1], SIZE, 0) is None
                # and the draw is known all the same
                nearest = normal_rows._nearest(KEYS[0], SIZE, 0, 1e-13)
            extended_draws.is_available.cache_clear()
            assert nearest == normal_rows._nearest(KEYS[0], SIZE, 0, 1e-13)
    finally:
        extended_draws.is_available.cache_clear()
