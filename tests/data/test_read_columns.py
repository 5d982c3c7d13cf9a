"""Columns of a table, as text in the order of the train examples that were made from it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest

from fedpriv.data import load, read_columns
from fedpriv.errors import ConfigError

OPTIONS = {"label": "ill", "classes": [0, 1], "numbers": {"age": [0, 100]}, "missing": {"age": 50}, "bias": False}
AGES = {"b": ["20", "", "40"], "a": ["70", "10"]}


def as_examples(ages: list[str]) -> np.ndarray:
    return np.array([float(age or 50) / 50 - 1 for age in ages])


def check(name: str, **options: object) -> list[str]:
    """Returns the ages, which must be those of the examples; a column beside the settings' is read, too."""
    table = read_columns(name, ["age", "city"], **options)
    x = load(name, **options).train.tensors[0]
    np.testing.assert_allclose(x[:, 0].numpy(), as_examples(list(table["age"])), atol=1e-6)
    assert set(table["city"]) == {"rome"}
    return list(table["age"])


def rows(ages: list[str]) -> str:
    return "\n".join(["age,city,ill", *(f"{age},rome,{index % 2}" for index, age in enumerate(ages))]) + "\n"


def test_csv_files_of_clients_in_order(tmp_path: Path) -> None:
    for name, ages in AGES.items():
        (tmp_path / f"{name}.csv").write_text(rows(ages))
    options = {"train": str(tmp_path), "test": str(tmp_path / "a.csv"), **OPTIONS}
    assert check("csv", **options) == AGES["a"] + AGES["b"]
    with pytest.raises(ConfigError, match=r"'weight'.*is not a column of"):
        read_columns("csv", ["weight"], **options)


def test_parquet_file(tmp_path: Path) -> None:
    pandas, _ = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    frame = pandas.DataFrame({"age": [20.0, None, 40.0], "city": ["rome"] * 3, "ill": [0, 1, 0]})
    frame.to_parquet(tmp_path / "a.parquet")
    path = str(tmp_path / "a.parquet")
    ages = check("parquet", train=path, test=path, **OPTIONS)
    assert [age == "" for age in ages] == [False, True, False]


def test_sql_table(tmp_path: Path) -> None:
    pytest.importorskip("sqlalchemy")
    with sqlite3.connect(tmp_path / "a.db") as base:
        base.execute("create table people (id integer primary key, age real, city text, ill integer)")
        base.executemany("insert into people values (?, ?, 'rome', ?)", [(3, 30, 0), (1, 10, 1), (2, None, 0)])
    url = f"sqlite:///{tmp_path / 'a.db'}"
    ages = check("sql", url=url, train="people", test="people", **OPTIONS)
    assert [float(age) if age else None for age in ages] == [10, None, 30]


def test_heart_train_patients(tmp_path: Path) -> None:
    """The patients for testing are left out, and a cholesterol of 0 is missing."""
    heading = "age,sex,cp,trestbps,chol,fbs,restecg,thalach,exang,oldpeak,slope,ca,thal,num\n"
    for place, chol in (("cleveland", 0), ("hungarian", 250), ("switzerland", 250), ("va", 250)):
        patients = [f"{20 + index},1,4,140,{chol},0,0,130,0,1,2,0,3,{index % 2}" for index in range(40)]
        (tmp_path / f"{place}.csv").write_text(heading + "\n".join(patients) + "\n")
    for options in ({}, {"hospital": "va"}, {"test_rows": "all", "train_rows": "complete"}):
        table = read_columns("heart", ["age", "chol"], root=str(tmp_path), **options)
        x = load("heart", root=str(tmp_path), **options).train.tensors[0]
        np.testing.assert_allclose(x[:, 0].numpy(), [(float(age) - 50) / 30 for age in table["age"]], atol=1e-6)
    table = read_columns("heart", ["chol"], root=str(tmp_path))
    assert set(table["chol"]) == {"", "250"}


def test_data_without_table_raises() -> None:
    with pytest.raises(ConfigError, match=r"'digits': has no table with named columns; .*: csv, parquet, sql, heart"):
        read_columns("digits", ["age"])
