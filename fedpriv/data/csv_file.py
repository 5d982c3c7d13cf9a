"""A table from comma-separated files, encoded with public settings only."""

from __future__ import annotations

import csv as reader
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from fedpriv import plugins
from fedpriv.checks import checked
from fedpriv.data.base import Split
from fedpriv.errors import ConfigError, DataError, cut, shown

Rows = list[dict[str, str]]


@checked("data")
def csv(
    *,
    train: str,
    test: str,
    label: str,
    classes: Sequence[str | int] | None = None,
    numbers: Mapping[str, tuple[float, float]] | None = None,
    categories: Mapping[str, Sequence[str | int]] | None = None,
    client: str | None = None,
    bias: bool = True,
) -> Split:
    """A table from comma-separated files with a heading line, one example a row.

    Ranges, categories and classes are settings, not measured on the data, so the encoding of a row depends on no other.

    Args:
        train: Comma-separated file (UTF-8) with the clients' examples.
        test: The same with public examples; accuracies are computed on them without noise.
        label: Column of the class, or of the number to predict.
        classes: The values of that column, in the order of the class numbers. None is regression: the column is a
            number with a range in `numbers`, and is mapped to [-1, 1] like the others.
        numbers: For each numeric column its range `[low, high]`, from public knowledge such as the limits of a device.
            It is mapped to [-1, 1]; values outside count as the nearest end.
        categories: For each categorical column its values, which become one 0/1 feature each.
        client: Column that says which client a row belongs to, for `partition: {kind: by_writer}`. Clients are numbered
            in the sorted order of their names.
        bias: Add a constant feature.

    Returns:
        Inputs float32 `[n, n_features]`: numbers, then categories, in the order of the settings, then the constant.

    Raises:
        ConfigError: the files lack a column, a range is empty, or a value is listed twice.
        DataError: a file cannot be read, or a value is missing, no number or not listed; names file and line.
    """
    numbers, categories = dict(numbers or {}), categories or {}
    ends = numbers.pop(label, None)
    _check_ranges({**numbers, **({label: ends} if ends else {})})
    _check_values({**({} if classes is None else {label: classes}), **categories})
    if not numbers and not categories:
        raise ConfigError("data.numbers", {}, "name at least one column, in numbers or categories")
    columns = [label, *numbers, *categories]
    rows = _rows(train, [*columns, *([client] if client else [])]), _rows(test, columns)
    parts: list[TensorDataset] = []
    for table, path in zip(rows, (train, test), strict=True):
        if classes is not None:
            targets = _places(table, path, label, classes)
        elif ends is not None:
            targets = _scaled(table, path, label, *ends)
        else:
            fix = f"list the values of {label}, or give its range in numbers (regression)"
            raise ConfigError("data.classes", None, fix)
        parts.append(TensorDataset(_inputs(table, path, numbers, categories, bias=bias), targets))
    writers = None
    if client is not None:
        names = sorted({row[client] for row in rows[0]})
        writers = _places(rows[0], train, client, names)
    n_classes = None if classes is None else len(classes)
    about = f"{train}: {len(parts[0])} train and {len(parts[1])} test rows, {n_classes or 'no'} classes"
    return Split(parts[0], parts[1], n_classes, writers, about)


def _check_ranges(ranges: Mapping[str, tuple[float, float]]) -> None:
    for name, (low, high) in ranges.items():
        if not -math.inf < low < high < math.inf:
            raise ConfigError(f"data.numbers.{name}", [low, high], "give [low, high] with low below high")


def _check_values(lists: Mapping[str, Sequence[str | int]]) -> None:
    for name, values in lists.items():
        if len({str(value) for value in values}) < max(len(values), 1):
            raise ConfigError(f"data, values of {name}", [*values], "list each value once")


def _rows(path: str, columns: Sequence[str]) -> Rows:
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            rows = list(reader.DictReader(file, restval="", restkey=""))
    except (OSError, UnicodeDecodeError, reader.Error) as error:
        raise DataError(f"{path} cannot be read ({error}): give a comma-separated file in UTF-8") from error
    if not rows:
        raise DataError(f"{path} has no rows: give a heading line and at least one example")
    for name in columns:
        if name not in rows[0]:
            raise ConfigError("data", name, f"{path} has no such column{plugins.nearest(name, filter(None, rows[0]))}")
    for line, row in enumerate(rows, start=2):
        if "" in row:
            raise DataError(f"{path}, row {line}: more values than headings; quote values that contain commas")
    return [{name: value.strip() for name, value in row.items()} for row in rows]


def _inputs(
    rows: Rows,
    path: str,
    numbers: Mapping[str, tuple[float, float]],
    categories: Mapping[str, Sequence[str | int]],
    *,
    bias: bool,
) -> Tensor:
    """`[n, n_features]`."""
    parts = [_scaled(rows, path, name, low, high).unsqueeze(1) for name, (low, high) in numbers.items()]
    for name, values in categories.items():
        parts.append(torch.nn.functional.one_hot(_places(rows, path, name, values), len(values)).float())
    return torch.cat([*parts, *([torch.ones(len(rows), 1)] if bias else [])], 1)


def _scaled(rows: Rows, path: str, name: str, low: float, high: float) -> Tensor:
    """`[n]` in [-1, 1]."""
    found: list[float] = []
    for line, row in enumerate(rows, start=2):
        try:
            value = float(row[name])
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            fix = "drop the row, or fill the gap with a value that is public"
            raise DataError(f"{path}, row {line}: {name} = {shown(row[name])} is not a number: {fix}")
        found.append(2 * (min(max(value, low), high) - low) / (high - low) - 1)
    return torch.tensor(found)


def _places(rows: Rows, path: str, name: str, values: Sequence[str | int]) -> Tensor:
    """The place of each row's value among those that are listed, int64 `[n]`."""
    places = {str(value): place for place, value in enumerate(values)}
    for line, row in enumerate(rows, start=2):
        if row[name] not in places:
            fix = f"is none of {cut(', '.join(places))}: correct it, or list it"
            raise DataError(f"{path}, row {line}: {name} = {shown(row[name])} {fix}")
    return torch.tensor([places[row[name]] for row in rows])
