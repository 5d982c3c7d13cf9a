"""What the owner of a site allows of statistics, and whether a plan's statistics fit the columns of the site's data.

Both are decided from settings and from the names of columns, which are public, and never from a value.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedpriv.config.base import Section
from fedpriv.config.schema import DataSection
from fedpriv.data import read_columns
from fedpriv.errors import ConfigError
from fedpriv.settings import Count, Positive
from fedpriv.statistics import (
    Correlations,
    Counts,
    CrossTable,
    GroupMeans,
    Histogram,
    Mean,
    Quantiles,
    Statistic,
)
from fedpriv.statistics.description import JoinedStatistics
from fedpriv.statistics.numbers import Bounds

_KINDS = (Correlations, Counts, CrossTable, GroupMeans, Histogram, Mean, Quantiles)
MONTH = 30
"""Days of a month."""
_OTHER_UNIT = 5.0  # ranges of one column whose widths differ by this factor are in different units
_NO_STATISTICS = (
    "the site's owner allows no statistics; to allow some, write in site.yaml, for example, policy: {statistics: "
    "{columns: [age], max_epsilon: 0.2}}"
)


class OtherColumns(ConfigError):
    """Raised for statistics of columns that the site does not have, or has with another type or unit."""


class StatisticsPolicy(Section):
    """Limits on plans that release statistics.

    Attributes:
        columns: The columns of which statistics may be released.
        max_epsilon: Largest privacy cost of a plan for statistics.
        max_bins: Largest number of bins, categories or pairs of categories of one statistic.
        max_per_month: Largest number of such plans that the site accepts within 30 days; None for any number.
    """

    columns: tuple[str, ...]
    max_epsilon: Positive
    max_bins: Count = 256
    max_per_month: Count | None = None

    def check(self, statistics: JoinedStatistics) -> None:
        """Raises an error for statistics that are not allowed.

        Raises:
            ConfigError: If a column is not listed, or a statistic has too many bins.
        """
        for column in statistics.columns:
            if column not in self.columns:
                fix = f"the site's owner allows statistics only of {', '.join(self.columns) or 'no column'}"
                raise ConfigError("policy.statistics.columns", column, fix)
        for statistic in statistics.statistics:
            if not isinstance(statistic, _KINDS):
                fix = "is not a statistic of fedpriv, so no limit applies to it: the owner cannot allow it"
                raise ConfigError("policy.statistics", type(statistic).__name__, fix)
            bins = _count_bins(statistic)
            if bins > self.max_bins:
                fix = f"the site's owner allows at most {self.max_bins} bins or categories of one statistic"
                raise ConfigError("policy.statistics.max_bins", f"{bins} of {statistic.name}", fix)

    def check_epsilon(self, epsilon: float) -> None:
        """Raises an error for a plan that costs too much.

        Raises:
            ConfigError: If it does.
        """
        if epsilon > self.max_epsilon:
            fix = f"the site's owner allows at most {self.max_epsilon:g} for statistics"
            raise ConfigError("policy.statistics.max_epsilon", f"{epsilon:g}", fix)

    def check_number(self, plans: Sequence[Path]) -> None:
        """Raises an error if the site has accepted too many plans for statistics within a month.

        Args:
            plans: The files of all earlier plans for statistics, which were written when they were accepted.

        Raises:
            ConfigError: If it has.
        """
        if self.max_per_month is None:
            return
        since = time.time() - MONTH * 24 * 3600
        recent = [path for path in plans if path.stat().st_mtime > since]
        if len(recent) >= self.max_per_month:
            fix = f"the site's owner allows at most {self.max_per_month} plans for statistics within {MONTH} days"
            raise ConfigError("policy.statistics.max_per_month", len(recent) + 1, fix)


def check_allowed(policy: StatisticsPolicy | None, statistics: JoinedStatistics) -> StatisticsPolicy:
    """Returns a site's policy for statistics, which must allow these.

    Raises:
        ConfigError: If it does not, or the site's owner has not written one.
    """
    if policy is None:
        raise ConfigError("policy.statistics", None, _NO_STATISTICS)
    policy.check(statistics)
    return policy


def read_table(data: DataSection, statistics: JoinedStatistics) -> Mapping[str, Sequence[str]]:
    """Reads the columns of a site's table that statistics need, after comparing them with the owner's settings.

    Raises:
        OtherColumns: If a column is missing, or the settings declare another type, unit or other categories.
        DataError: If the table cannot be read.
    """
    declared = _Declared.of(data)
    for statistic in statistics.statistics:
        for column, bounds in _numbers(statistic):
            declared.check_number(column, bounds)
        for column, values in _categories(statistic):
            declared.check_categories(column, values)
    try:
        return read_columns(data.name, statistics.columns, **data.options)
    except ConfigError as error:
        raise OtherColumns(f"site.{error.field}", error.value, error.fix) from None


@dataclass(frozen=True)
class _Declared:
    """What `site.yaml` says about columns.

    Attributes:
        ranges: The range of each numeric column.
        categories: The values of each categorical column.
    """

    ranges: Mapping[str, Bounds]
    categories: Mapping[str, Sequence[str]]

    @classmethod
    def of(cls, data: DataSection) -> _Declared:
        """Reads the settings of a data set; those without a table declare nothing."""
        options = data.options
        lists = dict(options.get("categories") or {})
        if options.get("classes") is not None:
            lists[options["label"]] = options["classes"]
        categories = {column: [str(value) for value in values] for column, values in lists.items()}
        return cls(options.get("numbers") or {}, categories)

    def check_number(self, column: str, bounds: Bounds) -> None:
        """Raises OtherColumns if a column is not a number here, or is in another unit than these bounds."""
        if column in self.categories:
            values = _join(self.categories[column])
            fix = f"the plan reads this column as a number, but site.yaml lists categories of it: {values}"
            raise OtherColumns("site.data.categories", column, fix)
        if column in self.ranges and _differ_in_unit(bounds, self.ranges[column]):
            fix = (
                f"the plan has the range {_join(bounds)} and site.yaml {_join(self.ranges[column])}: one of them is in "
                "another unit; agree on one unit with the other owners"
            )
            raise OtherColumns("site.data.numbers", column, fix)

    def check_categories(self, column: str, values: Sequence[str]) -> None:
        """Raises OtherColumns if a column is a number here, or has none of these values."""
        if column in self.ranges:
            fix = f"the plan reads this column as categories, but site.yaml has a range: {_join(self.ranges[column])}"
            raise OtherColumns("site.data.numbers", column, fix)
        if column in self.categories and not {*self.categories[column]} & {*values}:
            here = _join(self.categories[column])
            fix = f"the plan has the categories {_join(values)}, and site.yaml {here}: none is in both"
            raise OtherColumns("site.data.categories", column, fix)


def _differ_in_unit(one: Bounds, other: Bounds) -> bool:
    widths = sorted((one[1] - one[0], other[1] - other[0]))
    are_disjoint = one[1] <= other[0] or other[1] <= one[0]
    return are_disjoint or widths[1] >= _OTHER_UNIT * widths[0]


def _numbers(statistic: Statistic) -> Iterator[tuple[str, Bounds]]:
    """Yields the columns that a statistic reads as numbers, with their ranges."""
    match statistic:
        case Mean() | Quantiles() | Histogram() | GroupMeans():
            yield statistic.column, statistic.bounds
        case Correlations():
            yield from statistic.bounds.items()
        case _:
            return


def _categories(statistic: Statistic) -> Iterator[tuple[str, Sequence[str]]]:
    """Yields the columns that a statistic reads as categories, with their values."""
    match statistic:
        case Counts():
            yield statistic.column, statistic.categories
        case CrossTable():
            yield statistic.first, statistic.first_categories
            yield statistic.second, statistic.second_categories
        case GroupMeans():
            yield statistic.by, statistic.categories
        case _:
            return


def _count_bins(statistic: Statistic) -> int:
    match statistic:
        case Quantiles() | Histogram():
            return statistic.bins
        case Counts() | GroupMeans():
            return len(statistic.categories)
        case CrossTable():
            return len(statistic.first_categories) * len(statistic.second_categories)
        case _:
            return 0


def _join(values: Sequence[object]) -> str:
    return ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)
