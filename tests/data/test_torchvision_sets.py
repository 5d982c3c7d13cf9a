"""torchvision's image sets: small files in each layout, and what a user is told without them."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torch

from fedpriv.config import load_config
from fedpriv.config.building import load_plan, read_outline
from fedpriv.data import load
from fedpriv.errors import ConfigError, DataError


def cifar_file(path: Path, n: int, key: str, first: int = 0) -> np.ndarray:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = np.random.default_rng(n + first).integers(0, 256, (n, 3072), dtype=np.uint8)
    path.write_bytes(pickle.dumps({"data": rows, key: [(first + i) % 10 for i in range(n)]}, protocol=2))
    return rows


def cifar10(folder: Path) -> list[np.ndarray]:
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    return [cifar_file(folder / "cifar-10-batches-py" / name, 2, "labels", first=2 * i) for i, name in enumerate(names)]


def idx(path: Path, array: np.ndarray, zipped: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
    if zipped:
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(content))
    else:
        path.write_bytes(content)


def idx_set(folder: Path, prefixes: tuple[str, str], labels: list[int], zipped: bool = False) -> np.ndarray:
    pixels = np.random.default_rng(0).integers(0, 256, (len(labels), 28, 28), dtype=np.uint8)
    for prefix in prefixes:
        idx(folder / f"{prefix}-images-idx3-ubyte", pixels, zipped)
        idx(folder / f"{prefix}-labels-idx1-ubyte", np.array(labels, np.uint8), zipped)
    return pixels


def test_cifar10_batches_load_in_order(tmp_path: Path):
    rows = cifar10(tmp_path)
    split = load("torchvision", dataset="cifar10", root=str(tmp_path))
    x, y = split.train.tensors
    assert x.shape == (10, 3, 32, 32) and x.dtype == torch.float32
    assert torch.equal(x[3].flatten(), torch.tensor(rows[1][1]) / 255), "red, green and blue planes, rows of each"
    assert y.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert split.test.tensors[1].tolist() == [0, 1]
    assert load("torchvision", dataset="cifar10", root=str(tmp_path), flat=True).train[0][0].shape == (3072,)


def test_cifar100_has_fine_labels(tmp_path: Path):
    for name in ("train", "test"):
        cifar_file(tmp_path / "cifar-100-python" / name, 3, "fine_labels", first=5)
    split = load("torchvision", dataset="cifar100", root=str(tmp_path))
    assert split.n_classes == 100
    assert split.train.tensors[1].tolist() == [5, 6, 7]


def test_svhn_label_10_becomes_0(tmp_path: Path):
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3, 2), dtype=np.uint8)
    for name in ("train", "test"):
        scipy.io.savemat(tmp_path / f"{name}_32x32.mat", {"X": pixels, "y": np.array([[10], [3]], np.uint8)})
    x, y = load("torchvision", dataset="svhn", root=str(tmp_path)).train.tensors
    assert y.tolist() == [0, 3]
    assert torch.equal(x[1, 2], torch.tensor(pixels[:, :, 2, 1]) / 255)


@pytest.mark.parametrize(("name", "folder"), [("fashion_mnist", "FashionMNIST"), ("kmnist", "KMNIST")])
@pytest.mark.parametrize("zipped", [False, True])
def test_mnist_format_sets_load(name: str, folder: str, zipped: bool, tmp_path: Path):
    pixels = idx_set(tmp_path / folder / "raw", ("train", "t10k"), [9, 0], zipped)
    x, y = load("torchvision", dataset=name, root=str(tmp_path)).train.tensors
    assert torch.equal(x[:, 0], torch.tensor(pixels) / 255)
    assert y.tolist() == [9, 0]


def test_emnist_images_upright_and_labels_from_0(tmp_path: Path):
    pixels = idx_set(tmp_path / "EMNIST" / "raw", ("emnist-letters-train", "emnist-letters-test"), [1, 26])
    split = load("torchvision", dataset="emnist", emnist_split="letters", root=str(tmp_path))
    assert split.n_classes == 26
    assert split.train.tensors[1].tolist() == [0, 25]
    assert torch.equal(split.train.tensors[0][0, 0], torch.tensor(pixels[0].T) / 255)
    with pytest.raises(DataError, match=r"no EMNIST/raw/emnist-digits-train-images-idx3-ubyte"):
        load("torchvision", dataset="emnist", emnist_split="digits", root=str(tmp_path))
    with pytest.raises(ConfigError, match=r"data\.emnist_split = None: is required for emnist: choose one of byclass"):
        load("torchvision", dataset="emnist", root=str(tmp_path))
    with pytest.raises(ConfigError, match=r"is only for emnist, but dataset is kmnist"):
        load("torchvision", dataset="kmnist", emnist_split="letters", root=str(tmp_path))


def test_torchvision_root_from_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    cifar10(tmp_path / "cifar10")
    monkeypatch.setenv("FEDPRIV_DATA", str(tmp_path))
    assert len(load("torchvision", dataset="cifar10").train) == 10


def test_torchvision_missing_files_raise(tmp_path: Path):
    with pytest.raises(DataError) as caught:
        load("torchvision", dataset="cifar10", root=str(tmp_path))
    assert f"no cifar-10-batches-py/data_batch_1 in {tmp_path}" in str(caught.value)
    assert "cifar-10-batches-py/ of the archive cifar-10-python.tar.gz, or download=True" in str(caught.value)
    cifar10(tmp_path)
    (tmp_path / "cifar-10-batches-py" / "data_batch_4").unlink()
    with pytest.raises(DataError, match="no cifar-10-batches-py/data_batch_4"):
        load("torchvision", dataset="cifar10", root=str(tmp_path))
    with pytest.raises(ConfigError, match="dataset"):
        load("torchvision", dataset="cifar11", root=str(tmp_path))


def test_failed_download_names_files_to_place(tmp_path: Path):
    """The folder is a file, so torchvision fails before it uses the network."""
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError) as caught:
        load("torchvision", dataset="svhn", root=str(tmp_path / "file"), download=True)
    assert "download into" in str(caught.value)
    assert "put train_32x32.mat and test_32x32.mat into" in str(caught.value)


class Command:
    def __reduce__(self):
        return os.system, ("echo run > /dev/null",)


def test_cifar_pickle_with_code_raises(tmp_path: Path):
    cifar10(tmp_path)
    file = tmp_path / "cifar-10-batches-py" / "test_batch"
    file.write_bytes(pickle.dumps({"data": Command(), "labels": []}))
    with pytest.raises(DataError, match=r"test_batch: .*it contains \w+\.system, which is not an array"):
        load("torchvision", dataset="cifar10", root=str(tmp_path))
    file.write_bytes(b"not a pickle")
    with pytest.raises(DataError, match="test_batch: is not a file of CIFAR's Python version"):
        load("torchvision", dataset="cifar10", root=str(tmp_path))
    file.write_bytes(pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [1]}))
    with pytest.raises(DataError, match=r"images of shape \[2, 3072\] and labels of shape \[1\]"):
        load("torchvision", dataset="cifar10", root=str(tmp_path))


def test_torchvision_label_out_of_range_raises(tmp_path: Path):
    idx_set(tmp_path / "KMNIST" / "raw", ("train", "t10k"), [10, 0])
    with pytest.raises(DataError, match=r"train\[0\] has label 10"):
        load("torchvision", dataset="kmnist", root=str(tmp_path))


def test_plan_needs_no_image_files():
    """Sizes and shapes are published, so a plan needs no file."""
    run = Path(__file__).parents[2] / "configs" / "cifar10_scattering_sums.yaml"
    overrides = ["data.root=absent", "data.transforms=[]", "privacy.epsilon=null", "privacy.noise_multiplier=3"]
    plan = load_plan(load_config(run, overrides), 0)
    assert plan.n_clients == 10
    emnist = ["data={name: torchvision, dataset: emnist, emnist_split: letters, partition: {kind: iid, n_clients: 10}}"]
    assert read_outline(load_config(run, emnist)).n_classes == 26
