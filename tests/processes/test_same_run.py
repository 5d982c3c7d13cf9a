"""A run of several processes matches one process: models, state, metrics, noise and ledger."""

from __future__ import annotations

import math

import pytest
import torch
from split_runs import NETWORKS, Case, Outcome, outcome
from workers import Workers

import fedpriv as fp

STRATEGIES = (
    "name: fedavg, learning_rate: .5",
    "name: fedavg, learning_rate: .5, local_steps: 2, server_momentum: .9, weighting: clients, average: 1",
    "name: fedavg, learning_rate: .5, adaptive_clip: {initial: .3}",
    "name: fedprox, learning_rate: .5, proximal_mu: .1",
    "name: fedopt, learning_rate: .5, server_optimizer: yogi, tau: .01",
    "name: scaffold, learning_rate: .5, local_steps: 2, control_rate: .5",
    "name: iadmm_prox",
    "name: iadmm_prox, eta: {scale: 2, power: 0}, feasible: {kind: box, bound: 3}, average: 1",
    "name: iadmm_trust",
    "name: iadmm_output",
    "name: dp_gd",
    "name: dp_gd, learning_rate: 1, momentum: .9, output: average, average: 4, regularizer: {box: {bound: 2}}",
    "name: dp_gd, output: random, seed: 3",
    "name: dp_svrg, epoch_length: 3",
    "name: dp_svrg_plus_plus, epoch_length: 1, learning_rate: .1, regularizer: {simplex: {}}",
    "name: dp_accmd, radius: 2",
)
FEDAVG = STRATEGIES[0]
OF_NODES = (
    "name: decentralized_sgd",
    "name: decentralized_sgd, optimizer: {adam: {noise_floor: 1}}, average: 1",
    "name: gradient_tracking",
    "name: gradient_tracking, gradient_at: mixed, average: {decay: .5}",
    "name: gradient_tracking_pair, average: 1",
    "name: dual_averaging",
    "name: dual_averaging, weight_power: 0, gamma: 2, gamma_power: .5, inactive: literal",
)
GOSSIP = OF_NODES[2]
EXACT = "name: proximal_al, rho: 1", "name: proximal_al, solver: newton, regularizer: {l1: {lam: .1}}"
GRAPHS = ("ring", "line of seven", "random nodes", "random edges")
CASES = [
    *(Case(options, network=cohort) for options in STRATEGIES for cohort in ("star", "fixed", "poisson")),
    *(
        Case(FEDAVG, privacy, cohort)
        for privacy in ("fixed batches", "clients", "sums", "client sums", "pairs")
        for cohort in ("star", "fixed")
    ),
    *(Case(FEDAVG, privacy) for privacy in ("curator", "curator of examples")),
    *(
        Case(FEDAVG, privacy)
        for privacy in ("correlated noise", "sums, correlated noise", "drawn blocks", "pairs, correlated noise")
    ),
    Case(FEDAVG, "cyclic clients", "turns"),
    *(Case(options, network=network) for options in OF_NODES for network in ("star", "fixed", *GRAPHS)),
    *(
        Case(GOSSIP, network=name)
        for name in NETWORKS
        if name not in GRAPHS and not isinstance(NETWORKS[name](), fp.Star)
    ),
    *(Case(GOSSIP, privacy, "random edges") for privacy in ("fixed batches", "pairs")),
    *(Case(GOSSIP, privacy, "ring") for privacy in ("correlated noise", "drawn blocks", "pairs")),
    *(Case(OF_NODES[5], privacy, "random nodes") for privacy in ("clients", "pairs")),
    *(Case("name: private_al", privacy, problem="constraints") for privacy in ("values", "values of pairs")),
    Case("name: private_al", "exact", problem="constraints", noise={}),
    *(Case(options, "exact", problem="constraints", noise={}, rounds=12) for options in EXACT),
]


_IN_ONE = dict[str, Outcome]()


def test_float32_run_matches_up_to_rounding(workers: Workers) -> None:
    for case in (Case(FEDAVG, "sums", dtype="float32"), Case(GOSSIP, network="line of seven", dtype="float32")):
        assert_same(workers.of(2, outcome, case)[0], in_one(case), 1e-6)


def in_one(case: Case) -> Outcome:
    if repr(case) not in _IN_ONE:
        _IN_ONE[repr(case)] = outcome(case, "none")
    return _IN_ONE[repr(case)]


def assert_same(found: Outcome, wanted: Outcome, tolerance: float) -> None:
    assert found.records == wanted.records
    assert (found.epsilon, found.ended) == (wanted.epsilon, wanted.ended)
    assert found.state.keys() == wanted.state.keys()
    for name, value in wanted.state.items():
        one, other = torch.as_tensor(found.state[name]).double(), torch.as_tensor(value).double()
        both = torch.broadcast_tensors(one, other)  # rows that are all one may stand as one
        torch.testing.assert_close(*both, rtol=tolerance, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}")
    for one, other in zip(found.reports, wanted.reports, strict=True):
        assert one.keys() == other.keys()
        assert all(math.isclose(one[name], other[name], rel_tol=tolerance, abs_tol=tolerance) for name in one)
    torch.testing.assert_close(found.variance, wanted.variance, rtol=tolerance, atol=0)
    for one, other in zip(found.adopted, wanted.adopted, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


QUICK = {  # what all changes are tried with; `make test-distributed` has the rest
    *(f"{STRATEGIES[place]}, batches, {cohort}" for place, cohort in ((0, "star"), (5, "fixed"), (6, "star"))),
    *(f"{STRATEGIES[place]}, batches, {cohort}" for place, cohort in ((13, "poisson"), (15, "star"))),
    *(f"{FEDAVG}, {privacy}, star" for privacy in ("clients", "curator", "pairs", "correlated noise")),
    *(f"{OF_NODES[place]}, batches, {network}" for place, network in ((2, "line of seven"), (5, "random nodes"))),
    f"{FEDAVG}, sums, fixed",
    "name: private_al, values, star",
}


def marks(case: Case, size: int) -> list[pytest.MarkDecorator]:
    return [] if size == 2 and str(case) in QUICK else [pytest.mark.distributed]


@pytest.mark.parametrize(
    ("case", "size"),
    [
        pytest.param(case, size, marks=marks(case, size), id=f"{case}-{size}")
        for case in CASES
        for size in ((1, 2) if case.options in EXACT else (1, 2, 3))  # every process needs clients
    ],
)
def test_processes_match_one(workers: Workers, case: Case, size: int) -> None:
    found = workers.of(size, outcome, case)
    assert_same(found[0], in_one(case), 1e-9)
    for other in found[1:]:
        assert other.records is None
        assert other.epsilon == found[0].epsilon
        assert torch.equal(other.state["params"], found[0].state["params"])
        assert other.reports == found[0].reports
