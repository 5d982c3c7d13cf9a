"""Computes the tight privacy cost of random allocation for neighbours in which the content of one example is replaced.

With a clip bound of 1 and noise of standard deviation s, a dominating pair of distributions of one epoch of k batches
is

    P* = 1/k sum_i N(+e_i, s^2 I)    against    Q* = 1/k sum_i N(-e_i, s^2 I)    on R^k,

also if later steps depend on earlier releases. There is an algorithm that attains this pair. The pair is symmetric, so
both directions have the same delta. With ``c = e^epsilon`` and independent, normal Z it is

    delta(c) = E (1/k sum_i W_i)_+,    W = exp(mu Z - mu^2/2) - c exp(-mu Z - mu^2/2),    mu = 1 / s.

`signed_sums` bounds delta for a single c. Here delta is bounded for several dozens of values of c. Delta is a convex
function of c, so it lies below the chords between the computed points. The chords are the curve ``E (S - c)_+`` of a
finite distribution of S, which bounds the distribution of the likelihood ratio dP*/dQ* under Q* in the convex order.
`likelihood_ratio` computes products over epochs, and losses on a grid, from this distribution.

Source: see `allocation`; Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022 (chords as bounds). Proofs:
docs/design/0010-allocation.md.
"""

from __future__ import annotations

import math
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from fedpriv.errors import ConfigError
from fedpriv.privacy.accounting import allocation, convolution, gaussian
from fedpriv.privacy.accounting.allocation import Bounds
from fedpriv.privacy.accounting.dp_accounting_pld import dpa, pld_pmf
from fedpriv.privacy.accounting.likelihood_ratio import Ratio, Side, power
from fedpriv.privacy.accounting.signed_sums import lower_line, upper_delta

Array = NDArray[np.float64]

RESOLUTION = 0.05  # width of the cells, in deviations of a normal variable: epsilon is about 1 % too large
COARSE = 0.1  # a sixth of the time, 3 % too large; both up to twice that for little noise and many batches

_UNIT = 2.0**-53  # relative error of one rounding
_LAST_DELTA = 1e-16  # beyond, losses count as infinite
_FINE_DELTA = 1e-12  # below, chords may be longer
_BULK_CHORD = 4.0  # length of a chord in the bulk of the loss, in deviations of it, over the resolution
_TAIL_CHORD = 14.0  # fall of log(delta) along a chord in the tail, over the resolution
_LONGEST_CHORD = 2.0  # fall of log(delta) where delta is below `_FINE_DELTA`
_GROWTH = 1.4  # of one chord over the one before
_BULK = 3.0  # deviations of the loss above its mean that belong to its bulk
_MOST_CHORDS = 1_000
_SPLIT = 0.03  # resolution of the bound from removing and then adding
_COMPOSED = 0.02  # resolution of the product over epochs
_LOSS_STEP = 0.01  # spacing of the losses over 1 / noise, where ratios leave the range of floating-point numbers


def epsilon(batches: int, noise: float, epochs: int, delta: float, resolution: float = RESOLUTION) -> float:
    """Returns an upper bound on epsilon where the content of one example is replaced by another.

    Guarantee: an upper bound for any adaptive algorithm with random allocation, including errors of arithmetic. It is
    at most the epsilon of one Gaussian release of sensitivity 2 in each epoch (as if assignments were known), and at
    most the bound for a removal followed by an addition (`allocation.replace_epsilon`). It is about 1 % above the
    epsilon of the worst algorithm, or about 2 % for a thousand batches with noise of half the clip bound.

    Args:
        batches: Number of batches of an epoch; at least 1.
        noise: Standard deviation of the noise of each step, divided by the *clip bound*. The clip bound is the largest
            change of the sum by one example, not by a replacement of one example by another. Positive.
        epochs: Number of epochs, each with fresh assignments; at least 1.
        delta: Failure probability in (0, 1).
        resolution: Width of the cells of the computation; `COARSE` for a quick, larger bound.

    Raises:
        ConfigError: If an argument is out of range.
    """
    _check(batches, noise, epochs, delta)
    unamplified = gaussian.compute_epsilon(2 * math.sqrt(epochs) / noise, delta)
    if batches == 1:
        return unamplified
    # in theory below the next one; what cells lose may be more than the difference
    split = allocation.replace_epsilon(batches, noise, epochs, delta, max(resolution, _SPLIT))
    try:
        tight = _composed(batches, noise, epochs, "upper", resolution).epsilon(delta)
    except OverflowError:
        tight = _epsilon_by_transform(batches, noise, epochs, delta, resolution)
    return min(tight, split, unamplified)


def epsilon_bounds(batches: int, noise: float, epochs: int, delta: float, resolution: float = RESOLUTION) -> Bounds:
    """Returns bounds on the smallest epsilon where the content of one example is replaced by another.

    Args:
        batches: See `epsilon`.
        noise: See `epsilon`.
        epochs: See `epsilon`.
        delta: See `epsilon`.
        resolution: See `epsilon`; the error of both bounds is proportional to its square.

    Raises:
        ConfigError: If an argument is out of range.
    """
    upper = epsilon(batches, noise, epochs, delta, resolution)
    # an example may also be replaced by one that moves nothing
    lower = allocation.epsilon_bounds(batches, noise, epochs, delta, accuracy=0.1).lower
    with suppress(OverflowError):
        lower = max(lower, _composed(batches, noise, epochs, "lower", resolution).epsilon(delta))
    return Bounds(min(lower, upper), upper)


def privacy_loss(
    batches: int, noise: float, interval: float, side: Side = "upper", resolution: float = RESOLUTION
) -> dpa.PrivacyLossDistribution:
    """Returns the privacy loss distribution of one epoch, for an example with replaced content.

    It can be composed with every other distribution on the same grid. Both directions have the same distribution.

    Args:
        batches: Number of batches of an epoch; at least 1.
        noise: Standard deviation of the noise of each step, over the *clip bound*; positive.
        interval: Spacing of the losses; positive.
        side: `"upper"` for a pessimistic distribution, `"lower"` for an optimistic one.
        resolution: See `epsilon`.

    Raises:
        ConfigError: If an argument is out of range.
        OverflowError: If the noise is below about 0.07, so that likelihood ratios overflow. In this case use one
            Gaussian release of sensitivity 2 for each epoch as an upper bound.
    """
    _check(batches, noise, 1, 0.5)
    law = _epoch(batches, noise, side, resolution)
    lowest, probabilities, infinite = law.loss_masses(interval, "remove")
    return dpa.PrivacyLossDistribution(pld_pmf.DensePLDPmf(interval, lowest, probabilities, infinite, side == "upper"))


def _check(batches: int, noise: float, epochs: int, delta: float) -> None:
    if batches < 1:
        raise ConfigError("batches", batches, "must be at least 1")
    if epochs < 1:
        raise ConfigError("epochs", epochs, "must be at least 1")
    if not 0 < noise < math.inf:
        raise ConfigError("noise", noise, "must be positive and finite: the noise scale divided by the clip bound")
    if not 0 < delta < 1:
        raise ConfigError("delta", delta, "must be a failure probability between 0 and 1, such as 1e-5")


class _Curve(NamedTuple):
    """Bounds on delta(c) at increasing `factors` c, starting with 1."""

    factors: Array
    deltas: Array


@lru_cache(maxsize=64)
def _composed(batches: int, noise: float, epochs: int, side: Side, resolution: float) -> Ratio:
    return power(_epoch(batches, noise, side, resolution), epochs, "product", _COMPOSED)


@lru_cache(maxsize=64)
def _epoch(batches: int, noise: float, side: Side, resolution: float) -> Ratio:
    """Returns a distribution that bounds the distribution of the likelihood ratio of one epoch."""
    upper = _upper_curve(batches, noise, resolution)
    if side == "upper":
        return _law_of_chords(upper)
    factors = upper.factors.tolist()
    return _law_of_lines(factors, [lower_line(batches, 1 / noise, factor, resolution) for factor in factors])


def _upper_curve(batches: int, noise: float, resolution: float) -> _Curve:
    """Returns upper bounds on delta at values of c that are dense where the loss is likely, up to a value at which
    delta is negligible.
    """
    factors = [1.0]
    deltas = [upper_delta(batches, 1 / noise, 1.0, resolution)]
    # the Gaussian mechanism with this delta at epsilon = 0 has losses of mean spread^2 / 2 and deviation spread
    spread = min(2 / noise, 2 * float(ndtri(min(0.5 + deltas[0] / 2, 1 - 1e-15))))
    bulk_chord = _BULK_CHORD * resolution * spread
    bulk_end = spread * spread / 2 + _BULK * spread
    loss, chord, slope = 0.0, bulk_chord, 0.0
    while deltas[-1] > _LAST_DELTA:
        if deltas[-1] > _FINE_DELTA:
            fall = _TAIL_CHORD * resolution
        else:
            fall = _LONGEST_CHORD
        if loss < bulk_end:
            longest = bulk_chord
        else:
            longest = _GROWTH * chord
        chord = min(longest, fall / max(slope, 1e-300))
        loss += chord
        factors.append(math.exp(loss))
        deltas.append(upper_delta(batches, 1 / noise, factors[-1], resolution))
        slope = math.log(deltas[-2] / deltas[-1]) / chord
        if len(factors) > _MOST_CHORDS:
            raise OverflowError("the privacy losses spread over too wide a range")
    return _Curve(np.array(factors), np.minimum(deltas, 1.0))


def _law_of_chords(curve: _Curve) -> Ratio:
    """Returns the distribution with the largest convex curve ``E (S - c)_+`` below the computed upper bounds.

    The curve consists of chords. At each end of a chord, S has a mass equal to the difference of the slopes. Values
    below 1 mirror those above: if S has mass q at c, it has mass c q at 1 / c.
    """
    hull = _hull(curve)
    factors, deltas = hull.factors, hull.deltas
    slopes = np.append(np.diff(deltas) / np.diff(factors), 0.0)
    # each slope errs by a few units relative to itself
    above = np.diff(slopes) + 8 * _UNIT * np.abs(slopes[:-1])
    middle = max(0.0, 1 - deltas[0] + 2 * float(slopes[0])) + 16 * _UNIT
    infinite = float(deltas[-1])
    masses = np.concatenate([[infinite], (above * factors[1:])[::-1], [middle], above])
    values = np.concatenate([[0.0], 1 / factors[:0:-1], [1.0], factors[1:]])
    return Ratio("upper", values, masses, infinite, 1.0, 16 * _UNIT, 4 * _UNIT)


def _hull(curve: _Curve) -> _Curve:
    """Removes the points that are above a chord between other points."""
    corners = list[int]()
    factors, deltas = curve.factors.tolist(), curve.deltas.tolist()
    for new in range(len(factors)):
        while len(corners) > 1:
            before, last = corners[-2], corners[-1]
            slope = (deltas[last] - deltas[before]) / (factors[last] - factors[before])
            if (deltas[new] - deltas[last]) / (factors[new] - factors[last]) > slope:
                break
            corners.pop()
        corners.append(new)
    return _Curve(curve.factors[corners], curve.deltas[corners])


def _law_of_lines(factors: list[float], lines: list[tuple[float, float]]) -> Ratio:
    """Returns the distribution with a curve that is the maximum of lines that are nowhere above delta, and of their
    mirror images.
    """
    slopes = [-1.0, 0.0]
    starts = [1.0, 0.0]
    for factor, (value, slope) in zip(factors, lines, strict=True):
        start = value - slope * factor
        slopes.append(slope)
        starts.append(start)
        # delta(c) = 1 - c + c delta(1 / c)
        slopes.append(start - 1)
        starts.append(1 + slope)
    corners, kinks = _corners(np.array(slopes), np.array(starts))
    # one at 1 is its own mirror image; those below mirror the others, as slopes there would be lost in rounding
    is_above = corners > 1 + 1e-12
    above = kinks[is_above]
    values = np.concatenate([1 / corners[is_above][::-1], [1.0], corners[is_above]])
    mirrored = (above * corners[is_above])[::-1]
    middle = max(0.0, 1 - float(above.sum() + mirrored.sum()))
    return Ratio("lower", values, np.concatenate([mirrored, [middle], above]), 0.0, 1.0, 1e-9, 1e-12)


def _corners(slopes: Array, starts: Array) -> tuple[Array, Array]:
    """Returns the points where the maximum of some lines changes its slope, and the changes of the slope."""
    order = np.lexsort((starts, slopes))
    lines = list[tuple[float, float]]()
    corners = list[float]()
    for slope, start in zip(slopes[order].tolist(), starts[order].tolist(), strict=True):
        # lines of equal slope come with increasing starts: the last one is the largest
        while lines:
            last_slope, last_start = lines[-1]
            if slope > last_slope:
                corner = (last_start - start) / (slope - last_slope)
                if not corners or corner > corners[-1]:
                    corners.append(corner)
                    break
            lines.pop()
            if corners:
                corners.pop()
        lines.append((slope, start))
    return np.array(corners), np.diff([slope for slope, _ in lines])


def _epsilon_by_transform(batches: int, noise: float, epochs: int, delta: float, resolution: float) -> float:
    """Returns an upper bound from privacy loss distributions, for epsilons in the hundreds; infinity if none exists."""
    interval = _LOSS_STEP / noise
    try:
        epoch = privacy_loss(batches, noise, interval, "upper", resolution)
        return convolution.epsilon([(epoch, epochs)], interval, delta)
    except OverflowError:
        return math.inf
