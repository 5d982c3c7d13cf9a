"""UCI tables against their published sizes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedpriv.data import load, partition
from fedpriv.errors import ConfigError, DataError


def test_adult(data_root: Path) -> None:
    split = load("adult")
    (x, y), (x_test, y_test) = split.train.tensors, split.test.tensors
    assert (x.shape, x_test.shape) == ((30162, 39), (15060, 39))
    assert (int(y.sum()), int(y_test.sum())) == (7508, 3700)
    male, rich = torch.cat([x[:, -1], x_test[:, -1]]) == 1, torch.cat([y, y_test]) == 1
    counts = [int((a & b).sum()) for a in (male, ~male) for b in (~rich, rich)]
    assert counts == [20988, 9539, 13026, 1669]
    # the published encoding's first row, and what it scales to
    torch.testing.assert_close(
        x[0, [0, 1, 3]], torch.tensor([0.034201, -1.062295, -0.078120], dtype=x.dtype), atol=1e-4, rtol=0
    )
    everything = torch.cat([x, x_test])[:, :4]
    torch.testing.assert_close(everything.mean(0), torch.zeros(4, dtype=x.dtype), atol=1e-3, rtol=0)
    torch.testing.assert_close(everything.std(0), torch.ones(4, dtype=x.dtype), atol=1e-3, rtol=0)
    assert (x[:, -2] == 1).all()


def test_breast_cancer(data_root: Path) -> None:
    x, y = load("breast_cancer").train.tensors
    assert x.shape == (683, 10)
    assert int(y.sum()) == 239


def test_diagnostic_needs_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDPRIV_DATA", raising=False)
    x, y = load("breast_cancer", variant="diagnostic", bias=False).train.tensors
    assert x.shape == (569, 30)
    assert int(y.sum()) == 212
    with pytest.raises(DataError, match="set root"):
        load("breast_cancer")


def test_monks_obey_their_rule(data_root: Path) -> None:
    x, y = load("monks").train.tensors
    assert x.shape == (556, 18)
    a1, a2, a5 = (x[:, i:j].argmax(1) for i, j in ((0, 3), (3, 6), (11, 15)))
    assert torch.equal(y, ((a1 == a2) | (a5 == 0)).long())


def test_broken_tables_are_refused(tmp_path: Path) -> None:
    (tmp_path / "breast-cancer-wisconsin.data").write_text("1,2,3\n")
    with pytest.raises(DataError, match="row 1 has 3 fields instead of 11"):
        load("breast_cancer", root=str(tmp_path))
    (tmp_path / "adult.data.gz").write_bytes(b"not gzip")
    with pytest.raises(DataError, match=r"adult\.data\.gz"):
        load("adult", root=str(tmp_path))
    with pytest.raises(ConfigError, match="variant"):
        load("breast_cancer", variant="third")


def test_stratified_clients_have_equal_class_shares() -> None:
    labels = torch.tensor([0] * 23 + [1] * 9)
    parts = partition("stratified", labels, 4, torch.Generator().manual_seed(0))
    assert sorted(torch.cat(parts).tolist()) == list(range(32))
    for label in (0, 1):
        counts = [int((labels[part] == label).sum()) for part in parts]
        assert max(counts) - min(counts) <= 1
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    with pytest.raises(ConfigError, match="rarest class"):
        partition("stratified", labels, 10, torch.Generator())
