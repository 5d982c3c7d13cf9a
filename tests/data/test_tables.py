"""UCI tables against their published sizes."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer

from fedpriv.data import load, partition
from fedpriv.errors import ConfigError, DataError


def test_adult_matches_published_counts(data_root: Path) -> None:
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


def test_adult_partition_by_occupation(data_root: Path) -> None:
    split = load("adult", owner="occupation")
    assert split.writers is not None
    assert split.test_writers is not None
    assert [split.writer_names[at] for at in (0, 13)] == ["Adm-clerical", "Transport-moving"]
    assert torch.bincount(split.writers).tolist()[:3] == [3721, 9, 4030]
    # the one-hot columns of the occupation say the same
    x = split.train.tensors[0]
    assert torch.equal(x[:, -16:-2].argmax(1), split.writers)
    parts = partition("by_writer", split.train.tensors[1], 5, torch.Generator().manual_seed(0), writers=split.writers)
    assert [len(part) for part in parts] == [5428, 5485, 9057, 4505, 5687]


def test_breast_cancer_matches_published_counts(data_root: Path) -> None:
    x, y = load("breast_cancer", protocol="paper").train.tensors
    assert x.shape == (683, 10)
    assert int(y.sum()) == 239
    torch.testing.assert_close(x[:, :9].mean(0), torch.zeros(9, dtype=x.dtype))


def test_breast_cancer_split_by_patient(data_root: Path) -> None:
    """The test set is drawn by patient, independently of the values of the rows."""
    split = load("breast_cancer")
    (x, y), (x_test, y_test) = split.train.tensors, split.test.tensors
    assert (len(y) + len(y_test), int(y.sum() + y_test.sum())) == (683, 239)
    assert 120 < len(y_test) < 150
    lines = (data_root / "breast-cancer-wisconsin" / "breast-cancer-wisconsin.data").read_text().split()
    rows = [line.split(",") for line in lines if "?" not in line]
    patients = sorted({int(row[0]) for row in rows})
    drawn = np.random.default_rng(0).permutation(len(patients)) < len(patients) // 5
    held = {patient for patient, out in zip(patients, drawn, strict=True) if out}
    for part, wanted in ((x, False), (x_test, True)):
        grades = [[float(grade) for grade in row[1:10]] for row in rows if (int(row[0]) in held) == wanted]
        torch.testing.assert_close(4.5 * part[:, :9] + 5.5, torch.tensor(grades, dtype=x.dtype))
        assert (part[:, 9] == 1).all()
    assert not torch.equal(load("breast_cancer", seed=1).test.tensors[0], x_test)


def test_breast_cancer_scaling_uses_public_ranges() -> None:
    """Public ranges: within [-1, 1] wherever the published extremes are, and one row does not move another."""
    split = load("breast_cancer", variant="diagnostic", bias=False)
    raw = torch.from_numpy(load_breast_cancer().data)
    whole = torch.cat([split.train.tensors[0], split.test.tensors[0]])
    assert whole.shape == (569, 30)
    assert whole.min() >= -1
    assert whole.max() <= 1
    assert (whole.amax(0) - whole.amin(0) > 1.4).all()
    radius = torch.cat([split.train.tensors[0], split.test.tensors[0]])[:, 0] * 12 + 18
    torch.testing.assert_close(radius.sort().values, raw[:, 0].sort().values)


def test_breast_cancer_diagnostic_needs_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDPRIV_DATA", raising=False)
    x, y = load("breast_cancer", variant="diagnostic", bias=False, protocol="paper").train.tensors
    assert x.shape == (569, 30)
    assert int(y.sum()) == 212
    with pytest.raises(DataError, match="set root"):
        load("breast_cancer")


def test_monks_labels_follow_rule(data_root: Path) -> None:
    parts = load("monks", protocol="paper").train.tensors, load("monks").train.tensors, load("monks").test.tensors
    assert [tuple(x.shape) for x, _ in parts] == [(556, 18), (346, 18), (86, 18)]
    for x, y in parts:
        a1, a2, a5 = (x[:, i:j].argmax(1) for i, j in ((0, 3), (3, 6), (11, 15)))
        assert torch.equal(y, ((a1 == a2) | (a5 == 0)).long())
    held_out = torch.cat([x for x, _ in parts[1:]])
    assert len(held_out.unique(dim=0)) == 432  # the whole domain, no row of it twice


def test_broken_uci_table_raises(tmp_path: Path) -> None:
    (tmp_path / "breast-cancer-wisconsin.data").write_text("1,2,3\n")
    with pytest.raises(DataError, match="row 1 has 3 fields instead of 11"):
        load("breast_cancer", root=str(tmp_path))
    (tmp_path / "adult.data.gz").write_bytes(b"not gzip")
    with pytest.raises(DataError, match=r"adult\.data\.gz"):
        load("adult", root=str(tmp_path))
    with pytest.raises(ConfigError, match="variant"):
        load("breast_cancer", variant="third")
    with pytest.raises(ConfigError, match="protocol"):
        load("breast_cancer", variant="diagnostic", protocol="third")


ADULT = "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, "
ADULT += "United-States, <=50K"
SOUND = {
    "adult": {"adult.data": ADULT, "adult.test": "|1x3 Cross validator\n" + ADULT + "."},
    "breast_cancer": {
        "breast-cancer-wisconsin.data": "1000025,5,1,1,1,2,1,3,1,1,2\n"
        + "".join(f"{patient},1,2,3,4,5,6,7,8,9,4\n" for patient in range(1, 10))
    },
    "monks": {
        "monks-1.train": " 1 1 1 1 1 3 1 data_5",
        "monks-1.test": " 0 3 1 2 1 1 2 data_2" + "\n 1 1 1 1 1 1 1 data_1" * 9,
    },
}
DAMAGED = [
    ("adult", "adult.data", "39,", "-39,", "age = '-39' is not a whole number from 1 to 120"),
    ("adult", "adult.data", "39,", "1e9,", "age = '1e9'"),
    ("adult", "adult.data", "39,", "nan,", "age = 'nan'"),
    ("adult", "adult.data", "39,", "\u0663,", "age = "),
    ("adult", "adult.data", "77516", "77516.5", "fnlwgt = '77516.5'"),
    ("adult", "adult.data", "State-gov", "Stat-gov", "workclass = 'Stat-gov' is not one of Federal-gov, Local-gov"),
    ("adult", "adult.data", "Never-married", "never-married", "marital-status = 'never-married'"),
    ("adult", "adult.data", "White", "Whit", "race = 'Whit'"),
    ("adult", "adult.data", "Male", "male", "sex = 'male'"),
    ("adult", "adult.data", "United-States", "Atlantis", "native-country = 'Atlantis'"),
    ("adult", "adult.data", "Adm-clerical", "X" * 10_000, "occupation = "),
    ("adult", "adult.test", "<=50K.", "50K", "income = '50K'"),
    ("adult", "adult.data", ADULT, "", "has no rows"),
    ("adult", "adult.data", "State-gov", "?", "has no complete rows"),
    (
        "breast_cancer",
        "breast-cancer-wisconsin.data",
        ",5,1,1",
        ",50,1,1",
        "thickness = '50' is not a whole number from 1",
    ),
    ("breast_cancer", "breast-cancer-wisconsin.data", ",5,1,1", ",x,1,1", "thickness = 'x'"),
    ("breast_cancer", "breast-cancer-wisconsin.data", ",1,1,2\n", ",1,1,3\n", "class = '3' is not one of 2, 4"),
    ("breast_cancer", "breast-cancer-wisconsin.data", ",1,1,2\n", ",1,1,2.0\n", "class = '2.0'"),
    ("breast_cancer", "breast-cancer-wisconsin.data", "1000025", "9" * 40, "id = "),
    ("monks", "monks-1.test", " 0 3", " 0 4", "a1 = '4' is not a whole number from 1 to 3"),
    ("monks", "monks-1.test", " 0 3", " 2 3", "class = '2'"),
    ("monks", "monks-1.test", " 0 3", " 0 zero", "a1 = 'zero'"),
    ("monks", "monks-1.test", " 0 3", " 0 ?", "a1 = '?'"),
    ("adult", "adult.data", "39,", "?,", "age = '?'"),
    ("monks", "monks-1.test", " data_2", "", "has 6 fields instead of 7"),
]


def written(folder: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        (folder / name).write_text(text)
    return str(folder)


@pytest.mark.parametrize("name", SOUND)
def test_valid_uci_files_load(name: str, tmp_path: Path) -> None:
    assert load(name, root=written(tmp_path, SOUND[name])).n_classes == 2


@pytest.mark.parametrize(("name", "file", "old", "new", "message"), DAMAGED)
def test_invalid_uci_value_raises(name: str, file: str, old: str, new: str, message: str, tmp_path: Path) -> None:
    assert old in SOUND[name][file]
    files = SOUND[name] | {file: SOUND[name][file].replace(old, new, 1)}
    with pytest.raises(DataError, match=message) as caught:
        load(name, root=written(tmp_path, files))
    assert len(str(caught.value)) < 500


def test_truncated_uci_archive_raises(tmp_path: Path) -> None:
    whole = gzip.compress(SOUND["adult"]["adult.data"].encode() * 50)
    for damaged in (whole[:-9], whole[:40], whole[:20] + b"\xff\xff\xff" + whole[23:]):
        (tmp_path / "adult.data.gz").write_bytes(damaged)
        with pytest.raises(DataError, match=r"adult\.data\.gz"):
            load("adult", root=str(tmp_path))


def test_stratified_partition_equal_class_shares() -> None:
    labels = torch.tensor([0] * 23 + [1] * 9)
    parts = partition("stratified", labels, 4, torch.Generator().manual_seed(0))
    assert sorted(torch.cat(parts).tolist()) == list(range(32))
    for label in (0, 1):
        counts = [int((labels[part] == label).sum()) for part in parts]
        assert max(counts) - min(counts) <= 1
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    with pytest.raises(ConfigError, match="rarest class"):
        partition("stratified", labels, 10, torch.Generator())
