"""Computes draws for many clients at once, with one row for each client, on the device of the keys.

On the CPU each row is drawn by its `Keystream`. On other devices all rows are drawn together from the same bits by
tensor operations. Logarithms and cosines may differ from the CPU's results in the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from fedpriv.randomness import chacha
from fedpriv.randomness.gamma_draws import laplace_sums
from fedpriv.randomness.keystream import BLOCK, Keystream
from fedpriv.randomness.streams import laplace, normal


def may_draw(device: torch.device) -> bool:
    """True if rows can be drawn on a device faster than on the CPU. The device must support float64."""
    return device.type not in ("cpu", "mps")


def normal_rows(keys: Tensor, dim: int) -> Tensor:
    """Returns standard normal draws, `[k, dim]` in float64, from keys `[k, 8]`; see `Keystream.standard_normal`."""
    if keys.device.type == "cpu":
        return _draw_rows(keys, dim, lambda stream: normal(stream, dim))
    words = chacha.compute_words(keys, dim + dim % 2)
    return torch.cat([_normal_pairs(block) for block in words.split(BLOCK, 1)], 1)[:, :dim]


def laplace_rows(keys: Tensor, dim: int) -> Tensor:
    """Returns draws of Laplace(1), `[k, dim]` in float64, from keys `[k, 8]`."""
    if keys.device.type == "cpu":
        return _draw_rows(keys, dim, lambda stream: laplace(stream, dim))
    first, second = (-_odd(half).abs_().log_() for half in chacha.compute_words(keys, 2 * dim).split(dim, 1))
    return first - second


def laplace_sum_rows(keys: Tensor, dim: int, amount: float) -> Tensor:
    """Returns sums of `amount` draws of Laplace(1), `[k, dim]` in float64, from keys `[k, 8]` on the CPU."""
    return torch.from_numpy(np.stack([laplace_sums(key.tobytes(), dim, amount) for key in keys.numpy()]))


def _draw_rows(keys: Tensor, dim: int, draw: Callable[[Keystream], Tensor]) -> Tensor:
    """Draws one row after another, each from a separate stream."""
    if len(keys) == 1:
        return draw(Keystream(keys.numpy().tobytes())).unsqueeze(0)
    rows = torch.empty(len(keys), dim, dtype=torch.float64)
    for row, key in zip(rows, keys.numpy(), strict=True):
        row.copy_(draw(Keystream(key.tobytes())))
    return rows


def _normal_pairs(words: Tensor) -> Tensor:
    """Returns as many draws as words, `[k, words]`. The first half of a block determines the radii, the second half the
    angles.
    """
    first, second = words.chunk(2, 1)
    radius = _odd(first).square_().log_().neg_().sqrt_()
    angle = second.double().mul_(math.pi * 2.0**-63)
    return torch.cat([radius * angle.cos(), radius * angle.sin()], 1)


def _odd(words: Tensor) -> Tensor:
    """Returns odd multiples of `2**-63` that are uniform on [-1, 1] without 0."""
    return (words | 1).double().mul_(2.0**-63)
