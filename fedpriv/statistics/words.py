"""Statistics in plain words, for the owners who decide about them and for privacy statements."""

from __future__ import annotations

from collections.abc import Sequence

from fedpriv.statistics.counts import Counts, CrossTable, GroupMeans, Histogram
from fedpriv.statistics.numbers import Bounds, Correlations, Mean, Quantiles
from fedpriv.statistics.query import Statistic

_MOST_VALUES = 8  # of a column, in a sentence


def describe_statistic(statistic: Statistic) -> str:
    """Returns a statistic in plain words, with its public settings."""
    match statistic:
        case Mean():
            return f"mean and deviation of {statistic.column}{_range(statistic.bounds)}"
        case Quantiles():
            shares = ", ".join(f"{100 * share:g} %" for share in statistic.probabilities)
            place = f"in {statistic.bins} bins{_range(statistic.bounds)}"
            return f"mean, deviation and quantiles ({shares}) of {statistic.column} {place}"
        case Histogram():
            return f"histogram of {statistic.column} in {statistic.bins} bins{_range(statistic.bounds)}"
        case Counts():
            return f"numbers of rows by {statistic.column} ({_values(statistic.categories)})"
        case CrossTable():
            pairs = f"{_values(statistic.first_categories)} x {_values(statistic.second_categories)}"
            return f"numbers of rows by {statistic.first} and {statistic.second} ({pairs})"
        case GroupMeans():
            groups = f"by {statistic.by} ({_values(statistic.categories)})"
            return f"numbers of rows, and mean of {statistic.column}{_range(statistic.bounds)}, {groups}"
        case Correlations():
            columns = (f"{column}{_range(bounds)}" for column, bounds in statistic.bounds.items())
            return f"correlations of {', '.join(columns)}"
        case _:
            return f"{statistic.name} ({type(statistic).__name__}) of {', '.join(statistic.columns)}"


def _range(bounds: Bounds) -> str:
    return f" from {bounds[0]:g} to {bounds[1]:g}"


def _values(categories: Sequence[str]) -> str:
    listed = ", ".join(categories[:_MOST_VALUES])
    if len(categories) > _MOST_VALUES:
        listed += f" and {len(categories) - _MOST_VALUES} more"
    return listed
