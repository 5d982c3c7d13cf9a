"""What a plan says of noise that cancels: how much of it stays, and what epsilon stays if more collude.

Known numbers, a brute force that lists every draw with its sign, and rows noised by the run's own streams.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from counting_calls import count_calls
from pair_draws import SIGMA, rows_of
from pair_runs import PRIVACY, SIZES, training_of
from typer.testing import CliRunner

import fedpriv as fp
from fedpriv.cli import app
from fedpriv.config import forecast, load_config
from fedpriv.forecast.pairs import NoiseLeft, PairsForecast, forecast_pairs
from fedpriv.planning.plan import make_plan
from fedpriv.privacy.accounting import pairwise as price
from fedpriv.privacy.pairwise import Complete, Edges, Links, Pairs, Pairwise, RandomRegular, name_pairs, sort_pairs
from fedpriv.randomness.streams import Randomness

RUN = Path(__file__).parents[1] / "run.yaml"


def forecast_of(
    trust: Pairwise,
    network: fp.Star | fp.Graph | None = None,
    *,
    sizes: tuple[int, ...] = SIZES,
    strategy: fp.Strategy | None = None,
    rounds: int = 3,
    **changes: object,
) -> PairsForecast:
    network = network or fp.Star(len(sizes))
    privacy = replace(PRIVACY, trust=trust, **changes)  # pyright: ignore[reportArgumentType]
    chosen = strategy or fp.decentralized_sgd(fp.StepSize(0.1))
    plan = make_plan(chosen, privacy, sizes, network, rounds=rounds, randomness=Randomness(0))
    found = forecast_pairs(plan, network, Randomness(0))
    assert found is not None
    return found


def draws_of(n: int, edges: Edges, ratio: float) -> np.ndarray:
    """What every draw adds to every row, `[n, draws]`: own ones first, then a plus and a minus for each pair."""
    own = list(np.eye(n))
    return np.array(own + [ratio * (np.eye(n)[i] - np.eye(n)[j]) for i, j in edges]).T


def brute(n: int, edges: Edges, colluders: int, ratio: float, mixing: np.ndarray | None = None) -> NoiseLeft:
    """The forecast's line by lists of draws, and by every set of colluders."""
    worst = 0.0
    for colluding in combinations(range(n), colluders):
        honest = [i for i in range(n) if i not in colluding]
        among = tuple(pair for pair in edges if not {*pair} & {*colluding})
        left = draws_of(n, among, ratio)[honest]
        worst = max(worst, np.linalg.inv(left @ left.T).diagonal().max())
    draws = draws_of(n, edges, ratio)

    def over_local(makes: np.ndarray) -> float:
        """Of what `makes` `[m, n]` makes of rows, over the same with one draw of its own for each row."""
        return math.sqrt(worst * np.sum((makes @ draws) ** 2) / np.sum(makes**2))

    means_of_others = [over_local(np.delete(np.eye(n), gone, 0).sum(0, keepdims=True)) for gone in range(n)]
    node = None if mixing is None else over_local(mixing)
    return NoiseLeft(colluders, ratio, over_local(np.ones((1, n))), over_local(np.eye(n)), node, max(means_of_others))


def same(found: NoiseLeft, expected: NoiseLeft) -> None:
    for name, value in vars(expected).items():
        assert getattr(found, name) == (value if value is None else pytest.approx(value, rel=1e-6)), name


# --- the noise that stays -----------------------------------------------------------------------------------------


def test_pairs_forecast_matches_known_values() -> None:
    """The table of the derivation: 100 clients that all share secrets, one colluder."""
    found = forecast_of(Pairwise(1, 3.0), sizes=(5,) * 100)
    one = [line for line in found.left if line.colluders == 1]
    assert [line.ratio for line in one] == [0.3, 1.0, 3.0, 10.0]
    assert [line.in_mean for line in one] == pytest.approx([0.33, 0.14, 0.106, 0.101], abs=5e-3)
    assert [line.in_message**2 for line in one] == pytest.approx([1.1, 2.0, 10.0, 101.0], rel=0.06)
    assert {line.colluders for line in found.left} == {0, 1, 10, 33}
    assert found.suggested == 3.0  # 10 has a mean a twentieth better
    assert found.left_out == ()


@pytest.mark.parametrize("secrets", [Complete(), Links(((0, 1), (0, 2), (0, 3), (1, 2), (2, 3), (3, 4)))], ids=str)
@pytest.mark.parametrize("shape", ["star", "ring"])
def test_pairs_forecast_matches_brute_force(secrets: Complete | Links, shape: str) -> None:
    sizes = (6,) * 5
    network = fp.Star(5) if shape == "star" else fp.Graph(nx.cycle_graph(5), mixing_steps=2)
    found = forecast_of(Pairwise(2, 2.0, secrets), network, sizes=sizes)
    edges = secrets.edges(5) or sort_pairs(nx.complete_graph(5).edges)
    mixing = np.linalg.matrix_power(network.weights.toarray(), 2) if isinstance(network, fp.Graph) else None
    assert {(line.colluders, line.ratio) for line in found.left} == {
        (q, r) for q in (0, 1, 2) for r in (0.3, 1, 2, 3, 10)
    }
    for line in found.left:
        same(line, brute(5, edges, line.colluders, line.ratio, mixing))


def test_pairs_forecast_matches_noised_rows() -> None:
    n, dim, edges = 5, 40_000, sort_pairs(nx.complete_graph(5).edges)
    network = fp.Graph(nx.cycle_graph(n), mixing_steps=2)
    found = forecast_of(Pairwise(1, 2.0), network, sizes=(6,) * n)
    line = next(line for line in found.left if (line.colluders, line.ratio) == (1, 2.0))
    # noise of deviation SIGMA of its own, which is worth 1 at this price
    price_of_own = math.sqrt(price.compute_complete_exposure(n, 2.0, 1)) / SIGMA
    rows = price_of_own * rows_of(Pairs(2.0, 1, name_pairs(edges), edges), range(n), dim).double()
    local = rows_of(Pairs(0.0, 1, "complete"), range(n), dim, at=1).double() / SIGMA
    network.participants(0, Randomness(0))
    seen = {
        "in_mean": [each.mean(0) for each in (rows, local)],
        "in_message": [rows, local],
        "in_node": [network.mix(each) for each in (rows, local)],
        "if_one_drops": [each[1:].mean(0) for each in (rows, local)],
    }
    for name, (paired, alone) in seen.items():
        assert float(paired.std() / alone.std()) == pytest.approx(getattr(line, name), rel=0.02), name


def test_pairs_forecast_counts_cohort_only() -> None:
    """In cohorts of three out of nine clients, only the secrets within the cohort add noise."""
    found = forecast_of(Pairwise(1, 2.0), fp.Star(9, fp.FixedCohort(3)), sizes=(6,) * 9, strategy=fp.fedavg(0.5))
    assert found.participants == 3
    assert {line.colluders for line in found.left} == {0, 1}
    for line in found.left:
        same(line, brute(3, sort_pairs(nx.complete_graph(3).edges), line.colluders, line.ratio))
    alone = forecast_pairs(
        make_plan(
            fp.fedavg(0.5), replace(PRIVACY, trust=Pairwise(1, 2.0)), SIZES, fp.Star(4, fp.FixedCohort(1)), rounds=2
        ),
        fp.Star(4, fp.FixedCohort(1)),
        Randomness(0),
    )
    assert alone is None


def test_pairs_forecast_with_outage() -> None:
    """While one node is absent, the others mix and share secrets among themselves."""
    network = fp.Graph(nx.complete_graph(4), outages=[fp.Outage(2, 0, 3)])
    found = forecast_of(Pairwise(1, 2.0), network)
    assert found.participants == 3
    for line in found.left:
        same(line, brute(3, sort_pairs(nx.complete_graph(3).edges), line.colluders, line.ratio, np.ones((3, 3)) / 3))


def test_pairs_forecast_unequal_clients_noise() -> None:
    """With local trust a larger client adds less noise; both ends of a pair add the same."""
    found = forecast_of(Pairwise(1, 2.0), strategy=fp.fedavg(0.5, local_steps=2), sampling=fp.FullBatch())
    weights = min(SIZES) / np.array(SIZES)  # a mean over few examples moves most with one of them
    for line in found.left:
        own = price.compute_complete_exposure(4, line.ratio, line.colluders)
        assert line.in_mean == pytest.approx(math.sqrt(own * 4 / np.sum(weights**2)))
        assert line.in_message == pytest.approx(math.sqrt(own * (1 + 3 * line.ratio**2) * 4 / np.sum(weights**2)))
        left = np.sum(weights**2) - weights.max() ** 2
        assert line.if_one_drops == pytest.approx(math.sqrt(own * (3 + 3 * line.ratio**2) / left))


def test_pairs_forecast_cohort_on_ring_secrets() -> None:
    """Cohorts of three out of a ring of five: two pairs or one, and the client in the middle matters most."""
    network, ring = fp.Star(5, fp.FixedCohort(3)), Links(((0, 1), (1, 2), (2, 3), (3, 4), (0, 4)))
    found = forecast_of(Pairwise(0, 2.0, ring), network, sizes=(6,) * 5, strategy=fp.fedavg(0.5), rounds=1)
    members = network.participants(0, Randomness(0)).tolist()
    among = tuple((members.index(i), members.index(j)) for i, j in ring.pairs if {i, j} <= {*members})
    assert among and len(among) < 3
    for line in found.left:
        same(line, brute(3, among, line.colluders, line.ratio))


def test_pairs_forecast_ignores_single_outage() -> None:
    assert forecast_of(Pairwise(1, 2.0), fp.Graph(nx.complete_graph(4), outages=[fp.Outage(2, 0, 1)])).participants == 4


# --- which ratio ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("steps", "suggested"), [(1, 0.3), (10, 1.0), (200, 10.0)])
def test_suggested_ratio_grows_with_mixing(steps: int, suggested: float) -> None:
    graph = nx.gnp_random_graph(60, 0.1, seed=3)
    found = forecast_of(Pairwise(1, 3.0), fp.Graph(graph, mixing_steps=steps), sizes=(6,) * 60)
    declared = {line.ratio: line.in_node or 0.0 for line in found.left if line.colluders == 1}
    assert found.suggested == suggested == min(declared, key=lambda ratio: declared[ratio])


def test_suggested_ratio_on_star() -> None:
    assert forecast_of(Pairwise(3, 0.5)).suggested == 0.3  # one honest client has its own noise, whatever the ratio
    assert forecast_of(Pairwise(0, 0.5), sizes=(6,) * 100).suggested == 3.0


# --- if more collude ----------------------------------------------------------------------------------------------


def test_epsilon_if_more_collude_matches_declared_run() -> None:
    found = forecast_of(Pairwise(1, 10.0))
    planned = training_of(replace(PRIVACY, trust=Pairwise(1, 10.0)), fp.decentralized_sgd(fp.StepSize(0.1)), rounds=3)
    multiplier = planned.plan.privacy.noise_multiplier
    assert multiplier is not None and PRIVACY.epsilon is not None
    last = 0.0
    for colluders, one in zip((0, 2, 3), found.if_others, strict=True):
        assert one.colluders == colluders and one.spent is not None
        worth = math.sqrt(
            price.compute_complete_exposure(4, 10.0, 1) / price.compute_complete_exposure(4, 10.0, colluders)
        )
        declared_privacy = replace(
            PRIVACY, epsilon=None, noise_multiplier=multiplier * worth, trust=Pairwise(colluders, 10.0)
        )
        declared = training_of(declared_privacy, fp.decentralized_sgd(fp.StepSize(0.1)), rounds=3).plan.spent()
        assert one.spent.epsilon == pytest.approx(declared.epsilon, rel=1e-9)
        assert one.spent.trust == declared.trust == f"pairwise(colluders={colluders}, ratio=10, complete, simulated)"
        assert one.spent.epsilon > last and (one.spent.epsilon > PRIVACY.epsilon) == (colluders > 1)
        last = one.spent.epsilon
    assert [one.colluders for one in forecast_of(Pairwise(2, 10.0)).if_others] == [0, 3]  # somebody stays honest
    assert [one.colluders for one in forecast_of(Pairwise(3, 10.0)).if_others] == [0]


def test_colluder_counts_without_bound_listed() -> None:
    """On a ring of a hundred, one colluder can be enumerated; more cannot, and the ring is too sparse for the bound."""
    ring = Links(tuple((i, (i + 1) % 100) for i in range(100)))
    found = forecast_of(Pairwise(1, 1.0, ring), sizes=(5,) * 100, sampling=fp.FullBatch(), rounds=1)
    assert {one.colluders for one in found.left} == {0, 1}
    assert found.left_out == (10, 33)
    assert found.if_others[2].spent is None


@pytest.mark.parametrize("secrets", [Complete(), RandomRegular(16)], ids=str)
def test_pairs_forecast_of_thousand_nodes_is_cheap(secrets: Complete | RandomRegular) -> None:
    network = fp.Graph(nx.random_regular_graph(6, 1000, 0), mixing_steps=3)
    privacy = replace(PRIVACY, trust=Pairwise(1, 1.0, secrets), sampling=fp.FullBatch())
    strategy = fp.decentralized_sgd(fp.StepSize(0.1))
    plan = make_plan(strategy, privacy, (5,) * 1000, network, rounds=1, randomness=Randomness(0))
    found: list[PairsForecast | None] = []
    n_calls = count_calls(lambda: found.append(forecast_pairs(plan, network, Randomness(0))))
    assert n_calls < 100 * 1000  # and not one for each of half a million pairs
    assert found[0] is not None and {line.colluders for line in found[0].left} >= {0, 1}


# --- the command ----------------------------------------------------------------------------------------------------


def test_plan_prints_pairs_forecast() -> None:
    trust = "privacy.trust={pairwise: {colluders: 2, ratio: 2}}"
    done = CliRunner().invoke(app, ["plan", str(RUN), trust, "data.partition.n_clients=9"])
    assert done.exit_code == 0, done.output
    words = " ".join(done.output.split())
    assert "noise of a round of 9" in words and "in a node's model" not in words
    assert "suggested: ratio" in words
    found = forecast(load_config(RUN, [trust, "data.partition.n_clients=9"])).pairs
    assert found is not None
    line = next(line for line in found.left if (line.colluders, line.ratio) == (2, 3.0))
    same(line, brute(9, sort_pairs(nx.complete_graph(9).edges), 2, 3.0))
    numbers = (line.in_mean, line.in_message, line.if_one_drops)
    assert f"2 3 {' '.join(f'{number:.3g}' for number in numbers)}" in words
    assert "if none collude epsilon=" in words and f"if 3 collude {found.if_others[1].spent}" in words
    done = CliRunner().invoke(app, ["plan", str(RUN), trust, "data.partition.n_clients=9", "--json"])
    output = json.loads(done.stdout)["pairs"]
    assert output["suggested"] == found.suggested and len(output["left"]) == len(found.left)
    assert output["if_others"][1]["spent"]["epsilon"] == pytest.approx(found.if_others[1].spent.epsilon)


def test_plan_prints_missing_pairs_bounds() -> None:
    many = ["data.partition={kind: iid, n_clients: 100}", "network={topology: ring}", "strategy={name: dual_averaging}"]
    trust = "privacy.trust={pairwise: {colluders: 1, ratio: 1, secrets: topology}}"
    done = CliRunner().invoke(app, ["plan", str(RUN), trust, "rounds=2", *many])
    assert done.exit_code == 0, done.output
    assert "not computed for 10 or 33 colluders" in done.output
    assert "in a node's model" in done.output
    assert "if 3 collude" in done.output and "no bound is known" in done.output


def test_no_pairs_forecast_for_local_trust() -> None:
    assert forecast(load_config(RUN)).pairs is None
    assert "collude" not in CliRunner().invoke(app, ["plan", str(RUN)]).output
