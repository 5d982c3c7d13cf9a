"""Folders of image data sets in the layout of torchvision: the required files, and their reading.

The files are read here and not by torchvision, which accepts published bytes only: a subset, or a copy in the same
layout, can be loaded too. A pickle can name any code, so only pickles of arrays are unpickled.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from fedpriv.data.mnist import read_idx
from fedpriv.errors import DataError, summarize_error

SubsetName = Literal["train", "test"]
_FETCH = "fetch this file again"
_ARRAYS = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}


class ImageLayout(Protocol):
    """The layout of a data set in a folder."""

    @property
    def n_classes(self) -> int:
        """Labels are in `[0, n_classes)`."""
        ...

    @property
    def class_name(self) -> str:
        """The name of torchvision's class."""
        ...

    @property
    def source(self) -> str:
        """The files that torchvision downloads, for a user who downloads them manually."""
        ...

    def missing(self, folder: Path) -> str | None:
        """Returns the first missing file, as a path in the folder; None if the folder has all files."""
        ...

    def read(self, folder: Path, subset: SubsetName) -> tuple[Tensor, Tensor]:
        """Reads images, uint8 `[n, channels, height, width]`, and labels, int64 `[n]`.

        Raises:
            DataError: If a file is damaged; the message names it.
        """
        ...


@dataclass(frozen=True)
class CifarLayout:
    """CIFAR-10 and CIFAR-100: pickled dictionaries with rows of 3072 bytes.

    Args:
        n_classes: Number of classes.
        class_name: torchvision's class.
        folder_name: The folder in the archive.
        train: Names of the files of train examples.
        test: Name of the file of test examples.
        label_key: Key of the labels in a file.
    """

    n_classes: int
    class_name: str
    folder_name: str
    train: tuple[str, ...]
    test: str
    label_key: str

    @property
    def source(self) -> str:
        """The archive that torchvision downloads."""
        return f"{self.folder_name}/ of the archive {self.folder_name.replace('-batches-py', '-python')}.tar.gz"

    def missing(self, folder: Path) -> str | None:
        """Returns the first missing file; None if the folder has all files."""
        names = [f"{self.folder_name}/{name}" for name in (*self.train, self.test)]
        return next((name for name in names if not (folder / name).is_file()), None)

    def read(self, folder: Path, subset: SubsetName) -> tuple[Tensor, Tensor]:
        """Reads images and labels; see `ImageLayout`."""
        names = [self.test]
        if subset == "train":
            names = [*self.train]
        tables = [_unpickled(folder / self.folder_name / name, self.label_key) for name in names]
        pixels = np.concatenate([rows for rows, _ in tables])
        labels = np.concatenate([labels for _, labels in tables])
        return torch.from_numpy(pixels.reshape(-1, 3, 32, 32)), torch.from_numpy(labels)


@dataclass(frozen=True)
class SvhnLayout:
    """SVHN, cropped digits: Matlab files with images `[32, 32, 3, n]`, and labels where 10 is the digit 0."""

    n_classes: int = 10
    class_name: str = "SVHN"
    source: str = "train_32x32.mat and test_32x32.mat"

    def missing(self, folder: Path) -> str | None:
        """Returns the first missing file; None if the folder has all files."""
        names = ["train_32x32.mat", "test_32x32.mat"]
        return next((name for name in names if not (folder / name).is_file()), None)

    def read(self, folder: Path, subset: SubsetName) -> tuple[Tensor, Tensor]:
        """Reads images and labels; see `ImageLayout`."""
        from scipy.io import loadmat  # slow to import

        path = folder / f"{subset}_32x32.mat"
        try:
            content: dict[str, Any] = loadmat(str(path))
            pixels = np.ascontiguousarray(content["X"].astype(np.uint8).transpose(3, 2, 0, 1))
            labels = content["y"].reshape(-1).astype(np.int64) % 10
        except Exception as error:  # scipy raises many kinds for damaged files
            raise DataError(
                f"{path}: is not a Matlab file with the arrays X and y ({summarize_error(error)}): {_FETCH}"
            ) from error
        if len(pixels) != len(labels) or pixels.shape[1:] != (3, 32, 32):
            raise DataError(f"{path}: has images of shape {[*pixels.shape]} and {len(labels)} labels: {_FETCH}")
        return torch.from_numpy(pixels), torch.from_numpy(labels)


@dataclass(frozen=True)
class IdxLayout:
    """Data sets in MNIST's format: four idx files, plain or gzip, in `NAME/raw`.

    Args:
        n_classes: Number of classes.
        class_name: torchvision's class, which also names the folder.
        prefixes: Prefixes of the names of train and test files.
        first_label: The label of class 0 in the files.
        transposed: True if images are transposed.
    """

    n_classes: int
    class_name: str
    prefixes: tuple[str, str] = ("train", "t10k")
    first_label: int = 0
    transposed: bool = False

    @property
    def source(self) -> str:
        """The files that torchvision downloads."""
        return f"{self.class_name}/raw/ with {', '.join(self._names())} (.gz or not)"

    def missing(self, folder: Path) -> str | None:
        """Returns the first missing file; None if the folder has all files."""
        names = [f"{self.class_name}/raw/{name}" for name in self._names()]
        return next((name for name in names if _plain_or_gzip(folder, name) is None), None)

    def read(self, folder: Path, subset: SubsetName) -> tuple[Tensor, Tensor]:
        """Reads images and labels; see `ImageLayout`."""
        prefix = self.prefixes[subset == "test"]
        images_path = _plain_or_gzip(folder, f"{self.class_name}/raw/{prefix}-images-idx3-ubyte")
        labels_path = _plain_or_gzip(folder, f"{self.class_name}/raw/{prefix}-labels-idx1-ubyte")
        assert images_path is not None
        assert labels_path is not None, "see `missing`"
        pixels = read_idx(images_path, n_axes=3)
        labels = read_idx(labels_path, n_axes=1).long() - self.first_label
        if len(pixels) != len(labels) or pixels.shape[1:] != (28, 28):
            fix = "use all four files from one source"
            raise DataError(f"{images_path}: has images of shape {[*pixels.shape]} and {len(labels)} labels: {fix}")
        if self.transposed:
            pixels = pixels.mT.contiguous()
        return pixels[:, None], labels

    def _names(self) -> list[str]:
        return [f"{prefix}-{kind}-ubyte" for prefix in self.prefixes for kind in ("images-idx3", "labels-idx1")]


def _plain_or_gzip(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


class _ArrayUnpickler(pickle.Unpickler):
    """Unpickles dictionaries, lists and numpy's arrays; raises an error for any other object."""

    def find_class(self, module_name: str, global_name: str, /) -> object:
        if (module_name, global_name) not in _ARRAYS:
            raise pickle.UnpicklingError(f"it contains {module_name}.{global_name}, which is not an array")
        return super().find_class(module_name, global_name)


def _unpickled(path: Path, label_key: str) -> tuple[np.ndarray, np.ndarray]:
    """Reads a file of CIFAR: rows uint8 `[n, 3072]` and labels int64 `[n]`."""
    try:
        with path.open("rb") as file:
            table = _ArrayUnpickler(file, encoding="latin1").load()
        rows = np.asarray(table["data"], np.uint8)
        labels = np.asarray(table[label_key], np.int64)
    except Exception as error:  # whatever a damaged pickle evaluates to
        raise DataError(
            f"{path}: is not a file of CIFAR's Python version ({summarize_error(error)}): {_FETCH}"
        ) from error
    if rows.ndim != 2 or rows.shape[1] != 3072 or labels.shape != (len(rows),):
        raise DataError(f"{path}: has images of shape {[*rows.shape]} and labels of shape {[*labels.shape]}: {_FETCH}")
    return rows, labels
