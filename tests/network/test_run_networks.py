"""The network of a run: its size, and what a run without one gets."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pytest
from error_texts import CNN, dataset, error_of
from torch import nn

import fedpriv as fp
from fedpriv.audit.target import AuditTarget
from fedpriv.config import forecast, load_config

RUN = Path(__file__).parents[1] / "run.yaml"
PRIVACY = fp.Privacy(epsilon=3)
ENTRY_POINTS: dict[str, Callable[..., object]] = {
    "train": fp.train,
    "Training": fp.Training,
    "plan": fp.plan,
    "compare": lambda clients, strategy, privacy, rounds, network: fp.compare(
        {"one": strategy}, lambda: clients, {"privacy": privacy, "rounds": rounds, "network": network}
    ),
    "audit": lambda clients, strategy, privacy, **more: AuditTarget.of(clients, strategy, privacy, **more).plan(),
}
NETWORKS: dict[str, tuple[Callable[[], Any], int]] = {
    "graph, too small": (lambda: fp.Graph(networkx.cycle_graph(3)), 3),
    "graph, too large": (lambda: fp.Graph(networkx.cycle_graph(5)), 5),
    "graph, with an activity": (lambda: fp.Graph(networkx.cycle_graph(3), activity=fp.RandomNodes(0.5)), 3),
    "star, too small": (lambda: fp.Star(3), 3),
    "star, too large": (lambda: fp.Star(5, fp.FixedCohort(2)), 5),
}


def clients(n: int = 4) -> list[fp.Client]:
    return fp.make_clients(CNN, nn.CrossEntropyLoss(), [dataset(20) for _ in range(n)])


@pytest.mark.parametrize("entry_point", ENTRY_POINTS)
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("strategy", [fp.fedavg(0.1), fp.decentralized_sgd(0.1)], ids=lambda strategy: strategy.name)
def test_network_size_mismatch_raises(entry_point: str, network: str, strategy: fp.Strategy) -> None:
    """A missing node or a node without a client would be found only after a release."""
    make, size = NETWORKS[network]
    message = error_of(lambda: ENTRY_POINTS[entry_point](clients(), strategy, PRIVACY, rounds=2, network=make()))
    assert f"network.n_clients = {size}: the run has 4 clients: create the" in message


def test_network_size_mismatch_writes_nothing(tmp_path: Path) -> None:
    message = error_of(
        lambda: fp.train(clients(), fp.fedavg(0.1), PRIVACY, rounds=2, network=fp.Star(5), folder=tmp_path / "run")
    )
    assert "network.n_clients = 5" in message
    assert not (tmp_path / "run").exists()


GOSSIP = [
    fp.gradient_tracking(0.1),
    fp.gradient_tracking_pair(0.1),
    fp.decentralized_sgd(0.1),
    fp.dual_averaging(),
]


def warned(run: Callable[[], object]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    return [str(warning.message) for warning in caught if "has no network" in str(warning.message)]


@pytest.mark.parametrize("strategy", GOSSIP, ids=lambda strategy: strategy.name)
def test_gossip_without_network_warns(strategy: fp.Strategy) -> None:
    (text,) = warned(lambda: fp.train(clients(), strategy, PRIVACY, rounds=2))
    assert "Write network=fedpriv.Graph(networkx.cycle_graph(4)) for a graph, or network=fedpriv.Star(4)" in text
    assert text in fp.plan(clients(), strategy, PRIVACY, rounds=2).warnings


@pytest.mark.parametrize(
    ("strategy", "n", "network"),
    [
        (fp.gradient_tracking(0.1), 4, fp.Star(4)),
        (fp.gradient_tracking(0.1), 4, fp.Graph(networkx.cycle_graph(4))),
        (fp.gradient_tracking(0.1), 1, None),
        (fp.fedavg(0.1), 4, None),
    ],
)
def test_chosen_network_does_not_warn(strategy: fp.Strategy, n: int, network: Any) -> None:
    assert warned(lambda: fp.train(clients(n), strategy, PRIVACY, rounds=2, network=network)) == []
    planned = fp.plan([20] * n, strategy, PRIVACY, rounds=2, network=network)
    assert not any("has no network" in text for text in planned.warnings)


def test_gossip_without_topology_warns_in_yaml() -> None:
    gossip = "strategy={name: decentralized_sgd, step_size: 0.1}"
    named = forecast(load_config(RUN, [gossip, "network.topology=star"])).warnings
    (text,) = set(forecast(load_config(RUN, [gossip])).warnings) - {*named}
    assert "Write network.topology: ring for a graph, or network.topology: star" in text


GRAPH: Any = networkx.cycle_graph(4)
NOT_A_GRAPH: dict[str, tuple[Any, str]] = {
    "matrix": (np.ones((4, 4)), "networkx.from_numpy_array(adjacency)"),
    "pairs": ([(0, 1)], "networkx.Graph(pairs)"),
    "ring": ("ring", "must be created with networkx.cycle_graph(10)"),
    "another word": ("moebius", "must be created with networkx.cycle_graph(10), networkx.from_numpy_array(adjacency)"),
}


@pytest.mark.parametrize("name", NOT_A_GRAPH)
def test_graph_wrong_type_suggests_networkx(name: str) -> None:
    given, shown = NOT_A_GRAPH[name]
    message = error_of(lambda: fp.Graph(given))
    assert message.startswith("network.graph = ") and shown in message


def test_network_as_text_suggests_graph() -> None:
    network: Any = "ring"
    for entry_point in (fp.train, fp.plan):
        message = error_of(
            lambda entry_point=entry_point: entry_point(clients(), fp.fedavg(0.1), PRIVACY, rounds=2, network=network)
        )
        assert "must be created with fedpriv.Graph(networkx.cycle_graph(10))" in message


def test_mixing_as_text_suggests_function() -> None:
    weights: Any = "metropolis"
    message = error_of(lambda: fp.Graph(GRAPH, weights))
    assert "must be created with fedpriv.network.mixing.metropolis" in message


def test_activity_function_suggests_link_function() -> None:
    function: Any = lambda round_index: [(round_index % 3, round_index % 3 + 1)]  # noqa: E731
    message = error_of(lambda: fp.Graph(GRAPH, activity=function))
    assert "fedpriv.LinkFunction(function)" in message
    network = fp.Graph(GRAPH, activity=fp.LinkFunction(function))
    planned = fp.plan([20] * 4, fp.decentralized_sgd(0.1), PRIVACY, rounds=3, network=network)
    assert planned.releases == 3


def test_activity_as_text_suggests_class() -> None:
    activity: Any = "random_nodes"
    assert "must be created with fedpriv.RandomNodes(rate=0.01)" in error_of(lambda: fp.Graph(GRAPH, activity=activity))
