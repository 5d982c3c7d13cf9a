"""LIBSVM's sparse text format: what a row becomes, and what is refused."""

from __future__ import annotations

import bz2
import gzip
from pathlib import Path

import pytest
import torch

from fedpriv import data
from fedpriv.errors import ConfigError, DataError

ROWS = "+1 1:3 3:4\n-1 2:-2 # a remark\n-1\n"


def table(folder: Path, rows: str = ROWS, **changed: object):
    (folder / "train").write_text(rows)
    (folder / "test").write_text("+1 1:1\n")
    options = {"train": "train", "test": "test", "n_features": 4, "root": str(folder)}
    return data.load("libsvm", **{**options, **changed})


def test_libsvm_rows_match_hand_encoding(tmp_path: Path):
    split = table(tmp_path)
    assert split.train[:][0].tolist() == [[pytest.approx(0.6), 0, pytest.approx(0.8), 0], [0, -1, 0, 0], [0, 0, 0, 0]]
    assert split.train[:][1].tolist() == [1, 0, 0]
    assert (split.n_classes, split.train[0][0].dtype) == (2, torch.float32)
    assert table(tmp_path, normalize=False).train[0][0].tolist() == [3, 0, 4, 0]
    assert table(tmp_path, normalize=False, bias=True).train[1][0].tolist() == [0, -2, 0, 0, 1]
    assert table(tmp_path, classes=[1, -1]).train[:][1].tolist() == [0, 1, 1]


def test_libsvm_numeric_targets(tmp_path: Path):
    split = table(tmp_path, "2.5 1:1\n-7 2:1\n", classes=None)
    assert split.n_classes is None
    assert split.train[:][1].tolist() == [2.5, -7]


@pytest.mark.parametrize(("name", "compress"), [("train.gz", gzip.compress), ("train.bz2", bz2.compress)])
def test_libsvm_compressed_files_equal(tmp_path: Path, name: str, compress):
    (tmp_path / name).write_bytes(compress(ROWS.encode()))
    assert torch.equal(table(tmp_path, train=name).train[:][0], table(tmp_path).train[:][0])


def test_libsvm_default_root_is_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "libsvm").mkdir()
    monkeypatch.setenv("FEDPRIV_DATA", str(tmp_path))
    assert len(table(tmp_path / "libsvm", root=None).train[:][1]) == 3


@pytest.mark.parametrize(
    ("rows", "changed", "message"),
    [
        ("+1 5:1\n", {}, "train cannot be read with 4 features"),
        ("+1 0:1\n", {}, "indices from 1"),
        ("+1 1:one\n", {}, "each row must be 'label index:value ...'"),
        (ROWS + "3 1:1\n", {}, "train, row 4: label 3 is not one of data.classes (-1, 1)"),
        ("", {}, "train"),
        (ROWS, {"train": "absent"}, "absent does not exist: set data.root"),
        (ROWS, {"n_features": 0}, "data.n_features = 0: must be a whole number, at least 1"),
        (ROWS, {"classes": [1]}, "must list at least two labels"),
        (ROWS, {"classes": [1, 1]}, "each once"),
        ("+1 1:nan\n", {}, "NaN"),
    ],
)
def test_libsvm_invalid_input_raises(tmp_path: Path, rows: str, changed: dict[str, object], message: str):
    with pytest.raises((ConfigError, DataError)) as caught:
        table(tmp_path, rows, **changed)
    assert message in str(caught.value)
