"""Constraints are told round by round, also where training breaks; one round is too few for them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from plain_torch import rows
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from typer.testing import CliRunner

import fedpriv as fp
from fedpriv.cli import app
from fedpriv.evaluation.verdict import format_constraint_verdict
from fedpriv.storage import strict_json

SURE = fp.Privacy(epsilon=8, delta=1e-3)
EXACT = fp.Privacy(noise_on="none")


def trained(strategy: fp.Strategy, privacy: fp.Privacy, constrained: bool = True, **options: Any) -> fp.Result:
    draw = torch.Generator().manual_seed(0)
    data = [rows(torch.randn(30, 4, generator=draw), torch.arange(30) % 3) for _ in range(2)]
    problem = fp.Problem(constraints=(fp.ClassLossAtMost(1, 0.3, fraction=0.4),) if constrained else ())
    torch.manual_seed(0)
    clients = fp.make_clients(nn.Linear(4, 3), nn.CrossEntropyLoss(), data, problem)
    return fp.train(clients, strategy, privacy, **{"rounds": 6, "seed": 0, **options})


def test_rounds_report_violation_and_multiplier() -> None:
    result = trained(fp.private_al(beta=2), SURE, secret_seed=0)
    last = result.reports[-1]
    assert last["max_violation_estimate"] == pytest.approx(result.measures["max_violation_estimate"])
    assert last["max_multiplier"] == pytest.approx(max(row[0] for row in result.measures["multipliers"]))
    assert all(row["max_multiplier"] > 0 for row in result.reports[1:])


def test_exact_run_reports_multiplier() -> None:
    exact = trained(fp.proximal_al(), EXACT, rounds=40).reports
    assert exact[-1]["max_multiplier"] > 0
    assert "violation" in exact[-1]
    free = trained(fp.gradient_descent(0.5), SURE, constrained=False).reports
    assert not {"max_multiplier", "max_violation_estimate"} & {*free[-1]}


@pytest.mark.parametrize(("strategy", "privacy"), [(fp.private_al(), SURE), (fp.proximal_al(), EXACT)])
def test_tensorboard_has_constraint_curves(strategy: fp.Strategy, privacy: fp.Privacy, tmp_path: Path) -> None:
    result = trained(strategy, privacy, sinks=[fp.sinks.TensorBoard(tmp_path)])
    events = EventAccumulator(str(tmp_path)).Reload()
    last = result.reports[-1]
    violation = last["max_violation_estimate" if privacy is SURE else "violation"]
    for name, value in (("violation", violation), ("multiplier", last["max_multiplier"])):
        curve = events.Scalars(f"constraints/largest_{name}")
        assert [point.step for point in curve] == [1, 2, 3, 4, 5, 6]
        assert curve[-1].value == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize("name", ["max_violation", "max_violation_estimate"])
def test_verdict_prints_nonfinite_numbers(name: str) -> None:
    """`result.json` stores null for them, and reading it back must not fail."""
    facts = {"constraints": "violated", name: math.nan, "multipliers": [[0.5, math.nan]]}
    facts |= {"constraint_confidence": {"level": 0.95, "half_width": [[0.25, math.inf]]}}
    stored = strict_json.to_plain(facts)
    assert stored["multipliers"] == [[0.5, None]]
    output = format_constraint_verdict(stored)
    assert "violation nan" in output
    assert output.endswith("largest multiplier nan")


BROKEN = """
data: {name: digits, partition: {kind: iid, n_clients: 3}}
model: softmax
problem: {constraints: [{name: class_loss_at_most, label: 1, bound: 0.3}]}
strategy: {name: private_al, learning_rate: 1.0e+38}
privacy: {noise_on: none}
rounds: 3
seed: 0
log: {stop_on: nothing, tensorboard: false}
"""


def test_show_diverged_constrained_run(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(BROKEN)
    done = CliRunner().invoke(app, ["train", str(tmp_path / "run.yaml"), "--out", str(tmp_path / "run")])
    assert done.exit_code == 3, done.output  # what was trained is of no use
    shown = CliRunner().invoke(app, ["show", str(tmp_path / "run")])
    assert shown.exit_code == 0, shown.output
    assert "constraints are violated: largest violation nan, largest multiplier nan" in shown.stdout


def test_constrained_run_of_one_round_raises() -> None:
    with pytest.raises(fp.ConfigError, match=r"rounds = 1: must be a whole number, at least 2"):
        trained(fp.private_al(), SURE, rounds=1)


def test_strategy_round_mismatch_raises() -> None:
    with pytest.raises(
        fp.ConfigError, match=r"exceeds the 5 rounds for which private_al was created: leave out its argument rounds"
    ):
        trained(fp.private_al(5), SURE)
