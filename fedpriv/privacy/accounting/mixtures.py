"""Privacy curves of Gaussian releases for a group of k units, where each unit is drawn independently with probability
q.

With probability ``w_j = Binomial(k, q)(j)``, j of the k units are drawn, and change the release by at most j
sensitivities. N(j) is noise with mean j:

* ``add_remove``: the data set contains all k units or none of them, ``sum_j w_j N(j)`` against ``N(0)``
  (Choquette-Choo, Ganesh, Steinke, Thakurta 2024, mixtures of Gaussians). The curves below are for the releases in
  which at least one unit is drawn (j >= 1).
* ``replace_one``: ``sum_j w_j N(j)`` against ``sum_j w_j N(-j)``. No shifts v_j, v'_j of norm j cost more: for a set A
  with ``N(0)(A) = Phi(z)`` and t >= 0

      P(A) - e^t Q(A) = w_0 (1 - e^t) Phi(z) + sum_j w_j [N(v_j)(A) - e^t N(v'_j)(A)]
                     <= w_0 (1 - e^t) Phi(z) + sum_j w_j [Phi(z + j/s) - e^t Phi(z - j/s)]

  by the lemma of Neyman and Pearson, with equality for a half line and shifts to both sides of it. For k = 1 this is
  the pair of Lebeda, Regehr, Kamath and Steinke (2025).

All likelihood ratios increase with x, so half lines attain each curve.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, log_ndtr

from fedpriv.privacy.accounting.events import Event

Array = NDArray[np.float64]
Weights = Sequence[tuple[int, float]]
_ALL, _NEGLIGIBLE = 64, -50.0  # groups with a term for each j; log weight of the j that larger groups lump
_STEPS = 80  # of the root finder, at most
_NEAR = 1e-9  # relative: a curve is flat where its half line is best, so that it is wrong by the square of this
_FINE, _STRIDE = 4096, 64


def log_forward(event: Event, u: Array) -> Array:
    """Returns ``log H_u(sum_j w_j N(j) || N(0))``, given that j is at least 1; ``u >= 0``."""
    weights = draws_given_any(event)
    s = event.noise
    x = _crossing(u, _first_reach(weights, u, s), lambda x: _ratio(weights, x, s))
    return _difference(_sum([w + log_ndtr((j - x) / s) for j, w in weights]), u + log_ndtr(-x / s))


def log_backward(event: Event, u: Array) -> Array:
    """Returns ``log H_u(N(0) || sum_j w_j N(j))``, given that j is at least 1; ``u >= 0``."""
    weights = draws_given_any(event)
    s = event.noise
    x = _crossing(-u, _first_reach(weights, -u, s), lambda x: _ratio(weights, x, s))
    return _difference(log_ndtr(x / s), u + _sum([w + log_ndtr((x - j) / s) for j, w in weights]))


def log_replaced(event: Event, t: Array) -> Array:
    """Returns ``log H_t(sum_j w_j N(j) || sum_j w_j N(-j))``, where j may also be 0; ``t >= 0``."""
    weights = all_draws(event)
    s = 2 * event.noise

    def loss(x: Array) -> tuple[Array, Array]:
        # the density of the denominator is the mirrored density of the numerator
        log_ratio, slope = _ratio(weights, x, s)
        mirrored_log_ratio, mirrored_slope = _ratio(weights, -x, s)
        return log_ratio - mirrored_log_ratio, slope + mirrored_slope

    # the denominator decreases with x, and is at most its value at 0
    reach = _first_reach(weights[1:], t + _ratio(weights, np.zeros(1), s)[0], s)
    x = _crossing(t, np.maximum(reach, 0.0), loss)
    return _difference(
        _sum([w + log_ndtr((j - x) / s) for j, w in weights]),
        t + _sum([w + log_ndtr((-j - x) / s) for j, w in weights]),
    )


def draws_given_any(event: Event) -> Weights:
    """Returns each possible number of drawn units, from 1, with its log probability given that at least one unit is
    drawn.
    """
    log_scale = -math.log(event.inclusion_rate)
    return [(j, log_w + log_scale) for j, log_w in all_draws(event)[1:]]


def all_draws(event: Event) -> Weights:
    """Returns each possible number of drawn units, from 0, with its log probability. Rare numbers are counted as if all
    k units were drawn.
    """
    k, rate = event.group, event.rate
    j = np.arange(k + 1)
    log_w = gammaln(k + 1) - gammaln(j + 1) - gammaln(k - j + 1) + j * math.log(rate) + (k - j) * math.log1p(-rate)
    if k <= _ALL:
        last = k
    else:
        last = max(int(np.flatnonzero(log_w > _NEGLIGIBLE)[-1]), 1)
    weights = list(zip(j[: last + 1].tolist(), log_w[: last + 1].tolist(), strict=True))
    if last == k:
        return weights
    return [*weights, (k, math.log(k) + float(log_w[last + 1 :].max()))]


def log_density(weights: Weights, x: Array, s: float, sign: int = 1) -> Array:
    """Returns the log density of ``sum_j w_j N(sign j)``, without the constant of a normal density of deviation s."""
    return _sum([w - (x - sign * j) ** 2 / (2 * s**2) for j, w in weights])


def _ratio(weights: Weights, x: Array, s: float) -> tuple[Array, Array]:
    """Returns the log ratio of the densities of ``sum_j w_j N(j)`` and ``N(0)`` at x, and its slope."""
    numbers = np.array([j for j, _ in weights], dtype=float)
    logs = np.array([w for _, w in weights])
    terms = (logs - numbers**2 / (2 * s**2))[:, None] + numbers[:, None] * (x / s**2)
    top = terms.max(0)
    shares = np.exp(terms - top)
    total = shares.sum(0)
    return top + np.log(total), numbers @ shares / total / s**2


def _first_reach(weights: Weights, loss: Array, s: float) -> Array:
    """Returns the point at which the first single term reaches this loss. The sum, which is larger, reaches the loss at
    or before this point.
    """
    return np.min([((loss - w) * s**2 + j * j / 2) / j for j, w in weights], axis=0)


def _crossing(loss: Array, right: Array, function: Callable[[Array], tuple[Array, Array]]) -> Array:
    """Returns the point at which an increasing function equals ``loss``, by Newton's method, and by bisection where it
    fails.
    """
    low = np.full(right.shape, -math.inf)
    high = right
    x = right
    # on a fine grid, start from the solution on a coarse one
    if len(loss) > _FINE:
        coarse = np.append(np.arange(0, len(loss) - 1, _STRIDE), len(loss) - 1)
        rising = 1 if loss[-1] > loss[0] else -1
        x = np.interp(rising * loss, rising * loss[coarse], _crossing(loss[coarse], right[coarse], function))
    for _ in range(_STEPS):
        value, slope = function(x)
        low = np.where(value < loss, x, low)
        high = np.where(value < loss, high, x)
        with np.errstate(divide="ignore", invalid="ignore"):
            guess = x - (value - loss) / slope
            middle = np.where(np.isfinite(low), (low + high) / 2, guess)
        following = np.where((guess > low) & (guess <= high), guess, middle)
        if np.abs(following - x).max(initial=0.0) <= _NEAR * (1 + np.abs(x).max(initial=0.0)):
            break
        x = following
    return x


def _sum(logs: Sequence[Array]) -> Array:
    """Returns the logarithm of a sum of exponentials."""
    terms = np.array(logs)
    top = terms.max(0)
    return top + np.log(np.exp(terms - top).sum(0))


def _difference(upper: Array, lower: Array) -> Array:
    """Returns the logarithm of ``e^upper - e^lower``."""
    with np.errstate(divide="ignore"):
        return upper + np.log(-np.expm1(np.minimum(lower - upper, 0.0)))
