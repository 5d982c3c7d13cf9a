"""Images in folders, one folder per class; the user names classes, size and channels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from fedpriv.data.base import Split, as_inputs
from fedpriv.data.owners import encode_names
from fedpriv.data.transforms import TransformName
from fedpriv.errors import ConfigError, DataError, summarize_error, truncate
from fedpriv.settings import Count, validate_arguments

_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}


@validate_arguments("data")
def image_folder(
    *,
    root: str,
    classes: Sequence[str],
    size: tuple[Count, Count],
    channels: Literal["rgb", "grey"] = "rgb",
    clients: bool = False,
    train: str = "train",
    test: str = "test",
    flat: bool = False,
    transforms: Sequence[TransformName] = (),
) -> Split:
    """Loads images from folders: `root/train/CLASS/*.png` and `root/test/CLASS/*.png`.

    Classes, size and channels are settings and are not measured on the images, so the result for an image depends on no
    other image.

    Args:
        root: The folder.
        classes: Names of the folders of classes, in the order of the class numbers. Another folder is an error.
        size: `[height, width]` to which each image is scaled, without keeping its proportions.
        channels: Colour (`[n, 3, h, w]`) or grey (`[n, 1, h, w]`); images of the other kind are converted. A
            transparent background becomes black.
        clients: True if the train images are in a folder for each client, `root/train/CLIENT/CLASS/*.png`, for
            `partition: {kind: by_writer}`. The folder's name is public, because reports use it for the client.
        train: Name of the folder of train images.
        test: Name of the folder of public test images.
        flat: Return inputs `[n, channels * height * width]` instead.
        transforms: Functions of single images, see `fedpriv.data.transforms`; they receive pixels in [0, 1].

    Returns:
        The training and test examples.

    Raises:
        ConfigError: If a class is listed twice.
        DataError: If a folder is missing, has another name than a class, or has no image; or if a file is not an image.
    """
    if len(set(classes)) < max(len(classes), 1):
        raise ConfigError(
            "data.classes", [*classes], "must list at least one class, and each class once: correct the list"
        )
    folder = Path(root)
    client_names: list[str] = []
    if clients:
        client_names = [path.name for path in _subfolders(folder / train)]
        files: list[tuple[Path, int]] = []
        owners: list[str] = []
        for name in client_names:
            images = _files(folder / train / name, classes)
            files += images
            owners += [name] * len(images)
        (writers,), writer_names = encode_names(owners)
    else:
        files = _files(folder / train, classes)
        writers = None
        writer_names = dict[int, str]()

    def examples(paths: Sequence[tuple[Path, int]]) -> TensorDataset:
        pixels = torch.stack([_pixels(path, size, channels) for path, _ in paths]).float() / 255
        labels = torch.tensor([label for _, label in paths])
        return TensorDataset(as_inputs(pixels, flat=flat, transforms=transforms), labels)

    train_set = examples(files)
    test_set = examples(_files(folder / test, classes))
    sizes = f"{len(train_set)} train and {len(test_set)} test images, {len(classes)} classes"
    return Split(train_set, test_set, len(classes), writers, f"{root}: {sizes}", writer_names=writer_names)


def _subfolders(folder: Path) -> list[Path]:
    """Returns the folders in a folder, in order of name, without hidden ones."""
    if not folder.is_dir():
        fix = "set root to the folder of the images, which must be in root/train/CLASS/ and root/test/CLASS/"
        raise DataError(f"image_folder: folder {folder} does not exist: {fix}")
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _files(folder: Path, classes: Sequence[str]) -> list[tuple[Path, int]]:
    """Returns the image files below the folders of classes, with the number of their class."""
    numbers = {name: number for number, name in enumerate(classes)}
    files: list[tuple[Path, int]] = []
    for subfolder in _subfolders(folder):
        if subfolder.name not in numbers:
            fix = "list it in classes, move it elsewhere, or set clients: true if there is a folder for each client"
            raise DataError(
                f"{subfolder}: {subfolder.name!r} is not one of the classes {truncate(', '.join(classes))}: {fix}"
            )
        paths = sorted(path for path in subfolder.rglob("*") if path.suffix.lower() in _SUFFIXES and path.is_file())
        files += [(path, numbers[subfolder.name]) for path in paths]
    if not files:
        kinds = ", ".join(sorted(_SUFFIXES))
        raise DataError(
            f"{folder} has no image in its folders {truncate(', '.join(classes))}: put image files ({kinds}) into "
            "these folders"
        )
    return files


def _pixels(path: Path, size: tuple[int, int], channels: str) -> Tensor:
    """Reads an image as uint8 `[channels, height, width]`."""
    from PIL import Image  # slow to import

    try:
        with Image.open(path) as opened:
            image: Any = opened
            # modes of 16 and 32 bits would be cut off at 255
            if image.mode.startswith(("I", "F")):
                raise ValueError(
                    f"its mode {image.mode} has more than 8 bits per channel; convert it with a public range"
                )
            if image.mode in ("P", "LA", "PA") or "transparency" in image.info:
                image = image.convert("RGBA")
            if image.mode == "RGBA":
                image = Image.alpha_composite(Image.new("RGBA", image.size, (0, 0, 0, 255)), image)
            image = image.convert("RGB" if channels == "rgb" else "L")
            if image.size != (size[1], size[0]):
                image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
            pixels = np.array(image)
    except Exception as error:  # Pillow raises many kinds for damaged or absurdly large files
        raise DataError(
            f"{path}: cannot be read as an image ({summarize_error(error)}): repair or remove it"
        ) from error
    if pixels.ndim == 2:
        return torch.from_numpy(pixels)[None]
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()
