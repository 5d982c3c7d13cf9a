"""Statistics of numeric columns: mean and deviation, quantiles, histogram, correlations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from fedpriv.errors import ConfigError
from fedpriv.privacy import Clip, ConvexHull
from fedpriv.settings import Positive, validate_arguments
from fedpriv.statistics import cumulative
from fedpriv.statistics.estimates import Z95, Answer, Estimate
from fedpriv.statistics.query import MOST_BINS, Floats, OfColumn, Table, check_bounds, numbers_of, scaled_numbers

Bounds = tuple[float, float]
ROUNDED_UP = 1 + 1e-9  # factor of a bound, so that rounding clips no vector
_RELIABLE = 10.0  # rows that are not missing, over the deviation of the noise in their number, for an interval


@validate_arguments("statistics.mean")
@dataclass(frozen=True)
class Mean(OfColumn):
    """Mean, standard deviation and share of missing values of a numeric column.

    The vector of a row is `(u, 1 - u^2, 0)`, where u is the value mapped to [-1, 1]; it is `(0, 0, 1)` for a missing
    value. Its norm is at most 1, so the deviation costs nothing beside the mean.

    Args:
        column: The column.
        bounds: Public range of its values; values outside count as the nearest end.
        weight: Share of the budget, relative to the other statistics.

    Raises:
        ConfigError: If the bounds are not finite, or not in ascending order.

    Examples:
        >>> import fedpriv
        >>> fedpriv.statistics.Mean("age", bounds=(0, 120)).width
        3
    """

    column: str
    bounds: Bounds
    weight: Positive = 1.0

    def __post_init__(self) -> None:
        check_bounds(f"statistics.{self.column}.bounds", self.bounds)

    @property
    def width(self) -> int:
        """Three entries."""
        return 3

    @property
    def clip(self) -> Clip:
        """See `Statistic`; the vectors of both bounds differ by 2, so no smaller set than a ball helps."""
        return Clip(ROUNDED_UP)

    def vectors(self, table: Table) -> Floats:
        """See `Statistic`."""
        u = scaled_numbers(table, self.column, self.bounds)
        missing = np.isnan(u)
        known = np.where(missing, 0.0, u)
        return np.stack([known, np.where(missing, 0.0, 1 - known**2), missing.astype(np.float64)], 1)

    def answer(self, mean: Floats, deviation: float, n: int) -> Answer:
        """See `Statistic`."""
        low, high = self.bounds
        present = 1 - mean[2]
        values = {"missing": _share(mean[2], deviation)}
        if present <= _RELIABLE * deviation:
            return Answer(self.name, values, (f"{self.column}: too few values for a mean at this epsilon",))
        u = mean[0] / present
        half = (high - low) / 2
        error = deviation * math.sqrt(1 + u**2) / present  # of a quotient, to the first order
        square = 1 - mean[1] / present - u**2
        center = Estimate.normal((low + high) / 2 + half * u, half * error).clamped(low, high)
        # the noise of the mean of 1 - u^2, of the mean of u, and of the share of missing values, to the first order
        spread = deviation / present * math.sqrt(1 + 4 * u**2 + (1 - square + u**2) ** 2)
        squares = Estimate.normal(square, spread).clamped(0.0, 1.0)
        sd = Estimate(*(half * math.sqrt(number) for number in (squares.value, squares.low, squares.high)))
        return Answer(self.name, {"mean": center, "sd": sd, **values})

    def half_widths(self, deviation: float, n: int) -> Mapping[str, float]:
        """See `Statistic`; without missing values and for a mean in the middle."""
        return {"mean": Z95 * deviation * (self.bounds[1] - self.bounds[0]) / 2, "missing": Z95 * deviation}

    def half_ranges(self, n: int) -> Mapping[str, float]:
        """See `Statistic`."""
        return {"mean": (self.bounds[1] - self.bounds[0]) / 2}


@validate_arguments("statistics.quantiles")
@dataclass(frozen=True)
class Quantiles(OfColumn):
    """Mean, standard deviation, quantiles and share of missing values of a numeric column, from one noised vector.

    Its vector is a column of the square root of the running sum over bins (`fedpriv.statistics.cumulative`), which
    gives the whole distribution function. Results lie within a bin of the exact ones even without noise.

    Args:
        column: The column.
        bounds: Public range of its values; values outside count as the nearest end.
        probabilities: The quantiles; by default the quartiles.
        bins: Number of bins of equal width; more bins cost almost nothing, so the default is 128.
        weight: Share of the budget, relative to the other statistics.

    Raises:
        ConfigError: If the bounds are not finite or not in ascending order, there are too many bins, or a probability
            is not between 0 and 1. The smallest and largest value cannot be asked for: use .01 and .99.

    Examples:
        >>> import fedpriv
        >>> fedpriv.statistics.Quantiles("age", bounds=(0, 120), bins=120).width
        121
    """

    column: str
    bounds: Bounds
    probabilities: tuple[float, ...] = (0.25, 0.5, 0.75)
    bins: int = 128
    weight: Positive = 1.0

    def __post_init__(self) -> None:
        check_bounds(f"statistics.{self.column}.bounds", self.bounds)
        check_bins(f"statistics.{self.column}.bins", self.bins)
        for probability in self.probabilities:
            if not 0 < probability < 1:
                fix = "must be between 0 and 1; exact extremes belong to single rows, so use 0.01 and 0.99 for them"
                raise ConfigError(f"statistics.{self.column}.probabilities", probability, fix)

    @property
    def width(self) -> int:
        """An entry for each bin and one for missing values."""
        return self.bins + 1

    @property
    def clip(self) -> ConvexHull:
        """See `Statistic`: a vertex for each bin, and one for missing values at the centre of the others."""
        return self._clip

    @cached_property
    def _clip(self) -> ConvexHull:
        vertices = np.zeros((self.width, self.width))
        vertices[:-1, :-1] = cumulative.root(self.bins).T - cumulative.centre(self.bins)
        vertices[-1, -1] = cumulative.radius(self.bins)
        return ConvexHull(torch.from_numpy(vertices))

    def vectors(self, table: Table) -> Floats:
        """See `Statistic`."""
        values = numbers_of(table, self.column)
        missing = np.isnan(values)
        position = bin_of(np.where(missing, self.bounds[0], values), self.bounds, self.bins)
        return np.eye(self.width)[np.where(missing, self.bins, position)]

    def answer(self, mean: Floats, deviation: float, n: int) -> Answer:
        """See `Statistic`."""
        share_missing = mean[-1] / cumulative.radius(self.bins)
        missing_deviation = deviation / cumulative.radius(self.bins)
        present = 1 - share_missing
        values = {"missing": _share(share_missing, missing_deviation)}
        if present <= _RELIABLE * missing_deviation:
            return Answer(self.name, values, (f"{self.column}: too few values for quantiles at this epsilon",))
        distribution = cumulative.Distribution.of(mean[:-1], present, deviation, missing_deviation, self.bounds)
        values = {
            "mean": distribution.mean(),
            "sd": Estimate(distribution.sd()),
            **{f"{100 * q:g} %": distribution.quantile(q) for q in self.probabilities},
            **values,
        }
        curve = {
            "value": tuple(distribution.edges.tolist()),
            "distribution function": tuple(distribution.smooth.tolist()),
        }
        return Answer(self.name, values, (), curve)

    def half_widths(self, deviation: float, n: int) -> Mapping[str, float]:
        """See `Statistic`: of the distribution function in its middle."""
        error = math.sqrt(float(np.square(cumulative.root(self.bins)[self.bins // 2]).sum()))
        return {
            "distribution function": Z95 * deviation * error,
            "missing": Z95 * deviation / cumulative.radius(self.bins),
        }

    def half_ranges(self, n: int) -> Mapping[str, float]:
        """See `Statistic`."""
        return {"distribution function": 0.5}


@validate_arguments("statistics.correlations")
@dataclass(frozen=True)
class Correlations:
    """Correlations of each pair of some numeric columns; a row with a missing value has the middle of the bounds there.

    The vector of a row are the entries of z and z z^T, where z are its values mapped to [-1, 1] over the square root of
    the number of columns.

    Args:
        bounds: Public range of each column.
        weight: Share of the budget, relative to the other statistics.

    Raises:
        ConfigError: If there are fewer than two columns, or bounds are not finite or not in ascending order.

    Examples:
        >>> import fedpriv
        >>> fedpriv.statistics.Correlations({"age": (0, 120), "chol": (0, 640)}).width
        5
    """

    bounds: Mapping[str, Bounds]
    weight: Positive = 1.0

    def __post_init__(self) -> None:
        if not 2 <= len(self.bounds) <= _MOST_COLUMNS:
            fix = f"must be the public range of 2 to {_MOST_COLUMNS} columns"
            raise ConfigError("statistics.correlations.bounds", len(self.bounds), fix)
        for column, bounds in self.bounds.items():
            check_bounds(f"statistics.correlations.bounds.{column}", bounds)

    @property
    def name(self) -> str:
        """The word."""
        return "correlations"

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns."""
        return tuple(self.bounds)

    @property
    def width(self) -> int:
        """The entries of z, and of z z^T on and above the diagonal."""
        d = len(self.bounds)
        return d + d * (d + 1) // 2

    @property
    def clip(self) -> Clip:
        """See `Statistic`: of z and z z^T, where z has norm at most 1."""
        return Clip(math.sqrt(2) * ROUNDED_UP)

    def vectors(self, table: Table) -> Floats:
        """See `Statistic`."""
        scaled = [np.nan_to_num(scaled_numbers(table, name, bounds)) for name, bounds in self.bounds.items()]
        z = np.stack(scaled, 1) / math.sqrt(len(scaled))
        rows, columns, factors = self._entries()
        return np.concatenate([z, z[:, rows] * z[:, columns] * factors], 1)

    def _entries(self) -> tuple[np.ndarray, np.ndarray, Floats]:
        """Returns the positions in z z^T, and sqrt 2 for those that stand for two."""
        rows, columns = np.triu_indices(len(self.bounds))
        return rows, columns, np.where(rows == columns, 1.0, math.sqrt(2))

    def answer(self, mean: Floats, deviation: float, n: int) -> Answer:
        """See `Statistic`."""
        d = len(self.bounds)
        rows, columns, factors = self._entries()
        second = np.zeros((d, d))
        second[rows, columns] = second[columns, rows] = mean[d:] / factors
        covariance = second - np.outer(mean[:d], mean[:d])
        variances = np.diag(covariance)
        values, notes = dict[str, Estimate](), list[str]()
        names = tuple(self.bounds)
        for i, j in zip(*np.triu_indices(d, 1), strict=True):
            label = f"{names[i]}, {names[j]}"
            if min(variances[i], variances[j]) <= _RELIABLE * deviation:
                notes.append(f"{label}: the noise hides the deviation of a column, so there is no correlation")
                continue
            scale = math.sqrt(variances[i] * variances[j])
            rho = covariance[i, j] / scale
            # to the first order: noise of the covariance, and of both variances
            own = deviation / math.sqrt(2) / scale
            of_variances = abs(rho) / 2 * deviation * math.hypot(1 / variances[i], 1 / variances[j])
            of_means = deviation / scale * math.hypot(mean[i], mean[j])
            error = math.sqrt(own**2 + of_variances**2 + of_means**2)
            values[label] = Estimate.normal(rho, error).clamped(-1.0, 1.0)
        return Answer(self.name, values, tuple(notes))

    def half_widths(self, deviation: float, n: int) -> Mapping[str, float]:
        """See `Statistic`: for columns that use half of their range, about."""
        variance = 1 / (4 * len(self.bounds))
        return {"correlation": Z95 * deviation / math.sqrt(2) / variance}

    def half_ranges(self, n: int) -> Mapping[str, float]:
        """See `Statistic`."""
        return {"correlation": 1.0}


_MOST_COLUMNS = 40


def check_bins(field: str, bins: int) -> None:
    """Raises for a number of bins out of range.

    Raises:
        ConfigError: If there are fewer than 2 or too many.
    """
    if not 2 <= bins <= MOST_BINS:
        raise ConfigError(field, bins, f"must be from 2 to {MOST_BINS}")


def bin_of(values: Floats, bounds: Bounds, bins: int) -> np.ndarray:
    """Returns the bin of each value, `[n]`; a value on an edge belongs to the bin below, the lowest to the first."""
    low, high = bounds
    edges = np.linspace(low, high, bins + 1)
    return np.clip(np.searchsorted(edges, np.clip(values, low, high), side="left") - 1, 0, bins - 1)


def _share(value: float, deviation: float) -> Estimate:
    return Estimate.normal(value, deviation).clamped(0.0, 1.0)
