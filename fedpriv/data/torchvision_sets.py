"""Image data sets of torchvision by name: read from its folder layout, downloaded by it on request only."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from torch.utils.data import TensorDataset

from fedpriv.data.base import DataFacts, Split, as_inputs
from fedpriv.data.torchvision_compat import import_torchvision
from fedpriv.data.torchvision_layouts import CifarLayout, IdxLayout, ImageLayout, SubsetName, SvhnLayout
from fedpriv.data.transforms import TransformName
from fedpriv.errors import ConfigError, DataError, summarize_error
from fedpriv.settings import validate_arguments

SetName = Literal["cifar10", "cifar100", "svhn", "fashion_mnist", "kmnist", "emnist"]
EmnistSplit = Literal["byclass", "bymerge", "balanced", "letters", "digits", "mnist"]
_LAYOUTS: dict[str, ImageLayout] = {
    "cifar10": CifarLayout(
        10, "CIFAR10", "cifar-10-batches-py", tuple(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "labels"
    ),
    "cifar100": CifarLayout(100, "CIFAR100", "cifar-100-python", ("train",), "test", "fine_labels"),
    "svhn": SvhnLayout(),
    "fashion_mnist": IdxLayout(10, "FashionMNIST"),
    "kmnist": IdxLayout(10, "KMNIST"),
}
_FACTS = {
    "cifar10": DataFacts(50000, (3, 32, 32), 10),
    "cifar100": DataFacts(50000, (3, 32, 32), 100),
    "svhn": DataFacts(73257, (3, 32, 32), 10),
    "fashion_mnist": DataFacts(60000, (1, 28, 28), 10),
    "kmnist": DataFacts(60000, (1, 28, 28), 10),
}
_EMNIST_TRAIN = {
    "byclass": 697932,
    "bymerge": 697932,
    "balanced": 112800,
    "letters": 124800,
    "digits": 240000,
    "mnist": 60000,
}
_EMNIST_CLASSES = {"byclass": 62, "bymerge": 47, "balanced": 47, "letters": 26, "digits": 10, "mnist": 10}


@validate_arguments("data")
def torchvision(
    *,
    dataset: SetName,
    root: str | None = None,
    download: bool = False,
    emnist_split: EmnistSplit | None = None,
    flat: bool = False,
    transforms: Sequence[TransformName] = (),
) -> Split:
    """Loads an image data set of torchvision, in file order, with pixels in [0, 1].

    Args:
        dataset: `cifar10`, `cifar100` (its 100 fine classes) and `svhn` (without its `extra` images) have 3x32x32,
            `fashion_mnist`, `kmnist` and `emnist` 1x28x28.
        root: Folder into which torchvision has downloaded the data, or is to download them. None searches a folder with
            the set's name in `$FEDPRIV_DATA`, then `~/.cache/fedpriv`.
        download: Let torchvision download missing files, into `root` or `~/.cache/fedpriv`.
        emnist_split: One of EMNIST's six divisions; required for `emnist`, and only allowed there. Its images are
            turned upright, and the letters' labels start from 0.
        flat: `[n, channels * height * width]` instead of `[n, channels, height, width]`.
        transforms: Functions of single images, see `fedpriv.data.transforms`.

    Returns:
        The training and test examples.

    Raises:
        ConfigError: If `emnist_split` does not fit the set.
        DataError: If a file is missing or damaged; the message contains the expected files and folders.

    Source: Krizhevsky (2009), CIFAR; Netzer and others (2011), SVHN; Xiao and others (2017), Fashion-MNIST; Clanuwat
    and others (2018), KMNIST; Cohen and others (2017), EMNIST.
    """
    layout = _layout(dataset, emnist_split)
    folder = _folder(dataset, layout, root, download, emnist_split)

    def examples(subset: SubsetName) -> TensorDataset:
        pixels, labels = layout.read(folder, subset)
        return TensorDataset(as_inputs(pixels.float() / 255, flat=flat, transforms=transforms), labels)

    train = examples("train")
    test = examples("test")
    description = f"{layout.class_name}: {len(train)} train and {len(test)} test images, {layout.n_classes} classes"
    return Split(train, test, n_classes=layout.n_classes, writers=None, description=description)


def torchvision_facts(dataset: str = "", emnist_split: str | None = None, **other_options: object) -> DataFacts | None:
    """Returns the published facts of a data set; None for options that `torchvision` rejects.

    Args:
        dataset: See `torchvision`.
        emnist_split: See `torchvision`.
        **other_options: The other options of `torchvision`, which do not change the facts.
    """
    if dataset == "emnist" and emnist_split in _EMNIST_TRAIN:
        return DataFacts(_EMNIST_TRAIN[emnist_split], (1, 28, 28), _EMNIST_CLASSES[emnist_split])
    return _FACTS.get(dataset)


def _layout(dataset: str, emnist_split: str | None) -> ImageLayout:
    if dataset != "emnist":
        if emnist_split is not None:
            raise ConfigError(
                "data.emnist_split", emnist_split, f"is only for emnist, but dataset is {dataset}: leave it out"
            )
        return _LAYOUTS[dataset]
    if emnist_split is None:
        raise ConfigError(
            "data.emnist_split", None, f"is required for emnist: choose one of {', '.join(_EMNIST_CLASSES)}"
        )
    prefixes = (f"emnist-{emnist_split}-train", f"emnist-{emnist_split}-test")
    first_label = 0
    if emnist_split == "letters":
        first_label = 1
    return IdxLayout(_EMNIST_CLASSES[emnist_split], "EMNIST", prefixes, first_label, transposed=True)


def _folder(dataset: str, layout: ImageLayout, root: str | None, download: bool, emnist_split: str | None) -> Path:
    """Returns the first folder with all files; downloads them if there is none."""
    cache = Path.home() / ".cache" / "fedpriv"
    shared = os.environ.get("FEDPRIV_DATA")
    if root is not None:
        folders = [Path(root)]
    elif shared:
        folders = [Path(shared), Path(shared) / dataset, cache]
    else:
        folders = [cache]
    missing = {folder: layout.missing(folder) for folder in folders}
    for folder, name in missing.items():
        if name is None:
            return folder
    if download:
        _download(dataset, layout, folders[-1], emnist_split)
        return folders[-1]
    problems = "; ".join(f"no {name} in {folder}" for folder, name in missing.items())
    fix = f"set root to a folder with {layout.source}, or download=True (data.download=true in a command)"
    raise DataError(f"{dataset}: {problems}: {fix}")


def _download(dataset: str, layout: ImageLayout, folder: Path, emnist_split: str | None) -> None:
    datasets = import_torchvision("datasets")
    make = getattr(datasets, layout.class_name)
    by_hand = f"put {layout.source} into {folder}, or set root to a folder that contains it"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if dataset == "svhn":
            make(str(folder), split="train", download=True)
            make(str(folder), split="test", download=True)
        elif dataset == "emnist":
            make(str(folder), split=emnist_split, download=True)
        else:
            make(str(folder), download=True)
    except Exception as error:  # no network, a full disk, a changed file: torchvision and urllib raise many kinds
        raise DataError(f"{dataset}: download into {folder} failed ({summarize_error(error)}): {by_hand}") from error
    name = layout.missing(folder)
    if name is not None:
        raise DataError(f"{dataset}: torchvision downloaded no {name} into {folder}: {by_hand}")
