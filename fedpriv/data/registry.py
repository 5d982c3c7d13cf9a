"""The names of data sets. The module of a data set is imported when it is first looked up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from fedpriv.data.base import DataFacts, DatasetEntry, Split
from fedpriv.errors import ConfigError
from fedpriv.settings import plugins, validate_arguments


@dataclass(frozen=True)
class _Row:
    """One data set.

    Attributes:
        function: The function that loads it, as `module.name`.
        description: One line about it.
        facts: Its public facts, or the name of the function in the same module that returns them.
        columns: The name of the function in the same module that reads columns of its table; None without a table.
    """

    function: str
    description: str
    facts: DataFacts | str | None = None
    columns: str | None = None

    def entry(self) -> DatasetEntry:
        """Imports the module."""
        module, _, name = self.function.partition(".")
        functions: dict[str, Callable[..., Any]] = vars(import_module(f"fedpriv.data.{module}"))
        facts = self.facts
        if isinstance(facts, str):
            facts = functions[facts]
        columns = None
        if self.columns is not None:
            columns = functions[self.columns]
        return DatasetEntry(functions[name], self.description, facts, columns)


_TABLE = {
    "csv": _Row("csv_file.csv", "your table, from comma-separated files, with public ranges", None, "columns"),
    "parquet": _Row("parquet_file.parquet", "your table, from Parquet files, with public ranges", None, "columns"),
    "sql": _Row("sql_table.sql", "your table or view in a database, with public ranges", None, "columns"),
    "image_folder": _Row("image_folder.image_folder", "your images, one folder per class"),
    "hf": _Row("hugging_face.hugging_face", "your files of Hugging Face's datasets: save_to_disk, Parquet, CSV, JSON"),
    "libsvm": _Row("libsvm.libsvm", "your files in LIBSVM's sparse text format, such as a9a"),
    "digits": _Row("digits.digits", "scikit-learn's 8x8 digits; needs no file", DataFacts(1437, (1, 8, 8), 10)),
    "sensors": _Row("sensors.sensors", "simulated sensors that observe one point, regression; needs no file"),
    "mnist": _Row("mnist.mnist", "MNIST, 28x28, 60000 train and 10000 test images", DataFacts(60000, (1, 28, 28), 10)),
    "torchvision": _Row(
        "torchvision_sets.torchvision",
        "CIFAR-10, CIFAR-100, SVHN, Fashion-MNIST, KMNIST or EMNIST, in torchvision's folder layout",
        "torchvision_facts",
    ),
    "adult": _Row("tables.adult", "UCI Adult (census income), 38 features and a constant, 2 classes"),
    "breast_cancer": _Row("tables.breast_cancer", "UCI breast cancer, original or diagnostic, 2 classes"),
    "monks": _Row("tables.monks", "UCI monks-1, 17 one-hot features, 2 classes"),
    "femnist": _Row("femnist.femnist", "FEMNIST of LEAF, 28x28, 62 classes, by writer"),
    "shakespeare": _Row("shakespeare.shakespeare", "Shakespeare by role, the next character of 97 in windows of 80"),
    "heart": _Row(
        "heart.heart", "UCI heart disease, 18 features and a constant, 2 classes, by hospital", None, "columns"
    ),
    "covertype": _Row(
        "covertype.covertype", "UCI Covertype, 54 features and a constant, rows of norm 1, binary or 7 classes"
    ),
}


class _Rows(Mapping[str, DatasetEntry]):
    def __getitem__(self, name: str) -> DatasetEntry:
        return _TABLE[name].entry()

    def __contains__(self, name: object) -> bool:
        return name in _TABLE

    def __iter__(self) -> Iterator[str]:
        return iter(_TABLE)

    def __len__(self) -> int:
        return len(_TABLE)


DATASETS = plugins.Registry(_Rows(), (Split,), "fedpriv.data", DatasetEntry)


@validate_arguments("data")
def load(name: str, **options: object) -> Split:
    """Loads a data set.

    Args:
        name: A key of `DATASETS`, or `package.module:function` that returns a `Split`.
        **options: The options of the loader.

    Raises:
        ConfigError: If the name or an option is unknown.
        DataError: If the data are missing or broken.
    """
    split = plugins.build(name, DATASETS, options, field="data")
    if not isinstance(split, Split):  # a user's function may return anything
        raise ConfigError(
            "data",
            name,
            f"must return a fedpriv.data.Split, but returns a {type(split).__name__}: correct the function",
        )
    return split


@validate_arguments("data")
def read_columns(name: str, columns: Sequence[str], **options: object) -> Mapping[str, Sequence[str]]:
    """Reads columns of the table from which a data set's train examples were made, for statistics of its rows.

    Args:
        name: A key of `DATASETS`.
        columns: Names of columns.
        **options: The options of the loader.

    Returns:
        The text of each column, in the order of the train examples; empty where a value is missing.

    Raises:
        ConfigError: If the data set has no table, or the table lacks a column.
        DataError: If the table cannot be read.
    """
    entry = DATASETS.get(name)
    if entry is None or entry.columns is None:
        tables = ", ".join(key for key, row in _TABLE.items() if row.columns is not None)
        raise ConfigError("data.name", name, f"has no table with named columns; data sets with a table: {tables}")
    return entry.columns(columns, options)
