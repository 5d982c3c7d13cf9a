"""What a statistic is: a public map from a row to a vector, and the answer from the noised mean of the vectors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedpriv.errors import ConfigError
from fedpriv.privacy import Clip
from fedpriv.statistics.estimates import Answer

Floats = NDArray[np.float64]
Table = Mapping[str, Any]
"""The rows of one owner by column: a DataFrame, or a dictionary of equally long sequences."""

MOST_BINS = 1024


class Statistic(Protocol):
    """A statistic of the rows of all owners.

    Guarantee: the vector of a row depends on this row and on public settings only.
    """

    @property
    def weight(self) -> float:
        """Share of the budget, relative to the other statistics."""
        ...

    @property
    def name(self) -> str:
        """Name of the answer."""
        ...

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read."""
        ...

    @property
    def width(self) -> int:
        """Number of entries of a row's vector."""
        ...

    @property
    def clip(self) -> Clip:
        """Bounds a row's vector: a ball, or a `ConvexHull` that computes the vector from weights of its vertices."""
        ...

    def vectors(self, table: Table) -> Floats:
        """Returns the vectors of an owner's rows, `[n, width]`; weights of vertices if `clip` is a `ConvexHull`."""
        ...

    def answer(self, mean: Floats, deviation: float, n: int) -> Answer:
        """Returns the answer.

        Args:
            mean: Noised mean of the clipped vectors of all rows, `[width]`.
            deviation: Standard deviation of the noise in each entry.
            n: Public number of all rows.
        """
        ...

    def half_widths(self, deviation: float, n: int) -> Mapping[str, float]:
        """Returns about half of the width of each interval before any data are read, by label."""
        ...

    def half_ranges(self, n: int) -> Mapping[str, float]:
        """Returns half of the range of what the statistic is asked for, by labels of `half_widths`.

        If each interval is wider than that range, the noise hides the statistic.
        """
        ...


class OfColumn:
    """A statistic of one column, which gives it its name."""

    column: str

    @property
    def name(self) -> str:
        """The column."""
        return self.column

    @property
    def columns(self) -> tuple[str, ...]:
        """The column."""
        return (self.column,)


def numbers_of(table: Table, column: str) -> Floats:
    """Returns a column as numbers, `[n]`; anything else is missing (NaN), because an error would depend on a value."""
    values = table[column]
    dtype = getattr(values, "dtype", None)
    if isinstance(dtype, np.dtype) and dtype.kind in "biuf":
        return np.asarray(values, dtype=np.float64)
    return np.array([_number(value) for value in list(values)], dtype=np.float64)


def _number(value: Any) -> float:  # noqa: ANN401 - whatever a table holds
    try:
        return float(value)
    except Exception:  # an error would depend on a private value
        return float("nan")


def scaled_numbers(table: Table, column: str, bounds: tuple[float, float]) -> Floats:
    """Returns a column mapped from its bounds to [-1, 1]; values outside count as the nearest end, NaN is missing."""
    low, high = bounds
    return (np.clip(numbers_of(table, column), low, high) - (low + high) / 2) / ((high - low) / 2)


def positions_of(table: Table, column: str, categories: Sequence[str]) -> NDArray[np.int64]:
    """Returns the position of each row's category; the last two positions are other values, and missing ones."""
    known = {category: position for position, category in enumerate(categories)}
    others, missing = len(categories), len(categories) + 1
    texts = [_category(value) for value in list(table[column])]
    return np.array([missing if text is None else known.get(text, others) for text in texts], dtype=np.int64)


def _category(value: object) -> str | None:
    """Returns a value as text, None for a missing one; whole numbers in floating point lose their zeros."""
    try:
        if value is None or value == "" or value != value:  # NaN
            return None
        if isinstance(value, float) and value.is_integer():
            return str(int(value))
        return str(value)
    except Exception:  # an error would depend on a private value
        return None


def check_bounds(field: str, bounds: tuple[float, float]) -> None:
    """Raises unless bounds are two finite numbers in ascending order.

    Raises:
        ConfigError: If they are not.
    """
    low, high = bounds
    if not (low < high and math.isfinite(float(high) - float(low))):
        fix = "must be two numbers (low, high) from public knowledge: the data's own smallest and largest are private"
        raise ConfigError(field, bounds, fix)


def check_categories(field: str, categories: Sequence[str]) -> None:
    """Raises unless categories are distinct and not too many.

    Raises:
        ConfigError: If they are not.
    """
    if not 1 <= len(categories) <= MOST_BINS or len(set(categories)) < len(categories):
        fix = f"must be 1 to {MOST_BINS} distinct values from public knowledge: a list of the data's own is private"
        raise ConfigError(field, tuple(categories), fix)
