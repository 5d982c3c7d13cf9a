"""Computes bounded draws for many short rows together; each row has a separate stream.

The numbers equal those of `Keystream.bounded_normal` and `bounded_laplace`, up to the last bits of float64, with one
bound on the errors of all rows. If short rows were computed one by one, most of the time would be spent on work that is
done once per row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedpriv.randomness.keystream import (
    WIDE,
    Floats,
    Keystream,
    RadiusLimits,
    bounded_radii,
    draw_odd_multiples,
    exponential_error,
    limit_logarithms,
    normal_error,
)

LONGEST = 8192
"""Largest size of a row. Longer rows are not computed faster together, and a row must be one block of radii and angles
(`keystream.BLOCK`).
"""


class BoundedRows(NamedTuple):
    """Rows of draws, with bounds on their distance from the real numbers that their streams determine.

    Attributes:
        draws: The draws, `[k, size]`; NaN where the error is not bounded.
        errors: Bound on the absolute error of the draws of each row that are not NaN, `[k, 1]`.
        largest: Bound on the absolute value of all these draws.
    """

    draws: Floats
    errors: Floats
    largest: float


def bounded_normal_rows(
    keys: Sequence[bytes], size: int, scales: Sequence[float], limits: RadiusLimits = WIDE
) -> BoundedRows:
    """Returns rows of `size` normal draws, one for each key, times their scales; see `Keystream.bounded_normal`."""
    words = words_of_rows(keys, size + size % 2)
    half = words.shape[1] // 2
    radius = draw_odd_multiples(words[:, :half])
    radius *= radius
    np.log(radius, out=radius)
    np.sqrt(np.negative(radius, out=radius), out=radius)
    least, largest = bounded_radii(radius, limits)
    radius *= _column(scales)

    angle = torch.from_numpy(words[:, half:] * (math.pi * 2.0**-63))
    draws = np.empty(words.shape)
    np.multiply(torch.cos(angle).numpy(), radius, out=draws[:, :half])
    np.multiply(torch.sin(angle).numpy(), radius, out=draws[:, half:])
    error = max(normal_error(least), normal_error(largest))
    return BoundedRows(draws[:, :size], _column(scales) * error, 1.01 * max(scales) * largest)


def bounded_laplace_rows(keys: Sequence[bytes], size: int, scales: Sequence[float]) -> BoundedRows:
    """Returns rows of `size` Laplace draws, one for each key, times their scales; see `Keystream.bounded_laplace`."""
    logs = np.abs(draw_odd_multiples(words_of_rows(keys, 2 * size)))
    np.log(logs, out=logs)
    largest = limit_logarithms(logs)
    logs *= -_column(scales)
    draws: Floats = logs[:, :size] - logs[:, size:]
    error = 2 * exponential_error(largest) + 1.01 * 2.0**-53 * largest
    return BoundedRows(draws, _column(scales) * error, 1.01 * max(scales) * largest)


def words_of_rows(keys: Sequence[bytes], size: int) -> NDArray[np.int64]:
    """Returns the first words of each key's stream, `[k, size]`."""
    words = np.empty((len(keys), size), "<i8")
    for key, row in zip(keys, words, strict=True):
        Keystream(key).fill(row)
    return words


def _column(scales: Sequence[float]) -> Floats:
    return np.array(scales, dtype=np.float64)[:, None]
