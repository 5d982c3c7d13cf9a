"""`keep="best"`: the result has the model of the round that tested best, and its choice costs no epsilon."""

from __future__ import annotations

import json
import os
import pty
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from typer.testing import CliRunner

import fedpriv as fp
from fedpriv.cli import app
from fedpriv.models import SoftmaxRegression
from fedpriv.reports.report import Run

RUN = Path(__file__).parents[1] / "run.yaml"
DRAW = torch.Generator().manual_seed(0)
DATA = [TensorDataset(torch.rand(40, 4, generator=DRAW), torch.arange(40) % 2) for _ in range(3)]
TEST = TensorDataset(torch.rand(50, 4, generator=DRAW), torch.arange(50) % 2)


def options(**more: Any) -> dict[str, Any]:
    return {
        "clients": fp.make_clients(SoftmaxRegression(4, 2), nn.CrossEntropyLoss(), DATA),
        "strategy": fp.fedavg(0.5),
        "privacy": fp.Privacy(epsilon=1, delta=1e-5),
        "rounds": 6,
        "seed": 0,
        "secret_seed": 1,
        "test": TEST,
        **more,
    }


def models_of_rounds(**more: Any) -> list[Tensor]:
    training = fp.Training(**options(**more))
    return [training.progress.models.clone() for _ in training]


def scored(*values: float) -> Callable[[Tensor, Tensor], float]:
    """A metric that has these values, the first at the trial before round 1, and the last from then on."""
    left = [0.0, *values]

    def metric(outputs: Tensor, targets: Tensor) -> float:
        return left.pop(0) if len(left) > 1 else left[0]

    return metric


SCORED = fp.Stop("m", 5, better="higher", min_rounds=6)
VALUES = (0.1, 0.2, 0.9, 0.3, 0.4, 0.5)


def test_best_model_equals_model_of_best_round() -> None:
    result = fp.train(**options(keep="best", stop=SCORED, metrics={"m": scored(*VALUES)}))
    models = models_of_rounds()
    assert torch.equal(result.params, models[2][0])
    assert not torch.equal(result.params, models[5][0])
    assert result.measures["kept"] == {"round": 3, "metric": "test_m", "rounds_tested": 6}
    assert result.rounds == 6
    kept = torch.nn.utils.parameters_to_vector(result.model.parameters())
    assert torch.equal(kept, result.params)


def test_best_model_metrics_of_same_round() -> None:
    result = fp.train(**options(keep="best"))
    accuracies = list(result.history["test_accuracy"])
    assert result.test_accuracy == max(accuracies)
    assert result.measures["kept"]["round"] == accuracies.index(max(accuracies)) + 1


def test_best_model_privacy_cost_unchanged() -> None:
    best = fp.train(**options(keep="best"))
    assert best.spent == fp.train(**options()).spent
    assert "optimistic" in str(best)
    assert "optimistic" not in str(fp.train(**options()))


def test_best_model_written_to_clients() -> None:
    arguments = options(keep="best", stop=SCORED, metrics={"m": scored(*VALUES)})
    result = fp.train(**arguments)
    parameters = arguments["clients"][1].model.parameters()
    assert torch.equal(torch.nn.utils.parameters_to_vector(parameters), result.params)


def test_best_model_on_graph_keeps_all_nodes() -> None:
    graph: dict[str, Any] = {
        "strategy": fp.decentralized_sgd(fp.StepSize(0.5)),
        "network": fp.Graph(nx.path_graph(3)),
    }
    result = fp.train(**options(keep="best", stop=SCORED, metrics={"m": scored(*VALUES)}, **graph))
    assert torch.equal(result.node_params, models_of_rounds(**graph)[2])
    assert torch.equal(result.params, result.node_params.mean(0))


def test_best_model_survives_resume(tmp_path: Path) -> None:
    more: dict[str, Any] = {"keep": "best", "stop": SCORED, "folder": tmp_path, "checkpoint_every": 1}
    training = fp.Training(**options(**more, metrics={"m": scored(*VALUES)}))
    for report in training:
        if report.round == 5:
            break
    assert training.folder is not None
    training.folder.close()
    result = fp.train(**options(**more, metrics={"m": scored(0.4)}, resume=True))
    assert result.measures["kept"]["round"] == 3
    assert torch.equal(result.params, models_of_rounds()[2][0])
    state = torch.load(tmp_path / "model.pt")
    assert torch.equal(torch.cat([value.flatten() for value in state.values()]), result.params)


def test_best_model_ignores_nan() -> None:
    nan = float("nan")
    result = fp.train(**options(keep="best", stop=SCORED, metrics={"m": scored(nan, 0.2, nan, 0.1, nan, nan)}))
    assert result.measures["kept"] == {"round": 2, "metric": "test_m", "rounds_tested": 6}


def test_best_model_without_test_data_raises() -> None:
    with pytest.raises(fp.ConfigError, match="pass test=dataset"):
        fp.train(**options(keep="best", test=None))


def test_best_model_in_yaml(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = CliRunner().invoke(app, ["train", str(RUN), "rounds=6", "log.keep=best", "--out", str(folder)])
    assert done.exit_code == 0, done.stderr
    found = json.loads((folder / "result.json").read_text())
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert found["test_accuracy"] == max(row["test_accuracy"] for row in rows if "test_accuracy" in row)
    assert "optimistic" in done.stdout
    assert Run.read(folder).integrity == "sound"


EARLY = (0.9, 0.1, 0.1, 0.1, 0.2, 0.1)
"""A first round that tests well by chance."""


@pytest.mark.parametrize(
    ("stop", "more", "rounds"),
    [
        (fp.Stop("m", 2, better="higher"), {"rounds": 6}, 6),
        (fp.Stop("m", 2, better="higher", min_rounds=0), {}, 3),
        (fp.Stop("m", 1, better="higher", min_rounds=3), {}, 4),
        (fp.Stop("m", 2, better="higher"), {"privacy": fp.Privacy(noise_on="none"), "secret_seed": None}, 3),
    ],
    ids=["private", "from the first", "from the third", "not private"],
)
def test_stop_waits_for_min_rounds(stop: fp.Stop, more: dict[str, Any], rounds: int) -> None:
    result = fp.train(**options(stop=stop, metrics={"m": scored(*EARLY)}, **more))
    assert result.rounds == rounds


def test_progress_shown_by_default_on_a_terminal() -> None:
    """In a pseudo-terminal, and not where standard error is a file."""
    code = (
        "import fedpriv, torch; from torch import nn; from torch.utils.data import TensorDataset as T;"
        "c = fedpriv.make_clients(nn.Linear(2, 2), nn.CrossEntropyLoss(), [T(torch.rand(9, 2), torch.arange(9) % 2)]);"
        "fedpriv.train(c, fedpriv.fedavg(0.1), fedpriv.Privacy(epsilon=1), rounds=3)"
    )

    def shown(make_terminal: bool) -> bytes:
        reader, writer = pty.openpty() if make_terminal else os.pipe()
        child = os.posix_spawn(
            sys.executable,
            [sys.executable, "-W", "ignore", "-c", code],
            {**os.environ, "TERM": "xterm", "COLUMNS": "100"},
            file_actions=[(os.POSIX_SPAWN_DUP2, writer, 2)],
        )
        os.close(writer)
        text = b""
        try:
            while part := os.read(reader, 65536):
                text += part
        except OSError:  # the end of a terminal
            pass
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, text
        return text

    assert b"epsilon spent" in shown(make_terminal=True)
    assert b"epsilon spent" not in shown(make_terminal=False)
