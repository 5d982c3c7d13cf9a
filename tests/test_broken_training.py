"""Training that breaks: it is said, stopped where that is asked, charged like any stop, and written as valid JSON."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn
from typer.testing import CliRunner

from fedpriv.cli import app

DIGITS = str(Path(__file__).with_name("run.yaml"))
SMALL = ["data.partition.n_clients=3", "rounds=6", "seed=0", "secret_seed=0", "compute.threads=1", "log.csv=true"]
HERE = "test_broken_training"


class NotFinite(nn.Module):
    """A loss that is -inf, inf or NaN for whatever outputs, with gradients that are finite."""

    def __init__(self, value: str = "-inf") -> None:
        super().__init__()
        self.value = float(value)

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets) + self.value


def fedpriv(*words: str, code: int = 0):
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == code, done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done


def strict(text: str) -> Any:
    """JSON as RFC 8259 has it: Python's own reader also takes NaN and Infinity."""

    def refuse(token: str) -> None:
        raise AssertionError(f"{token} is no JSON")

    return json.loads(text, parse_constant=refuse)


def all_json(folder: Path) -> dict[str, list[Any]]:
    """Every JSON value of a folder's files, strictly read."""
    found = {path.name: [strict(path.read_text())] for path in folder.glob("*.json")}
    return found | {
        path.name: [strict(line) for line in path.read_text().splitlines()] for path in folder.glob("*.jsonl")
    }


@pytest.mark.parametrize("value", ["-inf", "inf", "nan"])
@pytest.mark.usefixtures("allow_plugins")
def test_a_loss_that_is_not_finite_is_null_in_every_file(value: str, tmp_path: Path):
    loss = f"loss={{name: '{HERE}:NotFinite', value: '{value}'}}"
    done = fedpriv("train", DIGITS, "--out", str(tmp_path / "run"), *SMALL, loss, "--json")
    assert strict(done.stdout)["test_loss"] is None
    files = all_json(tmp_path / "run")
    assert {*files} == {"ledger.jsonl", "metrics.jsonl", "result.json"}
    assert [row["test_loss"] for row in files["metrics.jsonl"]] == [None] * 6
    assert files["result.json"][0]["test_loss"] is None
    rows = list(csv.DictReader((tmp_path / "run" / "metrics.csv").open()))
    assert [row["test_loss"] for row in rows] == [""] * 6
    assert all(math.isfinite(float(row["epsilon"])) and float(row["test_accuracy"]) > 0 for row in rows)
    assert strict(fedpriv("show", str(tmp_path / "run"), "--json").stdout)["test_loss"] is None
    fedpriv("show", str(tmp_path / "run"))
    both = strict(fedpriv("show", str(tmp_path / "run"), str(tmp_path / "run"), "--json").stdout)
    assert [run["test_loss"] for run in both["runs"]] == [None, None]
