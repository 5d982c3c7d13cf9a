import gzip
import struct

import numpy as np
import pytest
import torch

from fedpriv.data import labels_of, load
from fedpriv.errors import DataError

NAMES = [f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]


def idx(array):
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


def contents(n_train=6, n_test=3):
    rng = np.random.default_rng(0)
    return {
        name: idx(rng.integers(0, 256, (n, 28, 28)) if "images" in name else np.arange(n) % 10)
        for name, n in zip(NAMES, (n_train, n_train, n_test, n_test), strict=True)
    }


@pytest.fixture
def folder(tmp_path):
    """A small MNIST, gzipped."""
    for name, content in contents().items():
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content))
    return tmp_path


@pytest.mark.data
def test_real_mnist_statistics(shared_data):
    split = load("mnist", root=str(shared_data / "mnist"))
    x, y = split.train.tensors
    assert x.shape == (60000, 1, 28, 28) and x.dtype == torch.float32
    assert x.min() == 0 and x.max() == 1
    assert x[0, 0, 0, 0] == 0, "the background is black"
    assert y[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4], "in file order"
    assert y.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert labels_of(split.test).bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert x.mean() == pytest.approx(0.1307, abs=1e-4) and x.std() == pytest.approx(0.3081, abs=1e-4)


def test_mnist_file_layouts_load_equal(folder, tmp_path_factory):
    raw = tmp_path_factory.mktemp("torchvision") / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name, content in contents().items():
        (raw / name).write_bytes(content)
    zipped, plain = load("mnist", root=str(folder)), load("mnist", root=str(raw.parents[1]))
    for a, b in zip(zipped.train.tensors + zipped.test.tensors, plain.train.tensors + plain.test.tensors, strict=True):
        assert torch.equal(a, b)
    pixels = np.frombuffer(contents()[NAMES[0]], np.uint8, offset=16).reshape(6, 28, 28)
    assert torch.equal(zipped.train.tensors[0][:, 0], torch.tensor(pixels) / 255)


def test_mnist_local_folder_skips_download(folder):
    assert len(load("mnist", root=str(folder), download=True).train) == 6


def test_mnist_flat_and_unit_options(folder):
    x = load("mnist", root=str(folder), flat=True, transforms=["unit"]).train.tensors[0]
    assert x.shape == (6, 784)
    torch.testing.assert_close(x.norm(dim=1), torch.ones(6))


def test_mnist_root_from_environment(folder, monkeypatch, tmp_path):
    (tmp_path / "mnist").mkdir()
    for file in folder.glob("*.gz"):
        file.rename(tmp_path / "mnist" / file.name)
    monkeypatch.setenv("FEDPRIV_DATA", str(tmp_path))
    assert len(load("mnist").test) == 3


def test_mnist_missing_file_raises(folder):
    with pytest.raises(DataError, match=r"no train-images-idx3-ubyte in .*nowhere.*download=True"):
        load("mnist", root=str(folder / "nowhere"))
    (folder / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match="no t10k-labels-idx1-ubyte in"):
        load("mnist", root=str(folder))


def test_mnist_unwritable_download_raises(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(DataError, match=r"download into .* failed .*set root"):
        load("mnist", root=str(tmp_path / "file"), download=True)


GOOD = contents()[NAMES[0]]
ZIPPED = gzip.compress(GOOD)
BROKEN = {
    "truncated gzip": (ZIPPED[:-40], "cannot be read"),
    "not a gzip": (b"<html>404</html>", "cannot be read"),
    "flipped byte in the gzip": (ZIPPED[:500] + bytes([ZIPPED[500] ^ 255]) + ZIPPED[501:], "cannot be read"),
    "empty": (gzip.compress(b""), "an empty file"),
    "bad magic": (gzip.compress(b"\x89PNG" + GOOD[4:]), "starts with 89504e47"),
    "labels where images belong": (gzip.compress(contents()[NAMES[1]]), "starts with 00000803"),
    "short header": (gzip.compress(GOOD[:10]), "contains only 10 bytes"),
    "short body": (
        gzip.compress(GOOD[:-1]),
        r"contains 4703 bytes of data, but its header gives the shape \[6, 28, 28\]",
    ),
    "long body": (gzip.compress(GOOD + b"\0"), "contains 4705 bytes"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_mnist_broken_file_raises(folder, kind):
    content, message = BROKEN[kind]
    (folder / "train-images-idx3-ubyte.gz").write_bytes(content)
    with pytest.raises(DataError, match=rf"train-images-idx3-ubyte\.gz.*{message}.*fetch this file again"):
        load("mnist", root=str(folder))


def test_mnist_count_mismatch_raises(folder):
    (folder / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.zeros(5))))
    with pytest.raises(DataError, match=r"train has images of shape \[6, 28, 28\] and 5 labels"):
        load("mnist", root=str(folder))


def test_mnist_label_out_of_range_raises(folder):
    (folder / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.array([0, 1, 2, 77, 4, 5]))))
    with pytest.raises(DataError, match=r"train\[3\] has label 77"):
        load("mnist", root=str(folder))
