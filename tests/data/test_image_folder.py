"""Images in folders: what a file becomes, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedpriv.data import load
from fedpriv.errors import ConfigError, DataError


def save(path: Path, pixels: np.ndarray, mode: str | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(pixels)
    if mode:
        image = image.convert(mode)
    image.save(path)


def grey(level: int, height: int = 4, width: int = 6) -> np.ndarray:
    return np.full((height, width), level, np.uint8)


def read(folder: Path, **changed: Any):
    options = {"root": str(folder), "classes": ["well", "ill"], "size": (4, 6), "channels": "grey"}
    return load("image_folder", **{**options, **changed})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("train", "test"):
        save(tmp_path / name / "ill" / "b.png", grey(51))
        save(tmp_path / name / "well" / "a.PNG", grey(255))
    return tmp_path


def test_image_folder_classes_follow_setting(folder: Path):
    (folder / "train" / "ill" / "notes.txt").write_text("no image")
    split = read(folder)
    x, y = split.train.tensors
    assert y.tolist() == [1, 0], "ill comes first among the folders, and second in the setting"
    assert x.shape == (2, 1, 4, 6)
    assert x[0].unique().tolist() == [pytest.approx(0.2)]
    assert split.n_classes == 2


def test_image_folder_channels_and_size(folder: Path):
    colours = np.zeros((8, 12, 3), np.uint8)
    colours[..., 0] = 255
    save(folder / "train" / "well" / "red.jpg", colours)
    x, y = read(folder, channels="rgb").train.tensors
    assert x.shape == (3, 3, 4, 6)
    red = x[y == 0][1]
    assert red[0].min() > 0.9 and red[1:].max() < 0.1
    assert torch.equal(x[0, 0], x[0, 1]), "a grey image has three equal channels"


def test_image_independent_of_other_images(folder: Path):
    before = read(folder).train[0][0]
    save(folder / "train" / "well" / "large.png", grey(3, 40, 60))
    assert torch.equal(read(folder).train[0][0], before)


def test_transparent_pixels_become_black(folder: Path):
    pixels = np.zeros((4, 6, 4), np.uint8)
    pixels[..., 0] = 255
    save(folder / "train" / "well" / "clear.png", pixels)
    x, y = read(folder, channels="rgb").train.tensors
    assert x[y == 0][1].max() == 0


def test_image_folder_per_client(folder: Path):
    for client, level in (("south", 0), ("north", 255)):
        save(folder / "sites" / client / "ill" / "a.png", grey(level))
    split = read(folder, train="sites", clients=True)
    assert split.train.tensors[0].flatten(1).mean(1).tolist() == [1, 0]
    assert split.writers.tolist() == [0, 1]
    assert split.writer_names == {0: "north", 1: "south"}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"train": "trian"}, "trian does not exist: set root to the folder of the images"),
        (
            {"classes": ["well", "sick"]},
            "'ill' is not one of the classes well, sick: list it in classes, move it elsewhere, or set clients",
        ),
        ({"clients": True}, "has no image in its folders well, ill"),
        ({"root": "nowhere"}, "which must be in root/train/CLASS/"),
    ],
)
def test_invalid_image_folder_raises(folder: Path, changed: dict[str, Any], message: str):
    with pytest.raises(DataError) as caught:
        read(folder, **changed)
    assert message in str(caught.value)


def test_image_class_listed_twice_raises(folder: Path):
    with pytest.raises(ConfigError, match="must list at least one class, and each class once"):
        read(folder, classes=["well", "ill", "ill"])


def test_image_not_8_bit_raises(folder: Path):
    broken = folder / "train" / "ill" / "x.png"
    broken.write_bytes(b"\x89PNG broken")
    with pytest.raises(DataError, match=r"ill/x\.png: cannot be read as an image"):
        read(folder)
    save(broken, np.full((4, 6), 4095, np.uint16))
    with pytest.raises(DataError, match=r"ill/x\.png: .* more than 8 bits per channel"):
        read(folder)
