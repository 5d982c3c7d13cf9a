"""A metric is one row: whatever shows metrics shows a new one."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure
from round_reports import report, terminal_output
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor
from typer.testing import CliRunner

from fedpriv.cli import app
from fedpriv.config import build, load_config
from fedpriv.evaluation import metrics
from fedpriv.evaluation.metrics import Metric, compute_value
from fedpriv.evaluation.tasks import Task
from fedpriv.models import predict
from fedpriv.reports import comparison
from fedpriv.reports.report import Run
from fedpriv.runs import curves

NAME = "test_balanced_accuracy"
SETTINGS = ["rounds=4", "data.partition.n_clients=3"]
ON_A_RING = [*SETTINGS, "log.csv=true", "strategy=gradient_tracking", "network={topology: ring}"]


def balanced_accuracy(outputs: Tensor, targets: Tensor, loss: object, task: Task) -> Tensor:
    right = targets[predict(outputs) == targets]
    return torch.stack([torch.bincount(labels, minlength=outputs.shape[1]) for labels in (right, targets)]).double()


ROW = Metric(NAME, balanced_accuracy, ".1%", "higher", live="balanced", words="balanced accuracy")


@pytest.fixture
def new_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "TESTED", (*metrics.TESTED, ROW))


@pytest.fixture
def trained(new_row: None, tmp_path: Path) -> tuple[Path, str, str]:
    """A finished run's folder, what its command said, and what it printed."""
    folder = tmp_path / "run"
    command = ["train", str(Path(__file__).parents[1] / "run.yaml"), "--out", str(folder), *ON_A_RING]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    return folder, done.stderr, done.stdout


def test_added_metric_shown_in_all_outputs(trained: tuple[Path, str, str]) -> None:
    folder, progress, printed = trained
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert 0 < last[NAME] < 1
    low, mean, high = (last[f"node_{NAME}_{part}"] for part in metrics.PARTS)
    assert low <= high
    assert low * (1 - 1e-12) <= mean <= high * (1 + 1e-12), "the mean is rounded"

    rows = list(csv.DictReader((folder / "metrics.csv").read_text().splitlines()))
    assert list(rows[0]) == ["round", "epsilon", "test_loss", "test_accuracy", NAME]
    assert float(rows[-1][NAME]) == last[NAME]

    text = f"{last[NAME]:.1%}"
    assert f"balanced {text} · of the worst node {last[f'node_{NAME}_min']:.1%}" in progress
    assert any(line.split() == ["balanced", "accuracy", text] for line in printed.splitlines())

    result = json.loads((folder / "result.json").read_text())
    assert result[NAME] == last[NAME]
    assert set(result[f"node_{NAME}"]) == {"min", "mean", "max"}

    events = EventAccumulator(str(folder / "tb"))
    events.Reload()
    assert events.Scalars("test/balanced_accuracy")[-1].value == pytest.approx(last[NAME])

    run = Run.read(folder)
    assert run.rows()["nodes' balanced accuracy"]
    heading, line = comparison.format_table([run])
    assert line[heading.index("balanced accuracy") :].startswith(text)
    axes = Figure().subplots()
    curves._draw_metric(axes, run)
    labels = axes.get_legend_handles_labels()[1]
    nodes_differ = run.column("node_test_accuracy_min")[1] != run.column("node_test_accuracy_max")[1]
    assert labels == ["test accuracy", "balanced accuracy", *["nodes, worst to best"] * nodes_differ]


def test_added_metric_shown_in_card_and_plot(new_row: None) -> None:
    training = build(load_config(Path(__file__).parents[1] / "run.yaml", SETTINGS))
    list(training)
    result = training.result()
    assert f'balanced accuracy</th><td style="text-align:left">{result.measures[NAME]:.1%}' in result._repr_html_()
    legend = result.plot().axes[0].get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["test accuracy", "balanced accuracy"]


def test_added_metric_shown_for_unfinished_run(trained: tuple[Path, str, str]) -> None:
    folder = trained[0]
    (folder / "result.json").unlink()
    facts = Run.read(folder).to_json()
    assert facts[NAME] == Run.read(folder).metrics[-1][NAME]
    assert set(facts[f"node_{NAME}"]) == {"min", "mean", "max"}
    damaged = (folder / "metrics.jsonl").read_text().replace(f'"{NAME}": 0', f'"{NAME}": "0"', 1)
    (folder / "metrics.jsonl").write_text(damaged)
    done = CliRunner().invoke(app, ["show", str(folder)])
    assert done.exit_code == 2
    assert "metrics.jsonl" in done.output


def test_metric_sums_independent_of_batches() -> None:
    """The mean over classes of the fraction that is found, whatever the batches."""
    generator = torch.Generator().manual_seed(0)
    outputs, targets = torch.randn(90, 4, generator=generator), torch.randint(3, (90,), generator=generator)
    parts = [balanced_accuracy(outputs[i::7], targets[i::7], None, Task("classes")) for i in range(7)]
    found, whole = predict(outputs).numpy(), targets.numpy()
    each = [(found[whole == label] == label).mean() for label in range(3)]
    assert compute_value(sum(parts, torch.zeros(2, 4))) == pytest.approx(sum(each) / 3), "of the classes that there are"
    of_all = metrics.accuracy(outputs, targets, torch.nn.functional.cross_entropy, Task("classes"))
    assert of_all is not None
    assert compute_value(of_all) == float((found == whole).mean())
    assert metrics.accuracy(outputs, targets, torch.nn.functional.cross_entropy, Task("other")) is None


def test_metric_names_unique() -> None:
    names = metrics.list_report_names()
    assert len({*names}) == len(names)
    assert math.isnan(compute_value(torch.zeros(2, 3))), "no example at all"


def test_metric_without_live_name_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = Metric("test_accuracy", metrics.accuracy, ".2%", "higher")
    monkeypatch.setattr(metrics, "TESTED", (metrics.TESTED[0], quiet))
    assert "accuracy" not in terminal_output(terminal=False)
    assert report(2).metrics["test_accuracy"] > 0
