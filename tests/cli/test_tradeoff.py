"""`fedpriv tradeoff`: what targets cost, without touching the private data."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from commands import DIGITS, error_line, fedpriv
from PIL import Image

from fedpriv.config import forecast, load_config
from fedpriv.tuning.membership import compute_guess_rate

SHORT = ("data.partition.n_clients=2", "rounds=5")


def as_json(*words: str) -> dict:
    done = fedpriv("tradeoff", *words, "--json")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def test_tradeoff_noise_and_bound_match_plan():
    targets = as_json(DIGITS, "epsilon=4,.5,1", *SHORT)["targets"]
    assert [target["epsilon"] for target in targets] == [0.5, 1, 4]
    for target in targets:
        plan = forecast(load_config(DIGITS, [*SHORT, f"privacy.epsilon={target['epsilon']}"]))
        assert target["noise_multiplier"] == plan.noise_multiplier
        assert target["right_guesses"] == compute_guess_rate(plan.spent.epsilon, plan.spent.delta)
        assert target["scores"] == []


def table(path: Path, seed: int, rows: int) -> Path:
    stream = np.random.default_rng(seed)
    ages = stream.integers(20, 90, rows)
    ill = stream.random(rows) < 1 / (1 + np.exp(-(ages - 55) / 5))
    path.write_text(
        "age,outcome\n" + "".join(f"{a},{'ill' if i else 'well'}\n" for a, i in zip(ages, ill, strict=True))
    )
    return path


@pytest.fixture
def config(tmp_path: Path) -> Path:
    private, public = table(tmp_path / "private.csv", 0, 300), table(tmp_path / "public.csv", 1, 300)
    path = tmp_path / "run.yaml"
    path.write_text(
        f"data: {{name: csv, train: {private}, test: {public}, label: outcome, classes: [well, ill], "
        "numbers: {age: [20, 90]}, partition: {kind: iid, n_clients: 1}}\n"
        "model: logistic_regression\nloss: logistic\nstrategy: {name: fedavg, learning_rate: 4}\n"
        "privacy: {epsilon: 1}\nrounds: 8\n"
    )
    return path


def test_tradeoff_accuracy_from_public_data(config: Path, tmp_path: Path):
    stand_in, test = table(tmp_path / "a.csv", 2, 400), table(tmp_path / "b.csv", 3, 400)
    options = ["--public-data", f"data.train={stand_in}", "--public-data", f"data.test={test}", "--seeds", "2"]
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    result = as_json(str(config), "epsilon=.05,50", *options)
    low, high = result["targets"]
    assert len(low["scores"]) == len(high["scores"]) == 2
    assert np.mean(high["scores"]) > 0.75
    assert abs(np.mean(high["scores"]) - result["reference"]) < 0.05
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before, "no run is left behind"


def test_tradeoff_prints_table_and_draws(config: Path, tmp_path: Path):
    picture = tmp_path / "t.png"
    done = fedpriv("tradeoff", str(config), "epsilon=1,2", "--out", str(picture))
    assert "at most 73.2 %" in done.stdout and "nothing was trained" in done.stdout
    assert Image.open(picture).size == (1080, 810)


def test_tradeoff_private_data_as_public_raises(config: Path, tmp_path: Path):
    same = f"data.train={config.parent}/./private.csv"
    for setting in (
        "rounds=3",
        "model=softmax",
        "data.bias=false",
        "data.partition.seed=5",
        "data.augment=[flip]",
        same,
    ):
        message = error_line("tradeoff", str(config), "epsilon=1", "--public-data", setting)
        assert "does not replace the private data" in message


def test_tradeoff_invalid_targets_raise(config: Path):
    for words in ("eps=1", "epsilon=", "epsilon=a,b"):
        assert "must be a list of target epsilons, e.g. epsilon=" in error_line("tradeoff", str(config), words)
    assert "must be positive, finite targets" in error_line("tradeoff", str(config), "epsilon=-1,2")
    assert "sets the noise, so target epsilons would have no effect" in error_line(
        "tradeoff", str(config), "epsilon=1", "privacy.noise_multiplier=2"
    )
    assert "ends in .png" in error_line("tradeoff", str(config), "epsilon=1", "--out", "t.pdf")


def test_percentage_rounded_up():
    from fedpriv.tuning.tradeoff import _percent

    assert _percent(0.73105) == "73.2 %" and _percent(0.5) == "50 %" and _percent(1.0) == "100 %"
    assert not math.isnan(compute_guess_rate(1.0, 0.0))
