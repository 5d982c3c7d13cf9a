"""A table from comma-separated files, encoded with public settings only."""

from __future__ import annotations

import csv as reader
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from fedpriv.checks import checked
from fedpriv.data.base import Split
from fedpriv.data.table_encoder import Table, TableEncoder, check_columns
from fedpriv.errors import DataError


@checked("data")
def csv(
    *,
    train: str,
    test: str,
    label: str,
    classes: Sequence[str | int] | None = None,
    numbers: Mapping[str, tuple[float, float]] | None = None,
    categories: Mapping[str, Sequence[str | int]] | None = None,
    missing: Mapping[str, float | int | str] | None = None,
    indicators: Sequence[str] = (),
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
        missing: For a column the public value that stands for one that is missing, see `TableEncoder`. What is missing
            without a rule is an error.
        indicators: Columns that get one more 0/1 feature: 1 where the value is missing.
        client: Column that says which client a row belongs to, for `partition: {kind: by_writer}`. Clients are numbered
            in the sorted order of their names.
        bias: Add a constant feature.

    Returns:
        Inputs float32 `[n, n_features]`: numbers, then categories, then indicators, in the order of the settings, then
        the constant.

    Raises:
        ConfigError: the files lack a column, a range is empty, or a value is listed twice.
        DataError: a file cannot be read, or a value is missing, no number or not listed; names file and line.
    """
    encoder = TableEncoder(label, classes, numbers or {}, categories or {}, missing or {}, indicators, bias)
    table = _table(train, [*encoder.columns, *([client] if client else [])])
    parts = encoder.encoded(table), encoder.encoded(_table(test, encoder.columns))
    writers = None if client is None else _numbered(table.columns[client])
    about = f"{train}: {len(parts[0])} train and {len(parts[1])} test rows, {encoder.n_classes or 'no'} classes"
    return Split(*parts, encoder.n_classes, writers, about)


def _numbered(names: Sequence[str]) -> Tensor:
    """The place of each row's name among the different names in sorted order, int64 `[n]`."""
    places = {name: place for place, name in enumerate(sorted(set(names)))}
    return torch.tensor([places[name] for name in names])


def _table(path: str, columns: Sequence[str]) -> Table:
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            rows = list(reader.DictReader(file, restval="", restkey=""))
    except (OSError, UnicodeDecodeError, reader.Error) as error:
        raise DataError(f"{path} cannot be read ({error}): give a comma-separated file in UTF-8") from error
    if not rows:
        raise DataError(f"{path} has no rows: give a heading line and at least one example")
    check_columns(path, columns, list(rows[0]))
    table = Table(path, {name: [row[name].strip() for row in rows] for name in columns}, first=2)
    for place, row in enumerate(rows):
        if "" in row:
            raise DataError(f"{table.row(place)}: more values than headings; quote values that contain commas")
    return table
