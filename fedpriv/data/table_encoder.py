"""Encodes rows of a table as examples by public settings only: no mean, range or value is taken from the data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from fedpriv.errors import ConfigError, DataError, format_value, truncate
from fedpriv.settings import suggest_nearest, validate_arguments

if TYPE_CHECKING:  # frames come from users with pandas; it is not a dependency
    from pandas import DataFrame

_GAPS = frozenset({"", "?", "na", "n/a", "nan", "<na>", "null", "none"})


@dataclass(frozen=True)
class Table:
    """Columns of text.

    Args:
        name: Its name in errors.
        columns: By name, the stripped text of each row; at least one row.
        first: The number of the first row in errors.
    """

    name: str
    columns: Mapping[str, Sequence[str]]
    first: int

    def row(self, index: int) -> str:
        """Returns the name of a row in errors."""
        return f"{self.name}, row {self.first + index}"


@validate_arguments("data")
@dataclass(frozen=True)
class TableEncoder:
    """Encodes the rows of a table as examples.

    The encoding of a row depends on these settings and on no other row, so it costs no privacy. Use public knowledge
    for all values, such as the limits of a device. A mean or a list of values computed from the data would reveal
    information about the data without noise.

    Args:
        label: Column of the class, or of the number to predict.
        classes: The values of that column, in the order of the class numbers. None is regression: the column is a
            number with a range in `numbers`, and is mapped to [-1, 1] like the others.
        numbers: For each numeric column its range `[low, high]`. It is mapped to [-1, 1]; a value outside the range is
            replaced with the nearest end.
        categories: For each categorical column its values, which become one 0/1 feature each.
        missing: For a column, the value that replaces a missing one: a number in its range, or one of its values.
            Missing values are empty, NaN, None, `NA`, `N/A`, `null` or `?`, unless `categories` lists them.
        indicators: Columns with an additional 0/1 feature, which is 1 if the value is missing. If `missing` does not
            contain the column, the other features of the column are then 0, which is the middle of the range or none of
            the categories.
        bias: Add a constant feature.
        centered: Subtract 1 / k from the k 0/1 features of a categorical column, so that they add up to 0. Rows then
            have less in common and smaller norms, so private gradients need less noise. A linear model with a constant
            can make the same predictions. If a missing value only has an indicator, all features of the column are 0,
            with and without `centered`.
        scales: For a numeric column its public or private (centre, scale), e.g. those of `PrivateScaler.scales_`. The
            column is then not mapped to [-1, 1]: a value in the range becomes (value - centre) / scale, and a missing
            value without a rule in `missing` becomes 0.

    Raises:
        ConfigError: If a range is empty, a value is listed twice, a scale is not positive, or `missing`, `indicators`
            or `scales` has a column or value that does not exist.

    Examples:
        >>> encoder = TableEncoder("ill", classes=[0, 1], numbers={"age": (0, 100)}, missing={"age": 40})
    """

    label: str
    classes: Sequence[str | int] | None = None
    numbers: Mapping[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    categories: Mapping[str, Sequence[str | int]] = field(default_factory=dict[str, Sequence[str | int]])
    missing: Mapping[str, float | int | str] = field(default_factory=dict[str, float | int | str])
    indicators: Sequence[str] = ()
    bias: bool = True
    centered: bool = False
    scales: Mapping[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])

    def __post_init__(self) -> None:
        for name, (low, high) in self.numbers.items():
            if not -math.inf < low < high < math.inf:
                raise ConfigError(
                    f"data.numbers.{name}", [low, high], "must be [low, high], two finite numbers with low below high"
                )
        lists = dict(self.categories)
        if self.classes is not None:
            lists = {self.label: self.classes, **lists}
        for name, values in lists.items():
            if len({str(value) for value in values}) < max(len(values), 1):
                raise ConfigError(
                    f"data, values of {name}",
                    [*values],
                    "must contain at least one value, and each value once: correct the list",
                )
        if self.classes is None and self.label not in self.numbers:
            fix = (
                f"is required: list the values of {self.label}, or for regression, set the range of {self.label} in "
                "numbers"
            )
            raise ConfigError("data.classes", None, fix)
        for name, value in self.missing.items():
            self._check_column("missing", name)
            self._check_stand_in(name, value)
        for name in self.indicators:
            self._check_column("indicators", name)
        for name, scale in self.scales.items():
            self._check_scale(name, *scale)
        if len(set(self.indicators)) < len(self.indicators):
            raise ConfigError("data.indicators", [*self.indicators], "contains a column twice: list each column once")

    @property
    def columns(self) -> list[str]:
        """The columns that are read, the label first."""
        return [self.label, *self._features, *self.categories]

    @property
    def n_classes(self) -> int | None:
        """Number of classes; None if targets are numbers."""
        if self.classes is None:
            return None
        return len(self.classes)

    @property
    def target_scale(self) -> float:
        """Size of 1 in units of a numeric label: half its range; 1 for classes."""
        if self.classes is not None:
            return 1.0
        low, high = self.numbers[self.label]
        return (high - low) / 2

    def dataset(self, frame: DataFrame, name: str = "frame") -> TensorDataset:
        """Encodes a pandas DataFrame.

        Args:
            frame: One row an example.
            name: Its name in errors, which count its rows from 0, like `iloc`.

        Returns:
            Inputs float32 `[n, n_features]`: numbers, categories, indicators, in the order of the settings, then the
            constant; targets `[n]`, int64 classes or float32 numbers.

        Raises:
            ConfigError: If the frame lacks a column.
            DataError: If the frame has no rows, or a value is missing without a rule, not a number or not listed; the
                message contains the row.
        """
        if len(frame) == 0:
            raise DataError(f"{name} has no rows: add at least one example")
        names = [str(column) for column in frame.columns]
        check_columns(name, self.columns, names)
        return self.encoded(read_data_frame(frame, self.columns, name))

    def encoded(self, table: Table) -> TensorDataset:
        """Encodes a table of text; see `dataset`."""
        return TensorDataset(self.inputs(table), self.targets(table))

    def inputs(self, table: Table) -> Tensor:
        """Returns the features of a table of text, float32 `[n, n_features]`; the label column is not needed."""
        if not self._features and not self.categories:
            raise ConfigError(
                "data.numbers",
                {},
                "names no column besides the label: name at least one column in numbers or categories",
            )
        features = [self._scaled(table, name).unsqueeze(1) for name in self._features]
        features += [self._one_hot(table, name) for name in self.categories]
        features += [self._gaps(table, name).float().unsqueeze(1) for name in self.indicators]
        if self.bias:
            features.append(torch.ones(len(features[0]), 1))
        return torch.cat(features, 1)

    @property
    def feature_columns(self) -> list[str]:
        """The columns from which features are computed."""
        return [*self._features, *self.categories]

    @property
    def feature_names(self) -> list[str]:
        """The name of each feature, in order, e.g. `age`, `smoker=yes`, `age missing`, `constant`."""
        names = [*self._features]
        names += [f"{column}={value}" for column in self.categories for value in self._values(column)]
        names += [f"{column} missing" for column in self.indicators]
        if self.bias:
            names.append("constant")
        return names

    def targets(self, table: Table) -> Tensor:
        """Returns the targets of a table of text, `[n]`; see `dataset`."""
        if self.classes is None:
            return self._scaled(table, self.label)
        return self._value_indices(table, self.label)

    @cached_property
    def _features(self) -> list[str]:
        return [name for name in self.numbers if name != self.label]

    def _check_column(self, setting: str, name: str) -> None:
        if name == self.label:
            fix = "is the label, and missing labels cannot be replaced: leave it out, and drop rows without a label"
            raise ConfigError(f"data.{setting}", name, fix)
        if name not in (*self._features, *self.categories):
            fix = f"is in neither numbers nor categories{suggest_nearest(name, [*self._features, *self.categories])}"
            raise ConfigError(f"data.{setting}", name, fix)

    def _check_scale(self, name: str, centre: float, scale: float) -> None:
        """Raises an error for a scale of a column that is not numeric, or is the label, or for an invalid scale."""
        if name not in self._features:
            fix = f"is not a numeric column besides the label{suggest_nearest(name, self._features)}"
            raise ConfigError("data.scales", name, fix)
        if not (math.isfinite(centre) and 0 < scale < math.inf):
            fix = "must be [centre, scale], two finite numbers with a scale above 0"
            raise ConfigError(f"data.scales.{name}", [centre, scale], fix)

    def _check_stand_in(self, name: str, value: float | str) -> None:
        """Raises an error for a replacement of missing values that is invalid in its column."""
        if name in self.numbers:
            low, high = self.numbers[name]
            if isinstance(value, (str, bool)) or not low <= value <= high:
                raise ConfigError(
                    f"data.missing.{name}", value, f"must be a number in the range of the column, from {low} to {high}"
                )
        elif str(value) not in self._values(name):
            raise ConfigError(
                f"data.missing.{name}", value, f"must be one of {truncate(', '.join(self._values(name)))}"
            )

    def _values(self, name: str) -> list[str]:
        """Returns the values that are listed for a categorical column, or for the label, as text."""
        if name == self.label:
            return [str(value) for value in self.classes or ()]
        return [str(value) for value in self.categories[name]]

    def _is_gap(self, name: str, text: str) -> bool:
        listed = name in self.categories and text in self._values(name)
        return text.casefold() in _GAPS and not listed

    def _gaps(self, table: Table, name: str) -> Tensor:
        """Returns True for missing values, bool `[n]`."""
        return torch.tensor([self._is_gap(name, text) for text in table.columns[name]])

    def _scaled(self, table: Table, name: str) -> Tensor:
        """Returns a numeric column scaled to [-1, 1], or by its centre and scale, `[n]`."""
        low, high = self.numbers[name]
        centre, scale = self.scales.get(name, ((low + high) / 2, (high - low) / 2))
        default = math.nan
        if name in self.indicators or name in self.scales:
            default = centre
        stand_in = self.missing.get(name, default)
        scaled: list[float] = []
        for index, text in enumerate(table.columns[name]):
            if self._is_gap(name, text):
                value = float(stand_in)
            else:
                value = _number(text)
            if not math.isfinite(value):
                fix = self._fix(name, text, "correct it, or drop the row")
                raise DataError(f"{table.row(index)}: {name} = {format_value(text)} is not a number: {fix}")
            if name in self.scales:
                scaled.append((min(max(value, low), high) - centre) / scale)
            else:
                scaled.append(2 * (min(max(value, low), high) - low) / (high - low) - 1)
        return torch.tensor(scaled)

    def _one_hot(self, table: Table, name: str) -> Tensor:
        """Returns a categorical column one-hot, `[n, n_values]`; zeros for a missing value with an indicator only."""
        n_values = len(self._values(name))
        flags = torch.nn.functional.one_hot(self._value_indices(table, name), n_values + 1)[:, :n_values].float()
        if self.centered:
            flags = flags - flags.sum(1, keepdim=True) / n_values  # a gap has no flag, and stays 0
        return flags

    def _value_indices(self, table: Table, name: str) -> Tensor:
        """Returns the index of each row's value among the listed values, int64 `[n]`.

        The index of a missing value that only has an indicator is the number of listed values.
        """
        numbers = {value: number for number, value in enumerate(self._values(name))}
        stand_in = None
        if name in self.missing:
            stand_in = numbers.get(str(self.missing[name]))
        if stand_in is None and name in self.indicators:
            stand_in = len(numbers)
        indices: list[int] = []
        for row, text in enumerate(table.columns[name]):
            if self._is_gap(name, text):
                number = stand_in
            else:
                number = numbers.get(text)
            if number is None:
                fix = (
                    f"is not one of {truncate(', '.join(numbers))}: "
                    f"{self._fix(name, text, 'correct it, or add it to the list')}"
                )
                raise DataError(f"{table.row(row)}: {name} = {format_value(text)} {fix}")
            indices.append(number)
        return torch.tensor(indices)

    def _fix(self, name: str, text: str, otherwise: str) -> str:
        if name == self.label or not self._is_gap(name, text):
            return otherwise
        return (
            f"correct it; if the value is missing, set missing.{name} to a public value, or list {name} in indicators"
        )


def read_data_frame(frame: DataFrame, columns: Sequence[str], name: str) -> Table:
    """Returns columns of a pandas DataFrame as text; missing values are empty."""
    names = [str(column) for column in frame.columns]
    return Table(name, {column: _texts(frame.iloc[:, names.index(column)]) for column in columns}, first=0)


def check_columns(table: str, expected: Sequence[str], existing: Sequence[str]) -> None:
    """Raises an error for a table that lacks an expected column.

    Raises:
        ConfigError: If a column is missing, or there are several with its name.
    """
    for name in expected:
        if name not in existing:
            raise ConfigError(
                "data", name, f"is not a column of {table}{suggest_nearest(name, filter(None, existing))}"
            )
        if list(existing).count(name) > 1:
            raise ConfigError("data", name, f"is the name of several columns of {table}: rename all but one")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def format_cell(value: object) -> str:
    """Formats a value; integers without a point, since libraries convert a column with missing values to floats."""
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()


def _texts(column: object) -> list[str]:
    """Returns the values of a pandas Series as text; empty where one is missing."""
    series: Any = column
    values = zip(series.tolist(), series.isna().tolist(), strict=True)
    return ["" if gap else format_cell(value) for value, gap in values]
