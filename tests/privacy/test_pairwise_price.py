"""What noise that cancels between pairs is worth against colluders: closed forms and bounds against brute force.

The brute force knows no Laplacian: it writes down every draw with its sign, takes away those that colluders know, and
asks for the best statistic of what is left.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations

import networkx as nx
import numpy as np
import pytest

import fedpriv as fp
from fedpriv.errors import ConfigError
from fedpriv.privacy.accounting import pairwise as price
from fedpriv.privacy.accounting.accountant import account
from fedpriv.privacy.accounting.events import compute_cost
from fedpriv.privacy.pairwise import Edges, Pairs, name_pairs, sort_pairs
from fedpriv.privacy.record import Record
from fedpriv.privacy.release import Answer, release_scheme

RATIOS = (0.1, 0.3, 1.0, 3.0, 10.0)


def best_attack(n: int, edges: Edges, ratio: float, colluding: set[int], client: int) -> float:
    """Square of the largest shift, in deviations, that any statistic of the messages has when a row moves by 1."""
    honest = [i for i in range(n) if i not in colluding]
    draws = [np.eye(n)[i] for i in honest]  # what each draw adds to all rows
    draws += [ratio * (np.eye(n)[i] - np.eye(n)[j]) for i, j in edges if not {i, j} & colluding]
    spread = np.array(draws)[:, honest]
    at = honest.index(client)
    # the best statistic w: (w e_i)^2 / Var(w z), by least squares in the space of the draws
    direction = np.linalg.lstsq(spread.T @ spread, np.eye(len(honest))[at], rcond=None)[0]
    return direction[at] ** 2 / float(np.sum((spread @ direction) ** 2))


def brute(n: int, edges: Edges, ratio: float, colluders: int) -> np.ndarray:
    """The worst of all sets of at most so many colluders, for each client."""
    sets = [set(q) for size in range(min(colluders, n - 1) + 1) for q in combinations(range(n), size)]
    return np.array([max(best_attack(n, edges, ratio, q, i) for q in sets if i not in q) for i in range(n)])


def graph_of(seed: int) -> tuple[int, Edges]:
    draw = np.random.default_rng(seed)
    n = int(draw.integers(2, 8))
    return n, sort_pairs(nx.gnp_random_graph(n, float(draw.choice([0.2, 0.5, 0.8, 1.0])), seed=seed).edges)


@pytest.mark.parametrize("seed", range(200))
def test_exposure_random_graphs_equals_brute_force(seed: int) -> None:
    n, edges = graph_of(seed)
    ratio, colluders = RATIOS[seed % len(RATIOS)], seed % 4
    shared, worst = price.make_adjacency(edges, n), brute(n, edges, ratio, colluders)
    found = price.compute_client_exposures(shared, ratio, colluders)
    assert found == pytest.approx(worst, rel=1e-9)
    assert (found >= worst * (1 - 1e-12)).all()
    bound = price.compute_spectral_bound(shared, ratio, colluders)
    assert bound is None or bound >= worst.max() * (1 - 1e-12)
    if len(edges) == n * (n - 1) // 2:
        assert price.compute_complete_exposure(n, ratio, colluders) == pytest.approx(worst.max(), rel=1e-9)
    pairs = Pairs(ratio, colluders, name_pairs(edges), edges)
    assert price.compute_exposure(pairs, None, n) == pytest.approx(worst.max(), rel=1e-9)


def test_spectral_bound_holds_for_large_graphs() -> None:
    """For colluders around each client and for random sets; such graphs have too many sets to test all."""
    for n, degree, colluders in ((40, 12, 4), (60, 16, 5), (30, 10, 2)):
        graph = nx.random_regular_graph(degree, n, 1)
        edges = sort_pairs(graph.edges)
        shared = price.make_adjacency(edges, n)
        draw = np.random.default_rng(0)
        for ratio in (0.3, 1.0, 10.0):
            bound = price.compute_spectral_bound(shared, ratio, colluders)
            assert bound is not None
            near = [set(list(graph[i])[:colluders]) for i in range(n)]
            sets = near + [set(draw.permutation(n)[:colluders].tolist()) for _ in range(100)]
            worst = 0.0
            for colluding in sets:
                honest = [i for i in range(n) if i not in colluding]
                left = price.make_covariance(shared[np.ix_(honest, honest)], ratio)
                worst = max(worst, np.linalg.inv(left).diagonal().max())
            assert worst <= bound <= 1


def test_exposure_rounding_up_is_tiny() -> None:
    shared = price.make_adjacency(sort_pairs(nx.complete_graph(4).edges), 4)
    assert (
        0 < price.compute_client_exposures(shared, 1000, 1).max() - price.compute_complete_exposure(4, 1000, 1) < 1e-7
    )


def test_spectral_bound_none_at_critical_connectivity() -> None:
    """Two cliques with matched nodes: lambda_2 is 2, so two colluders may leave no connectivity, exactly."""
    for a in (30, 60, 100):
        graph = nx.convert_node_labels_to_integers(nx.cartesian_product(nx.complete_graph(a), nx.path_graph(2)))
        shared = price.make_adjacency(sort_pairs(graph.edges), 2 * a)
        for seed in range(4):
            order = np.random.default_rng(seed).permutation(2 * a)
            assert price.compute_spectral_bound(shared[np.ix_(order, order)], 1.0, 2) is None
        assert price.compute_spectral_bound(shared, 1.0, 1) is not None


def test_complete_graph_known_exposures() -> None:
    """The table of the derivation: 100 clients that all share secrets, one colluder."""
    mean = [math.sqrt(price.compute_complete_exposure(100, ratio, 1)) for ratio in (0.3, 1.0, 3.0, 10.0)]
    assert mean == pytest.approx([0.33, 0.14, 0.106, 0.101], abs=5e-3)
    rows = [price.compute_complete_exposure(100, r, 1) * (1 + 99 * r**2) for r in (0.3, 1.0, 3.0, 10.0)]
    assert rows == pytest.approx([1.1, 2.0, 10.0, 101.0], rel=0.06)
    # one more than declared among three: 1.41 times the mu; among a hundred half a percent
    assert math.sqrt(
        price.compute_complete_exposure(3, 10, 2) / price.compute_complete_exposure(3, 10, 1)
    ) == pytest.approx(1.41, abs=0.01)
    assert math.sqrt(
        price.compute_complete_exposure(100, 10, 2) / price.compute_complete_exposure(100, 10, 1)
    ) == pytest.approx(1.005, abs=1e-3)


def test_all_others_collude_exposure_one() -> None:
    for colluders in (3, 4, 100):
        assert price.compute_complete_exposure(4, 10, colluders) == 1.0
        assert (
            price.compute_client_exposures(
                price.make_adjacency(sort_pairs(nx.complete_graph(4).edges), 4), 10, colluders
            ).max()
            == 1.0
        )


def test_all_partners_collude_exposure_one() -> None:
    """A ring of six with two colluders: they may be the two neighbours of one client."""
    edges = sort_pairs(nx.cycle_graph(6).edges)
    assert price.compute_exposure(Pairs(3.0, 2, name_pairs(edges), edges), None, 6) == pytest.approx(1.0)


def test_too_many_colluder_sets_without_bound_raises() -> None:
    edges = sort_pairs(nx.cycle_graph(100).edges)
    with pytest.raises(ConfigError, match=r"privacy\.trust\.pairwise\.secrets"):
        price.compute_exposure(Pairs(1.0, 5, name_pairs(edges), edges), None, 100)


def record(**changes: object) -> Record:
    pairs = Pairs(3.0, 1, "complete")
    plain = Record(0, "gradient", 0, "gaussian", 1.3, "sample", "replace_one", pairs=pairs)
    return replace(plain, **changes)  # pyright: ignore[reportArgumentType]


def test_accountant_noise_from_pairs_record() -> None:
    noise = compute_cost(record(), 10).events[0].noise
    assert noise == pytest.approx(1.3 / math.sqrt(price.compute_complete_exposure(10, 3.0, 1)))
    few = compute_cost(record(clients=(0, 4, 7)), 10).events[0].noise  # only those who took part hide each other
    assert few == pytest.approx(1.3 / math.sqrt(price.compute_complete_exposure(3, 3.0, 1)))
    alone = compute_cost(record(clients=(4,)), 10).events[0].noise
    assert alone == 1.3
    each = compute_cost(record(clients=(0, 4), noise_multiplier=(1.3, 2.6)), 10).events
    assert each[1].noise == pytest.approx(2 * each[0].noise)


def test_record_without_pairs_costs_more() -> None:
    with_pairs, without = (account([one], 10, 1e-5).epsilon for one in (record(), record(pairs=None)))
    assert without > 2 * with_pairs


@pytest.mark.parametrize(
    "changes",
    [{"mechanism": "laplace"}, {"pairs": Pairs(3.0, 1, "0" * 32, ((0, 99),))}],
    ids=["laplace", "no such client"],
)
def test_unsupported_pairs_record_raises(changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="record"):
        account([record(**changes)], 10, 1e-5)


@pytest.mark.parametrize("wrong", [{"ratio": -1.0}, {"ratio": math.nan}, {"ratio": 1e4}, {"colluders": -1}], ids=str)
def test_pairs_out_of_range_raise(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=r"record\.pairs"):
        Pairs(**{"ratio": 1.0, "colluders": 1, "secrets": "complete", **wrong})  # pyright: ignore


def test_statistic_has_individual_noise_only() -> None:
    """Noise that cancels needs one scale for all clients; a statistic is used alone, and has a separate scale."""
    privacy = fp.Privacy(noise_multiplier=2.0, trust=fp.Pairwise(1, 3.0))
    for query, scales in (("statistic:constraints", [2.0, 4.0, 6.0]), ("gradient", None)):
        answer = Answer(0, 0, query, range(3), fp.Clip(1.0))
        scheme, factors = release_scheme(privacy, [5, 5, 5]), [1.0, 2.0, 3.0]
        planned = scheme.price(answer, factors)
        record, found = planned.record, scheme.noise_scales(planned, factors)
        assert record.pairs is not None
        if scales is None:
            assert (len(set(found)), record.pairs.ratio) == (1, 3.0)
        else:
            unit = privacy.sensitivity_of(fp.Clip(1.0))
            assert (found, record.pairs.ratio) == (pytest.approx([unit * s for s in scales]), 0.0)
            assert record.noise_multiplier == 2.0


@pytest.mark.parametrize(("n", "colluders"), [(5, 0), (12, 3), (60, 20)])
def test_spectral_bound_exact_for_complete_graph(n: int, colluders: int) -> None:
    shared = ~np.eye(n, dtype=bool)
    for ratio in RATIOS:
        bound = price.compute_spectral_bound(shared, ratio, colluders)
        assert bound == pytest.approx(price.compute_complete_exposure(n, ratio, colluders), rel=1e-9)
