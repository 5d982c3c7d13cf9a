"""Finite distributions ("laws") that bound the distribution of a likelihood ratio dP/dQ under Q, and of sums and
products of independent ratios.

With S = dP/dQ, the deltas of both directions are expectations of *convex* functions of S under Q:

    delta(P || Q) = E (S - e^epsilon)_+        delta(Q || P) = E (1 - e^epsilon S)_+

So a law that is larger than S in the convex order (mass moved outward at the same mean) bounds both deltas from above,
and a smaller law (mass merged into its mean) bounds them from below. Sums and products of independent, nonnegative
ratios preserve this order. `combine` computes the law of a sum or a product of two finite laws, and reduces it to a few
values:

* an upper law splits each value between the two ends of its cell, in the proportion that keeps the mean;
* a lower law replaces all values of a cell by their mean.

The error of both is proportional to the square of the width of a cell. (If losses were rounded instead, the error would
be proportional to the width itself.)

Rounding of floating-point numbers: all sums have nonnegative terms, so `Ratio` keeps a bound `rounding` on the relative
error of the computed probabilities. If the proportion of a split is slightly wrong, it is the right proportion for a
value with a small relative error; `Ratio` keeps a bound `drift` on this error. Deltas are multiplied by ``1 +
rounding`` (upper) or its inverse (lower), and values are moved by `drift` in the safe direction.

Source: Shaked, Shanthikumar 2007, section 3.A (convex order); Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022
(splitting that keeps both masses is the smallest upper bound on a grid). Proofs: docs/design/0010-allocation.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

Array = NDArray[np.float64]
Side = Literal["upper", "lower"]
Operation = Literal["sum", "product"]
Direction = Literal["remove", "add"]

_UNIT = 2.0**-53  # relative error of one rounding
_NEGLIGIBLE = 1e-19  # probability under P of an upper tail that is trimmed
_NEGLIGIBLE_BELOW = 1e-40  # probability under Q of a lower tail; it may be multiplied by e^epsilon
_BELOW, _ABOVE = 14.0, 10.0  # deviations of the normal variable that are cut into cells; beyond lie 1e-44 and 1e-23
_ROWS = 64  # of the table of pairs that are combined at once
_LOWEST = -650.0  # logarithms: smaller and larger values are too close to the ends of floating-point numbers
_HIGHEST = 300.0
_LARGEST_EPSILON = 650.0
_MOST_CELLS = 20_000
_UNDERFLOW = 1e-100  # more than all products of probabilities that can have become 0


@dataclass(frozen=True)
class Ratio:
    """A finite law that bounds the law of a likelihood ratio S = dP/dQ under Q in the convex order.

    Attributes:
        side: `"upper"` or `"lower"`.
        values: Values of S, increasing; the first may be 0.
        masses: Their probabilities under Q.
        singular: Part of the mean of S that lies at infinity. It is the probability of an infinite loss under P, times
            the mean.
        mean: Mean of S, the singular part included (1 for a likelihood ratio, m for a sum of m of them).
        rounding: Bound on the relative error of each mass.
        drift: Bound on the relative error of each value.
    """

    side: Side
    values: Array
    masses: Array
    singular: float
    mean: float
    rounding: float
    drift: float

    @property
    def exceeds_range(self) -> bool:
        """True if values are so large or small that their probabilities may overflow or underflow."""
        positive = self.values[self.values > 0]
        return math.log(positive[-1]) > _HIGHEST or math.log(positive[0]) < _LOWEST

    def scaled(self, factor: float) -> Ratio:
        """Returns the law of `factor` times this ratio; `factor` is positive."""
        return Ratio(
            self.side,
            self.values * factor,
            self.masses,
            self.singular * factor,
            self.mean * factor,
            self.rounding,
            self.drift + 4 * _UNIT,
        )

    def delta(self, epsilon: float) -> float:
        """Returns a bound on the larger delta of both directions at `epsilon`. It is an upper or a lower bound, as
        `side` states.
        """
        return max(self.delta_remove(epsilon), self.delta_add(epsilon))

    def delta_remove(self, epsilon: float) -> float:
        """Returns a bound on ``E (S - e^epsilon)_+``, the delta of P against Q."""
        if epsilon > _LARGEST_EPSILON:
            return self._trivial_delta()
        excess = float((self.masses * np.maximum(self._moved(1) - math.exp(epsilon), 0.0)).sum())
        return self._with_rounding(excess) + self._mass_at_infinity(self.singular)

    def delta_add(self, epsilon: float) -> float:
        """Returns a bound on ``E (1 - e^epsilon S)_+``, the delta of Q against P."""
        if epsilon > _LARGEST_EPSILON:
            return self._trivial_delta()
        # values above e^-epsilon count for nothing, however large
        values = np.minimum(self._moved(-1), 2.0)
        excess = float((self.masses * np.maximum(1.0 - math.exp(epsilon) * values, 0.0)).sum())
        return self._with_rounding(excess) + self._mass_at_infinity(0.0)

    def epsilon(self, delta: float) -> float:
        """Returns a bound on the smallest epsilon at `delta`, an upper or a lower one as `side` states; infinity if
        there is none.
        """
        if self.delta(0.0) <= delta:
            return 0.0
        positive = self.values[self.values > 0]
        low = 0.0
        high = max(math.log(positive[-1]), -math.log(positive[0]), 0.0) + 1.0
        if self.delta(high) > delta:
            return math.inf
        # delta falls with epsilon: `low` is always below the solution, and `high` never
        for _ in range(100):
            middle = (low + high) / 2
            if self.delta(middle) > delta:
                low = middle
            else:
                high = middle
            if high - low <= 1e-9 * high:
                break
        if self.side == "upper":
            return high
        return low

    def loss_masses(self, interval: float, direction: Direction) -> tuple[int, Array, float]:
        """Returns the distribution of the privacy loss of one direction on the multiples of `interval`.

        For an upper law, each value is split between two values ``e^(j interval)`` with the same mean, which is the
        tightest upper bound on this grid. For a lower law, losses are rounded down.

        Args:
            interval: Spacing of the losses; positive.
            direction: `"remove"` for the loss ``log S`` under P, `"add"` for ``-log S`` under Q.

        Returns:
            The smallest loss in steps of `interval`, the probabilities of it and the following ones, and the
            probability of an infinite loss.
        """
        if direction == "remove":
            values = self._moved(1)
        else:
            values = self._moved(-1)
        positive = values > 0
        logs = np.log(values[positive]) / interval
        lowest = math.floor(float(logs[0])) - 1
        highest = math.ceil(float(logs[-1])) + 1
        steps = np.arange(lowest, highest + 1)
        if self.side == "upper":
            edges = np.append(0.0, np.exp(interval * steps))
            masses = _split(values, self.masses, edges) * (1 + self._error)
            mass_at_zero = float(masses[0])
            if direction == "remove":
                return lowest, masses[1:] * edges[1:] * (1 + 8 * _UNIT), self.singular + _UNDERFLOW
            return -highest, masses[:0:-1], mass_at_zero + _UNDERFLOW
        masses = self.masses[positive] * max(0.0, 1 - self._error)
        if direction == "remove":
            rounded = np.floor(logs).astype(np.intp)
            loss_probabilities = np.bincount(rounded - lowest, masses * values[positive], len(steps))
            return lowest, cast(Array, loss_probabilities), 0.0
        rounded = np.floor(-logs).astype(np.intp)
        return -highest, cast(Array, np.bincount(rounded + highest, masses, len(steps))), 0.0

    @property
    def _error(self) -> float:
        """Returns a bound on the relative error of a sum over all masses."""
        return self.rounding + (len(self.values) + 16) * _UNIT

    def _moved(self, sign: int) -> Array:
        """Returns the values moved by the drift: up for sign 1 and down for sign -1, and in the opposite direction for
        a lower law.
        """
        if self.side == "lower":
            sign = -sign
        return self.values * (1 + sign * (1.01 * self.drift + 4 * _UNIT))

    def _with_rounding(self, delta: float) -> float:
        if self.side == "upper":
            return delta * (1 + self._error)
        return delta * max(0.0, 1 - self._error)

    def _trivial_delta(self) -> float:
        """Returns a trivial bound on delta, for an e^epsilon outside the range of floating-point numbers."""
        if self.side == "upper":
            return 1.0
        return 0.0

    def _mass_at_infinity(self, singular: float) -> float:
        """Returns the amount by which an infinite loss of this probability, and masses that were lost, can increase
        delta.
        """
        if self.side == "upper":
            return singular + _UNDERFLOW
        return 0.0


def gaussian_ratio(noise: float, side: Side, resolution: float) -> Ratio:
    """Returns a law for the ratio of N(1, noise^2) to N(0, noise^2): ``exp(Z / noise - 1 / (2 noise^2))``, Z normal.

    Args:
        noise: Standard deviation of the noise divided by the sensitivity; positive.
        side: `"upper"` or `"lower"`, the side on which the law bounds the ratio.
        resolution: Width of a cell, in standard deviations of Z.

    Raises:
        OverflowError: If `noise` is so small that S overflows.
    """
    mu = 1 / noise
    top = _ABOVE + mu
    if mu * top - mu * mu / 2 > _HIGHEST or -mu * _BELOW - mu * mu / 2 < _LOWEST:
        raise OverflowError("the likelihood ratio is outside the range of floating-point numbers")
    count = math.ceil((top + _BELOW) / resolution)
    points = np.linspace(-_BELOW, top, count + 1)
    edges = np.exp(mu * points - mu * mu / 2)
    inner = _normal_masses(points)
    inner_means = _normal_masses(points - mu)
    # the cells at both ends reach to 0 and to infinity
    masses = np.concatenate([[ndtr(points[0])], inner, [ndtr(-points[-1])]])
    means = np.concatenate([[ndtr(points[0] - mu)], inner_means, [ndtr(mu - points[-1])]])
    # scipy's ndtr has a relative error of some units; a difference of two loses the ratio of their size to it
    width = float(points[1] - points[0])
    rounding = 64 * _UNIT * (1 + (_BELOW + mu + 1) / width)
    if side == "lower":
        present = masses > 0
        return Ratio(side, means[present] / masses[present], masses[present], 0.0, 1.0, rounding, 2 * rounding)
    values = np.clip(means[1:-1] / inner, edges[:-1], edges[1:])
    first_value = min(means[0] / masses[0], edges[0])
    split = _split(np.append(first_value, values), masses[:-1], np.append(0.0, edges))
    split[-1] += masses[-1]
    singular = max(float(means[-1] - edges[-1] * masses[-1]), 0.0) + rounding * float(means[-1])
    return Ratio(side, np.append(0.0, edges), split, singular, 1.0, rounding, 2 * rounding)


def combine(first: Ratio, second: Ratio, operation: Operation, resolution: float) -> Ratio:
    """Returns a law for the sum or the product of two independent ratios, with the same `side` as both.

    Args:
        first: One law.
        second: The other, of the same side.
        operation: `"sum"` or `"product"`.
        resolution: Width of the cells to which values are reduced. It is relative to the width of the bulk of the law
            in its middle, and to the distance from the middle in its tails.

    Raises:
        OverflowError: If the values are outside the range of floating-point numbers.
    """
    low, high = _support(first, second, operation)
    edges = _cell_edges(first, second, operation, low, high, resolution)
    if first.side == "upper":
        values, masses, rounding = _upper_pairs(first, second, operation, edges)
    else:
        values, masses, rounding = _lower_pairs(first, second, operation, edges)
    if operation == "sum":
        mean = first.mean + second.mean
        singular = first.singular + second.singular
        drift = max(first.drift, second.drift)
    else:
        mean = first.mean * second.mean
        singular = first.singular * second.mean + second.singular * first.mean
        drift = (1 + first.drift) * (1 + second.drift) - 1
    drift += 16 * _UNIT
    if first.side == "lower":
        drift += 2 * rounding  # a mean is a ratio of two sums
    combined = Ratio(
        first.side,
        values,
        masses,
        singular * (1 + 8 * _UNIT),
        mean,
        1.01 * rounding + (1 + 1.01 * rounding) * ((1 + first.rounding) * (1 + second.rounding) - 1),
        drift,
    )
    trimmed = _trimmed(combined)
    if trimmed.exceeds_range:
        raise OverflowError("the likelihood ratio is outside the range of floating-point numbers")
    return trimmed


def power(ratio: Ratio, count: int, operation: Operation, resolution: float) -> Ratio:
    """Returns a law for the sum or product of `count` independent copies of a ratio, by doubling.

    Raises:
        OverflowError: If the values are outside the range of floating-point numbers.
    """
    result = ratio
    # the leading bit is the ratio itself; each further bit doubles, and adds one copy where it is 1
    for bit in bin(count)[3:]:
        result = combine(result, result, operation, resolution)
        if bit == "1":
            result = combine(result, ratio, operation, resolution)
    return result


def _normal_masses(points: Array) -> Array:
    """Returns the normal probabilities between consecutive points, with small relative errors in both tails."""
    left = ndtr(points)
    right = ndtr(-points)
    return np.asarray(np.where(points[:-1] > 0, right[:-1] - right[1:], left[1:] - left[:-1]), dtype=np.float64)


def _support(first: Ratio, second: Ratio, operation: Operation) -> tuple[float, float]:
    """Returns the smallest and the largest positive value of the combination."""
    lows = [float(ratio.values[ratio.values > 0][0]) for ratio in (first, second)]
    highs = [float(ratio.values[-1]) for ratio in (first, second)]
    if operation == "sum":
        return sum(lows), sum(highs)
    return lows[0] * lows[1], highs[0] * highs[1]


def _bulk(ratio: Ratio) -> tuple[float, float, float]:
    """Returns the median and half the width of the middle two thirds of a law, for values and for their logarithms."""
    cumulative = np.cumsum(ratio.masses) / ratio.masses.sum()
    low, middle, high = np.interp([0.16, 0.5, 0.84], cumulative, ratio.values)
    return float(middle), float(high - low) / 2, math.log(high / low) / 2


def _cell_edges(first: Ratio, second: Ratio, operation: Operation, low: float, high: float, resolution: float) -> Array:
    """Returns the ends of the cells: 0, then from `low` to `high`, fine in the bulk, geometric in the tails."""
    centre_1, width_1, log_width_1 = _bulk(first)
    centre_2, width_2, log_width_2 = _bulk(second)
    if operation == "sum":
        centre = centre_1 + centre_2
        width = math.hypot(width_1, width_2)
        spread = 1.0
    else:
        centre = centre_1 * centre_2
        width = math.hypot(width_1 * centre_2, width_2 * centre_1)
        spread = max(1.0, math.hypot(log_width_1, log_width_2))
    # where the logarithm of a product spreads over more than 1, cells are as wide as a share of that
    relative = resolution * spread
    edges = [0.0, low]
    value = low
    while value < high:
        value += min(relative * value, math.hypot(relative * (value - centre), resolution * width))
        edges.append(value)
        if len(edges) > _MOST_CELLS:
            raise OverflowError("the likelihood ratio spreads over too many orders of magnitude")
    return np.array(edges)


def _pair_values(some: Array, others: Array, operation: Operation) -> Array:
    """Returns the sum or product of each value of `some` and each value of `others`, as a flat array."""
    if operation == "sum":
        return np.add.outer(some, others).ravel()
    return np.multiply.outer(some, others).ravel()


def _pair_rounding(first: Ratio, second: Ratio) -> float:
    """Returns a bound on the relative error of sums over all pairs, which are computed within a block of rows and then
    over the blocks.
    """
    rows = len(first.values)
    return (min(_ROWS, rows) * len(second.values) + rows // _ROWS + 16) * _UNIT


def _upper_pairs(first: Ratio, second: Ratio, operation: Operation, edges: Array) -> tuple[Array, Array, float]:
    """Splits the value of each pair between the ends of its cell."""
    masses: Array = np.zeros(len(edges))
    for start in range(0, len(first.values), _ROWS):
        block = slice(start, start + _ROWS)
        values = _pair_values(first.values[block], second.values, operation)
        weights = np.multiply.outer(first.masses[block], second.masses).ravel()
        masses += _split(values, weights, edges)
    return edges, masses, _pair_rounding(first, second)


def _lower_pairs(first: Ratio, second: Ratio, operation: Operation, edges: Array) -> tuple[Array, Array, float]:
    """Merges the values of all pairs of a cell into their mean."""
    masses: Array = np.zeros(len(edges))
    totals: Array = np.zeros(len(edges))
    for start in range(0, len(first.values), _ROWS):
        block = slice(start, start + _ROWS)
        values = _pair_values(first.values[block], second.values, operation)
        weights = np.multiply.outer(first.masses[block], second.masses).ravel()
        cells = _cells(values, edges)
        masses += np.bincount(cells, weights, len(edges))
        totals += np.bincount(cells, weights * values, len(edges))
    present = masses > 0
    means = np.maximum.accumulate(totals[present] / masses[present])
    return means, masses[present], _pair_rounding(first, second)


def _cells(values: Array, edges: Array) -> NDArray[np.intp]:
    """Returns the index of the cell of each value; values above the last end are in the last cell."""
    return np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)


def _split(values: Array, weights: Array, edges: Array) -> Array:
    """Distributes each weight over both ends of the cell of its value, so that the mean stays."""
    cells = _cells(values, edges)
    shares = np.clip((values - edges[cells]) / (edges[cells + 1] - edges[cells]), 0.0, 1.0)
    count = len(edges)
    masses = np.bincount(cells, weights * (1 - shares), count) + np.bincount(cells + 1, weights * shares, count)
    return cast(Array, masses)


def _trimmed(ratio: Ratio) -> Ratio:
    """Removes tails of negligible probability: at the lower end under Q, and at the upper end under P."""
    values, masses = ratio.values, ratio.masses
    # a value of 0 stays, whatever its probability
    below = np.cumsum(np.where(values > 0, masses, 0.0))
    above = np.cumsum((masses * values)[::-1])[::-1] / ratio.mean
    first = int(np.searchsorted(below, _NEGLIGIBLE_BELOW, side="right"))
    last = int(np.flatnonzero(above > _NEGLIGIBLE)[-1])
    if first == 0 and last == len(values) - 1:
        return ratio
    if ratio.side == "lower":
        return _trimmed_lower(ratio, first, last)
    # an upper law: the lower tail goes to 0 and to the first value kept, the upper tail to the last one and to infinity
    trimmed_masses = masses[first : last + 1].copy()
    trimmed_values = values[first : last + 1]
    shares = values[:first] / values[first]
    trimmed_masses[0] += float((masses[:first] * shares).sum())
    mass_at_zero = float((masses[:first] * (1 - shares)).sum())
    beyond = masses[last + 1 :]
    trimmed_masses[-1] += float(beyond.sum())
    singular = float((beyond * (values[last + 1 :] - values[last])).sum())
    if first > 0:
        trimmed_masses = np.append(mass_at_zero, trimmed_masses)
        trimmed_values = np.append(0.0, trimmed_values)
    return Ratio(
        ratio.side,
        trimmed_values,
        trimmed_masses,
        ratio.singular + singular * (1 + ratio.rounding + 1e-9),
        ratio.mean,
        ratio.rounding + len(values) * _UNIT,
        ratio.drift + 8 * _UNIT,
    )


def _trimmed_lower(ratio: Ratio, first: int, last: int) -> Ratio:
    """Removes the tails of a lower law. Each tail is replaced by one value, its mean."""
    tails = [slice(0, first), slice(last + 1, len(ratio.values))]
    masses = np.concatenate([ratio.masses[tails[0]].sum(keepdims=True), ratio.masses[first : last + 1]])
    masses = np.append(masses, ratio.masses[tails[1]].sum())
    products = ratio.values * ratio.masses
    totals = np.concatenate([products[tails[0]].sum(keepdims=True), products[first : last + 1]])
    totals = np.append(totals, products[tails[1]].sum())
    present = masses > 0
    return Ratio(
        ratio.side,
        totals[present] / masses[present],
        masses[present],
        0.0,
        ratio.mean,
        ratio.rounding + len(ratio.values) * _UNIT,
        ratio.drift + 2 * (len(ratio.values) + 4) * _UNIT,
    )
