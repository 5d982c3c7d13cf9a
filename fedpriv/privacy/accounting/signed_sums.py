"""Bounds on ``E (1/k sum_i W_i)_+`` for independent ``W_i = exp(mu Z - mu^2/2) - c exp(-mu Z - mu^2/2)``, Z normal.

This expectation is the delta at ``c = e^epsilon`` of an epoch of random allocation in which one example is replaced by
another (see `allocation_replace`). The W may be positive or negative, so relative errors of values are meaningless.
However, ``x -> x_+`` is convex *and increasing*. So an upper bound follows from any distribution ("law") that is larger
in the *increasing* convex order. Such a law results if

* a value is split into two at the same mean (Jensen),
* a value is replaced by a larger one,
* the part of a value above some point is cut off and its mean is added to the result, ``(x + y)_+ <= x_+ + y`` for ``y
  >= 0``: the `excess` of a law.

Sums of independent values keep this order. So values are rounded *up*, the shares of a split are rounded towards the
larger value, and negligible tails are moved up, too. Probabilities are sums of nonnegative products; each law keeps a
bound `rounding` on their relative error. The result is multiplied by 1 plus this bound.

For a lower bound, all values of a cell are replaced by their mean, and values are rounded down.

Source: Shaked, Shanthikumar 2007, section 4.A (increasing convex order). Proofs: docs/design/0010-allocation.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from fedpriv.privacy.accounting.likelihood_ratio import Side

Array = NDArray[np.float64]

_UNIT = 2.0**-53  # relative error of one rounding
_BELOW, _ABOVE = 8.0, 9.0  # deviations of Z, and of Z moved by mu, that are cut into cells; beyond lie 6e-16 and 1e-19
_SMALLEST_MU = 1e-6  # losses are far larger than rounding
_LARGEST_MU = 14.0  # values up to e^630 remain floating-point numbers
_NEGLIGIBLE = 1e-19  # mean of the positive values that are cut off at the upper end
_NEGLIGIBLE_BELOW = 1e-13  # probability of values that are moved up at the lower end
_UNDERFLOW = 1e-20  # more than values times all products of probabilities that can have become 0
_NORMAL = 64.0  # units: relative error of scipy's normal probabilities, which a test holds against 150 digits
_WIDEST = 0.4  # width of a cell over its distance from the middle
_MOST_CELLS = 2_000
_COARSEST = 2.0  # width of the cells of a single term that is added to many terms, over the width of other cells
_NONE: Array = np.zeros(0)


@dataclass(frozen=True)
class SignedLaw:
    """A finite law that bounds the law of a sum of W in the increasing convex order.

    Attributes:
        values: The values, increasing, of both signs.
        masses: Their probabilities.
        excess: Mean of the parts that were cut off at the upper end; 0 in a lower law.
        rounding: Bound on the relative error of each mass.
        terms: Number of variables W in the sum.
        falling: In a lower law, the mean of the sum of all ``c exp(-mu Z - mu^2/2)`` at each value; empty in an upper
            law.
    """

    values: Array
    masses: Array
    excess: float
    rounding: float
    terms: int
    falling: Array


@dataclass(frozen=True)
class Difference:
    """The variable W, and the cells that represent it and its sums.

    Attributes:
        mu: One over the noise.
        factor: The number c, e to the power of epsilon.
        side: Which bound.
        resolution: Width of the cells, in deviations of Z.
    """

    mu: float
    factor: float
    side: Side
    resolution: float


def upper_delta(batches: int, mu: float, factor: float, resolution: float) -> float:
    """Returns an upper bound on ``delta(c) = E (1/k sum_i W_i)_+`` for ``k = batches`` and ``c = factor``.

    Raises:
        OverflowError: If the noise is below about 0.07, or so large that losses are smaller than rounding errors.
    """
    difference = Difference(mu, factor, "upper", resolution)
    first, second = _halves(batches, difference)
    positive = np.maximum(np.add.outer(first.values, second.values), 0.0)
    expectation = float(((positive * second.masses).sum(axis=1) * first.masses).sum())
    rounding = first.rounding + second.rounding + (len(first.values) + len(second.values) + 16) * _UNIT
    return (expectation * (1 + 1.01 * rounding + 1e-12) + first.excess + second.excess + _UNDERFLOW) / batches


def lower_line(batches: int, mu: float, factor: float, resolution: float) -> tuple[float, float]:
    """Returns the value at ``c = factor`` and the slope of a line that is nowhere above delta(c).

    Let A be the event that the sum of the means of cells is positive. Then ``delta(c) >= P(A) - c Q(A)`` for every c.

    Raises:
        OverflowError: See `upper_delta`.
    """
    difference = Difference(mu, factor, "lower", resolution)
    first, second = _halves(batches, difference)
    positive = np.add.outer(first.values, second.values)
    falling = np.add.outer(first.falling, second.falling)
    masses = np.multiply.outer(first.masses, second.masses)
    is_positive = positive > 0
    value = float((masses * positive)[is_positive].sum()) / batches
    slope = float((masses * falling)[is_positive].sum()) / batches / factor
    return value * (1 - 1e-9), -slope


def _halves(batches: int, difference: Difference) -> tuple[SignedLaw, SignedLaw]:
    """Returns two laws for sums of about half of the terms each. The last addition needs no cells, because it is
    computed as a sum over all pairs.
    """
    if not _SMALLEST_MU <= difference.mu <= _LARGEST_MU:
        raise OverflowError("the likelihood ratios are outside the range of floating-point numbers, or almost equal")
    first = _sum_of(max(1, batches // 2), difference)
    if batches == 1:
        nothing = np.zeros(1)
        return first, SignedLaw(nothing, np.ones(1), 0.0, 0.0, 0, nothing)
    if batches % 2 == 1:
        return first, combine(first, _added(first.terms, difference), difference)
    return first, first


def make_single_law(difference: Difference, resolution: float) -> SignedLaw:
    """Returns the law of one W, with cells of equal width in Z.

    Probabilities and means of the cells are exact differences of normal probabilities. W grows with Z, so each cell of
    Z corresponds to a cell of W.
    """
    mu, factor = difference.mu, difference.factor
    top = _ABOVE + mu
    points = np.linspace(-_BELOW, top, math.ceil((top + _BELOW) / resolution) + 1)
    rising = np.exp(mu * points - mu * mu / 2)
    falling = factor * np.exp(-mu * points - mu * mu / 2)
    masses = _normal_masses(points)
    rising_means = _normal_masses(points - mu) / masses
    falling_means = factor * _normal_masses(points + mu) / masses
    means = rising_means - falling_means
    # a difference of two normal probabilities loses the ratio of their size to itself
    width = float(points[1] - points[0])
    rounding = _NORMAL * _UNIT * (1 + (_BELOW + mu + 1) / width)
    sizes = rising + falling
    if difference.side == "lower":
        # cells, and the two tails, in which W may be moved to be smaller
        masses = np.concatenate([[ndtr(-_BELOW)], masses, [ndtr(-top)]])
        tail = factor * ndtr(mu - _BELOW) / masses[0]
        falling_means = np.concatenate([[tail], falling_means, falling[-1:]])
        rising_means = np.concatenate([[0.0], rising_means, rising[-1:]])
        values = rising_means - falling_means - 4 * rounding * (rising_means + falling_means)
        return SignedLaw(values, masses, 0.0, rounding, 1, falling_means)
    # all ends are moved up by more than they err, and the means by more than the ends and they err
    edges = rising - falling + rounding * sizes
    moved = means + 4 * rounding * np.maximum(sizes[:-1], sizes[1:])
    split = _split(moved, masses, edges)
    split[0] += ndtr(-_BELOW)
    split[-1] += ndtr(-top)
    return SignedLaw(edges, split, float(ndtr(mu - top)) * (1 + 1e-9), rounding + 8 * _UNIT, 1, _NONE)


def combine(first: SignedLaw, second: SignedLaw, difference: Difference) -> SignedLaw:
    """Returns a law for the sum of two independent variables, with values reduced to a few hundred cells."""
    edges = _cell_edges(first, second, difference)
    values = _pairs(np.add.outer(first.values, second.values), first is second)
    masses = _pairs(np.multiply.outer(first.masses, second.masses), first is second)
    if first is second:
        # each pair of different values occurs twice
        masses[len(first.values) :] *= 2
    rounding = 1.01 * (first.rounding + second.rounding + (len(values) + 16) * _UNIT)
    terms = first.terms + second.terms
    if difference.side == "upper":
        new_masses = _split(values + 4 * _UNIT * np.abs(values), masses, edges)
        excess = (first.excess + second.excess) * (1 + 8 * _UNIT)
        return _trimmed(SignedLaw(edges, new_masses, excess, rounding, terms, _NONE))
    falling = _pairs(np.add.outer(first.falling, second.falling), first is second)
    cells = _cells(values, edges)
    new_masses = np.bincount(cells, masses, len(edges))
    occupied = new_masses > 0
    means = np.bincount(cells, masses * values, len(edges))[occupied] / new_masses[occupied]
    falling = np.bincount(cells, masses * falling, len(edges))[occupied] / new_masses[occupied]
    # rounded down by more than they err
    sizes = np.maximum(np.abs(edges), np.abs(np.append(edges[1:], edges[-1])))[occupied]
    means = means - 2 * (len(values) + 16) * _UNIT * sizes
    return SignedLaw(means, cast(Array, new_masses[occupied]), 0.0, rounding, terms, falling)


def _sum_of(count: int, difference: Difference) -> SignedLaw:
    """Returns the law of a sum of `count` variables W, computed by doubling. The leading bit of `count` stands for W
    itself.
    """
    result = make_single_law(difference, difference.resolution)
    for bit in bin(count)[3:]:
        result = combine(result, result, difference)
        if bit == "1":
            result = combine(result, _added(result.terms, difference), difference)
    return result


def _added(terms: int, difference: Difference) -> SignedLaw:
    """Returns the law of one W for addition to a sum of many terms. Wider cells are sufficient, because one W is a
    small part of the variance of the sum.
    """
    return make_single_law(difference, difference.resolution * min(math.sqrt(terms), _COARSEST))


def _normal_masses(points: Array) -> Array:
    """Returns the normal probabilities between consecutive points, with small relative errors in both tails."""
    left = ndtr(points)
    right = ndtr(-points)
    return np.asarray(np.where(points[:-1] > 0, right[:-1] - right[1:], left[1:] - left[:-1]), dtype=np.float64)


def _bulk(law: SignedLaw) -> tuple[float, float]:
    """Returns the median of a law, and half the width of its middle two thirds."""
    cumulative = np.cumsum(law.masses)
    low, middle, high = np.interp([0.16, 0.5, 0.84], cumulative / cumulative[-1], law.values)
    return float(middle), float(high - low) / 2


def _cell_edges(first: SignedLaw, second: SignedLaw, difference: Difference) -> Array:
    """Returns the ends of the cells of a sum of m terms. Their width is `resolution` times the scale on which the
    density of the sum changes.

    In the middle, this scale is the width of the bulk. Where one term is far from the others, it is ``mu (U + c V)`` of
    that term, about mu times the distance from the middle. Where all terms are close to 0, ``U + c V`` is equal for
    all, with ``(U + c V)^2 = W^2 + 4 c U V`` and ``U V = exp(-mu^2)``.
    """
    centre_1, width_1 = _bulk(first)
    centre_2, width_2 = _bulk(second)
    mu = difference.mu
    centre = centre_1 + centre_2
    width = difference.resolution * math.hypot(width_1, width_2)
    relative = min(difference.resolution * mu, _WIDEST)
    near = 2 * math.sqrt((first.terms + second.terms) * difference.factor) * math.exp(-mu * mu / 2)
    value = float(first.values[0] + second.values[0])
    last = float(first.values[-1] + second.values[-1])
    last += 1e-12 * abs(last)  # rounded up, as the values are
    edges = [value]
    while value < last:
        value += min(math.hypot(width, relative * (value - centre)), relative * math.hypot(value, near))
        edges.append(value)
        if len(edges) > _MOST_CELLS:
            raise OverflowError("the likelihood ratios spread over too many orders of magnitude")
    return np.array(edges)


def _cells(values: Array, edges: Array) -> NDArray[np.intp]:
    """Returns the index of the cell of each value, from 0; values outside belong to the first and the last cell."""
    return np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)


def _split(values: Array, masses: Array, edges: Array) -> Array:
    """Distributes each mass over both ends of the cell of its value, so that the mean stays or grows."""
    cells = _cells(values, edges)
    low = edges[cells]
    # each of three operations errs by a unit; the product rounds the share up
    shares = np.clip((values - low) / (edges[cells + 1] - low) * (1 + 8 * _UNIT), 0.0, 1.0)
    count = len(edges)
    new_masses = np.bincount(cells, masses * (1 - shares), count) + np.bincount(cells + 1, masses * shares, count)
    return cast(Array, new_masses)


def _pairs(table: Array, is_symmetric: bool) -> Array:
    """Returns all entries of a table; for a symmetric table, the diagonal and then the entries above it."""
    if is_symmetric:
        return np.concatenate([np.diagonal(table), table[np.triu_indices(len(table), 1)]])
    return table.ravel()


def _trimmed(law: SignedLaw) -> SignedLaw:
    """Removes negligible tails of an upper law. The lower tail is moved up; the upper tail is moved down, and the
    difference is added to the excess.
    """
    positive = law.masses * np.maximum(law.values, 0.0)
    above = np.cumsum(positive[::-1])[::-1]
    first = int(np.searchsorted(np.cumsum(law.masses), _NEGLIGIBLE_BELOW))
    last = len(law.values) - 1
    matters = np.flatnonzero(above > _NEGLIGIBLE)
    if len(matters) > 0:
        last = min(last, max(int(matters[-1]), first + 1))
    masses = law.masses[first : last + 1].copy()
    masses[0] += law.masses[:first].sum()
    beyond = law.masses[last + 1 :]
    masses[-1] += beyond.sum()
    moved = float((beyond * (law.values[last + 1 :] - law.values[last])).sum())
    excess = law.excess + moved * (1 + law.rounding + 1e-9)
    rounding = law.rounding + len(law.values) * _UNIT
    return SignedLaw(law.values[first : last + 1], masses, excess, rounding, law.terms, law.falling)
