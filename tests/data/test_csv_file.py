"""The user's own table: what a row becomes, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedpriv import data
from fedpriv.config import build, load_config
from fedpriv.errors import ConfigError, DataError

HEADING = "hospital,age,smoker,outcome\n"
OPTIONS = {
    "label": "outcome",
    "classes": ["well", "ill"],
    "numbers": {"age": (0, 100)},
    "categories": {"smoker": ["no", "yes"]},
}


def table(folder: Path, rows: str, **changed: object):
    (folder / "train.csv").write_text(HEADING + rows)
    (folder / "test.csv").write_text(HEADING + "north,50,no,well\n")
    files = {"train": str(folder / "train.csv"), "test": str(folder / "test.csv")}
    return data.load("csv", **{**files, **OPTIONS, **changed})


def test_csv_row_matches_hand_encoding(tmp_path: Path):
    split = table(tmp_path, 'south,25, yes ,ill\nnorth,130,no,well\n"south",-3,no,well\n', client="hospital")
    inputs, labels = split.train[:]
    # age in [-1, 1], no, yes, the constant
    assert inputs.tolist() == [[-0.5, 0, 1, 1], [1, 1, 0, 1], [-1, 1, 0, 1]]
    assert labels.tolist() == [1, 0, 0]
    assert split.writers is not None
    assert split.writers.tolist() == [1, 0, 1]
    assert split.n_classes == 2
    assert table(tmp_path, "south,25,yes,ill\n", bias=False).train[0][0].tolist() == [-0.5, 0, 1]


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=5))
def test_csv_row_independent_of_other_rows(tmp_path: Path, others: list[float]):
    """A row is encoded alike whatever the others are, and stays within the public bounds."""
    rest = "".join(f"north,{age},no,well\n" for age in others)
    inputs = table(tmp_path, f"south,70,yes,ill\n{rest}").train[:][0]
    torch.testing.assert_close(inputs[0], torch.tensor([0.4, 0, 1, 1]))
    assert inputs.abs().max() <= 1


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("a,,no,ill\n", "row 3: age = '' is not a number"),
        ("a,nan,no,ill\n", "row 3: age = 'nan' is not a number"),
        ("a,-inf,no,ill\n", "row 3: age = '-inf' is not a number"),
        ("a,1e999,no,ill\n", "row 3: age = '1e999' is not a number"),
        ("a,1,maybe,ill\n", "row 3: smoker = 'maybe' is not one of no, yes"),
        ("a,1,no,dead\n", "row 3: outcome = 'dead' is not one of well, ill"),
        ("a,1,no\n", "row 3: outcome = '' is not one of well, ill"),
        ("a,1,no,ill,9\n", "row 3 has more values than the heading line has names"),
    ],
)
def test_invalid_csv_row_raises(row: str, message: str, tmp_path: Path):
    with pytest.raises(DataError, match=r"train\.csv, row 3") as caught:
        table(tmp_path, "b,2,yes,well\n" + row)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"label": "outcom"}, "train.csv; did you mean 'outcome'"),
        ({"numbers": {"agee": (0, 1)}}, "train.csv; did you mean 'age'"),
        ({"client": "clinic"}, "is not a column of"),
        (
            {"numbers": {"age": (100, 0)}},
            "data.numbers.age = [100, 0]: must be [low, high], two finite numbers with low below high",
        ),
        ({"numbers": {"age": (0, float("inf"))}}, "must be [low, high]"),
        ({"numbers": {}, "categories": {}}, "name at least one column"),
        ({"classes": ["ill", "ill"]}, "each value once"),
        ({"categories": {"smoker": []}}, "each value once"),
    ],
)
def test_invalid_csv_settings_raise(changed: dict[str, object], message: str, tmp_path: Path):
    with pytest.raises(ConfigError) as caught:
        table(tmp_path, "b,2,yes,well\n", **changed)
    assert message in str(caught.value)


def test_unreadable_csv_raises(tmp_path: Path):
    with pytest.raises(DataError, match="has no rows"):
        table(tmp_path, "")
    with pytest.raises(DataError, match="cannot be read"):
        table(tmp_path, "b,2,yes,well\n", train=str(tmp_path / "absent.csv"))
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="cannot be read"):
        table(tmp_path, "b,2,yes,well\n", train=str(tmp_path / "binary.csv"))


def assert_trains_three_hospitals(folder: Path, train: Path, extra: str = "") -> None:
    """Asserts that a configuration with these training data has three clients of 20 patients and trains."""
    (folder / "run.yaml").write_text(f"""
data:
  name: csv
  train: {train}
  test: {folder / "test.csv"}
  label: outcome
  classes: [well, ill]
  numbers: {{age: [0, 100]}}
  partition: {{kind: by_writer}}
  {extra}
model: logistic_regression
loss: logistic
strategy: {{name: fedavg, learning_rate: 1}}
privacy: {{epsilon: 8}}
rounds: 1
""")
    training = build(load_config(folder / "run.yaml"))
    assert training.population.shard.sizes.tolist() == [20, 20, 20]
    assert [report.round for report in training] == [1]


def test_csv_client_column_defines_clients(tmp_path: Path):
    rows = "".join(f"{name},{age},no,{'ill' if age > 50 else 'well'}\n" for name in "cab" for age in range(0, 100, 5))
    table(tmp_path, rows)
    assert_trains_three_hospitals(tmp_path, tmp_path / "train.csv", "client: hospital")


def sites(folder: Path, **files: str) -> Path:
    (folder / "sites").mkdir()
    for name, rows in files.items():
        (folder / "sites" / f"{name}.csv").write_text(HEADING + rows)
    (folder / "sites" / "notes.txt").write_text("not a table")
    return folder / "sites"


@pytest.mark.parametrize("pattern", ["", "*.csv", "[abc]*.csv"])
def test_csv_file_per_client(pattern: str, tmp_path: Path):
    folder = sites(tmp_path, b="x,100,no,ill\n", a="y,0,no,well\nz,50,yes,ill\n", c="y,25,no,well\n")
    split = table(tmp_path, "x,50,no,well\n", train=str(folder / pattern))
    assert split.train[:][0][:, 0].tolist() == [-1, 0, 1, -0.5]  # in the order of the files' names
    assert split.train[:][1].tolist() == [0, 1, 1, 0]
    assert split.writers is not None
    assert split.writers.tolist() == [0, 0, 1, 2]
    own = data.partition("by_writer", split.train[:][1], None, torch.Generator(), writers=split.writers)
    assert [part.tolist() for part in own] == [[0, 1], [2], [3]]


def test_client_file_change_affects_own_rows_only(tmp_path: Path):
    folder = sites(tmp_path, a="y,0,no,well\n", b="x,10,no,ill\n", c="x,20,no,ill\n")
    before = table(tmp_path, "x,5,no,well\n", train=str(folder))
    (folder / "a.csv").write_text(HEADING + "y,999,yes,ill\n")
    after = table(tmp_path, "x,5,no,well\n", train=str(folder))
    assert torch.equal(before.train[1:][0], after.train[1:][0])
    assert not torch.equal(before.train[0][0], after.train[0][0])


def test_invalid_client_files_raise(tmp_path: Path):
    folder = sites(tmp_path, a="y,0,no,well\n", b="x,old,no,ill\n")
    with pytest.raises(DataError, match=r"sites/b\.csv, row 2: age = 'old'"):
        table(tmp_path, "x,5,no,well\n", train=str(folder))
    with pytest.raises(ConfigError, match=r"data\.client = 'hospital': .* has a file for each client"):
        table(tmp_path, "x,5,no,well\n", train=str(folder), client="hospital")
    (folder / "b.csv").write_text(HEADING)
    with pytest.raises(DataError, match=r"sites/b\.csv has no rows"):
        table(tmp_path, "x,5,no,well\n", train=str(folder))
    (folder / "b.csv").write_text("age,outcome\n1,ill\n")
    with pytest.raises(ConfigError, match=r"is not a column of .*sites/b\.csv"):
        table(tmp_path, "x,5,no,well\n", train=str(folder))
    with pytest.raises(DataError, match=r"absent/\*\.csv: no file was found: name a folder with one file NAME\.csv"):
        table(tmp_path, "x,5,no,well\n", train=str(tmp_path / "absent" / "*.csv"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty: no file was found: name a folder with one file NAME\.csv"):
        table(tmp_path, "x,5,no,well\n", train=str(tmp_path / "empty"))


def test_csv_file_name_with_brackets_loads(tmp_path: Path):
    table(tmp_path, "x,5,no,well\n")
    (tmp_path / "train.csv").rename(tmp_path / "train[1].csv")
    split = table(tmp_path, "x,5,no,well\nx,6,no,well\n", train=str(tmp_path / "train[1].csv"))
    assert len(split.train) == 1
    assert split.writers is None


def test_config_with_csv_folder_trains(tmp_path: Path):
    rows = {
        name: "".join(f"x,{age + k},no,{'ill' if age > 50 else 'well'}\n" for age in range(0, 100, 5))
        for k, name in enumerate("cab")
    }
    folder = sites(tmp_path, **rows)
    table(tmp_path, "x,50,no,well\n")
    assert_trains_three_hospitals(tmp_path, folder)
