"""Training with non-finite numbers: it is reported, ended if set so, charged like any stop, and valid JSON."""

from __future__ import annotations

import csv
import json
import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from typer.testing import CliRunner

import fedpriv as fp
from fedpriv.cli import app
from fedpriv.models import SoftmaxRegression
from fedpriv.oracle.backends import BACKENDS
from fedpriv.privacy.ledger_file import read_ledger
from fedpriv.runs.results import RoundReport
from fedpriv.strategies.base import Memory, Strategy

DIGITS = str(Path(__file__).parents[1] / "run.yaml")
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
def test_nonfinite_loss_written_as_null(value: str, tmp_path: Path):
    loss = f"loss={{name: '{HERE}:NotFinite', value: '{value}'}}"
    done = fedpriv("train", DIGITS, "--out", str(tmp_path / "run"), *SMALL, loss, "--json", code=3)
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


OVERFLOW = [
    "strategy={name: fedavg, learning_rate: 1e39}",
    "strategy={name: fedopt, learning_rate: 1e39}",
    "strategy={name: scaffold, learning_rate: 1e39}",
    "strategy={name: dp_gd, learning_rate: 1e39}",
]


@pytest.mark.parametrize("strategy", OVERFLOW)
def test_nonfinite_model_ends_run_charged_whole(strategy: str, tmp_path: Path):
    folder = tmp_path / "run"
    done = fedpriv("train", DIGITS, "--out", str(folder), *SMALL, strategy, code=3)
    warnings = [line for line in done.stderr.splitlines() if "not finite" in line]
    assert len(warnings) == 1
    assert re.match(
        r"warning: round 1: the released model is not finite \(\d+ of 640 values\); the run ends", warnings[0]
    )
    assert warnings[0].endswith("epsilon <= 3 of 3")
    files = all_json(folder)
    result = files["result.json"][0]
    assert (result["rounds"], result["ended"], result["releases"]) == (1, "nonfinite", 1)
    assert result["first_nonfinite"] == {"model": 1, "test_loss": 1}
    assert result["test_loss"] is result["params_l2"] is files["metrics.jsonl"][0]["test_loss"] is None
    assert 2.99 < result["epsilon"] <= 3, "which round was the last may depend on what was seen"
    assert files["metrics.jsonl"][0]["epsilon"] == result["epsilon"]
    shown = fedpriv("show", str(folder)).stdout
    assert "training failed" in shown
    assert "test loss in round 1, model in round 1" in shown
    assert strict(fedpriv("show", str(folder), "--json").stdout)["first_nonfinite"] == result["first_nonfinite"]
    events = EventAccumulator(str(folder / "tb"))
    events.Reload()
    assert [math.isnan(event.value) for event in events.Scalars("test/loss")] == [True]
    assert "warning/text_summary" in events.Tags()["tensors"]


@pytest.mark.parametrize("topology", ["ring", "complete"])
@pytest.mark.parametrize("name", ["decentralized_sgd", "gradient_tracking"])
def test_nonfinite_node_model_detected(name: str, topology: str, tmp_path: Path):
    setting = f"strategy={{name: {name}, step_size: {{scale: 1e39}}}}"
    network = f"network={{topology: {topology}}}"
    done = fedpriv("train", DIGITS, "--out", str(tmp_path / "run"), *SMALL, setting, network, code=3)
    assert "of 1920 values" in done.stderr
    assert all_json(tmp_path / "run")["result.json"][0]["first_nonfinite"]["model"] in (1, 2)


def test_stop_on_nothing_continues_and_warns_once(tmp_path: Path):
    words = ["train", DIGITS, "--out", str(tmp_path / "run"), *SMALL, OVERFLOW[0], "log.stop_on=nothing"]
    done = fedpriv(*words, code=3)
    assert done.stderr.count("not finite (") == 1
    assert "may contain only noise" in done.stderr
    files = all_json(tmp_path / "run")
    assert (files["result.json"][0]["rounds"], files["result.json"][0]["ended"]) == (6, "rounds")
    assert [row["test_loss"] for row in files["metrics.jsonl"]] == [None] * 6


@pytest.mark.usefixtures("allow_plugins")
def test_stop_on_nonfinite_loss_ends_run(tmp_path: Path):
    loss = [f"loss={{name: '{HERE}:NotFinite'}}", "log.stop_on=nonfinite_loss", "log.evaluate_every=2"]
    done = fedpriv("train", DIGITS, "--out", str(tmp_path / "run"), *SMALL, *loss, code=3)
    assert "round 2: the test loss is not finite; the run ends here" in done.stderr
    result = all_json(tmp_path / "run")["result.json"][0]
    assert (result["rounds"], result["ended"], result["first_nonfinite"]) == (2, "nonfinite", {"test_loss": 2})
    assert result["epsilon"] > 2.99


def test_unknown_stop_on_raises() -> None:
    with pytest.raises(fp.ConfigError, match="stop_on"):
        fp.Training(clients(), fp.fedavg(1.0), fp.Privacy(epsilon=3), rounds=1, stop_on="NaN")  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True)
class Growing:
    """A server that multiplies its model by 1e9 in each round: beyond float32 in round 5."""

    receives: ClassVar[tuple[str, ...]] = ("gradient",)
    sends: ClassVar[tuple[str, ...]] = ("model",)
    is_sum: ClassVar[bool] = True

    def init(self, params: Tensor):
        return params, {"model": params}

    def __call__(self, message: Tensor, network, state):
        model = 1e9 * (state["model"] - network.mean(message))
        return model, {"model": model}


@dataclass(frozen=True)
class SendGradient:
    receives: ClassVar[tuple[str, ...]] = ("model",)
    sends: ClassVar[tuple[str, ...]] = ("gradient",)
    memory: ClassVar[Memory] = "none"
    linear: ClassVar[bool] = True

    def init(self, params: Tensor):
        return {}

    def __call__(self, received: Tensor, state, oracle):
        return oracle.gradient(received), state


def growing() -> Strategy:
    return Strategy(SendGradient(), Growing(), name="growing")


class Marked(nn.Module):
    """Cross-entropy; of label 10 it is NaN and so is its gradient, of label 11 both are zero."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        factor = torch.where(targets == 10, torch.nan, torch.where(targets == 11, 0.0, 1.0))
        return (nn.functional.cross_entropy(outputs, targets.clamp(max=9), reduction="none") * factor).mean()


def clients(mark: int = 0, *, examples: int = 8) -> list[fp.Client]:
    """Four clients; of the second all examples have the label `mark`, of the third one has."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(32, 5, generator=generator), torch.arange(32) % 10
    y[8:16] = mark
    y[16] = mark
    datasets = [TensorDataset(x[i : i + examples], y[i : i + examples]) for i in range(0, 32, 8)]
    return fp.make_clients(SoftmaxRegression(5, 10), Marked(), datasets)


def run_on(folder: Path, *, stop: int, resume: bool, every: int) -> tuple[list[RoundReport], dict[str, Any]]:
    """The reports, and the result at the end or after `stop` rounds."""
    options: dict[str, Any] = {"rounds": 20, "seed": 0, "checkpoint_every": every, "folder": folder, "resume": resume}
    test = TensorDataset(-torch.eye(8, 5), torch.arange(8))
    training = fp.Training(clients(), growing(), fp.Privacy(epsilon=3), secret_seed=0, test=test, **options)
    reports = []
    for report in training:
        reports.append(report)
        if report.round == stop:
            break
    training.folder.close()
    return reports, {**training.result().to_json(), "seconds": None}


@pytest.mark.parametrize("every", [1, 2, 3])
@pytest.mark.parametrize("stop", [1, 2, 3, 4, 5, 99])
def test_resumed_nonfinite_run_ends_in_same_round(stop: int, every: int, tmp_path: Path):
    whole, result = run_on(tmp_path / "whole", stop=99, resume=False, every=every)
    at = len(whole)
    assert 3 <= at <= 5
    assert (result["ended"], result["first_nonfinite"]["model"]) == ("nonfinite", at)
    run_on(tmp_path / "part", stop=stop, resume=False, every=every)
    rest, resumed = run_on(tmp_path / "part", stop=99, resume=True, every=every)
    assert resumed == result
    expected = [replace(report, head=None) for report in whole[min(stop, at) :]]
    # a checkpoint was written when the rounds were left, so none is lost; a run that was ended so stays so
    assert repr([replace(report, head=None, checkpoint=False) for report in rest]) == repr(
        [replace(report, checkpoint=False) for report in expected]
    )
    ledgers = [read_ledger(tmp_path / name / "ledger.jsonl") for name in ("part", "whole")]
    assert ledgers[0] == ledgers[1]


BOUNDARIES = {
    "examples": fp.Privacy(epsilon=3),
    "examples, Laplace": fp.Privacy(epsilon=100, delta=0, mechanism=fp.Laplace(), clip=fp.Clip(1.0, "l1")),
    "examples, batches": fp.Privacy(epsilon=3, sampling=fp.Poisson(0.5)),
    "examples, sums": fp.Privacy(epsilon=3, trust=fp.SecureAggregation(2)),
    "clients": fp.Privacy(epsilon=3, unit="client"),
    "clients' messages": fp.Privacy(epsilon=3, unit="client", noise_on="message"),
    "clients' messages, sums": fp.Privacy(epsilon=3, unit="client", noise_on="message", trust=fp.Central(0.5)),
}


@pytest.mark.filterwarnings("ignore:delta=")
@pytest.mark.parametrize("backend", list(BACKENDS))
@pytest.mark.parametrize("boundary", list(BOUNDARIES))
def test_nonfinite_gradient_equals_zero_gradient(boundary: str, backend: str):
    """Models, reports and ledger equal those of a client with zero gradients, bit for bit."""
    privacy = BOUNDARIES[boundary]
    steps = 3 if privacy.noise_on == "message" else 1

    def run(mark: int) -> tuple[fp.Training, list[RoundReport]]:
        training = fp.Training(
            # a whole client is broken, or zero, if one of its examples is
            clients(mark)[: 2 if privacy.unit == "client" else 4],
            fp.fedavg(0.5, local_steps=steps),
            privacy,
            rounds=3,
            seed=0,
            secret_seed=2,
            compute=fp.Compute(backend, device="cpu"),
        )
        return training, list(training)

    (broken, reports), (zero, expected) = run(10), run(11)
    assert torch.isfinite(broken.result().params).all()
    assert torch.equal(broken.result().params, zero.result().params)
    assert broken.result().to_json() | {"seconds": 0} == zero.result().to_json() | {"seconds": 0}
    assert reports == expected
    assert all(report.warning is None for report in reports)
    assert broken.ledger.records == zero.ledger.records
    counted = broken.broken_examples.tolist()
    assert counted[0] == 0
    assert counted[1] > 0, "its owner can see it"
    assert zero.broken_examples.sum() == 0


def test_exact_run_with_nonfinite_gradient_warns():
    with pytest.warns(UserWarning, match="round 1: the released model is not finite"):
        result = fp.train(clients(10), fp.fedavg(0.5), fp.Privacy(noise_on="none"), rounds=3)
    assert (result.ended, result.rounds, result.first_nonfinite) == ("nonfinite", 1, {"model": 1})
    assert "training failed" in str(result)
    strict(json.dumps(result.to_json()))


def test_python_stop_on_nothing_warns_once():
    with pytest.warns(UserWarning, match="the released model is not finite") as caught:
        result = fp.train(clients(), growing(), fp.Privacy(epsilon=3), rounds=8, stop_on="nothing")
    assert len([one for one in caught if "finite" in str(one.message)]) == 1
    assert (result.ended, result.rounds) == ("rounds", 8)
    assert "first not finite: model in round" in str(result)
