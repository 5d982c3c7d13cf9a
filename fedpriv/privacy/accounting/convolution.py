"""Computes the distribution of a sum of many independent privacy losses, with one Fourier transform for each distinct
loss.

The distribution of a sum is the inverse transform of the product of the losses' transforms, each raised to the number
of times that the loss occurs. The error of a transform is about 1e-16 of its largest value, which may be more than the
whole probability of a relevant tail. Therefore each probability is first multiplied by `e^(tilt x)` for its loss x and
divided by the mean of these factors, `e^scale`. The tilt is chosen such that the mean of the sum moves to the epsilon
sought. The tilted sum is computed, and divided by `e^(tilt x - scale)` afterwards, so the error becomes smaller in the
same proportion as the tail.

Guarantee: an upper bound for the given distributions, including the errors of all arithmetic here. The largest amount
by which rounding can have reduced a probability (`_transformed`) is added to each probability. The transform, which
wraps around, has the length of the window that contains all but a probability `_TAIL` of the tilted sum (Chernoff's
bound); larger sums are counted as an infinite loss.

Source: Koskela, Jälkö, Honkela 2020 (Fourier accountant); Gopi, Lee, Wutschitz 2021 (one product for all releases);
Grübel and Hermesmeier 1999 (tilted transforms); Higham 2002, section 24.1 (errors of transforms).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from fedpriv.privacy.accounting.dp_accounting_pld import dpa, pld_pmf

Array = NDArray[np.float64]
_TAIL = 1e-15
_FEW, _MOST_TILTS = 16, 20  # releases for which a second tilt is always tried, and tilts
_LARGEST = 700.0  # of the exponents of events far more probable than any delta
_SMALLEST = 745.0  # minus the logarithm of the smallest number above 0
_UNIT = 2.0**-53  # rounding's relative error
_STEP_ERROR = 8  # units: what one step of a transform, one of a power or one exponential loses at most
_NORMAL = np.array([0.2, 0.5, 0.7, 0.85, 1.0, 1.2, 1.6])  # of the best order for a normal sum
_HEAVY = np.array([0.5, 1.0, 2.0, 4.0, 7.0, 12.0, 20.0, 35.0])  # over the longest reach, for rare large losses


@dataclass(frozen=True)
class RepeatedLoss:
    """The distribution of a privacy loss that occurs several times.

    Attributes:
        lowest: The smallest loss, in steps of the grid.
        probabilities: Probabilities of that loss and the following ones.
        infinite: Probability of an infinite loss.
        count: Number of times that the loss occurs.
    """

    lowest: int
    probabilities: Array
    infinite: float
    count: int


def epsilon(distributions: Sequence[tuple[dpa.PrivacyLossDistribution, int]], interval: float, delta: float) -> float:
    """Returns the smallest epsilon at `delta` of the composition of distributions on one grid.

    Args:
        distributions: The distributions, each with the number of times that it occurs.
        interval: Spacing of the grid of losses.
        delta: Failure probability.
    """
    removed = [_repeated_loss(distribution._pmf_remove, count) for distribution, count in distributions]  # noqa: SLF001
    # both directions are the same; dp-accounting has no public attribute for this
    if all(distribution._symmetric for distribution, _ in distributions):  # noqa: SLF001
        return _epsilon_in_direction(removed, interval, delta)
    added = [_repeated_loss(distribution._pmf_add, count) for distribution, count in distributions]  # noqa: SLF001
    return max(_epsilon_in_direction(removed, interval, delta), _epsilon_in_direction(added, interval, delta))


def _repeated_loss(pmf: pld_pmf.PLDPmf, count: int) -> RepeatedLoss:
    dense = pmf.to_dense_pmf()
    return RepeatedLoss(dense._lower_loss, np.asarray(dense._probs), dense._infinity_mass, count)  # noqa: SLF001


def _epsilon_in_direction(losses: Sequence[RepeatedLoss], interval: float, delta: float) -> float:
    """Returns the epsilon of one direction, which is the removal or the addition of one record.

    Every tilt results in an upper bound. The first tilt is the order of the best Rényi bound. For a few releases with
    large but rare losses, this order is too large. Therefore the tilt is halved as long as this lowers the bound.
    """
    tilt, smallest = _tilt(losses, interval, delta), math.inf
    are_few = sum(loss.count for loss in losses) <= _FEW
    for _ in range(_MOST_TILTS):
        epsilon, lowest = _epsilon_at_tilt(losses, tilt, interval, delta)
        bound = max(epsilon, lowest)
        helped = bound < 0.999 * smallest
        smallest = min(smallest, bound)
        if epsilon > lowest and not (are_few and helped):
            break
        tilt /= 2
    return smallest


def _epsilon_at_tilt(losses: Sequence[RepeatedLoss], tilt: float, interval: float, delta: float) -> tuple[float, float]:
    """Returns the epsilon by the losses in the window of a tilt, and the smallest loss of that window.

    Losses below the window are not computed, so an epsilon below the window is not found; in this case the second
    number is an upper bound. The second number is -infinity if the window starts at the smallest possible loss.
    """
    tilted, scale = _tilted(losses, tilt)
    first, last = _window(tilted)
    sums = _transformed(tilted, first, last)
    weights = np.exp(np.minimum(scale - tilt * np.arange(first, last + 1), _LARGEST))
    infinite = _TAIL * float(weights[-1]) - math.expm1(sum(loss.count * math.log1p(-loss.infinite) for loss in losses))
    lowest = sum(loss.lowest * loss.count for loss in losses) + first
    epsilon = pld_pmf.DensePLDPmf(interval, lowest, sums * weights, infinite, True).get_epsilon_for_delta(delta)
    if first == 0:
        return float(epsilon), -math.inf
    return float(epsilon), lowest * interval


def _tilted(losses: Sequence[RepeatedLoss], tilt: float) -> tuple[list[RepeatedLoss], float]:
    """Returns the tilted losses, and an upper bound on the logarithm of the number by which the probabilities of their
    sum were divided.
    """
    tilted = list[RepeatedLoss]()
    scale, rounding = 0.0, 0.0
    for loss in losses:
        steps = np.arange(len(loss.probabilities))
        log_mean = float(_log_means(loss.probabilities, 0.0, np.array([tilt]))[0])
        with np.errstate(divide="ignore"):
            exponents = np.log(loss.probabilities) + (tilt * steps - log_mean)
        tilted.append(replace(loss, probabilities=np.exp(exponents)))
        scale += loss.count * log_mean
        rounding += loss.count * (_STEP_ERROR + _SMALLEST + 2 * tilt * len(steps)) * _UNIT
    return tilted, scale + rounding + abs(scale) * len(tilted) * _UNIT


def _transformed(losses: Sequence[RepeatedLoss], first: int, last: int) -> Array:
    """Returns upper bounds on the probabilities that the sum is `first` to `last` grid steps above the smallest sum.

    Each number of a transform of length n is a weighted sum of all probabilities, at most 1, which is computed in `log2
    n` steps with an error of at most `_STEP_ERROR` units each. The total is the `error` of one number. With `a` the
    true and `b` the computed transforms, and all `|.| <= r`, ``|prod_j a_j^c_j - prod_j b_j^c_j| <= prod_j r_j^c_j *
    sum_j c_j |a_j - b_j| / r_j``.
    """
    longest = max(len(loss.probabilities) for loss in losses)
    length = cast(int, fft.next_fast_len(max(last - first + 1, longest), real=True))
    error = _STEP_ERROR * math.log2(length + 1) * _UNIT
    product = np.ones(length // 2 + 1, dtype=np.complex128)
    largest = np.ones(length // 2 + 1)
    relative_errors = np.full(length // 2 + 1, error)  # first the errors of the inverse transform
    for loss in losses:
        transform = np.asarray(fft.rfft(loss.probabilities, length))
        bound = np.abs(transform) + error
        product *= _power(transform, loss.count)
        largest *= bound**loss.count
        relative_errors += loss.count * (error / bound + _STEP_ERROR * _UNIT)
    sums = np.roll(np.asarray(fft.irfft(product, length)), -first)[: last - first + 1]
    # sums here are no `@`, which adds up in another order with more threads: a resumed run must find the same noise
    return np.maximum(sums, 0.0) + 2 * float((largest * relative_errors).sum()) / length


def _tilt(losses: Sequence[RepeatedLoss], interval: float, delta: float) -> float:
    """Returns the Rényi order with the best bound on epsilon. A tilt by this order moves the mean of the sum to this
    epsilon.

    Source: Canonne, Kamath, Steinke 2020, proposition 12.
    """
    _, orders, growth = _growth(losses, delta)
    order = orders / interval
    tail = order * np.log(order) - (1 + order) * np.log1p(order) - math.log(delta)
    return float(orders[np.argmin((growth + tail) / orders)])


def _window(losses: Sequence[RepeatedLoss]) -> tuple[int, int]:
    """Returns the first and the last grid step, counted from the smallest sum, of a window that contains the sum with
    probability at least 1 - `_TAIL` (Chernoff's bound).
    """
    furthest = sum((len(loss.probabilities) - 1) * loss.count for loss in losses)
    bounds = list[float]()
    for sign in (-1, 1):
        mean, orders, growth = _growth(losses, _TAIL / 2, sign)
        reach = (growth - math.log(_TAIL / 2)) / orders
        bounds.append(mean + float(reach[np.argmin(np.abs(reach))]))
    return max(0, math.floor(bounds[0])), min(furthest, math.ceil(bounds[1]))


def _growth(losses: Sequence[RepeatedLoss], probability: float, sign: int = 1) -> tuple[float, Array, Array]:
    """Returns the mean of the sum, orders that suit tails of this probability, and `log E e^(order (sum - mean))` for
    each order.
    """
    moments = [_moments(loss.probabilities) for loss in losses]
    mean = sum(loss.count * m for loss, (m, _) in zip(losses, moments, strict=True))
    variance = sum(loss.count * v for loss, (_, v) in zip(losses, moments, strict=True))
    longest = max(len(loss.probabilities) for loss in losses)
    magnitudes = [_NORMAL * math.sqrt(-2 * math.log(probability) / max(variance, 1.0)), _HEAVY / longest]
    orders = sign * np.concatenate(magnitudes)
    # about the mean of each loss, so that large sums cancel before they are rounded
    growth = sum(p.count * _log_means(p.probabilities, m, orders) for p, (m, _) in zip(losses, moments, strict=True))
    return mean, orders, np.asarray(growth)


def _moments(probabilities: Array) -> tuple[float, float]:
    """Returns mean and variance of a loss, in steps of the grid."""
    steps = np.arange(len(probabilities))
    total = float(probabilities.sum())
    mean = float((probabilities * steps).sum()) / total
    return mean, float((probabilities * (steps - mean) ** 2).sum()) / total


def _log_means(probabilities: Array, centre: float, orders: Array) -> Array:
    """Returns `log sum_k p_k e^(order (k - centre))` for each order."""
    steps = probabilities.nonzero()[0]
    exponents = orders[:, None] * (steps - centre) + np.log(probabilities[steps])
    top = exponents.max(axis=1, keepdims=True)
    return np.asarray(top[:, 0] + np.log(np.exp(exponents - top).sum(axis=1)))


def _power(base: NDArray[np.complex128], exponent: int) -> NDArray[np.complex128]:
    """Returns `base` to the power of `exponent` by squaring, which is faster than numpy's power and as exact."""
    if exponent % 2:
        result = base
    else:
        result = np.ones_like(base)
    while exponent := exponent // 2:
        base = base * base
        if exponent % 2:
            result = result * base
    return result
