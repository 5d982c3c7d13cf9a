"""The folder of a Python run has the files of `fedpriv train`, and every command reads it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import networkx as nx
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset
from typer.testing import CliRunner

import fedpriv as fp
from fedpriv.cli import app
from fedpriv.config import build, load_config
from fedpriv.errors import LedgerError
from fedpriv.models import SoftmaxRegression
from fedpriv.reports.report import Run

CONFIG = Path(__file__).parents[1] / "run.yaml"
PRIVACY = fp.Privacy(epsilon=3, delta=1e-5)
DRAW = torch.Generator().manual_seed(0)
DATA = [TensorDataset(torch.rand(40, 4, generator=DRAW), torch.arange(40) % 2) for _ in range(3)]


def options(folder: Path, **more: object) -> dict[str, object]:
    clients = fp.make_clients(SoftmaxRegression(4, 2), nn.CrossEntropyLoss(), DATA)
    test = TensorDataset(torch.rand(20, 4, generator=torch.Generator().manual_seed(1)), torch.arange(20) % 2)
    return {
        "clients": clients,
        "strategy": fp.fedavg(0.1),
        "privacy": PRIVACY,
        "rounds": 8,
        "test": test,
        "folder": folder,
        "checkpoint_every": 3,
        **more,
    }


def cli(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == code, done.stderr
    return done.stdout + done.stderr


def leave(folder: Path, rounds: int, **more: object) -> None:
    """Trains some rounds and stops, as a program that is interrupted."""
    training = fp.Training(**options(folder, **more))
    for report in training:
        if report.round == rounds:
            break
    assert training.folder is not None
    training.folder.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("python") / "run"
    fp.train(**options(path))
    return path


def test_python_folder_has_same_files(folder: Path, tmp_path: Path) -> None:
    cli("train", str(CONFIG), "rounds=2", "log.tensorboard=false", "log.csv=false", "--out", str(tmp_path / "yaml"))
    of_yaml = {path.name for path in (tmp_path / "yaml").iterdir()} - {"report.png"}
    of_python = {path.name for path in folder.iterdir()} - {"report.png", ".lock"}
    assert of_python - {"settings.json"} == of_yaml - {"config.yaml"}


def test_python_folder_has_model_and_result(folder: Path) -> None:
    model = SoftmaxRegression(4, 2)
    model.load_state_dict(torch.load(folder / "model.pt"))
    result = json.loads((folder / "result.json").read_text())
    assert (result["ended"], result["rounds"], result["epsilon"]) == ("rounds", 8, pytest.approx(3, abs=1e-3))


@pytest.mark.parametrize("command", ["show", "account", "statement", "watch"])
def test_python_folder_read_by_commands(folder: Path, command: str) -> None:
    text = cli(command, str(folder))
    assert "not finished" not in text
    assert "3" in text


def test_python_folder_report_shows_settings(folder: Path, tmp_path: Path) -> None:
    cli("report", str(folder), "--out", str(tmp_path / "a.html"))
    page = (tmp_path / "a.html").read_text()
    assert "Settings (settings.json)" in page
    assert "SoftmaxRegression" in page


def test_python_folder_title_and_plan(folder: Path) -> None:
    run = Run.read(folder)
    assert run.title == "fedavg: SoftmaxRegression on data from Python (TensorDataset)"
    assert (run.target, run.rounds, run.integrity) == (3, 8, "sound")


@pytest.mark.parametrize("words", [["resume"], ["audit"], ["train", "rounds=9", "--extend"]])
def test_python_folder_unsupported_command_raises(folder: Path, words: list[str]) -> None:
    assert "contains the run of a Python program" in cli(*words, str(folder), code=2)


def test_python_folder_changed_settings_altered(tmp_path: Path) -> None:
    fp.train(**options(tmp_path / "run"))
    path = tmp_path / "run" / "settings.json"
    path.write_text(path.read_text().replace('"rounds": 8', '"rounds": 9'))
    run = Run.read(tmp_path / "run")
    assert run.integrity == "altered"
    assert "settings.json has changed since the run began" in run.findings[0].text


def test_history_after_resume_complete(tmp_path: Path) -> None:
    """The rounds past the checkpoint are repeated with the same noise: their lines stay."""
    leave(tmp_path, 5)
    result = fp.train(**options(tmp_path, resume=True))
    assert list(result.history["round"]) == list(range(1, 9))
    assert "head" not in result.history
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == list(range(1, 9))
    assert Run.read(tmp_path).integrity == "sound"


def test_abandoned_run_shown_as_unfinished(tmp_path: Path) -> None:
    leave(tmp_path, 5)
    assert not (tmp_path / "result.json").exists()
    assert "5 so far; the run is not finished" in cli("show", str(tmp_path))


def test_iteration_writes_result(tmp_path: Path) -> None:
    """A program that iterates and never asks for the result leaves a finished folder, too."""
    for _ in fp.Training(**options(tmp_path)):
        pass
    assert Run.read(tmp_path).result is not None


def test_new_run_in_used_folder_raises(tmp_path: Path) -> None:
    fp.train(**options(tmp_path))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.suffix}
    with pytest.raises(LedgerError, match="is the ledger of another run"):
        fp.train(**options(tmp_path, rounds=9))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.suffix} == before


@pytest.mark.parametrize("resumed", [False, True])
def test_own_sink_on_metrics_file_no_duplicates(tmp_path: Path, resumed: bool) -> None:
    """A program that wrote the metrics itself, as it had to once, still works, also on a resume."""
    more: dict[str, object] = {}
    if resumed:
        leave(tmp_path, 5)
        more["resume"] = True
    fp.train(**options(tmp_path, sinks=[fp.sinks.Jsonl(tmp_path / "metrics.jsonl")], **more))
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == list(range(1, 9))


def test_python_folder_extended(tmp_path: Path) -> None:
    fp.train(**options(tmp_path / "a"))
    more = options(tmp_path / "b", extend=tmp_path / "a", rounds=10, privacy=fp.Privacy(epsilon=4, delta=1e-5))
    result = fp.train(**more)
    assert list(result.history["round"]) == list(range(1, 11))
    assert Run.read(tmp_path / "b").integrity == "sound"


def test_python_folder_graph_drawn(tmp_path: Path) -> None:
    graph = fp.Graph(nx.path_graph(3))
    fp.train(**options(tmp_path / "run", strategy=fp.decentralized_sgd(fp.StepSize(0.1)), network=graph))
    cli("report", str(tmp_path / "run"), "--out", str(tmp_path / "a.html"))
    assert "Who sends to whom" in (tmp_path / "a.html").read_text()


BLOCKS = {
    "batches": (fp.Privacy(epsilon=3, sampling=fp.Cyclic(4), noise=fp.BSR(4)), None),
    "cohorts": (
        fp.Privacy(epsilon=8, unit="client", trust=fp.Central(), noise=fp.BSR(2)),
        fp.Star(3, fp.CyclicCohort(3)),
    ),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_python_folder_cyclic_blocks_sound(tmp_path: Path, name: str) -> None:
    privacy, network = BLOCKS[name]
    fp.train(**options(tmp_path, privacy=privacy, network=network))
    assert Run.read(tmp_path).integrity == "sound"


def test_python_folder_non_private_infinite_epsilon(tmp_path: Path) -> None:
    fp.train(**options(tmp_path, privacy=fp.Privacy(noise_on="none")))
    run = Run.read(tmp_path)
    assert run.integrity == "sound"
    assert run.spent is not None
    assert math.isinf(run.spent.epsilon)


def test_build_writes_configuration(tmp_path: Path) -> None:
    """`fedpriv resume` resumes a run that a Python program built from a configuration."""
    training = build(load_config(CONFIG, ["rounds=3"]), tmp_path)
    for report in training:
        if report.round == 1:
            break
    assert training.folder is not None
    training.folder.close()
    assert not (tmp_path / "settings.json").exists()
    assert "epsilon=" in cli("resume", str(tmp_path))
