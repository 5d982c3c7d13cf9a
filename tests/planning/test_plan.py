"""A plan in Python is that of the command line, before any data."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset
from typer.testing import CliRunner

import fedpriv as fp
from fedpriv.cli import app
from fedpriv.models import SoftmaxRegression

PRIVACY = fp.Privacy(epsilon=2.0, delta=1e-5, sampling=fp.Poisson(0.1))


class Unread(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Examples that nobody may read."""

    def __len__(self) -> int:
        return 300

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        raise AssertionError("an example was read")


def test_plan_equals_plan_of_training() -> None:
    data = [torch.utils.data.TensorDataset(torch.randn(n, 4), torch.arange(n) % 3) for n in (40, 60)]
    clients = fp.make_clients(nn.Linear(4, 3), nn.CrossEntropyLoss(), data)
    planned = fp.plan(clients, fp.fedavg(0.5), PRIVACY, rounds=7)
    run = fp.Training(clients, fp.fedavg(0.5), PRIVACY, rounds=7)
    assert planned.spent == run.plan.spent()
    assert planned.noise_multiplier == run.plan.privacy.noise_multiplier
    assert (planned.releases, planned.parameters, planned.examples) == (len(run.plan.records), 15, (40, 60))


def test_plan_reads_no_examples() -> None:
    clients = fp.make_clients(nn.Linear(4, 3), nn.CrossEntropyLoss(), [Unread(), Unread()])
    planned = fp.plan(clients, fp.fedavg(0.5), PRIVACY, rounds=7)
    of_sizes = fp.plan([300, 300], fp.fedavg(0.5), PRIVACY, rounds=7, model=nn.Linear(4, 3))
    assert str(of_sizes) == str(planned)
    assert "messages" not in fp.plan([300, 300], fp.fedavg(0.5), PRIVACY, rounds=7).rows()


def test_plan_relation_declared_or_public_sizes() -> None:
    """Only sizes given as numbers are public; a client's declared size is not."""
    loader = torch.utils.data.DataLoader(Unread())
    privacy = fp.Privacy(epsilon=2.0, relation="add_remove")
    declared = [fp.Client(nn.Linear(4, 3), nn.CrossEntropyLoss(), loader, public_size=250)]
    assert str(fp.plan(declared, fp.fedavg(0.5), privacy, rounds=1).spent.relation) == "add_remove"
    assert str(fp.plan([250], fp.fedavg(0.5), privacy, rounds=1).spent.relation) == "add_remove(sizes public)"


def test_plan_text_equals_command_line(tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text(
        "data: {name: digits, partition: {kind: iid, n_clients: 3}}\nmodel: softmax\nloss: cross_entropy\n"
        "strategy: {name: gradient_tracking}\nnetwork: {topology: ring}\n"
        "privacy: {epsilon: 2.0, sampling: {poisson: {rate: 0.1}}}\nrounds: 7\n"
    )
    done = CliRunner().invoke(app, ["plan", str(config)])
    assert done.exit_code == 0, done.output
    sizes = json.loads(CliRunner().invoke(app, ["plan", str(config), "--json"]).output)["examples"]
    made = fp.plan(
        [sizes[0]] * 3,
        fp.gradient_tracking(),
        fp.Privacy(epsilon=2.0, sampling=fp.Poisson(0.1)),
        rounds=7,
        network=fp.Graph(nx.cycle_graph(3)),
        model=SoftmaxRegression(64, 10),
    )
    printed = [line for line in done.output.splitlines() if not line.startswith("warning")]
    assert [line.strip() for line in str(made).splitlines() if not line.startswith("warning")] == [
        line.strip() for line in printed
    ]
    assert "<table>" in made._repr_html_()


@pytest.mark.parametrize(
    ("clients", "error"),
    [([], "at least one client"), ([0], "at least 1"), ([nn.Linear(1, 1)], "clients")],
)
def test_plan_invalid_clients_raise(clients: list[object], error: str) -> None:
    with pytest.raises(fp.ConfigError, match=error):
        fp.plan(clients, fp.fedavg(0.5), PRIVACY, rounds=1)  # pyright: ignore


def test_plan_unknown_argument_raises() -> None:
    with pytest.raises(fp.ConfigError, match="rounds"):
        fp.plan([300], fp.fedavg(0.5), PRIVACY, epochs=3)  # pyright: ignore


@pytest.mark.parametrize(
    "settings",
    [
        {"noise_multiplier": 1e19, "sampling": fp.Poisson(0.1)},
        {"noise_multiplier": 1e19, "sampling": fp.Cyclic(2), "noise": fp.BSR(2)},
        {"noise_multiplier": 1e19, "unit": "client", "trust": fp.Central(cohort_rate=0.5)},
        {"noise_multiplier": 1e6, "mechanism": fp.Laplace(), "clip": fp.Clip(1.0, norm="l1")},
        {"noise_multiplier": 1e-19, "sampling": fp.Poisson(0.1)},
        {"noise_multiplier": 1e-19, "mechanism": fp.Laplace(), "clip": fp.Clip(1.0, norm="l1")},
    ],
    ids=str,
)
def test_plan_epsilon_zero_or_infinite_is_reported(settings: dict[str, Any]) -> None:
    """Other settings were compared at this epsilon, for which no noise is computed: `plan` raised, `train` ran."""
    spent = fp.plan([200] * 4, fp.fedavg(0.1), fp.Privacy(**settings), rounds=2).spent
    assert spent.epsilon in (0, math.inf) or spent.epsilon > 1e15
