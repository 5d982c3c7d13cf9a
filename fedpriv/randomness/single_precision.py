"""Computes standard normal draws in float32, with a bound on their distance from the real draws.

The draws are those of `Keystream.standard_normal`, from the same words. float32 keeps the first 24 bits of a word and
computes four times as fast as float64. docs/design/0012-exact-noise.md proves the bound.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpriv.errors import PrivacyError

Singles = NDArray[np.float32]
UNIT = 2.0**-24
LEAST_RADIUS, LARGEST_RADIUS = 2.0**-6, 4.0
"""Draws with another radius have no bound; five in ten thousand are outside."""
_WORST_LOGARITHM = 16  # units of 2^-24 by which a logarithm may err, relative to it
_WORST_DIRECTION = 8  # units by which a cosine or sine may err
_FIRST_BIT = np.float32(2.0**-63)
_ANGLE = np.float32(math.pi * 2.0**-63)


def _error(radius: float) -> float:
    """Returns the largest error of a draw of scale 1 with this radius, its product with a scale included; convex."""
    logarithm = 1.51 / radius + (_WORST_LOGARITHM / 2 + 1.1) * radius
    direction = (_WORST_DIRECTION + 9.5) * radius
    products = 3.1 * radius
    return 1.01 * UNIT * (logarithm + direction + products)


DRAW_ERROR = max(_error(LEAST_RADIUS), _error(LARGEST_RADIUS))
"""Bound on the error of all draws with a radius between the limits, relative to the scale."""


class SingleDraws(NamedTuple):
    """Normal draws in float32.

    Attributes:
        draws: The draws, `[k, 2 h]`: cosines before sines.
        inside: Whether the error of both draws of a pair is bounded, `[k, h]`.
    """

    draws: Singles
    inside: NDArray[np.bool_]


def normals_in_float32(words: NDArray[np.int64], scales: Singles) -> SingleDraws:
    """Returns normal draws times scales.

    Args:
        words: A block of words of each row's stream, `[k, 2 h]`; see `Keystream.standard_normal`.
        scales: Scale of each row, `[k, 1]`.
    """
    half = words.shape[1] // 2
    radius = words[:, :half].astype(np.float32)
    radius *= _FIRST_BIT
    radius *= radius
    with np.errstate(divide="ignore", invalid="ignore"):  # where the radius is not inside
        np.log(radius, out=radius)
        np.sqrt(np.negative(radius, out=radius), out=radius)
    inside = radius >= LEAST_RADIUS
    inside &= radius <= LARGEST_RADIUS
    radius *= scales
    angle = words[:, half:].astype(np.float32)
    angle *= _ANGLE
    draws = np.empty(words.shape, dtype=np.float32)
    np.cos(angle, out=draws[:, :half])
    np.sin(angle, out=draws[:, half:])
    draws[:, :half] *= radius
    draws[:, half:] *= radius
    return SingleDraws(draws, inside)


@cache
def check_single_functions() -> None:
    """Compares numpy's functions of float32 numbers with those of float64 numbers, at several thousand points.

    Raises:
        PrivacyError: If they differ by more than half of what the bound assumes.
    """
    uniforms = np.concatenate([np.geomspace(2.0**-24, 1, 4096), 1 - np.geomspace(2.0**-23, 0.5, 1024)])
    uniforms = uniforms.astype(np.float32)
    angles = np.linspace(-math.pi, math.pi, 4097).astype(np.float32)
    log = np.log(uniforms.astype(np.float64))
    log_differences = np.abs(np.log(uniforms) - log) / np.where(log == 0, 1.0, np.abs(log))
    differences = {
        "numpy.log": (log_differences, _WORST_LOGARITHM),
        "numpy.cos": (np.abs(np.cos(angles) - np.cos(angles.astype(np.float64))), _WORST_DIRECTION),
        "numpy.sin": (np.abs(np.sin(angles) - np.sin(angles.astype(np.float64))), _WORST_DIRECTION),
    }
    for name, (difference, worst) in differences.items():
        largest = float(difference.max())
        if not largest <= worst / 2 * UNIT:
            raise PrivacyError(
                f"{name} of float32 numbers differs from that of float64 numbers by {largest:.1e} on this machine, "
                "more than the noise allows, so nothing can be released. Install another build of numpy"
            )
