"""`fedpriv.describe`: what it refuses, and what a reader gets."""

from __future__ import annotations

import pytest

import fedpriv as fp
from fedpriv.statistics import Correlations, Counts, Mean, Quantiles

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
        (TABLE, [*ASKED, Mean("age", (0, 100))], "asked for twice"),
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
