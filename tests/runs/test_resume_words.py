"""A resume with changed settings raises an error with their old and new values."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch
from plain_torch import rows
from torch import nn
from typer.testing import CliRunner

import fedpriv as fp
from fedpriv.cli import app
from fedpriv.runs.settings_text import format_difference, format_settings

PRIVACY = fp.Privacy(epsilon=2.0, clip=fp.Clip(1.0))


def run(folder: Path, **changed: Any) -> fp.Training:
    torch.manual_seed(0)
    draw = torch.Generator().manual_seed(0)
    n = changed.pop("n", 12)
    data = [rows(torch.randn(n, 4, generator=draw), torch.arange(n) % 3) for _ in range(2)]
    model = changed.pop("model", nn.Linear(4, 3))
    clients = fp.make_clients(model, nn.CrossEntropyLoss(), data)
    strategy, privacy = changed.pop("strategy", fp.fedavg(0.5)), changed.pop("privacy", PRIVACY)
    return fp.Training(clients, strategy, privacy, folder=folder, **{"rounds": 6, "checkpoint_every": 1, **changed})


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    first = run(tmp_path)
    for report in first:
        if report.round == 3:
            break
    first.save()
    del first
    gc.collect()
    return tmp_path


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "rounds": ({"rounds": 9}, r"rounds: 6 then, 9 now"),
    "step": ({"strategy": fp.fedavg(0.25)}, r"learning_rate: 0.5 then, 0.25 now"),
    "strategy": ({"strategy": fp.inexact_admm()}, r"strategy.local_step: \w+ then, \w+ now"),
    "epsilon": ({"privacy": fp.Privacy(epsilon=3.0)}, r"privacy.epsilon: 2.0 then, 3.0 now"),
    "clip": ({"privacy": fp.Privacy(epsilon=2.0, clip=fp.Clip(2.0))}, r"privacy.clip.bound: 1.0 then, 2.0 now"),
    "network": (
        {"network": fp.Graph(nx.path_graph(2)), "strategy": fp.decentralized_sgd()},
        "network: Star then, Graph now",
    ),
    "sizes": ({"n": 13}, r"sizes: \[12, 12\] then, \[13, 13\] now"),
    "model": ({"model": nn.Sequential(nn.Linear(4, 3))}, "model: Linear then, Sequential now"),
    "seed": ({"seed": 5}, "seed: None then, 5 now"),
    "secret seed": ({"secret_seed": 5}, "does not list the noise itself"),
}


@pytest.mark.filterwarnings("ignore:a secret_seed is given")
@pytest.mark.parametrize("name", CHANGES)
def test_resume_with_changed_setting_raises(name: str, stopped: Path) -> None:
    changed, message = CHANGES[name]
    with pytest.raises(fp.FedprivError, match=message):
        run(stopped, resume=True, **changed)


def test_resume_with_same_settings_continues(stopped: Path) -> None:
    assert [report.round for report in run(stopped, resume=True)] == [4, 5, 6]


def test_cli_resume_names_changed_setting(tmp_path: Path) -> None:
    config, folder = tmp_path / "run.yaml", tmp_path / "run"
    config.write_text(
        "data: {name: digits, partition: {kind: iid, n_clients: 3}}\nmodel: softmax\nloss: cross_entropy\n"
        "strategy: {name: fedavg, learning_rate: 0.5}\nprivacy: {epsilon: 2.0}\nrounds: 3\n"
    )
    assert CliRunner().invoke(app, ["train", str(config), "--out", str(folder)]).exit_code == 0
    written = folder / "config.yaml"
    written.write_text(written.read_text().replace("learning_rate: 0.5", "learning_rate: 0.25"))
    done = CliRunner().invoke(app, ["resume", str(folder)])
    assert done.exit_code != 0
    assert "learning_rate: 0.5 then, 0.25 now" in done.output.replace("\n", " ")


def test_many_differences_abbreviated() -> None:
    before, now = ({f"a{i}": str(i + move) for i in range(8)} for move in (0, 1))
    text = format_difference(before, now)
    assert text.startswith("a0: 0 then, 1 now; ")
    assert text.endswith("; and 3 more")
    assert format_difference(before, before) == ""
    assert format_settings(x={"y": torch.zeros(2)}) == {"x.y": "a tensor of shape (2,)"}
