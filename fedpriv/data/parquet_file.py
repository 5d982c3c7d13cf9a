"""A table from Parquet files, encoded with public settings only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedpriv.data.base import Split
from fedpriv.data.table_encoder import Table, TableEncoder, check_columns, format_cell
from fedpriv.data.table_split import read_split, read_train_columns
from fedpriv.errors import ConfigError, DataError, summarize_error
from fedpriv.settings import validate_arguments


@validate_arguments("data")
def parquet(
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
    """Reads a table from Parquet files, one example a row; for the settings see `csv`.

    Only the columns that the settings name are read. A null or NaN is a missing value.

    Args:
        train: Parquet file with the clients' examples. Alternatively there is one file per client: a folder with files
            that end in `.parquet`, or a pattern such as `sites/*/data.parquet`.
        test: The same for public examples; accuracies are computed on them without noise.
        label: Column of the class, or of the number to predict.
        classes: The values of that column, in the order of the class numbers; None is regression.
        numbers: For each numeric column its range `[low, high]`, from public knowledge. It is mapped to [-1, 1];
            a value outside the range is replaced with the nearest end.
        categories: For each categorical column its values, which become one 0/1 feature each.
        missing: For a column, the public value that replaces a missing one, see `TableEncoder`.
        indicators: Columns with an additional 0/1 feature, which is 1 if the value is missing.
        client: Column with the client of each row, for `partition: {kind: by_writer}`; it is public.
        bias: Add a constant feature.
        centered: Make the 0/1 features of each categorical column add up to 0, which needs less noise; see
            `TableEncoder`.
        scales: For a numeric column its public or private [centre, scale], see `TableEncoder`.

    Raises:
        ConfigError: If the extra `parquet` is missing, a file lacks a column, a range is empty, or a value is listed
            twice.
        DataError: If a file cannot be read, or a value is missing without a rule, is no number or is not listed; the
            message contains file and row.
    """
    encoder = TableEncoder(
        label, classes, numbers or {}, categories or {}, missing or {}, indicators, bias, centered, scales or {}
    )
    return read_split(encoder, _table, train, test, client=client, suffix=".parquet")


def columns(names: Sequence[str], options: Mapping[str, Any]) -> Mapping[str, Sequence[str]]:
    """Returns columns of the clients' files; see `read_columns` of the registry."""
    return read_train_columns(_table, options["train"], names, ".parquet")


def _table(path: str, columns: Sequence[str]) -> Table:
    """Reads these columns of a Parquet file."""
    try:
        from pyarrow import parquet as reader
    except ImportError as error:
        raise ConfigError("data.name", "parquet", "needs pyarrow: pip install fedpriv[parquet]") from error
    try:
        with reader.ParquetFile(path) as file:
            check_columns(path, columns, file.schema_arrow.names)
            table = file.read(columns=[*columns])
    except ConfigError:
        raise
    except Exception as error:  # whatever the library raises
        fix = "use a Parquet file; for one file per client, a folder or a pattern, sites/*.parquet"
        raise DataError(f"{path} cannot be read ({summarize_error(error)}): {fix}") from error
    if table.num_rows == 0:
        raise DataError(f"{path} has no rows: add at least one example")
    texts = {name: [format_cell(value) for value in table.column(name).to_pylist()] for name in columns}
    return Table(path, texts, first=0)
