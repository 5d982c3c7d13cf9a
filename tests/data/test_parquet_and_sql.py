"""The user's own table in Parquet files and in a database: the same rows as from a CSV file, the same refusals."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pyarrow
import pytest
import torch
from pyarrow import parquet

from fedpriv.data import load
from fedpriv.errors import ConfigError, DataError

COLUMNS = ("patient", "hospital", "age", "smoker", "outcome")
Row = tuple[int, str | None, float | str | None, str | None, int | None]
ROWS: list[Row] = [(3, "south", 25.0, "yes", 1), (1, "north", 130.0, "no", 0), (2, "south", None, None, 0)]
TEST: list[Row] = [(9, "north", 50.0, "no", 0)]
OPTIONS = {
    "label": "outcome",
    "classes": [0, 1],
    "numbers": {"age": (0, 100)},
    "categories": {"smoker": ["no", "yes"]},
    "missing": {"age": 40},
    "indicators": ["smoker"],
    "client": "hospital",
}


def write_parquet(path: Path, rows: list[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = {name: [row[i] for row in rows] for i, name in enumerate(COLUMNS)}
    parquet.write_table(pyarrow.table(columns), path)


def from_parquet(folder: Path, rows: list[Row], **changed: Any):
    write_parquet(folder / "train.parquet", rows)
    write_parquet(folder / "test.parquet", TEST)
    files = {"train": str(folder / "train.parquet"), "test": str(folder / "test.parquet")}
    return load("parquet", **{**files, **OPTIONS, **changed})


def from_sql(folder: Path, rows: list[Row], **changed: Any):
    file = folder / "patients.db"
    file.unlink(missing_ok=True)
    database = sqlite3.connect(file)
    for name, content in (("train", rows), ("test", TEST)):
        # SQLite keeps what it is given: a column of numbers may hold a text
        database.execute(
            f'create table "{name}" (patient integer primary key, hospital text, age, smoker text, outcome)'
        )
        database.executemany(f'insert into "{name}" values (?, ?, ?, ?, ?)', content)
    database.execute("create view adults as select * from train where age >= 18")
    database.commit()
    database.close()
    return load("sql", **{"url": f"sqlite:///{file}", "train": "train", "test": "test", **OPTIONS, **changed})


def test_parquet_rows_match_hand_encoding(tmp_path: Path):
    split = from_parquet(tmp_path, ROWS)
    # age in [-1, 1], no, yes, smoker missing, the constant
    expected = [[-0.5, 0, 1, 0, 1], [1, 1, 0, 0, 1], [-0.2, 0, 0, 1, 1]]
    torch.testing.assert_close(split.train[:][0], torch.tensor(expected))
    assert split.train[:][1].tolist() == [1, 0, 0]
    assert split.writers.tolist() == [1, 0, 1]
    assert split.test_writers.tolist() == [0]
    assert split.writer_names == {0: "north", 1: "south"}


def test_sql_rows_ordered_by_key(tmp_path: Path):
    split = from_sql(tmp_path, ROWS)
    expected = [[1, 1, 0, 0, 1], [-0.2, 0, 0, 1, 1], [-0.5, 0, 1, 0, 1]]
    torch.testing.assert_close(split.train[:][0], torch.tensor(expected))
    by_age = from_sql(tmp_path, ROWS, key="age", train="adults")
    assert by_age.train[:][1].tolist() == [1, 0], "ages 25 and 130, which SQLite keeps as patients 3 and 1"


def test_sql_row_change_moves_no_other_row(tmp_path: Path):
    """Rows that are dealt to clients by index must keep their index when another row changes."""
    before = from_sql(tmp_path, ROWS).train[:][0]
    after = from_sql(tmp_path, [(3, "south", 99.0, "no", 0), *ROWS[1:]]).train[:][0]
    assert torch.equal(before[:2], after[:2])
    assert not torch.equal(before[2], after[2])


@pytest.mark.parametrize("read", [from_parquet, from_sql])
@pytest.mark.parametrize(
    ("row", "message"),
    [
        ((4, "north", 1.0, "maybe", 1), "smoker = 'maybe' is not one of no, yes"),
        ((4, "north", 1.0, "no", None), "outcome = '' is not one of 0, 1"),
        ((4, "north", float("inf"), "no", 1), "age = 'inf' is not a number"),
        ((4, None, 1.0, "no", 1), "has no value in column hospital: name a client for each row"),
    ],
)
def test_invalid_table_row_raises(read: Any, row: Row, message: str, tmp_path: Path):
    with pytest.raises(DataError, match=r"train[^,]*, row 3") as caught:
        read(tmp_path, [*ROWS, row])
    assert message in str(caught.value)


def test_text_in_number_column_raises(tmp_path: Path):
    with pytest.raises(DataError, match=r"table train, row 3: age = 'old' is not a number"):
        from_sql(tmp_path, [*ROWS, (4, "north", "old", "no", 1)])
    rows: list[Row] = [(1, "north", "25", "no", 0), (2, "north", "old", "no", 1)]
    with pytest.raises(DataError, match=r"train\.parquet, row 1: age = 'old' is not a number"):
        from_parquet(tmp_path, rows)


def test_parquet_nan_counts_as_missing(tmp_path: Path):
    rows: list[Row] = [(1, "north", float("nan"), "no", 0)]
    assert from_parquet(tmp_path, rows).train[0][0][0] == pytest.approx(-0.2)
    with pytest.raises(DataError, match=r"if the value is missing, set missing\.age to a public value"):
        from_parquet(tmp_path, rows, missing={})


@pytest.mark.parametrize("read", [from_parquet, from_sql])
def test_unknown_table_column_raises(read: Any, tmp_path: Path):
    with pytest.raises(ConfigError, match=r"is not a column of .*; did you mean 'age'"):
        read(tmp_path, ROWS, numbers={"agee": (0, 100)}, missing={})


def test_parquet_file_per_client(tmp_path: Path):
    for name, rows in (("b", ROWS[:1]), ("a", ROWS[1:])):
        write_parquet(tmp_path / "train" / f"{name}.parquet", rows)
        write_parquet(tmp_path / "test" / f"{name}.parquet", TEST)
    folders = {"train": str(tmp_path / "train"), "test": str(tmp_path / "test")}
    split = from_parquet(tmp_path, ROWS, **folders, client=None)
    assert split.writers.tolist() == [0, 0, 1]
    assert split.test_writers.tolist() == [0, 1]
    assert split.writer_names == {0: "a", 1: "b"}
    with pytest.raises(DataError, match=r"no file belongs to a client of data\.train"):
        from_parquet(tmp_path, ROWS, **{**folders, "test": str(tmp_path / "test.parquet*")}, client=None)


def test_unreadable_parquet_raises(tmp_path: Path):
    (tmp_path / "wrong.parquet").write_text("age,outcome\n1,0\n")
    for name in ("wrong.parquet", "absent.parquet"):
        with pytest.raises(DataError, match=rf"{name} cannot be read .*: use a Parquet file"):
            from_parquet(tmp_path, ROWS, train=str(tmp_path / name))
    with pytest.raises(DataError, match="has no rows"):
        from_parquet(tmp_path, [])


def test_unreadable_database_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(DataError, match=r"table or view patients does not exist: correct data\.train"):
        from_sql(tmp_path, ROWS, train="patients")
    with pytest.raises(ConfigError, match=r"adults has no primary key: name a column"):
        from_sql(tmp_path, ROWS, train="adults")
    with pytest.raises(DataError, match="table train has no rows"):
        from_sql(tmp_path, [])
    with pytest.raises(ConfigError, match=r"names an environment variable that is not set: set HOSPITAL"):
        from_sql(tmp_path, ROWS, url="$HOSPITAL")
    with pytest.raises(ConfigError, match=r"is not a URL of SQLAlchemy: write it like sqlite:///patients\.db"):
        from_sql(tmp_path, ROWS, url="patients.db")
    with pytest.raises(DataError, match=r"database file absent\.db does not exist"):
        from_sql(tmp_path, ROWS, url="sqlite:///absent.db")
    monkeypatch.setenv("HOSPITAL", f"sqlite:///{tmp_path / 'patients.db'}")
    assert len(from_sql(tmp_path, ROWS, url="$HOSPITAL").train) == 3


def test_sql_error_hides_password(tmp_path: Path):
    with pytest.raises(ConfigError) as caught:
        from_sql(tmp_path, ROWS, url="postgresql://ann:geheim@db.example.org/patients")
    assert "geheim" not in str(caught.value)
    assert "put the URL into an environment variable" in str(caught.value)


def test_sql_table_name_quoted(tmp_path: Path):
    with pytest.raises(DataError, match=r"does not exist: correct data\.train"):
        from_sql(tmp_path, ROWS, train='train"; drop table train; --')
    assert (
        len(load("sql", url=f"sqlite:///{tmp_path / 'patients.db'}", train="train", test="test", **OPTIONS).train) == 3
    )
