"""Dual averaging as published: its fast runs against the library's, and each experiment at tiny sizes."""

from __future__ import annotations

import math

import networkx as nx
import numpy as np
import pytest
import torch
from dual_averaging import DUAL_AVERAGING, epsilons
from dual_averaging_runs import METHODS, NODES, Data, Method, Rounds, Setting, noise, of_links, run, true_epsilon
from experiment import Bench
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.models import LinearSVM, resolve_loss
from fedpriv.network.mixing import metropolis
from fedpriv.papers import claims
from fedpriv.randomness.streams import Randomness
from fedpriv.strategies.proximal import L1, L2

# so few rounds that no two nodes with slope 0 meet twice: the library takes unchanged duals for inactive ones
ROUNDS, DIM = 24, 3


def rows(count: int = NODES) -> tuple[torch.Tensor, torch.Tensor]:
    drawn = np.random.default_rng(0).standard_normal((count, DIM))
    x = torch.from_numpy(drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).float()
    return x, torch.where(x[:, 0] > 0.1, 1.0, -1.0)


def drawn_by(network: fp.Graph, slots: int) -> Method:
    """The rounds of a library's network, as slots."""
    pairs, nodes, mixing = [], [], []
    for k in range(ROUNDS):
        active = network.participants(k, Randomness(3)).tolist()
        nodes.append(active)
        if isinstance(network.activity, fp.RandomEdges):
            links = network.activity.links(network.graph, k, Randomness(3).stream("topology", k)).edges
            pairs.append(list(links))
        else:
            mixing.append(network.current.toarray())
    if pairs:
        rounds = of_links(np.array(pairs)[:, None])
    else:
        shape = ROUNDS, 1, slots
        rounds = Rounds(np.array(nodes).reshape(shape), np.ones(shape, bool), np.float32(mixing)[:, None])
    return Method("library", network.active_fraction, lambda *_: rounds)


@pytest.mark.parametrize("regularizer", ["l2", "l1"])
@pytest.mark.parametrize("activity", [fp.RandomEdges(1), fp.RandomEdges(2), fp.ExactNodes(4), None], ids=str)
def test_published_run_equals_library_run(activity, regularizer):
    """One record a node and no noise: the only draws left are the links, which both take from the library."""
    x, y = rows()
    network = fp.Graph(nx.complete_graph(NODES), activity=activity)
    h, power, gamma, gamma_power = (L2(0.05), 1.0, 2.0, 0.0) if regularizer == "l2" else (L1(0.05), 0.0, 0.5, 0.5)
    strategy = fp.dual_averaging(
        h,
        weight_power=power,
        gamma=gamma,
        gamma_power=gamma_power,
        active_fraction=network.active_fraction,
        inactive="literal",
    )
    data = [TensorDataset(x[i : i + 1], (y[i : i + 1] > 0).long()) for i in range(NODES)]
    clients = fp.make_clients(LinearSVM(DIM), resolve_loss("hinge"), data)
    done = fp.train(clients, strategy, fp.Privacy(noise_on="none"), rounds=ROUNDS, network=network, seed=3)
    method = drawn_by(network, 4) if activity else Method("all", 1.0)
    setting = Setting(regularizer, network.active_fraction, gamma, 0.05)
    owned = np.arange(NODES).reshape(NODES, 1)
    ((average, active),) = run(Data(x, y, owned), method, setting, [0.0], ROUNDS, [ROUNDS], 1, 0)
    torch.testing.assert_close(average[0, 0].float(), done.params, atol=1e-5, rtol=1e-4)
    assert 0 < active <= ROUNDS


def test_slots_of_links_have_metropolis_weights():
    """Two links that share a node in each possible place, and two that do not."""
    for pairs in ([[0, 1], [2, 3]], [[0, 1], [1, 2]], [[0, 1], [0, 2]], [[1, 2], [0, 1]], [[0, 2], [1, 2]]):
        drawn = of_links(np.array([[pairs]]))
        graph = nx.empty_graph(4)
        graph.add_edges_from(pairs)
        values, mixed = np.arange(4.0), np.arange(4.0)
        mixed[drawn.nodes[0, 0]] = drawn.mixing[0, 0] @ values[drawn.nodes[0, 0]]
        assert mixed == pytest.approx(metropolis(graph) @ values)
        assert drawn.first.sum() == len({node for pair in pairs for node in pair})


@pytest.mark.parametrize("name", METHODS)
def test_noise_of_average_has_variance_of_active_rounds(name):
    """Without slopes (y = 0), z after a round is a mean of nodes whose sum has the variance of the active nodes."""
    zeros = Data(torch.zeros(NODES, 4000), torch.zeros(NODES), np.arange(NODES).reshape(NODES, 1))
    method = METHODS[name]
    setting = Setting("l2", method.iota, gamma=1.0, weight=1e-12)
    (_, (average, _)) = run(zeros, method, setting, [0.0, 0.5], 2, [1, 2], 1, 0)
    active = {"one": 2, "four": 4, "all": 20, "all_longer": 20}.get(name, 4)  # two links share a node here or not
    # x of round 2 comes from the noise of round 1; the average weighs it by 2 / 3
    expected = 2 / 3 * 0.5 * math.sqrt(active) / NODES
    assert average[0, 0].abs().max() == 0
    assert float(average[0, 1].std()) == pytest.approx(expected, rel=0.05 if name != "two" else 0.2)


def test_true_epsilon_is_that_of_the_claim_at_mean_rounds():
    method, q = METHODS["one"], 50
    rounds = method.rounds(q)
    assert rounds == 1500 and noise(method, 0.8, q, rounds) == pytest.approx(1.2608, rel=1e-4)
    found = true_epsilon(method, 0.8, q, rounds, active=150)
    assert found == pytest.approx(claims.dual_averaging(0.8, rounds, q, 0.1, sensitivity=2.0).messages)
    assert true_epsilon(method, 0.8, q, rounds, active=180) > found > 0.8


@pytest.fixture
def small(monkeypatch):
    """Made-up rows in place of the files."""
    import dual_averaging
    import svm_problem
    from scipy import sparse

    def made_up(name: str, *_: object) -> tuple[sparse.csr_array, np.ndarray]:
        x, y = rows(NODES * 100)
        return sparse.csr_array(x.double().numpy()), y.double().numpy()

    monkeypatch.setenv("FEDPRIV_DATA", "none")
    for module in (dual_averaging, svm_problem):
        monkeypatch.setattr(module, "load", made_up)
        monkeypatch.setattr(module, "load_test", made_up)
    dual_averaging._data.cache_clear()
    yield
    dual_averaging._data.cache_clear()


@pytest.mark.parametrize("experiment", DUAL_AVERAGING, ids=lambda one: one.name)
def test_experiment_finds_published_order_on_made_up_rows(experiment, small, tmp_path):
    bench = Bench("quick", tmp_path, 1)
    found = experiment.run(bench)
    bench.finish(experiment, found)
    assert (tmp_path / "picture.png").stat().st_size > 5000
    assert all(math.isfinite(row.ours) and row.ours > 0 and (row.true or 0) > 0 for row in found.rows)
    ours = {row.setting: row.ours for row in found.rows}
    links = [value for key, value in ours.items() if "1 link, iota 0.1" in key]
    assert links
    if experiment.run is not epsilons:
        return
    by_method = {name: [v for key, v in ours.items() if METHODS[name].name in key] for name in ("one", "two", "all")}
    for gaps in by_method.values():
        assert gaps[0] > gaps[-1]  # falls with epsilon
    assert max(by_method["one"][0], by_method["two"][0]) < by_method["all"][0]
