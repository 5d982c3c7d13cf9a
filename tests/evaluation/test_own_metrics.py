"""Metrics of the user's own on public data, and runs that end when a metric no longer improves."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from typer.testing import CliRunner

import fedpriv as fp
from fedpriv.cli import app
from fedpriv.config import fingerprint, load_config
from fedpriv.data.torchvision_compat import import_torchvision
from fedpriv.evaluation.early_stopping import EarlyStopping
from fedpriv.reports.report import Run

CLASSES = 3
RUN = Path(__file__).parents[1] / "run.yaml"


def data(n: int, seed: int = 0) -> TensorDataset:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 4, generator=draw)
    return TensorDataset(x, (x[:, :CLASSES]).argmax(1))


def training(**options: Any) -> fp.Training:
    torch.manual_seed(0)
    clients = fp.make_clients(nn.Linear(4, CLASSES), nn.CrossEntropyLoss(), [data(20, 1 + i) for i in range(3)])
    settings = {"rounds": 8, "seed": 0, "secret_seed": 1, "test": data(1300), **options}
    return fp.Training(clients, fp.fedavg(0.5), fp.Privacy(epsilon=3), **settings)


def macro_f1(outputs: Tensor, targets: Tensor) -> float:
    """By its definition; no mean over batches."""
    found, each = outputs.argmax(1), list[float]()
    for label in range(CLASSES):
        both = float(((found == label) & (targets == label)).sum())
        each.append(2 * both / max(float((found == label).sum() + (targets == label).sum()), 1.0))
    return sum(each) / CLASSES


def test_custom_metric_function_matches_torchmetrics() -> None:
    import_torchvision("transforms")  # torchmetrics imports it, and fails beside a torch for the processor alone
    from torchmetrics.classification import MulticlassF1Score

    theirs = MulticlassF1Score(CLASSES, average="macro")
    run = training(metrics={"f1": macro_f1, "their_f1": theirs})
    reports = list(run)
    for report in reports:
        assert report.metrics["test_f1"] == pytest.approx(report.metrics["test_their_f1"], abs=1e-6)
    result, (x, y) = run.result(), data(1300).tensors
    with torch.no_grad():
        wanted = macro_f1(result.model(x), y)
    assert result.measures["test_f1"] == wanted == reports[-1].metrics["test_f1"]
    assert theirs.update_count == 0, "it is handed back as it came"
    assert result.reports[-1]["test_f1"] == wanted
    assert f"test f1 {wanted:.4g}" in " ".join(f"{k} {v}" for k, v in result._tested().items())


def test_custom_metrics_keep_run() -> None:
    params = [(list(run), run.result().params)[1] for run in (training(), training(metrics={"f1": macro_f1}))]
    assert torch.equal(*params)


def test_plot_has_panel_for_custom_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    run = training(metrics={"f1": macro_f1})
    list(run)
    figure = run.result().plot()
    assert len(figure.axes) == 3
    assert [axes.get_ylabel() for axes in figure.axes] == ["test accuracy, %", "test f1", "epsilon spent"]


BROKEN: dict[str, tuple[Any, str]] = {
    "a name of ours": ({"accuracy": macro_f1}, "metrics = 'accuracy': is the name of a built-in metric"),
    "no name": ({"f 1": macro_f1}, "metrics = 'f 1': must be a plain name"),
    "nothing": ({"f1": 3}, "metrics.f1 = 3: must be a function of outputs and targets"),
    "fails": ({"f1": lambda outputs, targets: outputs.nope}, r"metrics.f1 = .*: raises an error on the test data"),
    "many numbers": ({"f1": lambda outputs, targets: outputs}, "is not a value of a metric: return one finite number"),
    "infinite": ({"f1": lambda outputs, targets: math.inf}, "is not a value of a metric: return one finite number"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_invalid_metric_raises_before_query(name: str) -> None:
    given, match = BROKEN[name]
    with pytest.raises(fp.ConfigError, match=match):
        training(metrics=given)


def test_metrics_without_test_data_raise() -> None:
    with pytest.raises(fp.ConfigError, match=r"metrics = .*: metrics need test data: pass the data with test="):
        training(metrics={"f1": macro_f1}, test=None)


def test_config_metric_shown_in_all_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_metrics.py").write_text(
        "def right(outputs, targets):\n    return (outputs.argmax(1) == targets).double().mean()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "run"
    settings = ["rounds=4", "log.csv=true", "log.metrics={right: 'own_metrics:right'}"]
    refused = CliRunner().invoke(app, ["train", str(RUN), "--out", str(tmp_path / "no"), *settings])
    assert refused.exit_code == 2
    assert "log.metrics.right" in refused.output
    done = CliRunner().invoke(app, ["train", str(RUN), "--out", str(folder), "--allow-plugins", *settings])
    assert done.exit_code == 0, done.output
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["test_right"] == last["test_accuracy"]
    rows = list(csv.DictReader((folder / "metrics.csv").read_text().splitlines()))
    assert float(rows[-1]["test_right"]) == last["test_right"]
    assert f"test_right {last['test_right']:.3g}" in done.stderr
    assert any(line.split()[:2] == ["test", "right"] for line in done.stdout.splitlines())
    assert json.loads((folder / "result.json").read_text())["test_right"] == last["test_right"]
    events = EventAccumulator(str(folder / "tb"))
    events.Reload()
    assert events.Scalars("test/right")[-1].value == pytest.approx(last["test_right"])
    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    from fedpriv.reports import picture

    picture.draw(Run.read(folder), tmp_path / "picture.png")
    assert [axes.get_ylabel() for axes in drawn[0].axes] == ["test accuracy, %", "test right", "epsilon spent"]
    output = CliRunner().invoke(app, ["show", str(folder)])
    assert "test right" in output.stdout
    damaged = (folder / "metrics.jsonl").read_text().replace('"test_right": 0', '"test_right": "0"', 1)
    (folder / "metrics.jsonl").write_text(damaged)
    assert CliRunner().invoke(app, ["show", str(folder)]).exit_code == 2


def rising(*values: float) -> Callable[[Tensor, Tensor], float]:
    """A metric that has these values, the first at the trial before round 1, and the last from then on."""
    left = [values[0], *values]

    def metric(outputs: Tensor, targets: Tensor) -> float:
        return left.pop(0) if len(left) > 1 else left[0]

    return metric


STOPS: dict[str, tuple[fp.Stop, tuple[float, ...], int]] = {
    "higher": (fp.Stop("m", 2, better="higher", min_rounds=0), (1, 2, 2, 1.5, 3), 4),
    "lower": (fp.Stop("test_m", 2, better="lower", min_rounds=0), (3, 2, 1, 1, 1), 5),
    "by at least": (fp.Stop("m", 2, 0.5, "higher", 0), (1, 1.2, 1.4, 2), 3),
    "never a number": (fp.Stop("m", 3, better="lower", min_rounds=0), (math.nan,), 3),
    "a gap": (fp.Stop("m", 2, better="higher", min_rounds=0), (1, math.nan, 2, 3, 3, 3), 6),
    "not reached": (fp.Stop("m", 5, better="higher", min_rounds=0), (1, 2, 3, 4, 4), 8),
}


@pytest.mark.parametrize("name", STOPS)
def test_stop_ends_run_without_improvement(name: str) -> None:
    stop, values, rounds = STOPS[name]
    run = training(stop=stop, metrics={"m": rising(*values)})
    assert len(list(run)) == rounds
    result = run.result()
    assert result.rounds == rounds
    assert result.ended == ("rounds" if rounds == 8 else "metric")


def test_stopped_run_charges_whole_plan() -> None:
    """The stopping time depends on query results, so the epsilon of the completed rounds would be too small."""
    run = training(stop=fp.Stop("m", 2, better="higher", min_rounds=0), metrics={"m": rising(1)})
    planned = run.plan.spent().epsilon
    reports = list(run)
    result = run.result()
    assert (result.rounds, result.ended) == (3, "metric")
    assert result.releases == 3
    assert result.spent.epsilon == pytest.approx(planned)
    assert reports[-1].epsilon == pytest.approx(planned)
    assert reports[1].epsilon < 0.9 * planned
    assert "stopped improving; the whole plan is charged" in str(result)
    whole = training()
    list(whole)
    assert whole.result().spent.epsilon == pytest.approx(planned)


def test_stop_patience_continues_after_resume(tmp_path: Path) -> None:
    stop = fp.Stop("m", 3, better="higher", min_rounds=0)
    values = [5.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    first = training(stop=stop, metrics={"m": rising(*values)}, folder=tmp_path, checkpoint_every=1)
    for report in first:
        if report.round == 3:
            break
    assert first.folder is not None
    first.folder.close()
    # the checkpoint of round 3 knows the best value, 5, and two evaluations since
    again = training(stop=stop, metrics={"m": rising(2.0)}, folder=tmp_path, checkpoint_every=1, resume=True)
    assert again.progress.round == 3
    assert [report.round for report in again] == [4]
    assert again.result().ended == "metric"
    assert again.folder is not None
    again.folder.close()
    over = training(stop=stop, metrics={"m": rising(2.0)}, folder=tmp_path, checkpoint_every=1, resume=True)
    assert list(over) == []
    assert over.result().ended == "metric"


def test_stop_counts_evaluations_only() -> None:
    stop = fp.Stop("m", 2, better="higher", min_rounds=0)
    assert len(list(training(stop=stop, metrics={"m": rising(1)}, evaluate_every=2))) == 6


REFUSED: dict[str, tuple[fp.Stop, dict[str, Any], str]] = {
    "unknown": (
        fp.Stop("recall"),
        {},
        "stop.metric = 'recall': is not a metric .* choose one of test_loss, test_accuracy",
    ),
    "no data": (fp.Stop(), {"test": None}, "there are no test data: pass them with test="),
    "no direction": (
        fp.Stop("f1"),
        {"metrics": {"f1": macro_f1}},
        "stop.better = None: is required for f1: set 'higher' or 'lower'",
    ),
    "private": (fp.Stop("consensus_distance"), {}, "is not a metric on public test data"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_invalid_stop_raises(name: str) -> None:
    stop, options, match = REFUSED[name]
    with pytest.raises(fp.ConfigError, match=match):
        training(stop=stop, **options)


def test_stop_direction_of_accuracy_and_loss() -> None:
    assert fp.Stop("accuracy").begin(["test_accuracy"]).sign == 1
    assert fp.Stop("loss").begin(["test_loss"]).sign == -1
    assert not EarlyStopping().after(1, {"test_loss": 1.0}).stops


def test_stop_from_yaml(tmp_path: Path) -> None:
    folder, stop = tmp_path / "run", "log.stop={metric: accuracy, patience: 1, min_delta: 0.9, min_rounds: 0}"
    assert fingerprint(load_config(RUN, [stop])) == fingerprint(load_config(RUN))
    done = CliRunner().invoke(app, ["train", str(RUN), "--out", str(folder), stop])
    assert done.exit_code == 0, done.output
    found = json.loads((folder / "result.json").read_text())
    assert (found["rounds"], found["ended"]) == (2, "metric")
    assert found["epsilon"] > 2.9
    assert "of 30: the test metric stopped improving; the whole plan is charged" in done.stdout
    assert Run.read(folder).integrity == "sound"
    with pytest.raises(fp.ConfigError, match=r"log\.stop\.patience = 0: must be a whole number, at least 1"):
        load_config(RUN, ["log.stop={patience: 0}"])
