"""Nodes that fail: what is left mixes validly, the run ends, and what was spent stays spent."""

from __future__ import annotations

import networkx as nx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.models import SoftmaxRegression
from fedpriv.network import mixing, topology
from fedpriv.network.activity import Activity, Always
from fedpriv.randomness.streams import Randomness
from fedpriv.strategies.base import Strategy
from fedpriv.strategies.proximal import L2

N, ROUNDS = 6, 8
STRATEGIES = [
    fp.gradient_tracking(fp.StepSize(0.5)),
    fp.gradient_tracking(fp.StepSize(0.5), gradient_at="mixed"),
    fp.gradient_tracking_pair(fp.StepSize(0.1)),
    fp.decentralized_sgd(fp.StepSize(0.5)),
    fp.dual_averaging(L2(0.1)),
    fp.dual_averaging(L2(0.1), inactive="literal"),
]
OUTAGES = {
    "one returns": [fp.Outage(1, 2, 5)],
    "one leaves for good": [fp.Outage(1, 2)],
    "in pieces": [fp.Outage(0, 2, 6), fp.Outage(3, 2, 6)],
    "one remains": [fp.Outage(i, 3) for i in range(1, N)],
    "none, then all": [fp.Outage(i, 3, 5) for i in range(N)],
    "gone from the start": [fp.Outage(2, 0, 4)],
}
PRIVATE = fp.Privacy(noise_multiplier=2.0)


def trained(strategy: Strategy, outages: list[fp.Outage], privacy: fp.Privacy = PRIVATE) -> fp.Training:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(48, 4, generator=generator)
    data = [TensorDataset(x[i::N], (x[i::N, 0] > 0).long()) for i in range(N)]
    clients = fp.make_clients(SoftmaxRegression(4, 2), torch.nn.functional.cross_entropy, data)
    network = fp.Graph(topology.ring(N), outages=outages)
    run = fp.Training(clients, strategy, privacy, rounds=ROUNDS, network=network, seed=0, secret_seed=0)
    assert [report.round for report in run] == list(range(1, ROUNDS + 1))
    return run


@pytest.mark.parametrize("strategy", STRATEGIES, ids=[f"{i} {s.name}" for i, s in enumerate(STRATEGIES)])
@pytest.mark.parametrize("outages", OUTAGES.values(), ids=OUTAGES)
def test_private_run_with_outages_charges_active_rounds(strategy: Strategy, outages: list[fp.Outage]) -> None:
    run = trained(strategy, outages)
    result = run.result()
    assert torch.isfinite(run.progress.models).all()
    assert torch.isfinite(run.progress.received).all()
    # each node pays for the rounds in which it answered, those before it failed included, and for no other
    for node in range(N):
        gone = {k for k in range(ROUNDS) for o in outages if o.node == node and o.covers(k)}
        answered = {r.round for r in run.ledger.records if r.clients is None or node in r.clients}
        assert answered == set(range(ROUNDS)) - gone
    by_rounds: dict[int, set[float]] = {}
    for node, epsilon in enumerate(result.spent.per_client):
        answers = sum(r.clients is None or node in r.clients for r in run.ledger.records)
        by_rounds.setdefault(answers, set()).add(epsilon)
    assert all(len(found) == 1 for found in by_rounds.values()), "the same number of answers costs the same"
    ordered = [by_rounds[count].pop() for count in sorted(by_rounds)]
    assert ordered == sorted(ordered)
    assert (0 in by_rounds) == (ordered[0] == 0)


def test_vanished_node_keeps_cost_and_model() -> None:
    run = trained(fp.decentralized_sgd(fp.StepSize(0.5)), [fp.Outage(1, 2)])
    short = fp.Privacy(noise_multiplier=2.0)
    assert run.result().spent.per_client[1] == pytest.approx(_two_rounds(short), rel=1e-9)
    # runs on other networks have other noise, so models are compared without any
    one, all_of_them = [fp.Outage(1, 2)], [fp.Outage(i, 2) for i in range(N)]
    vanished, healthy = (
        trained(fp.decentralized_sgd(fp.StepSize(0.5)), outages, fp.Privacy(noise_on="none"))
        for outages in (one, all_of_them)
    )
    torch.testing.assert_close(vanished.progress.models[1], healthy.progress.models[1])


def _two_rounds(privacy: fp.Privacy) -> float:
    """Gaussian answers compose to one with mu = sqrt(2) / multiplier."""
    from fedpriv.privacy.accounting.gaussian import compute_epsilon

    assert privacy.noise_multiplier is not None
    return compute_epsilon(2**0.5 / privacy.noise_multiplier, privacy.delta)


@given(st.integers(2, 9), st.integers(0, 99), st.sampled_from(sorted(mixing.MIXINGS.keys() - {"file"})), st.data())
@settings(max_examples=30)
def test_mixing_with_outages_doubly_stochastic(n: int, seed: int, rule: str, data: st.DataObject) -> None:
    graph = topology.check_graph(nx.compose(topology.path(n), topology.erdos_renyi(n, 0.4, seed)), n)
    drawn: Activity = data.draw(
        st.sampled_from([Always(), fp.RandomLinks(0.5), fp.RandomNodes(0.7), fp.OnePeerExponential()])
    )
    gone = data.draw(st.sets(st.integers(0, n - 1)))
    network = fp.Graph(
        graph, mixing.MIXINGS[rule].build, activity=drawn, outages=[fp.Outage(node, 1, 3) for node in sorted(gone)]
    )
    for k in range(4):
        active = network.participants(k, Randomness(seed))
        weights = network.mix(torch.eye(len(active), dtype=torch.float64))
        assert not (1 <= k < 3 and gone & set(active.tolist()))
        assert bool((weights >= -1e-12).all())
        ones = torch.ones(len(active), dtype=torch.float64)
        torch.testing.assert_close(weights.sum(0), ones)
        torch.testing.assert_close(weights.sum(1), ones)
