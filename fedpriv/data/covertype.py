"""Forest cover type: 54 cartographic features, from the file(s) of UCI's layout."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from fedpriv.data.base import Split
from fedpriv.errors import ConfigError, DataError
from fedpriv.settings import Count, Whole, validate_arguments

# ranges of the ten measured columns in UCI's file, which are public
_LOW = (1859, 0, 0, 0, -173, 0, 0, 0, 0, 0)
_HIGH = (3858, 360, 66, 1397, 601, 7117, 254, 254, 254, 7173)
_COLUMNS = 55
_FILES = ("covtype.data", "covtype.data.gz", "covtype_sample92962.data.gz")


@validate_arguments("data")
def covertype(
    *,
    root: str | None = None,
    file: str | None = None,
    n_train: Count | None = None,
    target: Literal["binary", "cover"] = "binary",
    seed: Whole = 0,
) -> Split:
    """Loads forest cover types: 54 features and a constant, scaled to rows of l2 norm 1.

    The gradients of the logistic loss therefore have a norm of at most 1.

    Measured columns are scaled to [-1, 1] by UCI's published ranges, a constant column is appended, and each row is
    divided by its own norm. These are fixed maps of single rows, which have no privacy cost.

    Args:
        root: Folder of the file; None is `$FEDPRIV_DATA/covertype`.
        file: Name of the file; None uses the first existing one of covtype.data, covtype.data.gz and a 16 % sample.
        n_train: Number of training rows; the others are for testing. None is 86 % of all rows.
        target: `binary` is class 2 against all others, as in Wang, Ye, Xu (2017); `cover` is the seven classes.
        seed: Seed of the split.

    Returns:
        The training and test examples.

    Raises:
        DataError: If the file is missing or has other columns.
        ConfigError: If an option is out of range.

    Source: Blackard and Dean (1998), UCI.
    """
    path = _find(root, file)
    rows = _read(path)
    labels = torch.from_numpy(rows[:, -1].astype(np.int64)) - 1
    y = labels
    if target == "binary":
        y = (labels == 1).long()
    x = _features(rows[:, :-1])
    count = n_train
    if count is None:
        count = round(0.86 * len(x))
    if not 1 <= count < len(x):
        raise ConfigError(
            "data.n_train",
            count,
            f"must be from 1 to {len(x) - 1}: the file has {len(x)} rows, and at least one must be left for testing",
        )
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(x)))
    train = order[:count]
    test = order[count:]
    return Split(
        train=TensorDataset(x[train], y[train]),
        test=TensorDataset(x[test], y[test]),
        n_classes=2 if target == "binary" else 7,
        writers=None,
        description=f"Covertype: {len(train)} train and {len(test)} test rows of {x.shape[1]} features of norm 1",
    )


def _features(columns: np.ndarray) -> Tensor:
    """Scales the measured columns by public ranges and rows to norm 1: `[n, 54] -> [n, 55]`, with the constant."""
    low = np.array(_LOW)
    high = np.array(_HIGH)
    measured = np.clip(2 * (columns[:, :10] - low) / (high - low) - 1, -1, 1)
    x = np.concatenate([measured, columns[:, 10:], np.ones((len(columns), 1))], 1)
    return torch.from_numpy(x / np.linalg.norm(x, axis=1, keepdims=True)).float()


def _find(root: str | None, file: str | None) -> Path:
    shared = os.environ.get("FEDPRIV_DATA")
    if root is None and shared is None:
        raise DataError("Covertype: no root given and FEDPRIV_DATA is unset: set root to the folder of covtype.data.gz")
    if root:
        folder = Path(root)
    else:
        folder = Path(shared or "") / "covertype"
    for name in (file,) if file else _FILES:
        if (folder / name).is_file():
            return folder / name
    raise DataError(f"Covertype: no {file or ' or '.join(_FILES)} in {folder}: download covtype.data.gz from UCI")


def _read(path: Path) -> np.ndarray:
    try:
        if path.suffix == ".gz":
            content = gzip.decompress(path.read_bytes())
        else:
            content = path.read_bytes()
        rows = np.loadtxt(content.decode("ascii").splitlines(), delimiter=",", ndmin=2)
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}): download it again") from error
    if rows.shape[1] != _COLUMNS or not np.isin(rows[:, -1], range(1, 8)).all():
        raise DataError(
            f"{path}: each row must have 54 features and a cover type from 1 to 7, as in UCI's covtype.data: download "
            "it again"
        )
    return rows
