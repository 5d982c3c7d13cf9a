"""MNIST from local idx files (plain or gzip), downloaded by torchvision on request."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Sequence
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from fedpriv.data.base import Split, as_inputs
from fedpriv.data.torchvision_compat import import_torchvision
from fedpriv.data.transforms import TransformName
from fedpriv.errors import DataError, format_count
from fedpriv.settings import validate_arguments

_PREFIXES = {"train": "train", "test": "t10k"}
_FILES = [f"{prefix}-{kind}-ubyte" for prefix in _PREFIXES.values() for kind in ("images-idx3", "labels-idx1")]
_LAYOUT = "the four idx files (.gz or not), directly or under MNIST/raw"


@validate_arguments("data")
def mnist(
    *, root: str | None = None, download: bool = False, flat: bool = False, transforms: Sequence[TransformName] = ()
) -> Split:
    """Loads MNIST: 60000 train and 10000 test images of 28x28 in file order, of 10 classes.

    The background is 0 and the ink 1.

    Args:
        root: Folder with the four idx files, or with torchvision's `MNIST/raw`. None looks in `$FEDPRIV_DATA/mnist`,
            then in `~/.cache/fedpriv`.
        download: Let torchvision download missing files, into `root` or `~/.cache/fedpriv`.
        flat: `[n, 784]` instead of `[n, 1, 28, 28]`.
        transforms: Functions of single images, see `fedpriv.data.transforms`; they receive pixels in [0, 1].

    Returns:
        The training and test examples.

    Raises:
        DataError: If a file is missing, truncated or not idx, or the numbers of images and labels differ.

    Source: LeCun, Cortes, Burges. Any data set in the same four files (Fashion-MNIST) can also be loaded.
    """
    folder = _folder(root, download=download)
    datasets: dict[str, TensorDataset] = {}
    for name, prefix in _PREFIXES.items():
        pixels = read_idx(_find(folder, f"{prefix}-images-idx3-ubyte"), n_axes=3)
        labels = read_idx(_find(folder, f"{prefix}-labels-idx1-ubyte"), n_axes=1)
        if len(pixels) != len(labels) or pixels.shape[1:] != (28, 28):
            fix = "use all four files from one source"
            raise DataError(
                f"{folder}: {name} has images of shape {list(pixels.shape)} and {len(labels)} labels: {fix}"
            )
        images = pixels[:, None].float() / 255  # [n, 28, 28] -> [n, 1, 28, 28]
        datasets[name] = TensorDataset(as_inputs(images, flat=flat, transforms=transforms), labels.long())
    sizes = f"{len(datasets['train'])} train and {len(datasets['test'])} test images"
    description = f"MNIST: {sizes} of 28x28, 10 classes"
    return Split(datasets["train"], datasets["test"], n_classes=10, writers=None, description=description)


def read_idx(path: Path, *, n_axes: int) -> Tensor:
    """Reads an idx file of unsigned bytes as uint8 with `n_axes` axes.

    Raises:
        DataError: If the file is unreadable, a broken gzip, not an idx file of this kind, or its length differs from
            the length in its header.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error}): fetch this file again") from error
    header = 4 + 4 * n_axes
    magic = bytes([0, 0, 8, n_axes])  # 8: unsigned byte
    if not content:
        raise DataError(f"{path}: is an empty file: fetch this file again")
    if content[:4] != magic:
        start = content[:4].hex()
        raise DataError(
            f"{path}: is not a complete idx file of this kind, which has a header of {header} bytes that starts with "
            f"{magic.hex()}; this file has {len(content)} bytes and starts with {start}: fetch this file again"
        )
    if len(content) < header:
        raise DataError(f"{path}: contains only {format_count(len(content), 'byte')}: fetch this file again")
    shape = np.frombuffer(content, dtype=">u4", count=n_axes, offset=4).tolist()
    if len(content) - header != prod(shape):
        fix = "fetch this file again"
        raise DataError(
            f"{path}: contains {len(content) - header} bytes of data, but its header gives the shape {shape}: {fix}"
        )
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=header).reshape(shape)


def _folder(root: str | None, *, download: bool) -> Path:
    """Returns the first folder with all four files; downloads them if there is none."""
    cache = Path.home() / ".cache" / "fedpriv"
    shared = os.environ.get("FEDPRIV_DATA")
    if root:
        folders = [Path(root)]
    elif shared:
        folders = [Path(shared) / "mnist", cache]
    else:
        folders = [cache]
    for folder in folders:
        if all(_candidates(folder, name) for name in _FILES):
            return folder
    if download:
        return _download(folders[-1])
    missing = {str(folder): next(name for name in _FILES if not _candidates(folder, name)) for folder in folders}
    problems = "; ".join(f"no {name} in {folder}" for folder, name in missing.items())
    fix = f"set root to a folder with {_LAYOUT}, or download=True (data.download=true in a command)"
    raise DataError(f"MNIST: {problems}: {fix}")


def _download(folder: Path) -> Path:
    datasets = import_torchvision("datasets")
    try:
        datasets.MNIST(str(folder), download=True)
    except (OSError, RuntimeError) as error:
        fix = f"set root to a folder that you can write to, or put {_LAYOUT} there"
        raise DataError(f"MNIST: download into {folder} failed ({error}): {fix}") from error
    return folder


def _candidates(folder: Path, name: str) -> list[Path]:
    """Returns the files of this name in a folder, plain or compressed."""
    folders = (folder, folder / "MNIST" / "raw")
    return [path for directory in folders for path in (directory / name, directory / f"{name}.gz") if path.is_file()]


def _find(folder: Path, name: str) -> Path:
    return _candidates(folder, name)[0]
