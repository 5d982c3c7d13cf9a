"""Numbers of rows: in the bins of a numeric column, by category, by pairs of categories; and means by group."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product

import numpy as np
import torch
from numpy.typing import NDArray

from fedpriv.errors import ConfigError
from fedpriv.privacy import ConvexHull
from fedpriv.settings import Positive, validate_arguments
from fedpriv.statistics.estimates import Z95, Answer, Estimate
from fedpriv.statistics.numbers import Bounds, bin_of, check_bins
from fedpriv.statistics.query import (
    MOST_BINS,
    Floats,
    OfColumn,
    Table,
    check_bounds,
    check_categories,
    numbers_of,
    positions_of,
    scaled_numbers,
)

_RELIABLE = 10.0  # rows of a group over the deviation of the noise in their number, for a mean
_REST = ("other", "missing")


class _Cells(ABC):
    """Number of rows in each of some cells. A row's vector is the unit vector of its cell, minus the mean of all unit
    vectors. Two vectors differ by at most sqrt 2.
    """

    @abstractmethod
    def labels(self) -> list[str]:
        """Returns the names of the cells."""

    @abstractmethod
    def cells(self, table: Table) -> NDArray[np.int64]:
        """Returns the number of each row's cell, `[n]`."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the answer."""

    @property
    def width(self) -> int:
        """An entry for each cell."""
        return len(self.labels())

    @property
    def clip(self) -> ConvexHull:
        """See `Statistic`."""
        return self._clip

    @cached_property
    def _clip(self) -> ConvexHull:
        return ConvexHull(torch.eye(self.width, dtype=torch.float64) - 1 / self.width)

    def vectors(self, table: Table) -> Floats:
        """See `Statistic`."""
        return np.eye(self.width)[self.cells(table)]

    def answer(self, mean: Floats, deviation: float, n: int) -> Answer:
        """See `Statistic`."""
        shares = (mean + 1 / self.width).tolist()
        counts = [Estimate.normal(n * share, n * deviation).clamped(0.0, float(n)) for share in shares]
        return Answer(self.name, dict(zip(self.labels(), counts, strict=True)))

    def half_widths(self, deviation: float, n: int) -> Mapping[str, float]:
        """See `Statistic`."""
        return {"rows": Z95 * deviation * n}

    def half_ranges(self, n: int) -> Mapping[str, float]:
        """See `Statistic`."""
        return {"rows": n / 2}


@validate_arguments("statistics.histogram")
@dataclass(frozen=True)
class Histogram(_Cells):
    """Number of rows in each of some bins of equal width, and of missing values.

    Args:
        column: The column.
        bounds: Public range of its values; values outside count as the nearest end.
        bins: Number of bins.
        weight: Share of the budget, relative to the other statistics.

    Raises:
        ConfigError: If the bounds are not finite or not in ascending order, or there are too many bins.

    Examples:
        >>> import fedpriv
        >>> fedpriv.statistics.Histogram("age", bounds=(0, 100), bins=10).width
        11
    """

    column: str
    bounds: Bounds
    bins: int = 10
    weight: Positive = 1.0

    def __post_init__(self) -> None:
        check_bounds(f"statistics.{self.column}.bounds", self.bounds)
        check_bins(f"statistics.{self.column}.bins", self.bins)

    @property
    def name(self) -> str:
        """The column, as a histogram."""
        return f"histogram of {self.column}"

    @property
    def columns(self) -> tuple[str, ...]:
        """The column."""
        return (self.column,)

    def labels(self) -> list[str]:
        """Returns the ranges of the bins."""
        edges = np.linspace(*self.bounds, self.bins + 1)
        return [*(f"{low:.4g} to {high:.4g}" for low, high in pairwise(edges)), "missing"]

    def cells(self, table: Table) -> NDArray[np.int64]:
        """Returns the bin of each row."""
        values = numbers_of(table, self.column)
        missing = np.isnan(values)
        return np.where(missing, self.bins, bin_of(np.where(missing, self.bounds[0], values), self.bounds, self.bins))


@validate_arguments("statistics.counts")
@dataclass(frozen=True)
class Counts(OfColumn, _Cells):
    """Number of rows with each value of a categorical column, with other values, and without a value.

    Args:
        column: The column.
        categories: Its values, from public knowledge.
        weight: Share of the budget, relative to the other statistics.

    Raises:
        ConfigError: If there are no categories, too many, or one of them twice.

    Examples:
        >>> import fedpriv
        >>> fedpriv.statistics.Counts("smoker", categories=["no", "yes"]).width
        4
    """

    column: str
    categories: Sequence[str]
    weight: Positive = 1.0

    def __post_init__(self) -> None:
        check_categories(f"statistics.{self.column}.categories", self.categories)

    def labels(self) -> list[str]:
        """Returns the categories and the rest."""
        return [*self.categories, *_REST]

    def cells(self, table: Table) -> NDArray[np.int64]:
        """Returns the category of each row."""
        return positions_of(table, self.column, self.categories)


@validate_arguments("statistics.cross_table")
@dataclass(frozen=True)
class CrossTable(_Cells):
    """Number of rows with each pair of values of two categorical columns.

    Args:
        first: A column.
        first_categories: Its values, from public knowledge.
        second: Another column.
        second_categories: Its values, from public knowledge.
        weight: Share of the budget, relative to the other statistics.

    Raises:
        ConfigError: If there are no categories, one of them twice, or too many pairs.

    Examples:
        >>> import fedpriv
        >>> fedpriv.statistics.CrossTable("sex", ["f", "m"], "smoker", ["no", "yes"]).width
        16
    """

    first: str
    first_categories: Sequence[str]
    second: str
    second_categories: Sequence[str]
    weight: Positive = 1.0

    def __post_init__(self) -> None:
        check_categories(f"statistics.{self.first}.categories", self.first_categories)
        check_categories(f"statistics.{self.second}.categories", self.second_categories)
        if self.width > MOST_BINS:
            raise ConfigError("statistics.cross_table", self.width, f"must have at most {MOST_BINS} pairs of values")

    @property
    def name(self) -> str:
        """Both columns."""
        return f"{self.first}, {self.second}"

    @property
    def columns(self) -> tuple[str, ...]:
        """Both columns."""
        return (self.first, self.second)

    def labels(self) -> list[str]:
        """Returns the pairs."""
        pairs = product((*self.first_categories, *_REST), (*self.second_categories, *_REST))
        return [f"{one}, {other}" for one, other in pairs]

    def cells(self, table: Table) -> NDArray[np.int64]:
        """Returns the pair of each row."""
        first = positions_of(table, self.first, self.first_categories)
        second = positions_of(table, self.second, self.second_categories)
        return first * (len(self.second_categories) + len(_REST)) + second


@validate_arguments("statistics.group_means")
@dataclass(frozen=True)
class GroupMeans:
    """Number of rows of each group, and the mean of a numeric column in it.

    A group whose number of rows is within the noise gets no mean. A missing number counts as the middle of the bounds.

    Args:
        column: The numeric column.
        bounds: Public range of its values; values outside count as the nearest end.
        by: The categorical column of the groups.
        categories: Its values, from public knowledge.
        weight: Share of the budget, relative to the other statistics.

    Raises:
        ConfigError: If the bounds are not finite or not in ascending order, there are no categories, too many, or one
            of them twice.

    Examples:
        >>> import fedpriv
        >>> fedpriv.statistics.GroupMeans("chol", (0, 640), by="sex", categories=["f", "m"]).width
        8
    """

    column: str
    bounds: Bounds
    by: str
    categories: Sequence[str]
    weight: Positive = 1.0

    def __post_init__(self) -> None:
        check_bounds(f"statistics.{self.column}.bounds", self.bounds)
        check_categories(f"statistics.{self.by}.categories", self.categories)

    @property
    def name(self) -> str:
        """The columns."""
        return f"{self.column} by {self.by}"

    @property
    def columns(self) -> tuple[str, ...]:
        """Both columns."""
        return (self.column, self.by)

    @property
    def width(self) -> int:
        """Two entries for each group."""
        return 2 * (len(self.categories) + 2)

    @property
    def clip(self) -> ConvexHull:
        """See `Statistic`: the vertices are (e, e) and (e, -e) for the unit vectors e, at most 2 from each other."""
        return self._clip

    @cached_property
    def _clip(self) -> ConvexHull:
        units = torch.eye(self.width // 2, dtype=torch.float64)
        return ConvexHull(torch.cat([torch.cat([units, units], 1), torch.cat([units, -units], 1)]))

    def vectors(self, table: Table) -> Floats:
        """See `Statistic`: (e, u e) is (1 + u) / 2 times (e, e) plus (1 - u) / 2 times (e, -e)."""
        units = np.eye(self.width // 2)[positions_of(table, self.by, self.categories)]
        share = (1 + np.nan_to_num(scaled_numbers(table, self.column, self.bounds))[:, None]) / 2
        return np.concatenate([units * share, units * (1 - share)], 1)

    def answer(self, mean: Floats, deviation: float, n: int) -> Answer:
        """See `Statistic`."""
        low, high = self.bounds
        half = (high - low) / 2
        groups = self.width // 2
        values, notes = dict[str, Estimate](), list[str]()
        labels = (*self.categories, *_REST)
        for label, share, sums in zip(labels, mean[:groups].tolist(), mean[groups:].tolist(), strict=True):
            values[f"rows of {label}"] = Estimate.normal(n * share, n * deviation).clamped(0.0, float(n))
            if share <= _RELIABLE * deviation:
                notes.append(f"{label}: too few rows for a mean at this epsilon")
                continue
            u = sums / share
            error = half * deviation / share * math.sqrt(1 + u**2)
            values[label] = Estimate.normal((low + high) / 2 + half * u, error).clamped(low, high)
        return Answer(self.name, values, tuple(notes))

    def half_widths(self, deviation: float, n: int) -> Mapping[str, float]:
        """See `Statistic`: for groups of equal size."""
        half = (self.bounds[1] - self.bounds[0]) / 2
        return {
            "rows of a group": Z95 * deviation * n,
            "mean of a group": Z95 * half * deviation * len(self.categories),
        }

    def half_ranges(self, n: int) -> Mapping[str, float]:
        """See `Statistic`."""
        return {"rows of a group": n / 2, "mean of a group": (self.bounds[1] - self.bounds[0]) / 2}
