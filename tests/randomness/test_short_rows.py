"""Many short rows that are drawn together are those of their streams, within their bound."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest

from fedpriv.randomness import keystream, short_rows
from fedpriv.randomness.keystream import BLOCK, Keystream
from fedpriv.randomness.real_draws import real_laplace, real_normal
from fedpriv.randomness.short_rows import LONGEST, bounded_laplace_rows, bounded_normal_rows

KINDS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "bounded_normal": (bounded_normal_rows, real_normal),
    "bounded_laplace": (bounded_laplace_rows, real_laplace),
}


def keys_of(count: int) -> list[bytes]:
    return [seed.to_bytes(32, "little") for seed in range(count)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 2, 7, 100, LONGEST])
def test_short_rows_within_bound_of_exact(kind: str, size: int):
    together, real = KINDS[kind]
    scales = [1.0, 3.7, 2.0**-30, 1e9]
    found = together(keys_of(4), size, scales)
    assert found.draws.shape == (4, size)
    assert found.errors.shape == (4, 1)
    assert np.abs(found.draws).max() <= found.largest
    for row, (key, scale) in enumerate(zip(keys_of(4), scales, strict=True)):
        alone = getattr(Keystream(key), kind)(size, scale)
        assert np.allclose(found.draws[row], alone.draws, rtol=0, atol=scale * 2.0**-45)
        assert found.errors[row, 0] >= alone.error  # one bound for all rows: that of the worst
        for column in {0, size // 2, size - 1}:
            with mpmath.workprec(400):
                ends = [scale * +mpmath.mpf(end) for end in real(key, size, column, 0)]
                furthest = float(max(abs(end - float(found.draws[row, column])) for end in ends))
            assert furthest <= found.errors[row, 0]
            assert furthest <= scale * 2.0**-46


def test_short_row_fits_one_block():
    assert LONGEST <= BLOCK


@pytest.mark.parametrize("kind", KINDS)
def test_short_rows_without_bound_are_nan(kind: str, monkeypatch: pytest.MonkeyPatch):
    """Other draws keep their values."""
    # the true limits are passed by some in a billion
    if kind == "bounded_normal":
        limits = [keystream.RadiusLimits(2.0**-13, 2.0)]
    else:
        limits = []
    before = KINDS[kind][0](keys_of(50), 100, [1.0] * 50)
    monkeypatch.setattr(keystream, "_LARGEST_EXPONENTIAL", 4.0)
    limited = KINDS[kind][0](keys_of(50), 100, [1.0] * 50, *limits)
    beyond = np.isnan(limited.draws)
    assert 0.01 < beyond.mean() < 0.2
    assert np.array_equal(limited.draws[~beyond], before.draws[~beyond])
    assert limited.largest < 4.1 < before.largest
    assert float(limited.errors.max()) < float(before.errors.max())


def test_short_row_bound_without_scale_detected():
    """The check of the first test fails where errors are not in the units of their rows."""
    found = bounded_normal_rows(keys_of(2), 100, [1.0, 1e9])
    furthest = 0.0
    for column in range(100):
        with mpmath.workprec(400):
            end = 1e9 * +mpmath.mpf(real_normal(keys_of(2)[1], 100, column, 0)[0])
            furthest = max(furthest, float(abs(end - float(found.draws[1, column]))))
    assert furthest > found.errors[0, 0]
    assert furthest < found.errors[1, 0]
    assert math.isclose(found.errors[1, 0], 1e9 * found.errors[0, 0])
    assert short_rows.normal_error(1.0) < found.errors[0, 0]
