"""`fedpriv.describe`: what it refuses, and what a reader gets."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

import fedpriv as fp
from fedpriv.statistics import Correlations, Counts, Mean, Quantiles

VERIFIER = Path(__file__).parents[2] / "tools" / "fedpriv_verify.py"
TABLE = {"age": [20.0, 50.0, None, 80.0] * 300, "sex": ["f", "m", "m", "x"] * 300}
ASKED = [Quantiles("age", (0, 120)), Counts("sex", ["f", "m"])]


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"sampling": fp.Poisson(0.1)}, fp.ConfigError, "privacy.sampling"),
        ({"sampling": fp.FixedSize(5)}, fp.ConfigError, "privacy.sampling"),
        ({"sampling": fp.Cyclic(3)}, fp.ConfigError, "privacy.sampling"),
        ({"clip": fp.Clip(5.0)}, fp.ConfigError, "privacy.clip"),
        ({"mechanism": fp.Laplace()}, fp.ConfigError, "privacy.mechanism"),
        ({"unit": "client"}, fp.PrivacyError, "there are 1: "),
        ({"noise_on": "none", "epsilon": None}, fp.PrivacyError, "need noise"),
    ],
)
def test_settings_for_which_intervals_would_be_wrong_raise(changes, error, text):
    privacy = fp.Privacy(**{"epsilon": 1.0, "delta": 1e-5} | changes)
    with pytest.raises(error, match=text):
        fp.describe(TABLE, ASKED, privacy)
    with pytest.raises(error, match=text):
        fp.plan_description(100, ASKED, privacy)


@pytest.mark.parametrize(
    ("tables", "asked", "text"),
    [
        ([], ASKED, "tables is empty"),
        ({"age": [1.0]}, ASKED, "no column sex; its columns are age"),
        ({"age": [1.0], "sex": ["f", "m"]}, ASKED, "different lengths"),
        ({"age": [], "sex": []}, ASKED, "no rows"),
        (TABLE, [], "give at least one"),
        (TABLE, [*ASKED, Mean("age", (0, 100))], "occurs twice"),
        ("data.csv", ASKED, "pandas.read_csv"),
        (["data.csv"], ASKED, "pandas.read_csv"),
        (TABLE, "age", r'"age": \(0, 120\)'),
        (TABLE, ["age"], r'"age": \(0, 120\)'),
        (TABLE, {"age": 120}, "statistics.age = 120: must be a tuple"),
        (TABLE, {"sex": {"f", "m"}}, "statistics.sex"),
        (TABLE, {"sex": [0, 1]}, r"\['0', '1'\]"),
        (TABLE, {"age": (0, "x")}, "statistics.age.bounds"),
    ],
)
def test_unusable_tables_and_questions_raise(tables, asked, text):
    with pytest.raises(fp.FedprivError, match=text):
        fp.describe(tables, asked, fp.Privacy(epsilon=1.0, delta=1e-5))


def test_result_prints_converts_and_draws(tmp_path):
    hidden = Correlations({"age": (0, 1e6), "other": (0, 1)})
    table = TABLE | {"other": [0.5] * 1200}
    found = fp.describe(table, [*ASKED, hidden], fp.Privacy(epsilon=3.0, delta=1e-5))
    text = str(found)
    assert "50 %" in text and "privacy: epsilon=3" in text and "so there is no correlation" in text
    frame = found.to_frame()
    assert frame.set_index(["statistic", "label"]).loc[("sex", "m"), "value"] == found["sex"]["m"].value
    assert found.to_json()["answers"]["sex"]["values"]["other"]["low"] > 0
    found.plot(tmp_path / "look.png")
    assert (tmp_path / "look.png").stat().st_size > 5000
    with pytest.raises(KeyError, match="the answers are age, sex, correlations"):
        found["weight"]


def test_one_vector_costs_less_than_separate_calls():
    privacy = fp.Privacy(epsilon=1.0, delta=1e-5)
    alone = fp.plan_description(1200, ASKED[:1], privacy)["age"]["missing"]
    both = fp.plan_description(1200, ASKED, privacy)["age"]["missing"]
    half = fp.plan_description(1200, ASKED[:1], fp.Privacy(epsilon=0.5, delta=1e-5))["age"]["missing"]
    assert alone < both < half


def test_columns_have_usual_statistics():
    asked = {"age": (0.0, 120.0), "sex": ["f", "m"]}
    found = fp.describe(TABLE, asked, fp.Privacy(epsilon=3.0, delta=1e-5))
    assert list(found["age"].values) == ["mean", "sd", "1 %", "25 %", "50 %", "75 %", "99 %", "missing"]
    assert list(found["sex"].values) == ["f", "m", "other", "missing"]
    widths = fp.plan_description(1200, asked, fp.Privacy(epsilon=3.0, delta=1e-5))
    half = (found["age"]["mean"].high - found["age"]["mean"].low) / 2
    assert half == pytest.approx(widths["age"]["mean"], rel=0.5)  # a quarter of the rows has no age


def test_names_of_pandas_understood():
    answer = fp.describe(TABLE, {"age": (0.0, 120.0)}, fp.Privacy(epsilon=3.0, delta=1e-5))["age"]
    assert answer["std"] is answer["sd"] and answer["25%"] is answer["25 %"] and answer["median"] is answer["50 %"]
    for name, text in {
        "min": "0.01 and 0.99",
        "max": "0.01 and 0.99",
        "count": "n_rows",
        "mode": "labels of age",
    }.items():
        with pytest.raises(KeyError, match=text):
            answer[name]


def test_privacy_as_number_and_one_probability_raise():
    with pytest.raises(fp.ConfigError, match=r"privacy = 1.0: must be settings"):
        fp.describe(TABLE, ASKED, 1.0)
    with pytest.raises(fp.ConfigError, match="several numbers"):
        Quantiles("age", (0, 120), 0.5)


def test_text_in_numeric_column_has_note_with_remedy():
    found = fp.describe({"sex": ["f", "m"] * 500}, {"sex": (0.0, 1.0)}, fp.Privacy(epsilon=3.0, delta=1e-5))
    assert "text, which Counts" in found["sex"].notes[0]


def test_picture_without_format_raises_before_drawing(tmp_path):
    found = fp.describe(TABLE, ASKED, fp.Privacy(epsilon=3.0, delta=1e-5))
    with pytest.raises(fp.ConfigError, match=r"look.xyz.*must end with a format"):
        found.plot(tmp_path / "look.xyz")


@pytest.mark.parametrize("relation", ["replace_one", "add_remove"])
@pytest.mark.parametrize("trust", [fp.Local(), fp.Pairwise(1, 100), fp.Central()], ids=str)
def test_second_accountant_counts_same_epsilon(tmp_path, trust, relation):
    """From the ledger file alone: diameters need no new field, and no version of the program that reads them."""
    privacy = fp.Privacy(epsilon=2.0, delta=1e-5, trust=trust, relation=relation)
    found = fp.describe([TABLE, TABLE], ASKED, privacy, folder=tmp_path / "run")
    verify = runpy.run_path(str(VERIFIER))
    header, records = verify["read"](tmp_path / "run" / "ledger.jsonl")
    epsilon = max(verify["epsilon_of"](one, 1e-5) for one in verify["histories_of"](header, records))
    assert len(records) == 1
    assert epsilon == pytest.approx(found.spent.epsilon, rel=0.01) and found.spent.epsilon <= 2.0
