"""Local data sets of Hugging Face's library `datasets`, encoded with public settings only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from fedpriv.data.base import Split, as_inputs
from fedpriv.data.owners import encode_names
from fedpriv.data.row_dataset import RowDataset
from fedpriv.data.table_encoder import Table, TableEncoder, check_columns, format_cell
from fedpriv.data.transforms import TransformName
from fedpriv.errors import ConfigError, DataError, summarize_error
from fedpriv.settings import validate_arguments

if TYPE_CHECKING:  # an extra
    from datasets import Dataset

_READERS = {".parquet": "from_parquet", ".csv": "from_csv", ".json": "from_json", ".jsonl": "from_json"}


@validate_arguments("data")
def hugging_face(
    *,
    path: str,
    label: str,
    train: str = "train",
    test: str = "test",
    input: str | None = None,
    classes: Sequence[str | int] | None = None,
    numbers: Mapping[str, tuple[float, float]] | None = None,
    categories: Mapping[str, Sequence[str | int]] | None = None,
    missing: Mapping[str, float | int | str] | None = None,
    indicators: Sequence[str] = (),
    client: str | None = None,
    bias: bool = True,
    flat: bool = False,
    transforms: Sequence[TransformName] = (),
) -> Split:
    """Loads a data set of Hugging Face's library `datasets`, from files on this machine.

    Ranges, categories and classes are settings and are not measured on the data, so the encoding of a row depends on no
    other row.

    Args:
        path: The folder, which `DatasetDict.save_to_disk` wrote or which contains data files.
        label: Column of the class, or of the number to predict.
        train: The clients' examples: the name of a split that `save_to_disk` wrote, or of files in the folder, as in
            `train-*.parquet`; they end in `.parquet`, `.csv`, `.json` or `.jsonl`.
        test: The same with public examples; accuracies are computed on them without noise.
        input: Column of the complete input, if there is one: images, or arrays or lists of numbers with one shape.
            Without it, `numbers` and `categories` are the input, as in `csv`.
        classes: The values of the label, in the order of the class numbers. A column of type `ClassLabel` contains
            them. Otherwise None is regression: the label is a number with a range in `numbers`, and is mapped to [-1,
            1].
        numbers: For each numeric column its range `[low, high]`, from public knowledge such as the limits of a device.
            It is mapped to [-1, 1]; a value outside the range is replaced with the nearest end. If the `input` column
            has no range here, its numbers are unchanged. Images are in [0, 1].
        categories: For each categorical column its values, which become one 0/1 feature each.
        missing: For a column, the public value that replaces a missing one, see `TableEncoder`.
        indicators: Columns with an additional 0/1 feature, which is 1 if the value is missing.
        client: Column with the client of each row, for `partition: {kind: by_writer}`. Its values are public, because
            they name the clients in reports. If the test data also have this column, `log.client_tests` uses it.
        bias: Add a constant feature to the features from `numbers` and `categories`.
        flat: Return inputs `[n, n_numbers]` instead of the shape of `input`.
        transforms: Functions of single images of `input`, see `fedpriv.data.transforms`.

    Returns:
        The training and test examples.

    Raises:
        ConfigError: If the extra `hf` is missing, the data lack a column, or settings contradict each other.
        DataError: If there are no such data, or a value is missing or not listed; the message names it.
    """
    rows = {name: _read(Path(path), name) for name in (train, test)}
    if classes is None:
        classes = _class_names(rows[train], label)
    ranges = {name: ends for name, ends in (numbers or {}).items() if name != input}
    named = dict.fromkeys([*ranges, *(categories or ()), *(missing or ()), *indicators])
    extra = [name for name in named if name != label]
    if input is not None and extra:
        raise ConfigError(
            "data.input",
            input,
            f"is the whole input, so no other column can be a feature: remove {', '.join(extra)} from the options "
            "numbers, categories, missing and indicators",
        )
    encoder = TableEncoder(label, classes, ranges, categories or {}, missing or {}, indicators, bias)

    def examples(name: str) -> TensorDataset:
        source = f"{path}, {name}"
        columns = encoder.columns
        if input is not None:
            columns = [*columns, input]
        check_columns(source, columns, rows[name].column_names)
        table = Table(source, {column: _texts(rows[name], column) for column in encoder.columns}, first=0)
        if input is None:
            return encoder.encoded(table)
        values = _inputs(rows[name], input, (numbers or {}).get(input), source)
        if transforms and values.ndim != 4:
            raise ConfigError(
                "data.transforms", [*transforms], f"are for images, but column {input} has none: leave them out"
            )
        return TensorDataset(as_inputs(values, flat=flat, transforms=transforms), encoder.targets(table))

    train_set = examples(train)
    test_set = examples(test)
    train_owners = _owners(rows[train], client)
    test_owners = _owners(rows[test], client)
    if client is not None and train_owners is None:
        check_columns(f"{path}, {train}", [client], rows[train].column_names)
    (writers, test_writers), names = encode_names(train_owners or [], test_owners or [])
    return Split(
        train=train_set,
        test=test_set,
        n_classes=encoder.n_classes,
        writers=None if train_owners is None else writers,
        description=(
            f"{path}: {len(train_set)} train and {len(test_set)} test rows, {encoder.n_classes or 'no'} classes"
        ),
        test_writers=None if test_owners is None else test_writers,
        target_scale=encoder.target_scale,
        writer_names=names,
    )


def _read(folder: Path, name: str) -> Dataset:
    """Reads a split that `save_to_disk` wrote, or the files of this name, also with wildcards."""
    try:
        import datasets
    except ImportError as error:
        raise ConfigError("data.name", "hf", "needs the package datasets: pip install fedpriv[hf]") from error
    files = sorted(str(path) for path in folder.glob(name))
    suffixes = {Path(file).suffix for file in files}
    try:
        if (folder / name).is_dir():
            return datasets.Dataset.load_from_disk(str(folder / name))
        suffix = suffixes.pop() if len(suffixes) == 1 else ""
        if suffix in _READERS:
            # the data are copied into this folder, not into the cache of all data sets
            with TemporaryDirectory() as copied:
                read = getattr(datasets.Dataset, _READERS[suffix])
                return read(files, cache_dir=copied, keep_in_memory=True)
    except Exception as error:  # whatever the library or its parsers raise
        raise DataError(f"{folder / name} cannot be read ({summarize_error(error)}): save the data again") from error
    fix = "name a split written by save_to_disk, or files of one kind (*.parquet, *.csv, *.json, *.jsonl)"
    raise DataError(f"{folder} has no readable data {name!r}: {fix}")


def _class_names(rows: Dataset, label: str) -> Sequence[str] | None:
    """Returns the names of a `ClassLabel` column, which contains numbers in the rows; None for other types."""
    return getattr(rows.features.get(label), "names", None)


def _texts(rows: Dataset, column: str) -> list[str]:
    """Returns the values of a column as text; empty where one is missing."""
    names = _class_names(rows, column)
    values = rows[column]
    if names is None:
        return [format_cell(value) for value in values]
    # the library marks rows without a label with -1
    return [str(names[value]) if value is not None and value >= 0 else "" for value in values]


def _owners(rows: Dataset, client: str | None) -> list[str] | None:
    """Returns the client of each row; None if there is no such column."""
    if client not in rows.column_names:
        return None
    owners = _texts(rows, client)
    if "" in owners:
        raise DataError(
            f"row {owners.index('')} has no value in column {client}: name a client for each row, or drop the row"
        )
    return owners


def _inputs(rows: Dataset, column: str, ends: tuple[float, float] | None, source: str) -> Tensor:
    """Returns all inputs, `[n, ...]`; those with a range are scaled to [-1, 1]."""
    if ends is not None and type(rows.features[column]).__name__ == "Image":
        raise ConfigError(
            f"data.numbers.{column}",
            [*ends],
            "cannot be set for images, whose values are already in [0, 1]: leave it out",
        )
    pairs = RowDataset(rows.select_columns([column]), column, column)
    inputs = [pairs[index][1] for index in range(len(pairs))]
    shapes = sorted({tuple(values.shape) for values in inputs})
    if len(shapes) > 1:
        raise DataError(
            f"{source}: column {column} has values of different shapes, e.g. {shapes[:3]}: give them one shape"
        )
    values = torch.stack(inputs)
    if ends is None:
        return values
    low, high = ends
    if not -math.inf < low < high < math.inf:
        raise ConfigError(
            f"data.numbers.{column}", [low, high], "must be [low, high], two finite numbers with low below high"
        )
    return 2 * (values.float().clamp(low, high) - low) / (high - low) - 1
