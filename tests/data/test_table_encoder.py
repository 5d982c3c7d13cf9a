"""Missing values by public rules, and tables that are pandas DataFrames."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedpriv
from fedpriv import data, models
from fedpriv.config import fingerprint, load_config
from fedpriv.data import TableEncoder
from fedpriv.data.table_encoder import Table
from fedpriv.errors import ConfigError, DataError

OPTIONS = {
    "label": "outcome",
    "classes": ["well", "ill"],
    "numbers": {"age": (0, 100)},
    "categories": {"smoker": ["no", "yes"]},
}
GAPS = ["", "NA", "nan", "n/a", "NULL", "None", "?", "<NA>"]


def encoder(**changed: object) -> TableEncoder:
    return TableEncoder(**{**OPTIONS, **changed})


def table(*rows: tuple[str, str, str]) -> Table:
    names = ("age", "smoker", "outcome")
    return Table("table", {name: [row[at] for row in rows] for at, name in enumerate(names)}, first=2)


def inputs(rows: Table, **rules: object) -> list[list[float]]:
    return encoder(**rules).encoded(rows).tensors[0].tolist()


@pytest.mark.parametrize("gap", GAPS)
def test_missing_value_replaced_by_public_value(gap: str):
    assert inputs(table((gap, "no", "ill")), missing={"age": 75}) == [[0.5, 1, 0, 1]]
    assert inputs(table(("25", gap, "ill")), missing={"smoker": "yes"}) == [[-0.5, 0, 1, 1]]


@pytest.mark.parametrize("gap", GAPS)
def test_missing_indicator_marks_gaps(gap: str):
    rows = table((gap, "no", "ill"), ("25", gap, "ill"), ("25", "yes", "ill"))
    both = ["age", "smoker"]
    # age, no, yes, age missing, smoker missing, the constant
    expected = [[0, 1, 0, 1, 0, 1], [-0.5, 0, 0, 0, 1, 1], [-0.5, 0, 1, 0, 0, 1]]
    assert inputs(rows, indicators=both) == expected
    filled = inputs(rows, indicators=both, missing={"age": 75, "smoker": "yes"})
    assert filled == [[0.5, 1, 0, 1, 0, 1], [-0.5, 0, 1, 0, 1, 1], expected[2]]


def test_listed_category_not_missing():
    rows = table(("25", "NA", "ill"), ("25", "", "ill"))
    rules = {"categories": {"smoker": ["no", "NA"]}, "missing": {"smoker": "no"}, "indicators": ["smoker"]}
    assert inputs(rows, **rules) == [[-0.5, 0, 1, 0, 1], [-0.5, 1, 0, 1, 1]]


AGES = st.one_of(st.sampled_from(GAPS), st.integers(-50, 200).map(str))


@settings(max_examples=50)
@given(st.lists(AGES, min_size=1, max_size=6), AGES)
def test_encoded_row_independent_of_others(others: list[str], age: str):
    rules = {"missing": {"age": 40}, "indicators": ["age"]}
    alone = inputs(table((age, "no", "ill")), **rules)
    together = inputs(table((age, "no", "ill"), *((other, "yes", "well") for other in others)), **rules)
    assert together[0] == alone[0]


@pytest.mark.parametrize(
    ("row", "rules", "message"),
    [
        (
            ("", "no", "ill"),
            {},
            "row 3: age = '' is not a number: correct it; if the value is missing, set missing.age",
        ),
        (("old", "no", "ill"), {"missing": {"age": 4}}, "row 3: age = 'old' is not a number: correct it"),
        (("inf", "no", "ill"), {"indicators": ["age"]}, "row 3: age = 'inf' is not a number"),
        (
            ("1", "NA", "ill"),
            {"missing": {"age": 4}},
            "row 3: smoker = 'NA' is not one of no, yes: correct it; if the value is missing",
        ),
        (("1", "maybe", "ill"), {"indicators": ["smoker"]}, "smoker = 'maybe' is not one of no, yes: correct it"),
        (("1", "no", ""), {"missing": {"age": 4}}, "row 3: outcome = '' is not one of well, ill: correct it"),
    ],
)
def test_missing_value_without_rule_raises(row: tuple[str, str, str], rules: dict[str, object], message: str):
    with pytest.raises(DataError) as caught:
        encoder(**rules).encoded(table(("1", "no", "ill"), row))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"missing": {"agee": 4}}, "data.missing = 'agee': is in neither numbers nor categories; did you mean 'age'"),
        ({"missing": {"outcome": "ill"}}, "data.missing = 'outcome': is the label"),
        (
            {"missing": {"age": 101}},
            "data.missing.age = 101: must be a number in the range of the column, from 0 to 100",
        ),
        ({"missing": {"age": float("nan")}}, "data.missing.age = nan: must be a number"),
        ({"missing": {"age": "mean"}}, "data.missing.age = 'mean': must be a number"),
        ({"missing": {"smoker": "maybe"}}, "data.missing.smoker = 'maybe': must be one of no, yes"),
        ({"indicators": ["outcome"]}, "data.indicators = 'outcome': is the label"),
        ({"indicators": ["age", "age"]}, "list each column once"),
    ],
)
def test_invalid_missing_rules_raise(changed: dict[str, object], message: str):
    with pytest.raises(ConfigError) as caught:
        encoder(**changed)
    assert message in str(caught.value)


def configured(folder: Path, **rules: object) -> Path:
    options = {"missing": {}, **rules}
    (folder / "run.yaml").write_text(f"""
data:
  name: csv
  train: {folder / "train.csv"}
  test: {folder / "train.csv"}
  label: outcome
  classes: [well, ill]
  numbers: {{age: [0, 100]}}
  categories: {{smoker: ["no", "yes"]}}
  partition: {{kind: iid, n_clients: 1}}
{"".join(f"  {name}: {value}" + chr(10) for name, value in options.items() if value)}
model: logistic_regression
loss: logistic
strategy: {{name: fedavg, learning_rate: 1}}
privacy: {{epsilon: 8}}
rounds: 1
""")
    return folder / "run.yaml"


def test_config_missing_rules_applied(tmp_path: Path):
    (tmp_path / "train.csv").write_text("age,smoker,outcome\n,no,ill\n25,,well\n")
    rules = configured(tmp_path, missing="{age: 75, smoker: 'yes'}", indicators="[age]")
    config = load_config(rules)
    split = data.load(config.data.name, **config.data.options)
    assert split.train[:][0].tolist() == [[0.5, 1, 0, 1, 1], [-0.5, 0, 1, 0, 1]]
    with pytest.raises(ConfigError, match=r"data\.missing\.age"):
        load_config(configured(tmp_path, missing="{age: [1]}"))


def test_missing_rules_change_fingerprint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    without = fingerprint(load_config(configured(Path())))
    assert fingerprint(load_config(configured(Path(), missing="{age: 4}"))) != without
    assert fingerprint(load_config(configured(Path(), indicators="[age]"))) != without


def test_data_frame_matches_csv_encoding(tmp_path: Path):
    pandas = pytest.importorskip("pandas")
    text = "age,smoker,visits,outcome\n25.5,no,1,ill\n,yes,2,well\n130,,,ill\n"
    (tmp_path / "t.csv").write_text(text)
    options = {**OPTIONS, "categories": {"smoker": ["no", "yes"], "visits": [1, 2]}}
    rules = {"missing": {"age": 40}, "indicators": ["smoker", "visits"]}
    path = str(tmp_path / "t.csv")
    split = data.load("csv", train=path, test=path, **options, **rules)
    frame = pandas.read_csv(path)
    assert frame["visits"].dtype == float  # one gap, and whole numbers are floats
    dataset = TableEncoder(**options, **rules).dataset(frame)
    for of_frame, of_file in zip(dataset.tensors, split.train.tensors, strict=True):
        assert of_frame.dtype == of_file.dtype
        assert torch.equal(of_frame, of_file)
    nullable = TableEncoder(**options, **rules).dataset(frame.convert_dtypes())  # pandas.NA
    assert torch.equal(nullable.tensors[0], dataset.tensors[0])


def test_invalid_data_frame_raises():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"age": [1.0, None], "smoker": ["no", "yes"], "outcome": ["ill", "well"]}, index=[7, 7])
    with pytest.raises(DataError, match="client 3, row 1: age = '' is not a number"):
        encoder().dataset(frame, name="client 3")
    with pytest.raises(DataError, match="frame has no rows"):
        encoder().dataset(frame[:0])
    with pytest.raises(ConfigError, match="data = 'age': is not a column of frame; did you mean 'agee'"):
        encoder().dataset(frame.rename(columns={"age": "agee"}))
    with pytest.raises(ConfigError, match="is the name of several columns"):
        encoder().dataset(frame.rename(columns={"smoker": "age"}))


def test_data_frame_per_client_trains():
    pandas = pytest.importorskip("pandas")
    ages = torch.rand(3, 20, generator=torch.Generator().manual_seed(1)).mul(100).tolist()
    frames = [pandas.DataFrame({"age": own, "ill": [age > 50 for age in own]}) for own in ages]
    columns = TableEncoder("ill", classes=[False, True], numbers={"age": (0, 100)})
    clients = fedpriv.make_clients(
        models.SoftmaxRegression(2, 2), torch.nn.functional.cross_entropy, [columns.dataset(frame) for frame in frames]
    )
    privacy = fedpriv.Privacy(noise_on="none")
    result = fedpriv.train(clients, fedpriv.fedavg(1.0), privacy, rounds=40, test=columns.dataset(frames[0]))
    assert result.test_accuracy is not None
    assert result.test_accuracy > 0.9


def test_centered_flags_sum_zero_and_keep_rank():
    """A linear model with a constant has one more degree of freedom than columns: nothing is lost."""
    columns = {"ill": ["0", "1", "0"], "kind": ["a", "b", ""]}
    settings: dict[str, Any] = {"classes": [0, 1], "categories": {"kind": ["a", "b", "c"]}, "indicators": ["kind"]}
    plain = TableEncoder("ill", **settings).encoded(Table("rows", columns, first=0)).tensors[0]
    centred = TableEncoder("ill", **settings, centered=True).encoded(Table("rows", columns, first=0)).tensors[0]
    torch.testing.assert_close(centred[:, :3].sum(1), torch.zeros(3))
    torch.testing.assert_close(centred[0, :3], torch.tensor([2 / 3, -1 / 3, -1 / 3]))
    assert centred[2, :3].tolist() == [0, 0, 0], "a gap stays in the middle"
    assert torch.equal(centred[:, 3:], plain[:, 3:])
    assert torch.linalg.matrix_rank(centred) == torch.linalg.matrix_rank(plain)
