"""Heart disease in four hospitals: FLamby's patients and division, and public rules for what is missing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedpriv.data import load
from fedpriv.errors import ConfigError, DataError

HEADING = "age,sex,cp,trestbps,chol,fbs,restecg,thalach,exang,oldpeak,slope,ca,thal,num\n"
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")


def patients(n: int, ill: int) -> list[str]:
    """Rows of n patients, the first of them ill, of ages that tell them apart."""
    return [f"{20 + i},1,4,140,250,0,0,130,0,1,2,0,3,{int(i < ill)}" for i in range(n)]


def write(folder: Path, **rows: list[str]) -> Path:
    for name in HOSPITALS:
        (folder / f"{name}.csv").write_text(HEADING + "\n".join(rows.get(name, patients(12, 6))) + "\n")
    return folder


@pytest.mark.data
def test_heart_counts_match_flamby(shared_data: Path):
    split = load("heart", root=str(shared_data / "heart"), train_rows="complete")
    assert split.writers.bincount().tolist() == [199, 172, 30, 85]
    assert split.test_writers.bincount().tolist() == [104, 89, 16, 45]
    every = load("heart", root=str(shared_data / "heart"))
    assert torch.equal(every.test.tensors[0], split.test.tensors[0]), "the same test patients"
    assert len(every.train) + len(every.test) == 920
    assert every.train.tensors[0].abs().max() == 1


def test_heart_row_matches_hand_encoding(tmp_path: Path):
    x, y = load("heart", root=str(write(tmp_path, va=["50,1,3,130,275,1,2,165,0,0.5,,,,2"] * 6))).train.tensors
    numbers = [0, 0.25, 0.75, 0, 0.25]
    flags = [0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 1, 1, 0]  # sex, cp, fbs, restecg, exang
    assert x[-1].tolist() == [*numbers, *flags, 1]
    assert y[-1] == 1


def test_heart_missing_values_use_public_rules(tmp_path: Path):
    gaps = ["50,1,4,,,,,,,,,,,0"] * 3 + ["50,1,4,0,0,0,0,130,0,1,,,,0"]
    split = load("heart", root=str(write(tmp_path, cleveland=patients(12, 6) + gaps)), indicators=["chol"])
    names = [split.writer_names[writer] for writer in split.writers.tolist()]
    assert names.count("cleveland") + 5 == 16, "a third of 12 complete patients and of the one with zeros is for tests"
    x = split.train.tensors[0]
    gap = x[x[:, -2] == 1]
    assert len(gap) >= 3
    assert not gap[:, 1:3].any(), "a pressure of 120 and a cholesterol of 200, the middle of their ranges"
    assert len(load("heart", root=str(tmp_path), train_rows="complete").train) == len(x) - 3


def test_heart_uci_and_csv_files_equal(tmp_path: Path):
    (tmp_path / "csv").mkdir()
    (tmp_path / "uci").mkdir()
    write(tmp_path / "csv", va=[*patients(10, 5), "60,0,2,,0,,1,99,1,0.5,,,,3"])
    for name in HOSPITALS:
        lines = (tmp_path / "csv" / f"{name}.csv").read_text().splitlines()[1:]
        rows = [[f"{float(value):.1f}" if value else "?" for value in line.split(",")] for line in lines]
        (tmp_path / "uci" / f"processed.{name}.data").write_text("\n".join(map(",".join, rows)) + "\n")
    ours, ucis = load("heart", root=str(tmp_path / "csv")), load("heart", root=str(tmp_path / "uci"))
    for a, b in zip(ours.train.tensors + ours.test.tensors, ucis.train.tensors + ucis.test.tensors, strict=True):
        assert torch.equal(a, b)


def test_heart_row_independent_of_other_rows(tmp_path: Path):
    """With equal labels the split is unchanged, and the encoding of a patient depends on no other patient."""
    before = load("heart", root=str(write(tmp_path))).train.tensors[0]
    rows = patients(12, 6)
    rows[0] = rows[0].replace("140,250", "200,600")
    after = load("heart", root=str(write(tmp_path, cleveland=rows))).train.tensors[0]
    assert np.count_nonzero((before != after).any(1)) <= 1


def test_heart_hospital_intercept_and_centering(tmp_path: Path):
    split = load("heart", root=str(write(tmp_path)), intercept="hospital", centered=True)
    x = split.train.tensors[0]
    assert x.shape[1] == 18 + 4
    assert torch.equal(x[:, 18:].argmax(1), split.writers)
    assert x[:, 18:].sum(1).unique().tolist() == [0.5]
    assert x[:, 5:18].sum(1).abs().max() < 1e-6, "the flags of each column add up to 0"
    assert x[0, 5:11].tolist() == [-0.5, 0.5, -0.25, -0.25, -0.25, 0.75]


def test_heart_single_hospital_loads_alone(tmp_path: Path):
    both = load("heart", root=str(write(tmp_path, va=patients(30, 9))), intercept="hospital")
    for name in HOSPITALS[:3]:
        (tmp_path / f"{name}.csv").unlink()
    split = load("heart", root=str(tmp_path), intercept="hospital", hospital="va")
    assert torch.equal(split.train.tensors[0], both.train.tensors[0][both.writers == 3])
    assert split.writer_names == {0: "va"}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("50,1,4,high,250,0,0,130,0,1,2,0,3,0", r"va\.csv, line 14: trestbps = 'high' is not a number"),
        ("50,1,4,140,250,0,0,130,0,1,2,0,3,", r"va\.csv, line 14: the label num is missing"),
        ("50,1,4,140,250,0,0,130,0,1,2,0,3,7", r"va\.csv, line 14: num = 7 is not 0, 1, 2, 3 or 4"),
        ("50,1,4,140,250", r"va\.csv, line 14 has 5 values instead of 14"),
        ("50,1,9,140,250,0,0,130,0,1,2,0,3,0", r"va, row 13: cp = '9' is not one of 1, 2, 3, 4"),
        ("50,1,4,nan,250,0,0,130,0,1,2,0,3,0", None),
    ],
)
def test_heart_damaged_row_raises(row: str, message: str | None, tmp_path: Path):
    folder = write(tmp_path, va=[*patients(12, 6), row])
    if message is None:
        assert load("heart", root=str(folder)).train.tensors[0].isfinite().all()
        return
    with pytest.raises(DataError, match=message):
        load("heart", root=str(folder))


def test_heart_missing_files_raise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(
        DataError, match=r"heart: folder .* does not exist: set root to a folder with cleveland\.csv, hungarian\.csv"
    ):
        load("heart", root=str(tmp_path / "absent"))
    write(tmp_path)
    (tmp_path / "switzerland.csv").unlink()
    with pytest.raises(DataError, match=r"has no file of switzerland"):
        load("heart", root=str(tmp_path))
    (tmp_path / "switzerland.csv").write_text("age;sex\n1;1\n")
    with pytest.raises(DataError, match=r"switzerland\.csv: its heading must be age,sex"):
        load("heart", root=str(tmp_path))
    monkeypatch.delenv("FEDPRIV_DATA", raising=False)
    with pytest.raises(DataError, match="FEDPRIV_DATA is unset"):
        load("heart")
    write(tmp_path)
    with pytest.raises(ConfigError, match=r"data\.indicators = 'cholesterol': is in neither numbers nor categories"):
        load("heart", root=str(tmp_path), indicators=["cholesterol"])
