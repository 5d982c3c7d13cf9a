"""Sums of many independent privacy losses at once, by one Fourier transform each.

The distribution of a sum is the inverse transform of the product of transforms, each to the power of how often it
occurs. The transform wraps around, so it is as long as the window that holds all but `_TAIL` of the sum (Chernoff's
bound); that rest counts as an infinite loss. So the result errs on the safe side, like the distributions that go in.

Source: Koskela, Jälkö, Honkela 2020 (Fourier accountant); Gopi, Lee, Wutschitz 2021 (one product for all answers).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld import privacy_loss_distribution as dpa
from numpy.typing import NDArray
from scipy import fft

Array = NDArray[np.float64]
_TAIL = 1e-15
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
    """Epsilon in one direction."""
    first, last = _window(parts)
    longest = max(len(part.probabilities) for part in parts)
    length = cast(int, fft.next_fast_len(max(last - first + 1, longest), real=True))
    product = np.ones(length // 2 + 1, dtype=np.complex128)
    for part in parts:
        product *= _power(np.asarray(fft.rfft(part.probabilities, length)), part.count)
    whole = np.roll(np.asarray(fft.irfft(product, length)), -first)[: last - first + 1]
    infinite = _TAIL - math.expm1(math.fsum(part.count * math.log1p(-part.infinite) for part in parts))
    lowest = sum(part.lowest * part.count for part in parts) + first
    summed = pld_pmf.DensePLDPmf(interval, lowest, np.maximum(whole, 0.0), infinite, True)
    return float(summed.get_epsilon_for_delta(delta))


def _window(parts: Sequence[Part]) -> tuple[int, int]:
    """First and last step, above the smallest sum, between which all but `_TAIL` of the sum lies (Chernoff)."""
    furthest = sum((len(part.probabilities) - 1) * part.count for part in parts)
    moments = [_moments(part.probabilities) for part in parts]
    mean = sum(part.count * m for part, (m, _) in zip(parts, moments, strict=True))
    variance = sum(part.count * v for part, (_, v) in zip(parts, moments, strict=True))
    rest = math.log(2 / _TAIL)
    longest = max(len(part.probabilities) for part in parts)
    magnitudes = np.concatenate([_NORMAL * math.sqrt(2 * rest / max(variance, 1.0)), _HEAVY / longest])
    bounds = list[float]()
    for orders in (magnitudes, -magnitudes):
        # about the mean of each part, so that large sums cancel before they are rounded
        growth = sum(p.count * _log_mean(p.probabilities, m, orders) for p, (m, _) in zip(parts, moments, strict=True))
        reach = (growth + rest) / orders
        bounds.append(mean + float(reach[np.argmin(np.abs(reach))]))
    return max(0, math.floor(bounds[1])), min(furthest, math.ceil(bounds[0]))


def _moments(probabilities: Array) -> tuple[float, float]:
    steps = np.arange(len(probabilities))
    total = float(probabilities.sum())
    mean = float(probabilities @ steps) / total
    return mean, float(probabilities @ (steps - mean) ** 2) / total


def _log_mean(probabilities: Array, centre: float, orders: Array) -> Array:
    """`log sum_k p_k e^(order (k - centre))` for each order."""
    there = probabilities.nonzero()[0]
    exponents = orders[:, None] * (there - centre) + np.log(probabilities[there])
    top = exponents.max(axis=1, keepdims=True)
    return np.asarray(top[:, 0] + np.log(np.exp(exponents - top).sum(axis=1)))


def _power(base: NDArray[np.complex128], exponent: int) -> NDArray[np.complex128]:
    """By squaring: faster than numpy's, and as exact."""
    result = base if exponent % 2 else np.ones_like(base)
    while exponent := exponent // 2:
        base = base * base
        if exponent % 2:
            result = result * base
    return result
