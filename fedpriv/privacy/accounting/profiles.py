"""Computes the privacy curves of one event without its sampling, which are the logarithms of delta at each epsilon ``u
>= 0``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedpriv.privacy.accounting import mixtures
from fedpriv.privacy.accounting.events import Event
from fedpriv.privacy.accounting.gaussian import log_delta
from fedpriv.privacy.accounting.orders import ORDERS

Array = NDArray[np.float64]


def log_profile(event: Event, u: Array) -> Array:
    """Returns the curve for the release with the drawn units against the release without them."""
    if event.group > 1:
        return mixtures.log_forward(event, u)
    if event.law == "gaussian":
        return log_delta(1 / event.noise, u)
    if event.law == "laplace":
        with np.errstate(divide="ignore"):
            return np.log(-np.expm1(np.minimum((u - 1 / event.noise) / 2, 0.0)))
    # zero-concentrated privacy: the best of the deltas that the Rényi divergences prove
    order = ORDERS[:, None]
    rho = 1 / (2 * event.noise**2)
    bound = (order - 1) * (order * rho - u + np.log1p(-1 / order)) - np.log(order)
    return np.minimum(bound.min(0), 0.0)


def log_profile_back(event: Event, u: Array) -> Array:
    """Returns the curve for the release without the drawn units against the release with them.

    It differs from `log_profile` only for groups.
    """
    if event.group > 1:
        return mixtures.log_backward(event, u)
    return log_profile(event, u)
