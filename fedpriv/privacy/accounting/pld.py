"""Computes tight bounds by privacy loss distributions, for results and for decisions close to a limit on epsilon.

The arithmetic is dp-accounting's (certified to err on the safe side); this file only chooses its input. Noise is always
passed as scale divided by sensitivity to dp-accounting's add-or-remove constructors, because its replace-one
constructors differ from each other by a factor of 2 in the sensitivity.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from fedpriv.privacy.accounting import allocation, allocation_replace, convolution, mixtures, rdp
from fedpriv.privacy.accounting.dp_accounting_pld import dpa, pld_pmf
from fedpriv.privacy.accounting.events import Event, History, round_noise_levels
from fedpriv.privacy.accounting.profiles import log_profile, log_profile_back

Array = NDArray[np.float64]
SMALLEST_DELTA = 1e-9  # below, rounding in the distribution of a single release could reach the tail of delta
_WIDEST = 2.0**-10
_MAX_POINTS = 2**19
_INFLATION = 4e-4
_ROUGH = 8  # times as wide are the steps of a rough bound
_PLAIN = {"gaussian": dpa.from_gaussian_mechanism, "laplace": dpa.from_laplace_mechanism}
_COARSEST = 500.0  # e to the power of a larger spacing of losses is no number: there is hardly any noise


def epsilon(history: History, delta: float, *, rough: bool = False) -> float:
    """Returns a tight epsilon of a history of events.

    Guarantee: an upper bound. Noise levels are rounded down, and privacy losses are rounded up to a grid.

    Args:
        history: The events, each with its count.
        delta: Failure probability.
        rough: True uses a grid with eight times larger steps, which takes a tenth of the time. If the smallest of all
                bounds is used (`bounds.compute_tight_epsilons`), epsilon is then up to 1 % larger, or 3 % with Laplace
                noise.

    Returns:
        Epsilon; infinite when this bound does not apply (delta below 1e-9, Laplace noise under an l2 clip, hardly any
        noise, or an exact release).

    Source: Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022 (connect the dots); Koskela, Jälkö, Honkela 2020.
    """
    paid = frozenset((event, count) for event, count in history.items() if math.isfinite(event.noise))
    if delta < SMALLEST_DELTA or any(event.law not in _PLAIN for event, _ in paid):
        return math.inf
    if paid:
        return _epsilon(paid, delta, rough)
    return 0.0


def rare_large(noise: float, rate: float, count: int, delta: float) -> float:
    """Returns the epsilon of Poisson-sampled Gaussian releases with a low sampling rate and little noise.

    It is meant for an epsilon in the hundreds, where a fine grid of losses would be too large.

    Guarantee: an upper bound, for the relation add_remove.

    Args:
        noise: Noise scale over sensitivity.
        rate: Probability with which a record is sampled.
        count: Number of releases.
        delta: Failure probability.
    """
    interval = max(0.02, 0.05 * (0.25 / noise) ** 2 / 4)
    if interval > _COARSEST:
        return math.inf
    distribution = dpa.from_gaussian_mechanism(noise, sampling_prob=rate, value_discretization_interval=interval)
    return convolution.epsilon([(distribution, count)], interval, delta)


@lru_cache(maxsize=1024)
def _epsilon(paid: frozenset[tuple[Event, int]], delta: float, rough: bool) -> float:
    # sorted: the order of composition must not depend on the hash of the set
    events = round_noise_levels(_merged(dict(sorted(paid))))
    interval = _interval(events)
    if rough:
        interval *= _ROUGH
    if interval > _COARSEST:
        return math.inf
    distributions = [(_distribution(event, interval), count) for event, count in events.items()]
    return convolution.epsilon(distributions, interval, delta)


def _merged(history: Mapping[Event, int]) -> dict[Event, int]:
    """Returns the history with all Gaussian events without sampling composed to one event, which is exact."""
    plain = {event: count for event, count in history.items() if event.composes_exactly}
    merged = {event: count for event, count in history.items() if event not in plain}
    if plain:
        merged[Event("gaussian", sum(count / event.noise**2 for event, count in plain.items()) ** -0.5)] = 1
    return merged


def _interval(history: Mapping[Event, int]) -> float:
    """Returns the spacing of the losses: a power of two that keeps the inflation of the variance negligible.

    A loss of deviation w on a grid of spacing h gains a variance of at most ``min(h^2 / 6, w h)``. With a fixed
    spacing, the result is wrong by a factor of 13 for 20 000 rounds of epsilon 1e-5.
    """
    counts = np.array(list(history.values()), dtype=float)
    curves = np.array([_divergence(event) for event in history])
    widths = np.sqrt(2 * curves / rdp.ORDERS[0])
    variance = float(counts @ widths**2)
    reaches = np.array([_reach(event) for event in history])
    total_reach = min(float(counts @ reaches), float(counts @ curves) + 9 * math.sqrt(variance))
    # a finer grid would have more than `_MAX_POINTS` points
    finest = max(float(reaches.max()), total_reach) / _MAX_POINTS
    interval = _WIDEST
    while interval > finest and _inflation(counts, widths, interval) > _INFLATION * variance:
        interval /= 2
    while interval < finest:
        interval *= 2
    return interval


def _divergence(event: Event) -> float:
    """Returns the Rényi divergence of the smallest order, which determines the grid of losses; approximate for an
    epoch.
    """
    if event.is_epoch and event.shift < 10:
        return float(rdp.ORDERS[0] * math.log1p(math.expm1(event.shift**2) * event.rate) / 2)
    return float(rdp.compute_divergences(event)[0])


def _inflation(counts: Array, widths: Array, interval: float) -> float:
    """Returns an upper bound on the variance that rounding of losses to a grid adds to their sum."""
    return float(counts @ np.minimum(interval**2 / 6, widths * interval))


def _reach(event: Event) -> float:
    """Returns the largest loss that can matter; losses beyond it count as infinite."""
    shift = event.shift
    return rdp.amplify(shift if event.law == "laplace" else shift**2 / 2 + 9 * shift, event.inclusion_rate)


@lru_cache(maxsize=16)
def _distribution(event: Event, interval: float) -> dpa.PrivacyLossDistribution:
    """Returns the privacy loss distribution of one event on a grid, read-only and cached.

    It is cached because the reports of a run need the same event several times, with different counts.
    """
    if event.selection == "full":
        return _PLAIN[event.law](event.noise, value_discretization_interval=interval)
    if event.is_epoch:
        return _epoch(event, interval)
    t: Array = np.arange(math.ceil(_reach(event) / interval) + 1, dtype=np.float64) * interval
    if event.selection == "poisson_replace":
        curve = _replaced(event, t)
        return dpa.PrivacyLossDistribution(_pmf(curve, curve, interval))
    forward, backward = _sampled(event, t)
    if event.selection == "amplified":
        return dpa.PrivacyLossDistribution(_pmf(forward, forward, interval))
    return dpa.PrivacyLossDistribution(_pmf(forward, backward, interval), _pmf(backward, forward, interval))


def _epoch(event: Event, interval: float) -> dpa.PrivacyLossDistribution:
    """Returns the losses of an epoch of random allocation; without amplification if likelihood ratios overflow."""
    try:
        if event.selection == "allocation":
            return allocation.privacy_loss(event.batches, event.noise, interval)
        return allocation_replace.privacy_loss(event.batches, 2 * event.noise, interval)
    except OverflowError:
        return _distribution(Event(event.law, event.noise), interval)


# The curves of sampled events in closed form, for all losses at once: dp-accounting inverts them point by point.


def _sampled(event: Event, t: Array) -> tuple[Array, Array]:
    """Returns ``H_t`` in both directions, from the curve of the unsampled event.

    For a group, the curve is conditional on at least one unit being drawn. With the record in the first data set ``H_t
    = q delta_s(log(1 + (e^t - 1) / q))``; a replaced record is in both data sets. If the record is only in the second
    data set, ``H_t = (1 - (1-q) e^t) delta_s(log(q e^t / (1 - (1-q) e^t)))``, zero from -log(1-q) on.

    Source: Balle, Barthe, Gaboardi 2018, theorem 8; the operator C_q of Dong, Roth, Su 2022.
    """
    rate = event.inclusion_rate
    # log(1 + (e^t - 1) / q), written so that e^t cannot overflow
    forward = rate * np.exp(log_profile(event, t + np.log(np.exp(-t) - np.expm1(-t) / rate)))
    inside = t[t < -math.log1p(-rate)]
    scale = rate - (1 - rate) * np.expm1(inside)
    backward = scale * np.exp(log_profile_back(event, inside + math.log(rate) - np.log(scale)))
    return forward, np.append(backward, 0.0)[: len(t)]


def _replaced(event: Event, t: Array) -> Array:
    """Returns ``H_t`` of ``(1-q) N(0) + q N(1)`` against ``(1-q) N(0) + q N(-1)``.

    The loss grows with x, so the integral over x starts where the loss is t. For groups see `mixtures`.
    """
    if event.group > 1:
        return np.exp(mixtures.log_replaced(event, t))
    sigma, rate = 2 * event.noise, event.rate
    # e^{x / sigma^2} solves a quadratic equation
    log_c = math.log(rate) - 1 / (2 * sigma**2)
    b = -(1 - rate) * np.expm1(-t)
    with np.errstate(divide="ignore"):
        x = sigma**2 * (t + np.log(b + np.sqrt(b**2 + np.exp(2 * (math.log(2) + log_c) - t))) - math.log(2) - log_c)
    x[0] = 0.0  # by symmetry, also where the root underflows
    outside = math.log1p(-rate) + log_ndtr(-x / sigma)
    upper = np.logaddexp(outside, math.log(rate) + log_ndtr((1 - x) / sigma))
    lower = np.logaddexp(outside, math.log(rate) + log_ndtr((-1 - x) / sigma))
    return np.exp(upper) * -np.expm1(np.minimum(t + lower - upper, 0.0))


def _pmf(deltas: Array, other_way: Array, interval: float) -> pld_pmf.PLDPmf:
    """Returns the losses of the pair (P, Q) from ``H_t(P||Q)`` and ``H_t(Q||P)`` on grids ``t >= 0``."""
    last = len(other_way) - 1
    below = 1 - np.exp(-interval * np.arange(1, last + 1)) * (1 - other_way[1:])
    curve = np.minimum.accumulate(np.concatenate([below[::-1], deltas]))
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, -last, len(deltas) - 1, curve)
