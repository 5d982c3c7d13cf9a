"""Sums of many independent privacy losses at once, by one Fourier transform each.

The distribution of a sum is the inverse transform of the product of transforms, each to the power of how often it
occurs. A transform errs by about 1e-16 of its largest value, which may be more than all of a tail that matters. So
every loss x is first made `e^(tilt x)` times as likely (over the mean of that, `e^scale`), with the tilt that moves the
sum to where the answer is; the sum is transformed, and divided by `e^(tilt x - scale)` afterwards: the error shrinks
with the tail.

Guarantee: an upper bound for the distributions that go in, with all of the arithmetic here. What rounding can have
taken away (`_transformed`) is added to each probability, and the transform, which wraps around, is as long as the
window that holds all but `_TAIL` of the tilted sum (Chernoff's bound): what is above counts as an infinite loss.

Source: Koskela, Jälkö, Honkela 2020 (Fourier accountant); Gopi, Lee, Wutschitz 2021 (one product for all answers);
Grübel and Hermesmeier 1999 (tilted transforms); Higham 2002, section 24.1 (errors of transforms).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld import privacy_loss_distribution as dpa
from numpy.typing import NDArray
from scipy import fft

Array = NDArray[np.float64]
_TAIL = 1e-15
_FEW, _MOST_TILTS = 16, 20  # answers of which a second tilt is always tried, and tilts
_LARGEST = 700.0  # of the exponents of what is far more probable than any delta
_SMALLEST = 745.0  # minus the logarithm of the smallest number above 0
_UNIT = 2.0**-53  # rounding's relative error
_A_STEP = 8  # units: what one step of a transform, one of a power or one exponential loses at most
_NORMAL = np.array([0.2, 0.5, 0.7, 0.85, 1.0, 1.2, 1.6])  # of the best order for a normal sum
_HEAVY = np.array([0.5, 1.0, 2.0, 4.0, 7.0, 12.0, 20.0, 35.0])  # over the longest reach, for rare large losses


@dataclass(frozen=True)
class Part:
    """A loss that occurs several times.

    Attributes:
        lowest: The smallest loss, in steps of the grid.
        probabilities: Of that loss and the following ones.
        infinite: Probability of an infinite loss.
        count: How often it occurs.
    """

    lowest: int
    probabilities: Array
    infinite: float
    count: int


def epsilon(parts: Sequence[tuple[dpa.PrivacyLossDistribution, int]], interval: float, delta: float) -> float:
    """Smallest epsilon at `delta` of distributions on one grid, each with how often it occurs."""
    if all(one._symmetric for one, _ in parts):  # noqa: SLF001 - no public way to ask
        return _one_way([_part(one._pmf_remove, count) for one, count in parts], interval, delta)  # noqa: SLF001
    removed = [_part(one._pmf_remove, count) for one, count in parts]  # noqa: SLF001
    added = [_part(one._pmf_add, count) for one, count in parts]  # noqa: SLF001
    return max(_one_way(removed, interval, delta), _one_way(added, interval, delta))


def _part(pmf: pld_pmf.PLDPmf, count: int) -> Part:
    dense = pmf.to_dense_pmf()
    return Part(dense._lower_loss, np.asarray(dense._probs), dense._infinity_mass, count)  # noqa: SLF001


def _one_way(parts: Sequence[Part], interval: float, delta: float) -> float:
    """Epsilon in one direction.

    Every tilt gives an upper bound. The first is that of the best Rényi bound. For a few answers whose large losses are
    rare, that order is far above the epsilon sought: half as much is tried, as long as that helps.
    """
    tilt, smallest = _tilt(parts, interval, delta), math.inf
    are_few = sum(part.count for part in parts) <= _FEW
    for _ in range(_MOST_TILTS):
        found, lowest = _at_tilt(parts, tilt, interval, delta)
        bound = max(found, lowest)
        helped = bound < 0.999 * smallest
        smallest = min(smallest, bound)
        if found > lowest and not (are_few and helped):
            break
        tilt /= 2
    return smallest


def _at_tilt(parts: Sequence[Part], tilt: float, interval: float, delta: float) -> tuple[float, float]:
    """Epsilon of the losses in the window that belongs to a tilt, and the loss below which none was looked at."""
    tilted, scale = _tilted(parts, tilt)
    first, last = _window(tilted)
    whole = _transformed(tilted, first, last)
    weights = np.exp(np.minimum(scale - tilt * np.arange(first, last + 1), _LARGEST))
    infinite = _TAIL * float(weights[-1]) - math.expm1(sum(part.count * math.log1p(-part.infinite) for part in parts))
    lowest = sum(part.lowest * part.count for part in parts) + first
    found = pld_pmf.DensePLDPmf(interval, lowest, whole * weights, infinite, True).get_epsilon_for_delta(delta)
    if first == 0:
        return float(found), -math.inf
    return float(found), lowest * interval


def _tilted(parts: Sequence[Part], tilt: float) -> tuple[list[Part], float]:
    """Each part tilted; and the logarithm of what the sum was divided by, with what rounding may have taken from it."""
    made, scale, lost = list[Part](), 0.0, 0.0
    for part in parts:
        steps = np.arange(len(part.probabilities))
        log_mean = float(_log_means(part.probabilities, 0.0, np.array([tilt]))[0])
        with np.errstate(divide="ignore"):
            exponents = np.log(part.probabilities) + (tilt * steps - log_mean)
        made.append(replace(part, probabilities=np.exp(exponents)))
        scale += part.count * log_mean
        lost += part.count * (_A_STEP + _SMALLEST + 2 * tilt * len(steps)) * _UNIT
    return made, scale + lost + abs(scale) * len(made) * _UNIT


def _transformed(parts: Sequence[Part], first: int, last: int) -> Array:
    """Upper bounds on the probabilities that the sum is `first` to `last` above the smallest one.

    Each number of a transform of n is a sum of all probabilities, at most 1, through `log2 n` steps that each err by at
    most `_A_STEP` units: the `error` of one number. With `a` the true and `b` the found transforms, and all `|.| <= r`,
    ``|prod_j a_j^c_j - prod_j b_j^c_j| <= prod_j r_j^c_j * sum_j c_j |a_j - b_j| / r_j``.
    """
    longest = max(len(part.probabilities) for part in parts)
    length = cast(int, fft.next_fast_len(max(last - first + 1, longest), real=True))
    error = _A_STEP * math.log2(length + 1) * _UNIT
    product, largest = np.ones(length // 2 + 1, dtype=np.complex128), np.ones(length // 2 + 1)
    lost = np.full(length // 2 + 1, error)  # of the way back
    for part in parts:
        transform = np.asarray(fft.rfft(part.probabilities, length))
        bound = np.abs(transform) + error
        product *= _power(transform, part.count)
        largest *= bound**part.count
        lost += part.count * (error / bound + _A_STEP * _UNIT)
    whole = np.roll(np.asarray(fft.irfft(product, length)), -first)[: last - first + 1]
    # sums here are no `@`, which adds up in another order with more threads: a resumed run must find the same noise
    return np.maximum(whole, 0.0) + 2 * float((largest * lost).sum()) / length


def _tilt(parts: Sequence[Part], interval: float, delta: float) -> float:
    """The order whose bound on epsilon is best (Canonne, Kamath, Steinke 2020, proposition 12): it moves sums there."""
    _, orders, growth = _growth(parts, delta)
    order = orders / interval
    rest = order * np.log(order) - (1 + order) * np.log1p(order) - math.log(delta)
    return float(orders[np.argmin((growth + rest) / orders)])


def _window(parts: Sequence[Part]) -> tuple[int, int]:
    """First and last step, above the smallest sum, between which all but `_TAIL` of the sum lies (Chernoff)."""
    furthest = sum((len(part.probabilities) - 1) * part.count for part in parts)
    bounds = list[float]()
    for sign in (-1, 1):
        mean, orders, growth = _growth(parts, _TAIL / 2, sign)
        reach = (growth - math.log(_TAIL / 2)) / orders
        bounds.append(mean + float(reach[np.argmin(np.abs(reach))]))
    return max(0, math.floor(bounds[0])), min(furthest, math.ceil(bounds[1]))


def _growth(parts: Sequence[Part], probability: float, sign: int = 1) -> tuple[float, Array, Array]:
    """Mean of the sum, orders for tails of this probability, and `log E e^(order (sum - mean))` of each."""
    moments = [_moments(part.probabilities) for part in parts]
    mean = sum(part.count * m for part, (m, _) in zip(parts, moments, strict=True))
    variance = sum(part.count * v for part, (_, v) in zip(parts, moments, strict=True))
    longest = max(len(part.probabilities) for part in parts)
    magnitudes = [_NORMAL * math.sqrt(-2 * math.log(probability) / max(variance, 1.0)), _HEAVY / longest]
    orders = sign * np.concatenate(magnitudes)
    # about the mean of each part, so that large sums cancel before they are rounded
    growth = sum(p.count * _log_means(p.probabilities, m, orders) for p, (m, _) in zip(parts, moments, strict=True))
    return mean, orders, np.asarray(growth)


def _moments(probabilities: Array) -> tuple[float, float]:
    steps = np.arange(len(probabilities))
    total = float(probabilities.sum())
    mean = float((probabilities * steps).sum()) / total
    return mean, float((probabilities * (steps - mean) ** 2).sum()) / total


def _log_means(probabilities: Array, centre: float, orders: Array) -> Array:
    """`log sum_k p_k e^(order (k - centre))` for each order."""
    there = probabilities.nonzero()[0]
    exponents = orders[:, None] * (there - centre) + np.log(probabilities[there])
    top = exponents.max(axis=1, keepdims=True)
    return np.asarray(top[:, 0] + np.log(np.exp(exponents - top).sum(axis=1)))


def _power(base: NDArray[np.complex128], exponent: int) -> NDArray[np.complex128]:
    """By squaring: faster than numpy's, and as exact."""
    if exponent % 2:
        result = base
    else:
        result = np.ones_like(base)
    while exponent := exponent // 2:
        base = base * base
        if exponent % 2:
            result = result * base
    return result
