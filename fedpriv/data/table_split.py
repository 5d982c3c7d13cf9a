"""Converts tables from any source to train and test examples with their owners."""

from __future__ import annotations

import glob
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch.utils.data import TensorDataset

from fedpriv.data.base import Split
from fedpriv.data.owners import encode_names, shorten_paths
from fedpriv.data.table_encoder import Table, TableEncoder
from fedpriv.errors import ConfigError, DataError

TableReader = Callable[[str, Sequence[str]], Table]
"""Reads these columns of the table with this name, from a file or a database."""


def read_split(
    encoder: TableEncoder, read: TableReader, train: str, test: str, *, client: str | None, suffix: str | None
) -> Split:
    """Reads and encodes train and test tables.

    Args:
        encoder: The public settings.
        read: Reads a table.
        train: The clients' examples: the name of a table, or of a folder or pattern of files, one per client.
        test: The same for public examples.
        client: Column with the client of each row.
        suffix: Suffix of the files in a folder, as in `.csv`; None if tables are not files.

    Raises:
        ConfigError: If a column is missing, or `client` is given although there is a file for each client.
        DataError: If a table cannot be read or encoded, or an example has no client.
    """
    files = list_client_files(train, suffix)
    test_files = list_client_files(test, suffix)
    if client is not None and files:
        raise ConfigError(
            "data.client", client, f"cannot be used, because {train} has a file for each client: leave it out"
        )
    train_set, train_owners = _encoded(encoder, read, files or [train], client)
    # public test data may belong to all, in one table without owners
    test_client = None
    if client is not None and not test_files:
        test_client = _client_column(read, test, client)
    test_set, test_owners = _encoded(encoder, read, test_files or [test], test_client)

    writers = None
    test_writers = None
    names = dict[int, str]()
    if files:
        train_owners = _short_names(files, train_owners)
        if test_files:
            test_owners = _short_names(test_files, test_owners)
            if not set(test_owners) & set(train_owners):
                fix = "give the files of a client the same name in both folders"
                raise DataError(f"data.test = {test}: no file belongs to a client of data.train = {train}: {fix}")
    if files or client is not None:
        tests_have_owners = bool(test_files) or test_client is not None
        (writers, test_writers), names = encode_names(train_owners, test_owners if tests_have_owners else [])
        if not tests_have_owners:
            test_writers = None
    return Split(
        train=train_set,
        test=test_set,
        n_classes=encoder.n_classes,
        writers=writers,
        description=(
            f"{train}: {len(train_set)} train and {len(test_set)} test rows, {encoder.n_classes or 'no'} classes"
        ),
        test_writers=test_writers,
        target_scale=encoder.target_scale,
        writer_names=names,
    )


def read_train_columns(
    read: TableReader, train: str, columns: Sequence[str], suffix: str | None
) -> Mapping[str, Sequence[str]]:
    """Returns columns of the clients' tables as text, in the order of the train examples of `read_split`.

    Args:
        read: Reads a table.
        train: See `read_split`.
        columns: The names of the columns.
        suffix: See `read_split`.

    Raises:
        ConfigError: If a column is missing.
        DataError: If a table cannot be read.
    """
    tables = [read(name, columns) for name in list_client_files(train, suffix) or [train]]
    return {column: [text for table in tables for text in table.columns[column]] for column in columns}


def list_client_files(train: str, suffix: str | None) -> list[str]:
    """Returns the sorted files in a folder or for a pattern; none if it is neither.

    Raises:
        DataError: If a folder or pattern has no such file.
    """
    path = Path(train)
    if suffix is None or path.is_file() or not (path.is_dir() or glob.escape(train) != train):
        return []
    pattern = train
    if path.is_dir():
        pattern = str(Path(glob.escape(train)) / f"*{suffix}")
    paths = sorted(glob.glob(pattern))
    if not paths:
        raise DataError(f"data.train = {train}: no file was found: name a folder with one file NAME{suffix} per client")
    return paths


def _encoded(
    encoder: TableEncoder, read: TableReader, names: Sequence[str], client: str | None
) -> tuple[TensorDataset, list[str]]:
    """Returns the examples of tables, and the owner of each: the value of `client`, or the table's name."""
    datasets: list[TensorDataset] = []
    owners: list[str] = []
    columns = encoder.columns
    if client is not None:
        columns.append(client)
    for name in names:
        table = read(name, columns)
        datasets.append(encoder.encoded(table))
        if client is None:
            owners += [name] * len(datasets[-1])
            continue
        values = table.columns[client]
        if "" in values:
            raise DataError(
                f"{table.row(list(values).index(''))} has no value in column {client}: name a client for each row"
            )
        owners += values
    columns_of_all = zip(*(dataset.tensors for dataset in datasets), strict=True)
    return TensorDataset(*(torch.cat(column) for column in columns_of_all)), owners


def _client_column(read: TableReader, test: str, client: str) -> str | None:
    """Returns the column of clients if the test table has it."""
    try:
        read(test, [client])
    except ConfigError:
        return None
    return client


def _short_names(files: Sequence[str], owners: Sequence[str]) -> list[str]:
    names = dict(zip(files, shorten_paths(files), strict=True))
    return [names[owner] for owner in owners]
