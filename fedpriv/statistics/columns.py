"""The usual statistics of columns, from their public ranges and categories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from fedpriv.errors import ConfigError
from fedpriv.statistics.counts import Counts
from fedpriv.statistics.numbers import USUAL_QUANTILES, Quantiles
from fedpriv.statistics.query import Statistic

_EXAMPLE = '{"age": (0, 120), "sex": ["f", "m"]}'
Columns = Mapping[str, "tuple[float, float] | Sequence[str]"]
"""By column: a tuple is the public range of a numeric column, a list has the values of a categorical column."""


def list_statistics(asked: Sequence[Statistic] | Columns) -> list[Statistic]:
    """Returns statistics as they are, or the usual ones of columns.

    Args:
        asked: Statistics; or, by column, a tuple for the mean, deviation and quantiles of numbers in this range, or a
            list for the number of rows of each of these categories.

    Raises:
        ConfigError: If it is neither.

    Examples:
        >>> [one.name for one in list_statistics({"age": (0, 120), "sex": ["f", "m"]})]
        ['age', 'sex']
    """
    if isinstance(asked, Mapping):
        return [_of_column(str(column), public) for column, public in cast(Mapping[Any, Any], asked).items()]
    if isinstance(asked, str) or not hasattr(asked, "__iter__"):
        raise ConfigError("statistics", asked, f"give a list, or ranges and categories by column, e.g. {_EXAMPLE}")
    for one in asked:
        if isinstance(one, str) or not hasattr(one, "vectors"):
            fix = f"needs a public range or categories: give a dictionary, e.g. {_EXAMPLE}"
            raise ConfigError("statistics", one, fix)
    return list(asked)


def _of_column(column: str, public: object) -> Statistic:
    if isinstance(public, tuple) and len(public) == 2:
        return Quantiles(column, cast("tuple[float, float]", public), USUAL_QUANTILES)
    if isinstance(public, list):
        return Counts(column, cast("list[str]", public))
    fix = "must be a tuple for the range of a numeric column, or a list of the values of a categorical one"
    raise ConfigError(f"statistics.{column}", public, f"{fix}, e.g. {_EXAMPLE}")
