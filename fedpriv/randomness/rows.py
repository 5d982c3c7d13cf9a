"""Draws for many clients at once, one row for each, on the device of their keys.

On the CPU each row is drawn by its `Keystream`. On other devices all rows are drawn together from the same bits by
tensor operations, whose logarithms and cosines may differ from the CPU's in the last place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpriv.randomness import chacha
from fedpriv.randomness.keystream import BLOCK, Keystream
from fedpriv.randomness.streams import laplace, laplace_sum, normal


def may_draw(device: torch.device) -> bool:
    """Whether rows can be drawn on a device, and faster than on the CPU: it needs float64."""
    return device.type not in ("cpu", "mps")


def normal_rows(keys: Tensor, dim: int) -> Tensor:
    """Returns standard normal draws, `[k, dim]` in float64, from keys `[k, 8]`; see `Keystream.standard_normal`."""
    if keys.device.type == "cpu":
        return _draw_rows(keys, dim, lambda stream: normal(stream, dim))
    words = chacha.words(keys, dim + dim % 2)
    return torch.cat([_normal_pairs(block) for block in words.split(BLOCK, 1)], 1)[:, :dim]


def laplace_rows(keys: Tensor, dim: int) -> Tensor:
    """Returns draws of Laplace(1), `[k, dim]` in float64, from keys `[k, 8]`."""
    if keys.device.type == "cpu":
        return _draw_rows(keys, dim, lambda stream: laplace(stream, dim))
    first, second = (-_odd(half).abs_().log_() for half in chacha.words(keys, 2 * dim).split(dim, 1))
    return first - second


def bounded_normal_rows(keys: Tensor, scales: Sequence[float], dim: int) -> Tensor:
    """Returns normal draws of these deviations, `[k, dim]` in float64, from keys `[k, 8]` on the CPU.

    Their errors are bounded, or they are NaN; see `Keystream.bounded_normal`.
    """
    return _draw_scaled_rows(keys, scales, dim, lambda stream, scale: stream.bounded_normal(dim, scale))


def bounded_laplace_rows(keys: Tensor, scales: Sequence[float], dim: int) -> Tensor:
    """Returns Laplace draws of these scales, `[k, dim]` in float64, from keys `[k, 8]` on the CPU.

    Their errors are bounded, or they are NaN; see `Keystream.bounded_exponential`.
    """

    def draw(stream: Keystream, scale: float) -> NDArray[np.float64]:
        first = stream.bounded_exponential(dim, scale)
        first -= stream.bounded_exponential(dim, scale)
        return first

    return _draw_scaled_rows(keys, scales, dim, draw)


def _draw_scaled_rows(
    keys: Tensor, scales: Sequence[float], dim: int, draw: Callable[[Keystream, float], NDArray[np.float64]]
) -> Tensor:
    """Draws one row after another, each from its own stream and with its own scale."""
    if len(keys) == 1:
        return torch.from_numpy(draw(Keystream(keys.numpy().tobytes()), scales[0])).unsqueeze(0)
    rows = torch.empty(len(keys), dim, dtype=torch.float64)
    for row, key, scale in zip(rows.numpy(), keys.numpy(), scales, strict=True):
        row[:] = draw(Keystream(key.tobytes()), scale)
    return rows


def laplace_sum_rows(keys: Tensor, dim: int, amount: float) -> Tensor:
    """Returns sums of `amount` draws of Laplace(1), `[k, dim]` in float64, from keys `[k, 8]` on the CPU."""
    return _draw_rows(keys, dim, lambda stream: laplace_sum(stream, dim, amount))


def _draw_rows(keys: Tensor, dim: int, draw: Callable[[Keystream], Tensor]) -> Tensor:
    """Draws one row after another, each from its own stream."""
    if len(keys) == 1:
        return draw(Keystream(keys.numpy().tobytes())).unsqueeze(0)
    rows = torch.empty(len(keys), dim, dtype=torch.float64)
    for row, key in zip(rows, keys.numpy(), strict=True):
        row.copy_(draw(Keystream(key.tobytes())))
    return rows


def _normal_pairs(words: Tensor) -> Tensor:
    """As many draws as words, `[k, words]`: the first half of a block gives the radii, the second half the angles."""
    first, second = words.chunk(2, 1)
    radius = _odd(first).square_().log_().neg_().sqrt_()
    angle = second.double().mul_(math.pi * 2.0**-63)
    return torch.cat([radius * angle.cos(), radius * angle.sin()], 1)


def _odd(words: Tensor) -> Tensor:
    """Uniform on [-1, 1] without 0: odd multiples of `2**-63`."""
    return (words | 1).double().mul_(2.0**-63)
