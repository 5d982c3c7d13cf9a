"""Data sets, and how their examples are divided among clients."""

from __future__ import annotations

from functools import partial

from fedpriv.data.base import DataFacts, DatasetEntry, Split, check_dataset, labels_of
from fedpriv.data.covertype import covertype
from fedpriv.data.csv_file import csv
from fedpriv.data.digits import digits
from fedpriv.data.femnist import femnist
from fedpriv.data.heart import heart
from fedpriv.data.hugging_face import hugging_face
from fedpriv.data.image_folder import image_folder
from fedpriv.data.libsvm import libsvm
from fedpriv.data.mnist import mnist
from fedpriv.data.parquet_file import parquet
from fedpriv.data.partition import partition
from fedpriv.data.row_dataset import RowDataset
from fedpriv.data.sensors import sensors
from fedpriv.data.shakespeare import shakespeare
from fedpriv.data.sql_table import sql
from fedpriv.data.table_encoder import TableEncoder
from fedpriv.data.tables import adult, breast_cancer, monks
from fedpriv.data.torchvision_sets import torchvision, torchvision_facts
from fedpriv.errors import ConfigError
from fedpriv.settings import plugins
from fedpriv.settings.checks import checked

__all__ = [
    "DATASETS",
    "PUBLISHED",
    "DataFacts",
    "DatasetEntry",
    "RowDataset",
    "Split",
    "TableEncoder",
    "check_dataset",
    "labels_of",
    "load",
    "partition",
]

_published = partial(DatasetEntry, is_published=True)
_OWN = {
    "csv": DatasetEntry(csv, "your own table, from comma-separated files and public ranges"),
    "parquet": DatasetEntry(parquet, "your own table, from Parquet files and public ranges"),
    "sql": DatasetEntry(sql, "your own table or view in a database, with public ranges"),
    "image_folder": DatasetEntry(image_folder, "your own images, a folder for each class"),
    "hf": DatasetEntry(hugging_face, "your own files of Hugging Face's datasets: save_to_disk, Parquet, CSV, JSON"),
    "libsvm": DatasetEntry(libsvm, "your own files in LIBSVM's sparse text format, such as a9a"),
    "digits": _published(digits, "scikit-learn's 8x8 digits; needs no file", DataFacts(1437, (1, 8, 8), 10)),
    "sensors": _published(sensors, "simulated sensors that look at one point, regression; needs no file"),
    "mnist": _published(mnist, "MNIST, 28x28, 60000 train and 10000 test images", DataFacts(60000, (1, 28, 28), 10)),
    "torchvision": _published(
        torchvision,
        "CIFAR-10, CIFAR-100, SVHN, Fashion-MNIST, KMNIST or EMNIST, in torchvision's folder layout",
        torchvision_facts,
    ),
    "adult": _published(adult, "UCI Adult (census income), 38 features and a constant, 2 classes"),
    "breast_cancer": _published(breast_cancer, "UCI breast cancer, original or diagnostic, 2 classes"),
    "monks": _published(monks, "UCI monks-1, 17 one-hot features, 2 classes"),
    "femnist": _published(femnist, "FEMNIST of LEAF, 28x28, 62 classes, by writer"),
    "shakespeare": _published(shakespeare, "Shakespeare by role, the next character of 97 in windows of 80"),
    "heart": _published(heart, "UCI heart disease, 18 features and a constant, 2 classes, by hospital"),
    "covertype": _published(
        covertype, "UCI Covertype, 54 features and a constant, rows of norm 1, binary or 7 classes"
    ),
}
DATASETS = plugins.Registry(_OWN, (Split,), "fedpriv.data", DatasetEntry)
PUBLISHED = frozenset(name for name, row in _OWN.items() if row.is_published)
"""Names of data sets whose rows are the same whenever they are loaded with the same options."""


@checked("data")
def load(name: str, **options: object) -> Split:
    """Loads a data set.

    Args:
        name: A key of `DATASETS`, or `package.module:function` that returns a `Split`.
        **options: The loader's own options.

    Raises:
        ConfigError: unknown name or option.
        DataError: the data are missing or broken.
    """
    split = plugins.build(name, DATASETS, options, field="data")
    if not isinstance(split, Split):  # a user's function may return anything
        raise ConfigError("data", name, f"returned a {type(split).__name__}: return a fedpriv.data.Split")
    return split
