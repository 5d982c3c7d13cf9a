"""Runs on a table of the user's own, whose rows have changed since: what they cost is counted by what they were."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import error_line, fedpriv
from edits import with_plan_of

import fedpriv as fp
from fedpriv.privacy.accounting.spent import round_up
from fedpriv.runs.budget_reservation import digest_data

NOISE = 2.0
DELTA = 1e-3


def write_table(path: Path, rows: Mapping[str, int]) -> None:
    """Writes a table in which each clinic has this number of rows."""
    lines = [f"{index % 7 / 7},{index % 2},{clinic}" for clinic, count in rows.items() for index in range(count)]
    path.write_text("\n".join(["age,ill,clinic", *lines]) + "\n")


def train(folder: Path, name: str, **changes: Any) -> dict[str, Any]:
    """Trains on the table in `folder`, with batches of two rows; returns what it prints."""
    write_table(folder / "test.csv", {"elsewhere": 8})
    section = {"name": "csv", "label": "ill", "classes": [0, 1], "numbers": {"age": [0, 1]}, "client": "clinic"}
    section |= {
        "train": str(folder / "train.csv"),
        "test": str(folder / "test.csv"),
        "partition": {"kind": "by_writer"},
    }
    privacy = {"noise_multiplier": NOISE, "delta": DELTA, "sampling": {"fixed_size": {"size": 2}}}
    raw = {"data": section, "model": {"name": "softmax"}, "strategy": {"name": "fedavg", "learning_rate": 0.5}}
    raw |= {"privacy": privacy | changes.pop("privacy", {}), "rounds": 2, "seed": 0, **changes}
    (folder / "config.yaml").write_text(yaml.safe_dump(raw))
    done = fedpriv("train", str(folder / "config.yaml"), "--out", str(folder / name), "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def accounted(*folders: Path) -> dict[str, Any]:
    done = fedpriv("account", *map(str, folders), "--json")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def test_account_renumbered_client_charged_for_both_runs(tmp_path: Path):
    """Clinic b, of two rows, is client 0 of the first run and client 1 of the second."""
    budget = fp.Budget.create(tmp_path / "budget.jsonl", epsilon=20, delta=DELTA)
    changes = {"privacy": {"budget": str(budget.path)}}
    write_table(tmp_path / "train.csv", {"b": 2, "z": 200})
    first = train(tmp_path, "first", **changes)
    write_table(tmp_path / "train.csv", {"a": 200, "b": 2})
    second = train(tmp_path, "second", **changes)
    assert first["per_client_epsilon"] == second["per_client_epsilon"][::-1]

    # four answers about all rows of clinic b
    exact = fp.privacy.accounting.gaussian.compute_epsilon(4**0.5 / NOISE, DELTA)
    together = accounted(tmp_path / "first", tmp_path / "second")
    assert together["epsilon"] >= exact
    assert together["epsilon"] == pytest.approx(exact, rel=1e-3)
    assert budget.balance().spent.epsilon == pytest.approx(together["epsilon"], rel=1e-9)
    assert "not recorded that each client had the same rows" in together["notes"][0]


def test_account_stopped_run_ignores_changed_rows(tmp_path: Path):
    """With a hundred times as many rows, a batch of two would have almost no privacy cost."""
    stop = {"log": {"stop": {"metric": "accuracy", "patience": 1}}}
    write_table(tmp_path / "train.csv", {"b": 4, "z": 4})
    result = train(tmp_path, "run", rounds=40, **stop)
    assert result["ended"] == "metric"
    assert accounted(tmp_path / "run")["epsilon"] == pytest.approx(result["epsilon"], rel=1e-9)

    write_table(tmp_path / "train.csv", {"b": 400, "z": 400})
    assert accounted(tmp_path / "run")["epsilon"] == pytest.approx(result["epsilon"], rel=1e-9)
    with_plan_of(tmp_path / "run", None)
    assert "cannot be computed from the configuration and the data" in error_line("account", str(tmp_path / "run"))
    write_table(tmp_path / "train.csv", {"b": 4, "z": 4})
    assert accounted(tmp_path / "run")["epsilon"] == pytest.approx(result["epsilon"], rel=1e-9)


def test_account_unfinished_run_ignores_changed_rows(tmp_path: Path):
    """The plan for more rows would charge less; the checkpoint holds the original plan."""
    write_table(tmp_path / "train.csv", {"b": 4, "z": 4})
    train(tmp_path, "run", rounds=40, log={"stop": {"metric": "accuracy", "patience": 1}})
    (tmp_path / "run" / "result.json").unlink()
    whole = accounted(tmp_path / "run")
    assert "whole plan is charged" in whole["notes"][0]
    write_table(tmp_path / "train.csv", {"b": 400, "z": 400})
    assert accounted(tmp_path / "run")["epsilon"] == pytest.approx(whole["epsilon"], rel=1e-9)
    with_plan_of(tmp_path / "run", None)
    for command in ("account", "statement"):
        assert "is not finished, so its whole plan is charged" in error_line(command, str(tmp_path / "run"))


def test_tune_changed_rows_raise(tmp_path: Path):
    """Secret trials leave no ledger, and with a hundred times as many rows the plan has almost no privacy cost."""
    space = tmp_path / "space.yaml"
    space.write_text("strategy.learning_rate: [0.1, 0.5]\n")
    write_table(tmp_path / "train.csv", {"b": 4, "z": 4})
    train(tmp_path, "run", privacy={"trust": "central"})
    search = ["tune", str(tmp_path / "config.yaml"), str(space), "--sampler", "random", "--trials", "2"]
    seen = [*search, "--out", str(tmp_path / "seen"), "--json"]
    hidden = [*search, "--secret-trials", "logarithmic", "--out", str(tmp_path / "hidden"), "--json"]
    paid = [json.loads(fedpriv(*words).stdout)["epsilon"] for words in (seen, hidden)]
    write_table(tmp_path / "train.csv", {"b": 400, "z": 400})
    for words in (seen, hidden):
        assert "numbers of examples changed since the search began" in error_line(*words)
    # of open trials the ledgers are there
    assert f"epsilon={round_up(paid[0])}" in fedpriv("statement", str(tmp_path / "seen")).stdout
    assert "numbers of examples changed since the search began" in error_line("statement", str(tmp_path / "hidden"))
    write_table(tmp_path / "train.csv", {"b": 4, "z": 4})
    assert f"epsilon={round_up(paid[1])}" in fedpriv("statement", str(tmp_path / "hidden")).stdout


def test_account_client_cost_of_changed_rows(tmp_path: Path):
    write_table(tmp_path / "train.csv", {"b": 40, "z": 40})
    train(tmp_path, "run")
    before = {cell["unit"]: cell["epsilon"] for cell in accounted(tmp_path / "run")["matrix"]}
    assert isinstance(before["client"], float)
    write_table(tmp_path / "train.csv", {"b": 4, "z": 4})
    after = {cell["unit"]: cell["epsilon"] for cell in accounted(tmp_path / "run")["matrix"]}
    assert after == before | {"client": "inf"}  # forty are no longer on record


def test_data_digest_published_sets_only():
    """Client i of a published data set is the same in all runs; files and code of the user have no digest."""

    def named(name: str, **options: Any) -> str | None:
        return digest_data({"data": {"name": name, **options}, "problem": None})

    assert named("digits") == named("digits") != named("digits", seed=1)
    assert named("mnist") not in (None, named("digits"))
    for name in ("csv", "parquet", "sql", "hf", "image_folder", "libsvm", "my.module:load"):
        assert named(name) is None
    assert digest_data({"rounds": 3}) is None and digest_data(None) is None
