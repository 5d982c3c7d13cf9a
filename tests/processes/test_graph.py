"""Rows exchanged between processes that share a graph."""

from __future__ import annotations

from typing import Any

import networkx as nx
import pytest
import split_runs
import torch
from split_runs import Case, Outcome, finished, training
from test_same_run import GOSSIP, assert_same, in_one
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from workers import Workers

import fedpriv as fp
from fedpriv.clients.shard import ClientShard
from fedpriv.network import sharding
from fedpriv.network.engines import MESHES
from fedpriv.randomness.streams import Randomness

GRAPHS: dict[str, Any] = {
    "small": lambda: fp.Graph(nx.path_graph(12), mixing_steps=2),
    "sparse": lambda: fp.Graph(nx.connected_watts_strogatz_graph(1200, 4, 0.05, seed=0)),
    "some nodes": lambda: fp.Graph(nx.random_regular_graph(4, 600, seed=0), activity=fp.RandomNodes(0.3)),
    "directed": lambda: fp.Graph(nx.complete_graph(20), activity=fp.OnePeerExponential()),
}


def mixed(name: str, rounds: int, parallelism: str) -> tuple[list[Tensor], list[int]]:
    """Rows of all nodes after each round, and the number of rows received from other processes in a mixing step."""
    mesh, network = MESHES[parallelism](60.0), GRAPHS[name]()
    part = sharding.shard_clients(ClientShard(range(network.n_clients), [1] * network.n_clients, 1), mesh)
    shared = sharding.shard_network(network, part, mesh)
    rows = torch.randn(network.n_clients, 5, generator=torch.Generator().manual_seed(1)).double()[part.ids]
    found, heard = list[Tensor](), list[int]()
    for index in range(rounds):
        cohort = shared.participants(index, Randomness(3))
        some = shared.local_positions(cohort, rows)
        rows = shared.replace_rows(shared.mix(rows[some]), rows)
        found.append(torch.cat([*mesh.clients.all_gather_object(rows)]))
        found.append(torch.tensor(shared.numbers_sent))
        if parallelism == "clients":
            heard.append(sum(shared._border.receive_counts.values()))
    return found, heard


@pytest.mark.parametrize("name", GRAPHS)
def test_mixing_matches_one_process(workers: Workers, name: str) -> None:
    wanted, _ = mixed(name, 3, "none")
    for size in (2, 3):
        for found, _ in workers.of(size, mixed, name, 3, "clients"):
            for one, other in zip(found, wanted, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_only_border_neighbours_exchanged(workers: Workers) -> None:
    assert [heard for _, heard in workers.of(3, mixed, "small", 1, "clients")] == [[1], [2], [1]]
    links = GRAPHS["sparse"]().graph
    across = [{b if inside(a) else a for a, b in links.edges if inside(a) != inside(b)} for inside in (lower, upper)]
    assert [heard for _, heard in workers.of(2, mixed, "sparse", 1, "clients")] == [[len(nodes)] for nodes in across]
    assert len(across[0]) < 200


def lower(node: int) -> bool:
    return node < 600


def upper(node: int) -> bool:
    return node >= 600


def test_models_gathered_for_reports_only(workers: Workers) -> None:
    case = Case(GOSSIP, network="ring", rounds=5, more={"evaluate_every": 3})
    assert_same(workers.of(2, outcome_and_gathers, case)[0][0], in_one(case), 1e-9)
    assert [gathers for _, gathers in workers.of(2, outcome_and_gathers, case)] == [3, 3]  # rounds 3, 5, the result


def outcome_and_gathers(case: Case) -> tuple[Outcome, int]:
    gathers, gather_rows = [0], sharding.gather_rows

    def counted(*arguments: Any) -> Tensor:
        gathers[0] += 1
        return gather_rows(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharding, "gather_rows", counted)
        return finished(training(case, "clients")), gathers[0]


def run_with_overflowing_node(parallelism: str) -> tuple[str, int, bool]:
    """End, rounds, and whether local models are finite, if the last node's model overflows in round 1."""
    data = [TensorDataset(torch.full((4, 3), 1e25 if node == 6 else 0.5), torch.arange(4) % 3) for node in range(7)]
    clients = fp.make_clients(split_runs.SoftmaxRegression(3, 3), nn.CrossEntropyLoss(), data)
    exact, compute = fp.Privacy(noise_on="none"), fp.Compute(parallelism=parallelism, timeout=60.0)  # pyright: ignore
    more = {"network": fp.Graph(nx.path_graph(7)), "evaluate_every": 3, "compute": compute, "seed": 0}
    run = fp.Training(clients, fp.decentralized_sgd(1e20), exact, rounds=4, **more)  # pyright: ignore
    for _ in run:
        pass
    result = run.result()
    return result.ended, result.rounds, bool(torch.isfinite(run.progress.models).all())


def test_nonfinite_model_ends_run_in_all_processes(workers: Workers) -> None:
    assert run_with_overflowing_node("none") == ("nonfinite", 1, False)
    found = workers.of(3, run_with_overflowing_node, "clients")
    assert found == [("nonfinite", 1, True), ("nonfinite", 1, True), ("nonfinite", 1, False)]
