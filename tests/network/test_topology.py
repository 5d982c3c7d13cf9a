"""Graphs by name, from files, and the weights on them."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch
from counting_calls import count_calls
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

import fedpriv as fp
from fedpriv.network import activity, mixing, topology
from fedpriv.network.graph import Graph, graph_line
from fedpriv.randomness.streams import Randomness

DEGREES = {
    "ring": (8, {}, 2.0),
    "complete": (8, {}, 7.0),
    "hypercube": (8, {}, 3.0),
    "torus": (12, {"rows": 3}, 4.0),
    "grid": (4, {"rows": 2}, 2.0),
    "path": (8, {}, 14 / 8),
    "hub": (8, {}, 14 / 8),
    "exponential": (8, {}, 5.0),
    "random_regular": (8, {"degree": 3}, 3.0),
    "watts_strogatz": (10, {"neighbours": 4, "rewire": 0.5}, 4.0),
    "barabasi_albert": (10, {"links": 2}, 2 * 2 * 8 / 10),
}


@pytest.mark.parametrize("name", DEGREES)
def test_named_graphs_mean_degree(name: str) -> None:
    n, options, degree = DEGREES[name]
    graph = topology.check_graph(topology.TOPOLOGIES[name].build(n_clients=n, **options), n)
    assert sorted(graph) == list(range(n))
    assert 2 * graph.number_of_edges() / n == pytest.approx(degree)


@pytest.mark.parametrize("name", ["ring", "path", "hub", "complete", "exponential", "hypercube"])
@pytest.mark.parametrize("n", [1, 2])
def test_tiny_graphs_average_in_one_step(name: str, n: int) -> None:
    graph = topology.check_graph(topology.TOPOLOGIES[name].build(n_clients=n), n)
    assert mixing.metropolis(graph).toarray() == pytest.approx(np.full((n, n), 1 / n))


@pytest.mark.parametrize(
    ("name", "n", "options"),
    [
        ("ring", 10_001, {}),
        ("hypercube", 2**20, {}),
        ("complete", 100_000, {}),
        ("complete", 2000, {}),
        ("grid", 10**6, {"rows": 10}),
        ("erdos_renyi", 9000, {"p": 0.9}),
        ("random_regular", 9000, {"degree": 1000}),
        ("watts_strogatz", 9000, {"neighbours": 1000, "rewire": 0.5}),
        ("barabasi_albert", 9000, {"links": 1000}),
    ],
)
def test_too_large_graph_raises_before_build(name: str, n: int, options: dict) -> None:
    def build() -> None:
        with pytest.raises(fp.ConfigError, match="a graph has at most"):
            topology.TOPOLOGIES[name].build(n, **options)

    assert count_calls(build) < 5000


def test_mixing_contraction_matches_closed_form() -> None:
    """Complete: one step averages. Ring of n: eigenvalues 1/3 + 2/3 cos(2 pi k / n). Hypercube: 1 - 2 k / (d + 1)."""
    assert mixing.compute_contraction(mixing.metropolis(nx.complete_graph(9))) == pytest.approx(0, abs=1e-12)
    ring = [1 / 3 + 2 / 3 * np.cos(2 * np.pi * k / 10) for k in range(1, 10)]
    assert mixing.compute_contraction(mixing.metropolis(nx.cycle_graph(10))) == pytest.approx(max(np.abs(ring)))
    cube = topology.check_graph(topology.hypercube(16), 16)
    assert mixing.compute_contraction(mixing.max_degree(cube)) == pytest.approx(3 / 5)


def test_sparse_and_dense_contraction_agree() -> None:
    graph = topology.random_regular(600, 4)
    weights = mixing.metropolis(graph)
    dense = np.linalg.norm(weights.toarray() - 1 / 600, 2)
    assert mixing.compute_contraction(weights) == pytest.approx(dense, abs=1e-8)


@given(
    st.integers(2, 20),
    st.floats(0.2, 1),
    st.integers(0, 1000),
    st.sampled_from(["metropolis", "lazy_metropolis", "max_degree"]),
)
@settings(max_examples=20)
def test_mixing_weights_valid_on_random_graphs(n: int, p: float, seed: int, name: str) -> None:
    graph = topology.erdos_renyi(n, p, seed)
    if nx.is_connected(graph):
        weights = mixing.check_mixing_matrix(mixing.MIXINGS[name].build(graph), graph)
        assert weights.sum(0) == pytest.approx(np.ones(n))
        assert mixing.compute_contraction(weights) < 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({(0, 1): 0.6}, r"W\[0, 1\] != W\[1, 0\]|W\[1, 0\] != W\[0, 1\]"),
        ({(0, 1): -0.1}, r"W\[0, 1\] = -0.1': must not be negative"),
        ({(2, 2): 0.9}, "row 2 sums to 1.4"),
        ({(0, 2): 0.1, (2, 0): 0.1, (0, 0): 0.4, (2, 2): 0.4}, "must be zero: nodes 0 and 2 have no link"),
        ({(0, 0): float("nan")}, r"W\[0, 0\] = nan': must be finite"),
    ],
)
def test_invalid_mixing_matrix_raises_with_entry(change: dict[tuple[int, int], float], message: str) -> None:
    weights = np.array([[0.5, 0.5, 0], [0.5, 0, 0.5], [0, 0.5, 0.5]])
    for at, value in change.items():
        weights[at] = value
    with pytest.raises(fp.ConfigError, match=message):
        mixing.check_mixing_matrix(weights, nx.path_graph(3))


def test_disconnected_graph_or_wrong_shape_raises() -> None:
    graph = nx.empty_graph(4)
    graph.add_edges_from([(0, 1), (2, 3)])
    with pytest.raises(fp.ConfigError, match="node 2 cannot be reached from node 0"):
        Graph(graph)
    with pytest.raises(fp.ConfigError, match=r"use shape \(3, 3\)"):
        mixing.check_mixing_matrix(np.eye(2), nx.path_graph(3))


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.eye(4), "no path of links with positive weight leads from node 0 to node 1"),
        (np.kron(np.eye(2), np.full((2, 2), 0.5)), "no path of links with positive weight leads from node 0 to node 2"),
        (np.roll(np.eye(4), 1, 0) / 2 + np.roll(np.eye(4), -1, 0) / 2, r"never agree; set W\[0, 0\] > 0"),
    ],
    ids=["no sender", "pairs", "two sides swap"],
)
def test_non_contracting_weights_raise(weights: np.ndarray, message: str) -> None:
    graph = nx.cycle_graph(4)
    centred = np.linalg.eigvalsh(weights - 1 / 4)
    assert np.abs(centred).max() == pytest.approx(1)  # doubly stochastic, and yet no contraction
    with pytest.raises(fp.ConfigError, match=message):
        Graph(graph, weights)
    weights = weights / 2 + mixing.metropolis(graph).toarray() / 2
    assert Graph(graph, weights).spectral_gap > 0


def test_graph_files_round_trip(tmp_path: Path) -> None:
    graph = topology.erdos_renyi(12, 0.4, 3)
    nx.write_edgelist(graph, tmp_path / "g.edges", data=False)
    nx.write_graphml(graph, tmp_path / "g.graphml")
    for read, name in ((topology.edge_list, "g.edges"), (topology.graphml, "g.graphml")):
        found = topology.check_graph(read(str(tmp_path / name)), 12)
        assert set(map(frozenset, found.edges)) == set(map(frozenset, graph.edges))
    with pytest.raises(fp.ConfigError, match="cannot be read"):
        topology.graphml(str(tmp_path / "absent"))
    np.savetxt(tmp_path / "w.csv", mixing.metropolis(graph).toarray(), delimiter=",")
    assert mixing.from_file(graph, str(tmp_path / "w.csv")).toarray() == pytest.approx(
        mixing.metropolis(graph).toarray()
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0 1\n1\n", "line 2: 1': each line must contain two different nodes"),
        ("0 1\n\n1 1\n", "line 3: 1 1': each line must contain two different nodes"),
        ("0 1 2\n", "line 1: 0 1 2': each line must contain two different nodes"),
        ("0 1\n1 7\n", "node 7 does not match the others"),
        ("2 3\n3 4\n", "node 2 does not match the others"),
        ("0 1\n1 2O\n", "node 2O does not match the others"),
        ("", "the graph has 0 nodes but there are 3 clients"),
    ],
)
def test_edge_list_typo_raises(text: str, message: str, tmp_path: Path) -> None:
    """networkx skips short lines and creates a node for any misprint."""
    (tmp_path / "g.edges").write_text(text)
    with pytest.raises(fp.ConfigError) as caught:
        topology.check_graph(topology.edge_list(str(tmp_path / "g.edges")), 3)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "text", ["0 1\n1 2\n", "1 2 {}\n# none\n2 3 {'weight': 3}\n\n", "ann bob # friends\nbob eve\n", "00 01\n01 2\n"]
)
def test_edge_list_formats_load(text: str, tmp_path: Path) -> None:
    (tmp_path / "g.edges").write_text(text)
    found = topology.check_graph(topology.edge_list(str(tmp_path / "g.edges")), 3)
    assert set(map(frozenset, found.edges)) == {frozenset({0, 1}), frozenset({1, 2})}


def test_random_edges_active_fraction_matches_theory() -> None:
    graph = Graph(nx.complete_graph(20), activity=activity.RandomEdges(2))
    assert graph.active_fraction * 20 == pytest.approx(3.8095, abs=1e-3)
    counts = [len(graph.participants(k, Randomness(0))) for k in range(500)]
    assert np.mean(counts) == pytest.approx(3.8095, abs=0.06)


@pytest.mark.parametrize("graph", [nx.complete_graph(10), nx.cycle_graph(60), topology.barabasi_albert(200, 2)])
def test_one_random_edge_contraction_matches_theory(graph: nx.Graph) -> None:
    """E[W'W] = E[W] = I - L / (2 E), for L the Laplacian: sqrt(1 - lambda_2(L) / (2 E)), n = lambda_2 if complete."""
    slowest = np.linalg.eigvalsh(nx.laplacian_matrix(graph).toarray().astype(float))[1]
    facts = Graph(graph, activity=activity.RandomEdges(1)).facts()
    assert facts.contraction == pytest.approx(np.sqrt(1 - slowest / 2 / graph.number_of_edges()), abs=1e-9)


def test_two_random_edges_contraction_matches_enumeration() -> None:
    """All 6 pairs of links of a ring of four: two are apart, four share a node."""
    graph, total = nx.cycle_graph(4), np.zeros((4, 4))
    pairs = list(itertools.combinations(graph.edges, 2))
    for pair in pairs:
        drawn = nx.empty_graph(4)
        drawn.add_edges_from(pair)
        weights = mixing.metropolis(drawn).toarray()
        total += weights.T @ weights / len(pairs)
    expected = np.sqrt(np.linalg.eigvalsh(total - 1 / 4).max())
    facts = Graph(graph, activity=activity.RandomEdges(2)).facts()
    assert facts.contraction == pytest.approx(expected, abs=1e-12)
    assert facts.contraction_exact
    large = Graph(topology.random_regular(300, 4), activity=activity.RandomEdges(7))
    assert 0.99 < large.facts().contraction < 1  # no link is left out
    assert not large.facts().contraction_exact
    assert large.expected_rows == 14


def test_two_links_of_complete_graph_contraction() -> None:
    """Published setting of Liu, Johansson and Shi: twenty nodes, .9733 for one link and .9483 for two."""
    for count, expected in ((1, math.sqrt(18 / 19)), (2, 0.94826)):
        facts = Graph(nx.complete_graph(20), activity=activity.RandomEdges(count)).facts()
        assert facts.contraction == pytest.approx(expected, abs=1e-5)
        assert "about" not in graph_line(facts)
    assert "about" in graph_line(Graph(nx.complete_graph(20), activity=activity.RandomNodes(0.2)).facts())


@pytest.mark.parametrize("count", [1, 2, 3, 9])
@pytest.mark.parametrize("steps", [1, 2])
def test_exact_nodes_contraction_matches_theory(count: int, steps: int) -> None:
    """k of n nodes that average exactly keep 1 - (k - 1) / (n - 1) of a disagreement's square."""
    graph = Graph(nx.complete_graph(9), activity=activity.ExactNodes(count), mixing_steps=steps)
    assert graph.facts().contraction == pytest.approx(math.sqrt(1 - (count - 1) / 8), abs=1e-7)
    assert graph.facts().contraction_exact


def test_exact_nodes_contraction_with_isolated_nodes() -> None:
    """On a ring, two drawn nodes are linked or not; weights that depend on the number of nodes get that number."""

    def halves(graph: nx.Graph) -> sparse.csr_array:
        matrix = np.eye(len(graph)) * (1 - 1 / len(graph)) if graph.number_of_edges() else np.eye(len(graph))
        for a, b in graph.edges:
            matrix[a, b] = matrix[b, a] = 1 / len(graph)
        return sparse.csr_array(matrix + np.diag(1 - matrix.sum(1)))

    graph = Graph(nx.cycle_graph(5), halves, activity=activity.ExactNodes(3))
    total = np.zeros((5, 5))
    for nodes in itertools.combinations(range(5), 3):
        drawn = nx.convert_node_labels_to_integers(graph.graph.subgraph(nodes), ordering="sorted")
        part = np.eye(5)
        part[np.ix_(nodes, nodes)] = halves(drawn).toarray()
        total += part.T @ part / 10
    assert graph.facts().contraction == pytest.approx(math.sqrt(np.linalg.eigvalsh(total - 1 / 5).max()), abs=1e-9)


def test_exact_nodes_draws_count_uniformly() -> None:
    graph = Graph(nx.complete_graph(10), activity=activity.ExactNodes(3))
    drawn = np.zeros(10)
    for k in range(2000):
        active = graph.participants(k, Randomness(0)).tolist()
        assert active == graph.active(k, Randomness(0)) == sorted(set(active)) and len(active) == 3
        drawn[active] += 1
    assert drawn / 2000 == pytest.approx(np.full(10, 0.3), abs=0.05)
    assert graph.active_fraction == pytest.approx(0.3)
    with pytest.raises(fp.ConfigError, match="the graph has only 10 nodes"):
        Graph(nx.complete_graph(10), activity=activity.ExactNodes(11)).participants(0, Randomness(0))


def test_one_peer_exponential_averages_in_log_n_rounds() -> None:
    graph = Graph(topology.exponential(8), activity=activity.OnePeerExponential())
    rows = start = torch.randn(8, 3, dtype=torch.float64)
    for k in range(3):
        graph.participants(k, Randomness(0))
        rows = graph.mix(rows)
        assert graph.numbers_sent == 8 * 3  # a node sends to one other
    torch.testing.assert_close(rows, start.mean(0).expand(8, 3))


@pytest.mark.parametrize("steps", [1, 2])
def test_one_peer_exponential_contraction(steps: int) -> None:
    """W of jump s has eigenvalues (1 + w^s) / 2 at the fifth roots of unity w = e^(2 pi i j / 5): |cos(pi j s / 5)|."""
    squares = np.cos(np.pi * np.outer(np.arange(1, 5), [1, 2, 4]) / 5) ** 2
    graph = Graph(topology.exponential(5), activity=activity.OnePeerExponential(), mixing_steps=steps)
    assert graph.facts().contraction == pytest.approx(np.sqrt((squares**steps).mean(1).max()), abs=1e-9)


@pytest.mark.parametrize(
    "drawn",
    [
        activity.Always(),
        activity.RandomEdges(2),
        activity.RandomLinks(0.5),
        activity.RandomNodes(0.5),
        activity.ExactNodes(4),
        activity.OnePeerExponential(),
    ],
    ids=lambda a: type(a).__name__,
)
def test_mixing_keeps_mean_and_inactive_rows(drawn: activity.Activity) -> None:
    outages = (activity.Outage(0, 3, 6), activity.Outage(5, 4))
    graph = Graph(
        topology.complete(9),
        activity=drawn,
        outages=outages if not isinstance(drawn, activity.OnePeerExponential) else (),
    )
    rows = torch.randn(9, 2, dtype=torch.float64)
    for k in range(12):
        active = graph.participants(k, Randomness(1))
        mixed = graph.replace_rows(graph.mix(rows[active]), rows)
        torch.testing.assert_close(mixed.mean(0), rows.mean(0))
        silent = [i for i in range(9) if i not in active.tolist()]
        assert torch.equal(mixed[silent], rows[silent])
        assert not (3 <= k < 6 and 0 in active.tolist() and graph._outages)
        rows = mixed


def test_activity_draws_are_seeded() -> None:
    graph = Graph(topology.complete(9), activity=activity.RandomNodes(0.5))
    first = [graph.participants(k, Randomness(1)).tolist() for k in range(5)]
    again = [graph.participants(k, Randomness(1)).tolist() for k in range(5)]
    other = [graph.participants(k, Randomness(2)).tolist() for k in range(5)]
    assert first == again != other


def test_sparse_and_dense_mixing_agree() -> None:
    graph = topology.random_regular(300, 4)
    network = Graph(graph, mixing_steps=3)
    rows = torch.randn(300, 5, dtype=torch.float64)
    expected = torch.from_numpy(np.linalg.matrix_power(mixing.metropolis(graph).toarray(), 3)) @ rows
    torch.testing.assert_close(network.mix(rows), expected)
    assert network.numbers_sent == 2 * 600 * 3 * 5


def test_link_function_validated() -> None:
    graph = Graph(topology.path(4), activity=activity.LinkFunction(lambda k: [(k % 3, k % 3 + 1)]))
    assert graph.participants(1, Randomness(0)).tolist() == [1, 2]
    assert graph.active_fraction == pytest.approx(0.5, abs=0.01)  # iota, by which dual averaging weighs h
    wrong = Graph(topology.path(4), activity=activity.LinkFunction(lambda k: [(0, 3)]))
    with pytest.raises(fp.ConfigError, match="no such link"):
        wrong.participants(0, Randomness(0))


def test_server_mean_on_graph_raises() -> None:
    with pytest.raises(fp.ConfigError, match="needs a server"):
        Graph(topology.ring(4)).mean(torch.ones(4, 1))
