"""Tables in LIBSVM's sparse text format (svmlight), by scikit-learn's reader."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from fedpriv.data.base import Split
from fedpriv.errors import ConfigError, DataError
from fedpriv.settings import Count, validate_arguments


@validate_arguments("data")
def libsvm(
    *,
    train: str,
    test: str,
    n_features: Count,
    classes: Sequence[float] | None = (-1, 1),
    normalize: bool = True,
    bias: bool = False,
    root: str | None = None,
) -> Split:
    """Reads rows `label index:value ...`, plain or compressed (gz, bz2), as dense float32.

    Args:
        train: File with the clients' examples.
        test: The same with public examples.
        n_features: Number of columns. It is a required setting, because the largest index in the files would reveal
            information about the data.
        classes: Labels in the order of the class numbers; None uses labels as numbers, for regression.
        normalize: Divide each row by its own l2 norm (rows of zeros stay zero).
        bias: Append a constant feature, before rows are divided.
        root: Folder of the files; None is `$FEDPRIV_DATA/libsvm` if that is set, else the current folder.

    Returns:
        The training and test examples.

    Raises:
        DataError: If a file cannot be read or has more columns, or a label is not listed; the message names the file.
        ConfigError: If an option is out of range.
    """
    if classes is not None and len(set(classes)) < max(2, len(classes)):
        raise ConfigError("data.classes", [*classes], "must list at least two labels, each once")
    shared = os.environ.get("FEDPRIV_DATA")
    if root:
        folder = Path(root)
    elif shared:
        folder = Path(shared) / "libsvm"
    else:
        folder = Path()
    datasets: list[TensorDataset] = []
    for path in (folder / train, folder / test):
        inputs, labels = _read(path, n_features)
        if bias:
            inputs = torch.cat([inputs, torch.ones(len(inputs), 1)], 1)
        if normalize:
            inputs = torch.nn.functional.normalize(inputs)
        datasets.append(TensorDataset(inputs, _targets(labels, classes, path)))
    n_classes = None if classes is None else len(classes)
    description = f"{train}: {len(datasets[0])} train and {len(datasets[1])} test rows of {n_features} features"
    return Split(datasets[0], datasets[1], n_classes, None, description)


def _read(path: Path, n_features: int) -> tuple[Tensor, np.ndarray]:
    """Reads inputs `[n, n_features]` and labels `[n]`."""
    from sklearn.datasets import load_svmlight_file  # slow to import

    options: dict[str, Any] = {"n_features": n_features, "zero_based": False}
    try:
        inputs, labels = load_svmlight_file(str(path), **options)[:2]
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist: set data.root to its folder") from error
    except (OSError, EOFError, ValueError, UnicodeDecodeError) as error:
        fix = (
            "each row must be 'label index:value ...' with indices from 1 to n_features: correct the file or n_features"
        )
        raise DataError(f"{path} cannot be read with {n_features} features ({error}): {fix}") from error
    return torch.from_numpy(inputs.astype(np.float32).toarray()), labels


def _targets(labels: np.ndarray, classes: Sequence[float] | None, path: Path) -> Tensor:
    """Returns targets `[n]`: class numbers, or the labels as they are."""
    if classes is None:
        return torch.from_numpy(labels).float()
    fits = labels[:, None] == np.array(classes, dtype=float)  # [n, n_classes]
    if not fits.any(1).all():
        row = int((~fits.any(1)).argmax())
        listed = ", ".join(f"{label:g}" for label in classes)
        raise DataError(
            f"{path}, row {row + 1}: label {labels[row]:g} is not one of data.classes ({listed}): correct data.classes"
        )
    return torch.from_numpy(fits.argmax(1))
