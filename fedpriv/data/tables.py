"""Tables of the UCI repository: Adult, breast cancer (Wisconsin) and monks-1. Inputs are flat feature vectors."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import TensorDataset

from fedpriv.clients import ExactOnly
from fedpriv.data.base import Split
from fedpriv.data.columns import ADULT, BREAST_CANCER, MISSING, MONKS, Column, check_rows
from fedpriv.data.owners import encode_names
from fedpriv.errors import ConfigError, DataError
from fedpriv.settings import Count, Whole, validate_arguments

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Protocol = Literal["held_out", "paper"]
Owner = Literal["workclass", "education", "marital-status", "occupation", "race", "native-country"]

# public constants of the published file (all 45 222 complete rows), so that scaling reads no private data
_ADULT_SCALE = {
    "age": (38.5479, 13.2177),
    "fnlwgt": (189734.73, 105638.03),
    "education_num": (10.1185, 2.5529),
    "hours": (40.9380, 12.0074),
}
_RELATIONSHIP = ("Husband", "Not-in-family", "Other-relative", "Own-child", "Unmarried", "Wife")
_RACE = ("Amer-Indian-Eskimo", "Asian-Pac-Islander", "Black", "Other", "White")
_WORK = {
    "gov": ("Federal-gov", "Local-gov", "State-gov"),
    "private": ("Private",),
    "self": ("Self-emp-inc", "Self-emp-not-inc"),
    "unpaid": ("Without-pay",),
}
_OCCUPATION = (
    "Adm-clerical",
    "Armed-Forces",
    "Craft-repair",
    "Exec-managerial",
    "Farming-fishing",
    "Handlers-cleaners",
    "Machine-op-inspct",
    "Other-service",
    "Priv-house-serv",
    "Prof-specialty",
    "Protective-serv",
    "Sales",
    "Tech-support",
    "Transport-moving",
)
# round numbers beyond the ranges in UCI's description of the diagnostic set (as printed by scikit-learn) for ten
# measures of a cell's nucleus: their means, their standard errors, and their worst values
_CELLS = (
    *(
        (6, 30),
        (9, 40),
        (40, 190),
        (100, 2600),
        (0.05, 0.17),
        (0, 0.35),
        (0, 0.45),
        (0, 0.25),
        (0.1, 0.31),
        (0.04, 0.1),
    ),
    *((0, 3), (0, 5), (0, 22), (0, 550), (0, 0.04), (0, 0.14), (0, 0.4), (0, 0.06), (0, 0.08), (0, 0.03)),
    *(
        (7, 37),
        (12, 50),
        (50, 260),
        (180, 4300),
        (0.07, 0.23),
        (0, 1.1),
        (0, 1.3),
        (0, 0.3),
        (0.15, 0.67),
        (0.05, 0.21),
    ),
)


@validate_arguments("data")
def adult(
    *, root: str | None = None, n_train: Count | None = None, owner: Owner | None = None, bias: bool = True
) -> Split:
    """Loads Adult (census income): 30 162 train and 15 060 test rows without missing values; class 1 earns over 50K.

    Features: age, weight, years of education and hours scaled with public constants; married, capital gain, capital
    loss, not from the United States; one-hot relationship, race, kind of work, occupation; a constant; and last, sex
    (1 male): the group of `GroupLossGap(feature=-1)`.

    Args:
        root: Folder with `adult.data(.gz)` and `adult.test(.gz)`; `$FEDPRIV_DATA/adult` if omitted.
        n_train: Use only this many train rows, the first ones.
        owner: Column with the client of each row, for `partition: {kind: by_writer}`. Clients are numbered in the
            sorted order of its values, which are public. It is still used as a feature.
        bias: Add the constant feature.

    Returns:
        The training and test examples.

    Raises:
        DataError: If a file is missing or broken.

    Source: Kohavi and Becker (1996), UCI; the encoding follows the `adult-b` set of He, Peng and Sun (2024).
    """
    folder = _folder(root, "adult")
    train = _complete(folder, "adult.data")
    test = _complete(folder, "adult.test")
    if n_train is not None and n_train > len(train):
        raise ConfigError("data.n_train", n_train, f"must be between 1 and {len(train)}, the number of rows")
    train = train[:n_train]
    datasets: list[TensorDataset] = []
    for rows in (train, test):
        x, y = _adult_features(rows)
        if bias:
            x = _with_bias(x, before=1)
        datasets.append(_dataset(x, y))
    description = f"adult: {len(datasets[0])} train and {len(datasets[1])} test rows, 2 classes"
    if owner is None:
        return Split(datasets[0], datasets[1], 2, None, description)
    column_index = [column.name for column in ADULT].index(owner)
    (train_owners, test_owners), names = encode_names(
        [row[column_index] for row in train], [row[column_index] for row in test]
    )
    return Split(datasets[0], datasets[1], 2, train_owners, description, test_writers=test_owners, writer_names=names)


@validate_arguments("data")
def breast_cancer(
    *,
    variant: Literal["wisconsin", "diagnostic"] = "wisconsin",
    root: str | None = None,
    features: Sequence[int] | None = None,
    bias: bool = True,
    protocol: Protocol = "held_out",
    seed: Whole = 0,
) -> Split:
    """Loads breast cancer; class 1 is malignant. Features are scaled to [-1, 1] by public ranges.

    Args:
        variant: `wisconsin` is the original set: 683 complete rows of 9 features, from a file. Some of its 630 patients
            have several rows, which are all in the train part or all in the test part. `diagnostic` is 569 rows of 30
            features from scikit-learn, and needs no file.
        root: Folder with `breast-cancer-wisconsin.data`; `$FEDPRIV_DATA/breast-cancer-wisconsin` if omitted.
        features: Use these columns only.
        bias: Add a constant feature.
        protocol: `held_out` uses a fifth of the patients for testing. `paper` uses all rows for both training and
            testing, standardised by their own mean and deviation, as in He, Peng and Sun; with it, a private run raises
            an error.
        seed: Seed of the choice of patients.

    Returns:
        The training and test examples.

    Raises:
        DataError: If a file is missing or broken.

    Source: Wolberg and Mangasarian (1990); Street, Wolberg and Mangasarian (1993); UCI.
    """
    if variant == "diagnostic":
        from sklearn.datasets import load_breast_cancer  # slow to import

        x, benign = load_breast_cancer(return_X_y=True)
        x = np.asarray(x, dtype=np.float64)
        y = 1 - np.asarray(benign, dtype=np.int64)
        patients = np.arange(len(y))
        low, high = np.array(_CELLS).T
    else:
        rows = _fields(_folder(root, "breast-cancer-wisconsin") / "breast-cancer-wisconsin.data", BREAST_CANCER)
        table = np.array([row for row in rows if "?" not in row], dtype=np.float64)
        x = table[:, 1:10]
        y = (table[:, 10] == 4).astype(np.int64)
        patients = table[:, 0].astype(np.int64)
        low, high = np.full(9, 1.0), np.full(9, 10.0)  # grades from 1 to 10
    if protocol == "paper":
        x = (x - x.mean(0)) / x.std(0)
    else:
        x = 2 * (x - low) / (high - low) - 1
    if features is not None:
        x = x[:, list(features)]
    description = f"breast cancer ({variant}), {x.shape[1]} features, 2 classes"
    return _split(_with_bias(x) if bias else x, y, patients, protocol, seed, description)


@validate_arguments("data")
def monks(*, root: str | None = None, bias: bool = True, protocol: Protocol = "held_out", seed: Whole = 0) -> Split:
    """Loads Monks-1: six discrete features, one-hot (17 columns).

    Args:
        root: Folder with `monks-1.train` and `monks-1.test`; `$FEDPRIV_DATA/monks` if omitted.
        bias: Add a constant feature.
        protocol: `held_out` uses the 432 distinct rows, one fifth of them for testing. `paper` uses all 556 rows of
            both files for both training and testing, as in He, Peng and Sun; 124 rows occur twice, and a private run
            raises an error.
        seed: Seed of the choice of test rows.

    Returns:
        The training and test examples.

    Raises:
        DataError: If a file is missing or broken.

    Source: Thrun et al. (1991), UCI.
    """
    folder = _folder(root, "monks")
    # the test file is the whole domain, and the train file is a part of it
    if protocol == "held_out":
        files = ("monks-1.test",)
    else:
        files = ("monks-1.train", "monks-1.test")
    rows = [line.split() for name in files for line in _lines(folder / name)]
    check_rows(folder, [row[:-1] for row in rows], MONKS)  # the last is a name
    table = np.array([row[:7] for row in rows], dtype=np.int64)
    columns = [table[:, [j]] == np.arange(1, count + 1) for j, count in enumerate((3, 3, 2, 3, 4, 2), start=1)]
    x = np.concatenate(columns, 1).astype(np.float64)
    description = "monks-1, 17 features, 2 classes"
    return _split(_with_bias(x) if bias else x, table[:, 0], np.arange(len(table)), protocol, seed, description)


def _split(x: Array, y: Integers, owner: Integers, protocol: Protocol, seed: int, description: str) -> Split:
    """Splits rows into train and test; rows of one owner stay together.

    The split depends on the number of owners and the seed, not on the data.
    """
    if protocol == "paper":
        examples = ExactOnly(torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy(y))
        return Split(examples, examples, 2, None, f"{description}: {len(y)} rows, both train and test")
    owners, owner_of_row = np.unique(owner, return_inverse=True)
    test = np.random.default_rng(seed).permutation(len(owners))[owner_of_row] < len(owners) // 5
    description = f"{description}: {int((~test).sum())} train and {int(test.sum())} test rows"
    return Split(_dataset(x[~test], y[~test]), _dataset(x[test], y[test]), 2, None, description)


def _complete(folder: Path, name: str) -> list[list[str]]:
    """Reads the rows of a file of Adult without missing values."""
    path = folder / name
    if not path.exists():
        path = folder / f"{name}.gz"
    return [row for row in _fields(path, ADULT, comment="|") if MISSING not in row]


def _adult_features(rows: Sequence[Sequence[str]]) -> tuple[Array, Integers]:
    """Encodes rows of Adult: features `[n, 38]` without the constant, and classes `[n]`."""
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    scaled = {"age": 0, "fnlwgt": 2, "education_num": 4, "hours": 12}
    numeric = [
        (columns[index].astype(np.float64) - _ADULT_SCALE[key][0]) / _ADULT_SCALE[key][1]
        for key, index in scaled.items()
    ]
    flags = [
        np.isin(columns[5], ("Married-civ-spouse", "Married-AF-spouse")),
        columns[10].astype(np.float64) > 0,
        columns[11].astype(np.float64) > 0,
        columns[13] != "United-States",
    ]
    hot = [columns[7] == value for value in _RELATIONSHIP]
    hot += [columns[8] == value for value in _RACE]
    hot += [np.isin(columns[1], values) for values in _WORK.values()]
    hot += [columns[6] == value for value in _OCCUPATION]
    x = np.stack([*numeric, *flags, *hot, columns[9] == "Male"], 1).astype(np.float64)
    return x, np.char.startswith(columns[14], ">50K").astype(np.int64)


def _folder(root: str | None, name: str) -> Path:
    shared = os.environ.get("FEDPRIV_DATA")
    if root is None and shared is None:
        raise DataError(f"{name}: no root given and FEDPRIV_DATA is unset: set root to the folder with its files")
    if root:
        folder = Path(root)
    else:
        folder = Path(shared or "") / name
    if not folder.is_dir():
        raise DataError(
            f"{name}: folder {folder} does not exist: set root to the folder with its files, or FEDPRIV_DATA to a "
            f"folder that contains {name}/"
        )
    return folder


def _lines(path: Path) -> list[str]:
    try:
        if path.suffix == ".gz":
            text = gzip.decompress(path.read_bytes())
        else:
            text = path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error}): fetch it again") from error
    return [line for line in text.decode("utf-8", "replace").splitlines() if line.strip()]


def _fields(path: Path, columns: Sequence[Column], comment: str = "\0") -> list[list[str]]:
    rows = [[*map(str.strip, line.split(","))] for line in _lines(path) if not line.startswith(comment)]
    check_rows(path, rows, columns)
    if all(MISSING in row for row in rows):
        raise DataError(f"{path} has no complete rows: fetch it again")
    return rows


def _with_bias(x: Array, before: int = 0) -> Array:
    """Inserts a constant column before the last `before` columns."""
    return np.insert(x, x.shape[1] - before, 1.0, axis=1)


def _dataset(x: Array, y: Integers) -> TensorDataset:
    return TensorDataset(torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy(y))
