"""FEMNIST, by writer: LEAF's json folders, or the compact npz form of them."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import TensorDataset

from fedpriv.data.base import Split, as_inputs
from fedpriv.data.transforms import TransformName
from fedpriv.errors import DataError
from fedpriv.settings import Count, validate_arguments

N_CLASSES = 62
_SIDE = 28
_NPZ_KEYS = {"images", "labels", "writers", "split"}


@dataclass(frozen=True)
class _Examples:
    """Train or test examples.

    Attributes:
        images: float32 `[n, 28, 28]` as LEAF stores them: paper 1, ink 0.
        labels: Class numbers, `[n]`.
        writers: Writer numbers, `[n]`.
    """

    images: NDArray[np.float32]
    labels: NDArray[np.int64]
    writers: NDArray[np.int64]

    def rows(self, keep: NDArray[np.bool_]) -> _Examples:
        """Returns the rows where `keep` is true."""
        return _Examples(self.images[keep], self.labels[keep], self.writers[keep])


_Read = tuple[_Examples, _Examples, dict[int, str]]
"""Train and test examples, and the writers' names by number."""


@validate_arguments("data")
def femnist(
    *,
    root: str | None = None,
    files: Sequence[str] | None = None,
    min_examples: Count = 1,
    max_writers: Count | None = None,
    test: Literal["chosen", "all"] = "chosen",
    invert: bool = True,
    flat: bool = False,
    transforms: Sequence[TransformName] = (),
) -> Split:
    """Loads FEMNIST, 28x28, 62 classes (digits, upper, lower case), with the writer of each train example.

    Args:
        root: A LEAF folder (`train/*.json`, `test/*.json`) or a folder of npz files; None is `$FEDPRIV_DATA/femnist`.
        files: Names of the npz files in `root` to use; None is all of them in order of name.
        min_examples: Leave out writers with fewer train examples.
        max_writers: Largest number of writers, in the order of writer numbers; None uses all.
        test: Test examples of the `chosen` writers, or of `all` writers.
        invert: Store ink as 1 on paper 0, as in MNIST; LEAF uses the opposite.
        flat: `[n, 784]` instead of `[n, 1, 28, 28]`.
        transforms: Functions of single images, see `fedpriv.data.transforms`; they receive pixels in [0, 1].

    Returns:
        The training and test examples.

    Raises:
        DataError: If a file is missing or broken, or no writer is left.
        ConfigError: If an option is out of range.

    Source: Caldas et al. (2018), LEAF, from NIST Special Database 19.
    """
    folder = _folder(root)
    is_leaf = files is None and (folder / "train").is_dir()
    if is_leaf:
        train_rows, test_rows, names = _read_leaf(folder)
    else:
        train_rows, test_rows, names = _read_npz_files(folder, files)

    writers, counts = np.unique(train_rows.writers, return_counts=True)
    chosen = writers[counts >= min_examples][:max_writers]
    if len(chosen) == 0:
        raise DataError(f"FEMNIST: no writer in {folder} has {min_examples} train examples: lower min_examples")
    train_rows = train_rows.rows(np.isin(train_rows.writers, chosen))
    if test == "chosen":
        test_rows = test_rows.rows(np.isin(test_rows.writers, chosen))

    def examples(rows: _Examples) -> TensorDataset:
        pixels = torch.from_numpy(1 - rows.images if invert else rows.images)[:, None]  # [n, 28, 28] -> [n, 1, 28, 28]
        return TensorDataset(as_inputs(pixels, flat=flat, transforms=transforms), torch.from_numpy(rows.labels))

    sizes = f"{len(train_rows.labels)} train and {len(test_rows.labels)} test images of 28x28"
    return Split(
        train=examples(train_rows),
        test=examples(test_rows),
        n_classes=N_CLASSES,
        writers=torch.from_numpy(train_rows.writers),
        description=f"FEMNIST: {len(chosen)} writers, {sizes}, {N_CLASSES} classes",
        test_writers=torch.from_numpy(test_rows.writers),
        writer_names=names,
    )


def _folder(root: str | None) -> Path:
    shared = os.environ.get("FEDPRIV_DATA")
    fix = "set root to LEAF's folder with train/ and test/ (made by its preprocess.sh), or to one with npz files"
    if root is None and shared is None:
        raise DataError(f"FEMNIST: no root given and FEDPRIV_DATA is unset: {fix}")
    if root:
        folder = Path(root)
    else:
        folder = Path(shared or "") / "femnist"
    if not folder.is_dir():
        raise DataError(f"FEMNIST: folder {folder} does not exist: {fix}")
    return folder


def _read_npz_files(folder: Path, files: Sequence[str] | None) -> _Read:
    if files is not None:
        paths = [folder / name for name in files]
    else:
        paths = sorted(folder.glob("*.npz"))
    if not paths:
        raise DataError(
            f"FEMNIST: {folder} has no npz files, and no folders train/ and test/ with json files: set root "
            "to a folder that has either"
        )
    tables = [_read_npz(path) for path in paths]
    ids = np.concatenate([np.unique(table["writers"]) for table in tables])
    if len(np.unique(ids)) < len(ids):
        raise DataError(
            f"FEMNIST: {', '.join(path.name for path in paths)} contain the same writer numbers: name only one of them "
            "in files"
        )
    labels = np.concatenate([table["labels"] for table in tables]).astype(np.int64)
    writers = np.concatenate([table["writers"] for table in tables]).astype(np.int64)
    images = np.concatenate([table["images"] for table in tables]).astype(np.float32) / np.float32(255)
    is_test = np.concatenate([table["split"] for table in tables]) == 1
    rows = _Examples(images, labels, writers)
    return rows.rows(~is_test), rows.rows(is_test), {writer: f"writer {writer}" for writer in ids.tolist()}


def _read_npz(path: Path) -> dict[str, NDArray[Any]]:
    if not path.is_file():
        raise DataError(f"FEMNIST: file {path} does not exist: check the settings root and files")
    try:
        with np.load(path, allow_pickle=False) as archive:
            table = {key: archive[key] for key in _NPZ_KEYS & set(archive.files)}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: not a readable npz file ({error}): fetch it again") from error
    missing = sorted(_NPZ_KEYS - set(table))
    if missing:
        raise DataError(f"{path}: lacks the arrays {missing}: use a file with the arrays {sorted(_NPZ_KEYS)}")
    n = len(table["labels"])
    wrong = [key for key, array in table.items() if array.shape != ((n, _SIDE, _SIDE) if key == "images" else (n,))]
    if wrong:
        raise DataError(f"{path}: the shapes of the arrays {wrong} do not fit its {n} labels: fetch it again")
    return table


def _read_leaf(folder: Path) -> _Read:
    train = _read_leaf_folder(folder / "train")
    test = _read_leaf_folder(folder / "test")
    users = sorted(set(train) | set(test))  # writers are numbered by the order of their LEAF names
    number: Callable[[str], int] = {user: index for index, user in enumerate(users)}.__getitem__

    def stack(examples: dict[str, tuple[NDArray[np.float32], NDArray[np.int64]]]) -> _Examples:
        names = sorted(examples)
        images = [np.empty((0, _SIDE, _SIDE), np.float32), *(examples[user][0] for user in names)]
        labels = [np.empty(0, np.int64), *(examples[user][1] for user in names)]
        writers = np.repeat([number(user) for user in names], [len(examples[user][1]) for user in names])
        return _Examples(np.concatenate(images), np.concatenate(labels), writers.astype(np.int64))

    return stack(train), stack(test), dict(enumerate(users))


def _read_leaf_folder(folder: Path) -> dict[str, tuple[NDArray[np.float32], NDArray[np.int64]]]:
    """Reads a folder of LEAF's json files: images `[n, 28, 28]` and labels `[n]` of each user."""
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise DataError(f"FEMNIST: no json files in {folder}: create train/ and test/ with LEAF's preprocess.sh")
    examples_of_users: dict[str, tuple[NDArray[np.float32], NDArray[np.int64]]] = {}
    for path in paths:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            tables = {str(user): content["user_data"][user] for user in content["users"]}
            arrays = {
                user: (
                    np.asarray(table["x"], np.float32).reshape(-1, _SIDE, _SIDE),
                    np.asarray(table["y"], np.int64).reshape(-1),
                )
                for user, table in tables.items()
            }
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = f"{type(error).__name__}: {error}"
            fix = (
                "it must contain users, and user_data with {x: rows of 784, y} for each user; create it with "
                "preprocess.sh"
            )
            raise DataError(f"{path}: not a LEAF json file ({reason}): {fix}") from error
        for user, (images, labels) in arrays.items():
            if len(images) != len(labels) or user in examples_of_users:
                fix = "run LEAF's preprocess.sh again"
                raise DataError(f"{path}: user {user} has {len(images)} x and {len(labels)} y, or occurs twice: {fix}")
        examples_of_users |= arrays
    return examples_of_users
