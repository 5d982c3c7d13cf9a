"""A table from comma-separated files, encoded with public settings only."""

from __future__ import annotations

import csv as reader
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedpriv.data.base import Split
from fedpriv.data.table_encoder import Table, TableEncoder, check_columns
from fedpriv.data.table_split import read_split, read_train_columns
from fedpriv.errors import DataError
from fedpriv.settings import validate_arguments


@validate_arguments("data")
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
    centered: bool = False,
    scales: Mapping[str, tuple[float, float]] | None = None,
) -> Split:
    """Reads a table from comma-separated files with a heading line, one example a row.

    Ranges, categories and classes are settings and are not measured on the data, so the encoding of a row depends on no
    other row.

    Args:
        train: Comma-separated file (UTF-8) with the clients' examples. Alternatively there is one file per client: a
            folder with files that end in `.csv`, or a pattern such as `sites/*/data.csv`. Clients are then numbered in
            the sorted order of the paths, which are public, and `partition: {kind: by_writer}` keeps them separate.
        test: The same for public examples; accuracies are computed on them without noise. The owner of each test
            example is known if the files of a folder or pattern have the names of the clients' files, or if the table
            has the column `client`.
        label: Column of the class, or of the number to predict.
        classes: The values of that column, in the order of the class numbers. None is regression: the column is a
            number with a range in `numbers`, and is mapped to [-1, 1] like the others.
        numbers: For each numeric column its range `[low, high]`, from public knowledge such as the limits of a device.
            It is mapped to [-1, 1]; a value outside the range is replaced with the nearest end.
        categories: For each categorical column its values, which become one 0/1 feature each.
        missing: For a column, the public value that replaces a missing one, see `TableEncoder`. A missing value in any
            other column without an indicator is an error.
        indicators: Columns with an additional 0/1 feature, which is 1 if the value is missing.
        client: Column with the client of each row, for `partition: {kind: by_writer}`, if one file has the rows of all
            clients. Clients are numbered in the sorted order of its values, which are also public: reports use them as
            names of clients.
        bias: Add a constant feature.
        centered: Make the 0/1 features of each categorical column add up to 0, which needs less noise; see
            `TableEncoder`.
        scales: For a numeric column its public or private [centre, scale], see `TableEncoder`.

    Returns:
        Inputs float32 `[n, n_features]`: numbers, then categories, then indicators, in the order of the settings, then
        the constant.

    Raises:
        ConfigError: If the files lack a column, a range is empty, or a value is listed twice.
        DataError: If there is no file, a file cannot be read, or a value is missing, is no number or is not listed; the
            message contains file and line.
    """
    encoder = TableEncoder(
        label, classes, numbers or {}, categories or {}, missing or {}, indicators, bias, centered, scales or {}
    )
    return read_split(encoder, read_table, train, test, client=client, suffix=".csv")


def columns(names: Sequence[str], options: Mapping[str, Any]) -> Mapping[str, Sequence[str]]:
    """Returns columns of the clients' files; see `read_columns` of the registry."""
    return read_train_columns(read_table, options["train"], names, ".csv")


def read_headings(path: str) -> list[str]:
    """Returns the names of the columns of a comma-separated file.

    Raises:
        DataError: If it cannot be read, or is empty.
    """
    return [name for name in _rows(path)[0] if name]


def read_table(path: str, columns: Sequence[str]) -> Table:
    """Reads these columns of a comma-separated file.

    Raises:
        ConfigError: If the file lacks a column.
        DataError: If it cannot be read, or has no rows.
    """
    rows = _rows(path)
    check_columns(path, columns, list(rows[0]))
    table = Table(path, {name: [row[name].strip() for row in rows] for name in columns}, first=2)
    for index, row in enumerate(rows):
        if "" in row:
            raise DataError(
                f"{table.row(index)} has more values than the heading line has names: put quotes around values that "
                "contain commas"
            )
    return table


def _rows(path: str) -> list[dict[str, str]]:
    """Reads a comma-separated file; each row as a mapping by column names, with surplus values under an empty name."""
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            rows = list(reader.DictReader(file, restval="", restkey=""))
    except (OSError, UnicodeDecodeError, reader.Error) as error:
        fix = "use a comma-separated file in UTF-8; for one file per client, a folder or a pattern, sites/*.csv"
        raise DataError(f"{path} cannot be read ({error}): {fix}") from error
    if not rows:
        raise DataError(f"{path} has no rows: it needs a heading line and at least one example")
    return rows
