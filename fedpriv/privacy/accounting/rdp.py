"""Computes the Rényi differential privacy of events, which yields a quick bound that adds up over rounds.

Each event has a vector of Rényi divergences, one for each order in ``ORDERS``; vectors of independent releases add
(Mironov 2017). For events without sampling there are closed formulas. For sampled events the divergence is an integral
of the privacy curve,

    exp((a-1) D_a(P||Q)) = 1 + a (a-1) int_0^inf  e^{(a-1) t} H_t(P||Q) + e^{-a t} H_t(Q||P)  dt,

(Sason, Verdu 2016, with ``H_t`` the hockey-stick divergence at ``e^t``). All terms are positive, so the integral is
precise where the usual binomial sums lose precision. The integral holds for every order, and for every noise
distribution with a known privacy curve.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedpriv.privacy.accounting import mixtures
from fedpriv.privacy.accounting.events import MOST_LEVELS, Event, History, round_noise_levels
from fedpriv.privacy.accounting.orders import ORDERS
from fedpriv.privacy.accounting.profiles import log_profile, log_profile_back

Array = NDArray[np.float64]

_ORDER_RANGES = [(orders[0], orders[-1] + 1) for orders in np.array_split(np.arange(len(ORDERS)), 20)]
_ORDER_SLICES = [slice(int(first), int(last)) for first, last in _ORDER_RANGES]
_MAX_NODES = 6000
_FINE, _FEW = 0.0005, 100  # at best an epsilon .05 % larger; and curves of sampled levels, each of milliseconds
_LEAST_NOISE = 1e-6  # beyond it and its inverse sampling is not counted: no integral is right there, and none needed
_FIRST, _SECOND = ORDERS / (2 * ORDERS - 1), (ORDERS - 1) / (2 * ORDERS - 1)
_LOG_FIRST = np.log(_FIRST)
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)


def compute_epsilons(rdp: Array, delta: float) -> Array:
    """Returns the smallest epsilon that each row of Rényi divergences proves, ``[..., orders] -> [...]``.

    Source: Canonne, Kamath, Steinke 2020, proposition 12; zero by Bretagnolle-Huber when the divergence is tiny.
    """
    if delta == 0:
        return np.where((rdp == 0).all(-1), 0.0, math.inf)
    best = np.maximum((rdp + _toll(delta)).min(-1), 0.0)
    return np.where(-np.expm1(-rdp[..., 0]) < delta**2, 0.0, best)


def compute_allowance(epsilon: float, delta: float) -> Array:
    """Returns the largest divergences ``[orders]`` that prove ``epsilon``. It is sufficient if the divergence of one
    order is at most the number for this order.
    """
    if delta > 0:
        return epsilon - _toll(delta)
    return np.full(ORDERS.shape, -math.inf)


@lru_cache(maxsize=64)
def _toll(delta: float) -> Array:
    """Returns the terms that convert the divergence of each order to an epsilon at delta, read-only and cached."""
    toll = np.log1p(-1 / ORDERS) - (math.log(delta) + np.log(ORDERS)) / (ORDERS - 1)
    toll.flags.writeable = False
    return toll


def compute_total(history: History) -> Array:
    """Returns the Rényi divergences of a whole history ``[orders]``.

    If there are many noise levels with sampling, they are rounded to slightly less noise, because the curve of each
    level takes milliseconds.
    """
    sampled = {e: count for e, count in history.items() if e.selection != "full" and math.isfinite(e.noise)}
    width = _FINE
    rounded = round_noise_levels(sampled, width=width)
    while len(sampled) > MOST_LEVELS and len(rounded) > _FEW:
        width *= 2
        rounded = round_noise_levels(sampled, width=width)
    history = {event: history[event] for event in history if event not in sampled} | rounded
    plain = [event for event in history if event.law == "laplace" and event.selection == "full"]
    others = [event for event in history if event.law != "laplace" or event.selection != "full"]
    result = np.zeros(ORDERS.shape)
    for events in (plain, others):
        # in chunks, to bound the memory of long runs
        for start in range(0, len(events), 1024):
            chunk = events[start : start + 1024]
            result += np.array([history[event] for event in chunk]) @ compute_curves(chunk)
    return result


def compute_curves(events: Sequence[Event]) -> Array:
    """Returns the Rényi divergences of several events ``[events, orders]``."""
    if all(event.law == "laplace" and event.selection == "full" for event in events):
        return _laplace(np.array([event.noise for event in events])[:, None])
    # unsampled events have closed forms: cheaper to compute again than to remember twenty thousand levels
    return np.array(
        [compute_unsampled(event) if event.selection == "full" else compute_divergences(event) for event in events]
    )


@lru_cache(maxsize=4096)
def compute_divergences(event: Event) -> Array:
    """Returns the Rényi divergences of one event ``[orders]``, read-only and cached."""
    result = compute_unsampled(event)
    # the bound of an epoch of random allocation is the bound of one release: no example is in two batches
    is_sampled = event.selection != "full" and not event.is_epoch
    if is_sampled and event.law in _AMPLIFIED and _LEAST_NOISE < event.noise < 1 / _LEAST_NOISE:
        if event.selection == "poisson_replace":
            sampled = _replaced(event)
        else:
            sampled = _sampled(event)
        # by joint quasi-convexity sampling never costs more than answering with all the data
        result = np.minimum(result, sampled)
    result.flags.writeable = False
    return result


def compute_pure_epsilon(event: Event) -> float:
    """Returns the epsilon of one event at delta = 0; infinite for Gaussian noise."""
    if event.law == "none":
        return math.inf
    if math.isinf(event.noise):
        return 0.0
    if event.law != "laplace":
        return math.inf
    return amplify(event.shift, event.inclusion_rate)


def amplify(epsilon: float, rate: float) -> float:
    """Returns the epsilon after sampling: ``log(1 + rate (e^epsilon - 1))``, also where ``e^epsilon`` overflows."""
    if rate < 1:
        return float(np.logaddexp(math.log1p(-rate), math.log(rate) + epsilon))
    return epsilon


def compute_unsampled(event: Event) -> Array:
    """Returns the Rényi divergences of one event ``[orders]`` without its sampling."""
    return _CURVES[event.law](np.asarray(event.noise / event.group))


def _laplace(noise: Array) -> Array:
    """Returns the divergences of Laplace noise under an l1 clip (Mironov 2017, table II): ``noise [...] -> [...,
    orders]``.
    """
    shift = 1 / noise
    rising, falling = (ORDERS - 1) * shift, -ORDERS * shift
    with np.errstate(over="ignore", invalid="ignore"):
        small = np.log1p(_FIRST * np.expm1(rising) + _SECOND * np.expm1(falling))
        # past the first branch the second term only matters where its exponential is far from underflow
        large = _LOG_FIRST + rising + np.log1p(_SECOND / _FIRST * np.exp(falling - rising))
    exact = np.where(falling > -1, small, large) / (ORDERS - 1)
    # the leading term is an upper bound, and the only one that survives rounding for tiny shifts
    return np.where(falling > -1e-4, -falling * shift / 2, exact)


def _none(noise: Array) -> Array:
    """Returns infinite divergences, for exact releases."""
    return np.full(ORDERS.shape, math.inf)


def _quadratic(noise: Array) -> Array:
    """Returns the divergences of Gaussian noise (Mironov 2017, table II), also as an upper bound for noise with at most
    this cost: ``noise [...] -> [..., orders]``.
    """
    return ORDERS / (2 * noise**2)


# a law that is not here has no cost, and no other one's
_CURVES = {"gaussian": _quadratic, "zcdp": _quadratic, "laplace": _laplace, "none": _none}


_AMPLIFIED = {"gaussian", "zcdp", "laplace"}  # the grids below reach as far as the tails of these


def _sampled(event: Event) -> Array:
    """Returns the divergences of a sampled event from the curve of the event without sampling, by Gauss-Legendre
    integration over ``u``, the epsilon of that curve.
    """
    u, log_weight = _grid(event)
    log_rate = math.log(event.inclusion_rate)
    curve = log_weight + log_rate + log_profile(event, u)
    # t = log(1 + q (e^u - 1)), dt = q e^{u - t} du: the direction in which the sampled record raises the density
    t = np.logaddexp(math.log1p(-event.inclusion_rate), log_rate + u)
    forward = curve + log_rate + u - t
    back, backward = t, forward
    if event.selection == "poisson":  # the other direction has a smaller curve
        back = -np.log1p(event.inclusion_rate * np.expm1(-u))
        backward = log_weight + 2 * log_rate + log_profile_back(event, u) - 2 * (u - back)
    result = np.full(ORDERS.shape, math.inf)
    for group, end in _order_slices(u, event.shift, event.law != "laplace"):
        order = ORDERS[group, None]
        terms = [(order - 1) * t[:end] + forward[:end], backward[:end] - order * back[:end]]
        log_excess = np.log(order * (order - 1)) + _log_sum(np.concatenate(terms, axis=1))
        result[group] = (np.logaddexp(0.0, log_excess) / (order - 1))[:, 0]
    return result


def _order_slices(nodes: Array, shift: float, unbounded: bool) -> Iterator[tuple[slice, int]]:
    """Yields groups of orders, each with the number of nodes after which the integrand is negligible.

    For Gaussian tails the integrand of order a peaks near ``a shift^2`` and is ``shift`` wide. Orders with a peak
    outside the grid are left out.
    """
    for group in _ORDER_SLICES:
        if unbounded:
            end = (ORDERS[group][-1] + 1) * shift**2 + 11 * shift
        else:
            end = nodes[-1]
        if end <= nodes[-1]:
            yield group, int(np.searchsorted(nodes, end, side="right"))


def _grid(event: Event) -> tuple[Array, Array]:
    """Returns the nodes and log weights with which all these orders are integrated."""
    shift = event.shift
    width = min(1 / event.noise, 1.0) / 2
    if event.law == "laplace":
        # large orders live within 1/order of the largest loss: halve the panels towards it
        ends = shift * (1 - 0.5 ** np.arange(0, 24))
        ends = np.union1d(np.append(ends, shift), np.linspace(0, shift, min(int(shift / width) + 2, 256)))
    else:
        end = min((ORDERS[-1] + 1) * shift**2 + 12 * shift, _MAX_NODES / len(_NODES) * width)
        ends = np.linspace(0, end, int(end / width) + 2)
    half = np.diff(ends) / 2
    nodes = (ends[:-1] + half)[:, None] + half[:, None] * _NODES
    return nodes.ravel(), np.log((half[:, None] * _WEIGHTS).ravel())


def _replaced(event: Event) -> Array:
    """Returns the divergences of Poisson-sampled Gaussian noise under replacement of records, for the pair of
    distributions in ``mixtures``, by the trapezoidal rule.
    """
    sigma, weights, k = 2 * event.noise, mixtures.all_draws(event), event.group
    step = min(sigma, sigma**2) / 4  # the integrand is analytic in a strip of half-width pi sigma^2
    start = -k - 10 * sigma
    x = np.arange(start, min((ORDERS[-1] + 1) * k + 11 * sigma, start + _MAX_NODES * step), step)
    log_q = mixtures.log_density(weights, x, sigma, -1)
    loss = mixtures.log_density(weights, x, sigma) - log_q
    log_mass = log_q + math.log(step) - math.log(sigma * math.sqrt(2 * math.pi))
    result = np.full(ORDERS.shape, math.inf)
    # in units of the standard deviation squared, the peaks of the integrands lie at most at x = k a, sigma wide
    for group, end in _order_slices(x * k / sigma**2, k / sigma, unbounded=True):
        order = ORDERS[group, None]
        terms = _log_excess(order, loss[:end]) + log_mass[:end]
        result[group] = (np.logaddexp(0.0, _log_sum(terms)) / (order - 1))[:, 0]
    return result


def _log_excess(order: Array, loss: Array) -> Array:
    """Returns ``log(r^a - 1 - a (r - 1))`` for ``r = e^loss``. Its mean is the same as for ``r^a - 1``, but is computed
    without cancellation.
    """
    power = order * loss
    series = loss**2 * (order**2 - order) / 2 + loss**3 * (order**3 - order) / 6 + loss**4 * (order**4 - order) / 24
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        near = np.where(np.abs(power) < 1e-3, series, np.expm1(power) - order * np.expm1(loss))
        return np.where(power < 30, np.log(np.maximum(near, 0.0)), power)


def _log_sum(terms: Array) -> Array:
    """Returns the logarithm of the sum of exponentials of each row ``[rows, columns] -> [rows, 1]``."""
    top = terms.max(axis=1, keepdims=True)
    return top + np.log(np.exp(terms - top).sum(axis=1, keepdims=True))
