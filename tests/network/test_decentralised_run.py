"""A run without a server: what its folder holds, while it goes and at its end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.nn.utils import parameters_to_vector
from typer.testing import CliRunner

from fedpriv.cli import app
from fedpriv.config import build, load_config, to_yaml
from fedpriv.data import load
from fedpriv.models import SoftmaxRegression
from fedpriv.reports.report import Run
from fedpriv.reports.sinks import Jsonl

CONFIG = """
data: {name: digits, flat: true, partition: {kind: iid, n_clients: 4}}
model: softmax
strategy: {name: dual_averaging, regularizer: {l2: {lam: 0.01}}, gamma: 5.0}
privacy: {epsilon: 3, sampling: {fixed_size: {size: 8}}}
network: {topology: ring}
rounds: 6
seed: 0
compute: {threads: 1}
log: {evaluate_every: 2, optimum: 0.25, save_node_models: true}
"""
FLOATS, BYTES, LINKS = 64 * 10, 4, 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("ring")
    (root / "run.yaml").write_text(CONFIG)
    done = CliRunner().invoke(app, ["train", str(root / "run.yaml"), "--out", str(root / "run")])
    assert done.exit_code == 0, done.stderr
    assert "not private" in next(line for line in done.stdout.splitlines() if line.startswith("suboptimality"))
    return root / "run"


def vector(state: dict[str, torch.Tensor]) -> torch.Tensor:
    model = SoftmaxRegression(64, 10)
    model.load_state_dict(state)
    return parameters_to_vector(model.parameters()).detach()


def test_mean_and_node_models_load(folder: Path) -> None:
    one, each = torch.load(folder / "model.pt"), torch.load(folder / "node_models.pt")
    rows = torch.stack([vector(state) for state in each])
    torch.testing.assert_close(rows.mean(0), vector(one))
    assert len(rows) == 4
    result = json.loads((folder / "result.json").read_text())
    apart = float((rows - rows.mean(0)).square().sum(1).mean().sqrt())
    assert result["consensus_distance"] == pytest.approx(apart, rel=1e-4) != 0
    inputs, targets = zip(*load("digits", flat=True).test, strict=True)
    model = SoftmaxRegression(64, 10)
    accuracies = []
    for state in each:
        model.load_state_dict(state)
        accuracies.append(float((model(torch.stack(inputs)).argmax(1) == torch.tensor(targets)).float().mean()))
    expected = {"min": min(accuracies), "mean": sum(accuracies) / 4, "max": max(accuracies)}
    assert result["node_test_accuracy"] == pytest.approx(expected)


def test_suboptimality_matches_objective(folder: Path) -> None:
    result = json.loads((folder / "result.json").read_text())
    model = SoftmaxRegression(64, 10)
    model.load_state_dict(torch.load(folder / "model.pt"))
    inputs, targets = zip(*load("digits", flat=True).train, strict=True)
    loss = torch.nn.functional.cross_entropy(model(torch.stack(inputs)), torch.tensor(targets))
    objective = float(loss.detach()) + 0.005 * float(vector(model.state_dict()).square().sum())
    assert result["suboptimality"] == pytest.approx(objective - 0.25, rel=1e-4)
    assert result["optimality_gap"] == result["suboptimality"]
    assert result["not_private"] == ["optimality_gap", "suboptimality"]


def test_ring_run_counts_bytes_and_spectral_gap(folder: Path) -> None:
    """Each of four links of a ring carries a row both ways in each round; eigenvalues 1, 1/3, 1/3, -1/3."""
    result = json.loads((folder / "result.json").read_text())
    assert result["bytes_sent"] == 6 * 2 * LINKS * FLOATS * BYTES
    assert result["spectral_gap"] == pytest.approx(2 / 3)


def test_node_metrics_logged_during_run(folder: Path) -> None:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    result = json.loads((folder / "result.json").read_text())
    names = [f"node_test_accuracy_{part}" for part in ("min", "mean", "max")]
    for row in rows:
        assert ("consensus_distance" in row) == (row["round"] % 2 == 0)
        if row["round"] % 2 == 0:
            low, mean, high = (row[name] for name in names)
            assert low <= mean <= high
            assert row["bytes_sent"] == row["round"] * 2 * LINKS * FLOATS * BYTES
    assert {part: rows[-1][name] for part, name in zip(("min", "mean", "max"), names, strict=True)} == result[
        "node_test_accuracy"
    ]
    board = EventAccumulator(str(folder / "tb")).Reload()
    nodes = [f"node/test_accuracy_{part}" for part in ("min", "mean", "max")]
    for name in (*nodes, "run/consensus_distance", "run/bytes_sent"):
        assert [event.step for event in board.Scalars(name)] == [2, 4, 6]


def test_unfinished_run_shows_node_metrics(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(CONFIG)
    config = load_config(tmp_path / "run.yaml")
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    sink = Jsonl(tmp_path / "metrics.jsonl")
    for report in build(config, tmp_path):
        sink.write(report)
        if report.round == 4:
            break
    run = Run.read(tmp_path)
    facts, rows = run.to_json(), run.rows()
    assert facts["finished"] is False
    assert facts["node_test_accuracy"]["min"] <= facts["node_test_accuracy"]["max"]
    assert facts["bytes_sent"] == 4 * 2 * LINKS * FLOATS * BYTES
    assert rows["bytes sent"] == f"{4 * 2 * LINKS * FLOATS * BYTES:,}"
    assert "mean" in rows["nodes' test accuracy"]
    assert rows["consensus distance"]
