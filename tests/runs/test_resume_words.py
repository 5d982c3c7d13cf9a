"""A resume with other settings says which, with the old and the new value."""

from __future__ import annotations

import gc
from dataclasses import replace
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
from fedpriv.runs.checkpoint import Checkpoint
from fedpriv.runs.settings_in_words import difference, settings_in_words

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
    "secret seed": ({"secret_seed": 5}, "another secret_seed: leave it out"),
}


@pytest.mark.filterwarnings("ignore:a secret_seed is given")
@pytest.mark.parametrize("name", CHANGES)
def test_what_differs_is_named(name: str, stopped: Path) -> None:
    changed, message = CHANGES[name]
    with pytest.raises(fp.FedprivError, match=message):
        run(stopped, resume=True, **changed)


def test_the_same_settings_go_on(stopped: Path) -> None:
    assert [report.round for report in run(stopped, resume=True)] == [4, 5, 6]


def test_the_command_line_names_them_too(tmp_path: Path) -> None:
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


def test_many_differences_are_counted() -> None:
    before, now = ({f"a{i}": str(i + move) for i in range(8)} for move in (0, 1))
    told = difference(before, now)
    assert told.startswith("a0: 0 then, 1 now; ")
    assert told.endswith("; and 3 more")
    assert difference(before, before) == ""
    assert settings_in_words(x={"y": torch.zeros(2)}) == {"x.y": "a tensor of shape (2,)"}


PROGRAM = """
import torch
from torch import nn
SEEN, SCALE, FACTOR = [], 1.0, {factor}

def scaled(values, by={by}):
    return values * by * FACTOR

class Net(nn.Linear):
    width = {width}
    def forward(self, inputs):
        return super().forward(inputs) {operation}

def loss(outputs, labels):
    if len(SEEN) < 1000 and SCALE:
        SEEN.append(1.0)
    return scaled(nn.functional.cross_entropy(outputs, labels))
"""
SAME = {"factor": 1, "by": 1, "width": 4, "operation": "* 1"}
EDITS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a number of the module": ({"factor": 2}, ["FACTOR, which scaled reads"]),
    "a default": ({"by": 2}, ["defaults of scaled"]),
    "a class attribute": ({"width": 5}, ["Net.width"]),
    "a method": ({"operation": "+ 1"}, ["the code of Net.forward"]),
    "several": ({"factor": 2, "by": 2}, ["defaults of scaled", "FACTOR, which scaled reads"]),
}


def programmed(folder: Path, names: dict[str, Any], **options: Any) -> fp.Training:
    torch.manual_seed(0)
    data = [rows(torch.ones(6, 4), torch.arange(6) % 3) for _ in range(2)]
    clients = fp.make_clients(names["Net"](4, 3), names["loss"], data)
    return fp.Training(clients, fp.fedavg(0.5), PRIVACY, rounds=6, checkpoint_every=1, folder=folder, **options)


def notebook(**edit: Any) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(PROGRAM.format(**{**SAME, **edit}), names)
    names["SEEN"].extend([1.0] * 1000)  # it grows no more
    return names


def stop(run: fp.Training) -> None:
    for report in run:
        if report.round == 2:
            break
    run.save()
    assert run.folder is not None
    run.folder.close()


@pytest.mark.parametrize("name", EDITS)
def test_code_that_differs_is_named(name: str, tmp_path: Path) -> None:
    edit, parts = EDITS[name]
    stop(programmed(tmp_path, notebook()))
    with pytest.raises(fp.FedprivError, match="other code of your own") as error:
        programmed(tmp_path, notebook(**edit), resume=True)
    assert f"(what differs: {'; '.join(parts)})" in str(error.value)
    assert [report.round for report in programmed(tmp_path, notebook(), resume=True)] == [3, 4, 5, 6]


def test_a_value_that_changes_while_rounds_run_is_named(tmp_path: Path) -> None:
    """In the same kernel of a notebook nobody has edited anything: the error must say which value it is."""
    names = notebook()
    names["SEEN"].clear()
    stop(programmed(tmp_path, names))
    with pytest.raises(fp.FedprivError, match=r"what differs: SEEN, which loss reads\)"):
        programmed(tmp_path, names, resume=True)


def test_a_checkpoint_of_an_earlier_version_names_what_it_may_be(tmp_path: Path) -> None:
    stop(programmed(tmp_path, notebook()))
    saved = Checkpoint.load(tmp_path / "checkpoint.pt", torch.device("cpu"))
    replace(saved, code_parts={}).save(tmp_path / "checkpoint.pt")
    with pytest.raises(fp.FedprivError, match="what differs: a setting of the loss or of a layer, or the code"):
        programmed(tmp_path, notebook(factor=2), resume=True)
