"""Computes the exact privacy cost of Gaussian noise without sampling.

Gaussian mechanisms with ratios ``mu_t = sensitivity / deviation`` compose to one mechanism with ``mu^2 = sum mu_t^2``
(Dong, Roth, Su 2022, corollary 3.3). The privacy curve of this mechanism is known (Balle, Wang 2018, theorem 8).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import cast

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

__all__ = ["compute_epsilon", "compute_ratio", "find_root", "log_delta"]

Array = NDArray[np.float64]
_HUGE = 1e6  # there is hardly any noise, and rounding hides the curve
_SLACK = 1e-10  # relative; pushes the result of the root finder to the safe side


def log_delta(mu: float, epsilon: Array) -> Array:
    """Returns the logarithm of the smallest delta of a Gaussian mechanism with ratio ``mu``, at ``epsilon >= 0``."""
    upper = log_ndtr(mu / 2 - epsilon / mu)
    lower = epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    with np.errstate(divide="ignore"):
        return upper + np.log(-np.expm1(np.minimum(lower - upper, 0.0)))


@lru_cache(maxsize=4096)
def compute_epsilon(mu: float, delta: float) -> float:
    """Returns the smallest epsilon of a Gaussian mechanism with ratio ``mu`` at ``delta``; infinity if none."""
    if mu == 0:
        return 0.0
    if math.isinf(mu) or delta == 0:
        return math.inf
    if _gap(0.0, mu, delta) <= 0:
        return 0.0
    # beyond this point even the upper tail alone, exp(-x^2/2) / 2, is below delta
    high = mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta))
    if mu > _HUGE:
        return high * (1 + _SLACK)
    return find_root(lambda epsilon: _gap(epsilon, mu, delta), 0.0, high, 1e-13 * high) * (1 + _SLACK)


@lru_cache(maxsize=64)
def compute_ratio(epsilon: float, delta: float) -> float:
    """Returns the largest ratio ``mu`` with an epsilon of at most ``epsilon`` at ``delta``; 0 if there is none."""
    if delta == 0:
        return 0.0
    low, high = 0.0, 1.0
    while compute_epsilon(high, delta) <= epsilon:
        low, high = high, 2 * high
    return find_root(lambda mu: compute_epsilon(mu, delta) - epsilon, low, high, 1e-12 * high) * (1 - _SLACK)


def find_root(function: Callable[[float], float], low: float, high: float, tolerance: float) -> float:
    """Returns the point between ``low`` and ``high`` where a function changes its sign, to an absolute tolerance."""
    from scipy.optimize import brentq  # imported here: 36 MB that a run with a given noise multiplier does not need

    return cast(float, brentq(function, low, high, xtol=tolerance))


def _gap(epsilon: float, mu: float, delta: float) -> float:
    """Returns the logarithm of delta at `epsilon` minus the logarithm of the target's delta."""
    return float(log_delta(mu, np.asarray(epsilon))) - math.log(delta)
