"""Draws are what the cipher's published bits say, and follow their laws far into the tails."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from fedpriv.randomness import keystream
from fedpriv.randomness import streams as randomness
from fedpriv.randomness.keystream import Keystream, uniform_below

ZERO = bytes(32)
# RFC 8439, appendix A.1, test vectors 1 and 2: blocks 0 and 1 of the zero key and nonce
PUBLISHED = bytes.fromhex(
    "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
    "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
    "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
)
LAWS = {
    "uniform": (lambda s, n: s.random(n), stats.uniform),
    "normal": (lambda s, n: s.standard_normal(n), stats.norm),
    "exponential": (lambda s, n: s.standard_exponential(n), stats.expon),
    "laplace": (lambda s, n: randomness.laplace(s, n).numpy(), stats.laplace),
}


def test_keystream_words_equal_rfc8439() -> None:
    stream = Keystream(ZERO)
    in_two_parts = np.concatenate([stream.words(3), stream.words(13)])
    assert in_two_parts.astype("<i8").tobytes() == PUBLISHED


def test_uniform_draw_uses_upper_53_bits() -> None:
    words = [int.from_bytes(PUBLISHED[i : i + 8], "little") for i in range(0, 128, 8)]
    assert Keystream(ZERO).random(16).tolist() == [(word >> 11) / 2**53 for word in words]


@pytest.mark.parametrize("size", [1, 2, 7, 16, 65_536, 65_537, 70_001])
def test_normal_draws_equal_documented_formula(size: int) -> None:
    got, words = Keystream(ZERO).standard_normal(size), Keystream(ZERO).words(size + 1).tolist()
    assert len(got) == size
    even = size + size % 2
    for place in {0, min(1, size - 1), size // 2, size - 1, min(40_000, size - 1), min(65_535, size - 1)}:
        start = place - place % 65_536
        half = min(65_536, even - start) // 2
        pair = (place - start) % half
        u = abs(words[start + pair] | 1) / 2**63
        angle = 2 * math.pi * words[start + half + pair] / 2**64
        wave = math.cos(angle) if place - start < half else math.sin(angle)
        assert got[place] == pytest.approx(math.sqrt(-2 * math.log(u)) * wave, rel=1e-9, abs=1e-12)


def test_normal_draws_extreme_words_finite() -> None:
    """The largest draw exceeds 9.3 standard deviations."""
    radii, angles = np.meshgrid([0, -1, 1, -(2**63), 2**63 - 1, 2**62], [0, 2**62, -(2**63), -(2**62)])
    draws = np.empty(2 * radii.size)
    keystream._normal_pairs(np.concatenate([radii.ravel(), angles.ravel()]).astype(np.int64), draws)
    assert np.isfinite(draws).all()
    assert np.abs(draws).max() == pytest.approx(math.sqrt(126 * math.log(2)), rel=1e-12)
    assert np.abs(draws).max() > 9.3


@pytest.mark.parametrize("law", LAWS)
def test_draws_follow_distribution(law: str) -> None:
    draw, expected = LAWS[law]
    draws = draw(Keystream(bytes(range(32))), 1_000_000)
    assert stats.kstest(draws, expected.cdf).pvalue > 1e-3
    assert float(np.mean(draws)) == pytest.approx(expected.mean(), abs=5 * expected.std() / math.sqrt(len(draws)))


def test_normal_tails_match_distribution() -> None:
    draws, n = Keystream(bytes(range(32))).standard_normal(4_000_000), 4_000_000
    for cut in (3.0, 4.0, 4.5):
        expected = n * stats.norm.sf(cut)
        for count in ((draws > cut).sum(), (draws < -cut).sum()):
            assert abs(count - expected) < 5 * math.sqrt(expected)


def test_permutation_is_uniform() -> None:
    stream = Keystream(ZERO)
    orders = [tuple(stream.permutation(3).tolist()) for _ in range(6000)]
    counts = [orders.count(order) for order in sorted(set(orders))]
    assert len(counts) == 6
    assert stats.chisquare(counts).pvalue > 1e-3
    assert sorted(stream.permutation(100).tolist()) == list(range(100))


def test_global_generators_unused() -> None:
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 - the generator that must not matter
    first = randomness.normal(Keystream(ZERO), 9)
    states = torch.get_rng_state(), np.random.get_state()[1].tolist()  # noqa: NPY002
    again = randomness.normal(Keystream(ZERO), 9)
    randomness.laplace(Keystream(ZERO), 9)
    assert torch.equal(first, again)
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == np.random.get_state()[1].tolist()  # noqa: NPY002


@pytest.mark.parametrize("rate", [0.0, 2.0**-60, 0.1, 1 / 3, 0.5, 1 - 2.0**-53, 1.0])
def test_below_rate_equals_uniform_comparison(rate: float) -> None:
    assert (Keystream(ZERO).below(rate, 4096) == (Keystream(ZERO).random(4096) < rate)).all()


def test_below_rate_at_exact_boundary() -> None:
    """The draws of the published bits themselves as rates: a draw is not below itself, and is below the next number."""
    for place, draw in enumerate(Keystream(ZERO).random(16)):
        assert not Keystream(ZERO).below(draw, 16)[place]
        assert Keystream(ZERO).below(np.nextafter(draw, 2), 16)[place]


@pytest.mark.parametrize("n", [3, 1000, 2**20 - 7])
def test_uniform_below_equals_scaled_word(n: int) -> None:
    """As Python's whole numbers have it, of the upper 53 bits of each word."""
    words = Keystream(bytes(range(32))).words(20_000)
    exact = [(((int(word) & (2**64 - 1)) >> 11) * n) >> 53 for word in words.tolist()]
    assert uniform_below(words, n).tolist() == exact
