"""Does sampling nodes pay at equal epsilon? The claim of Liu, Johansson and Shi, for each adversary view.

`messages`: the true epsilon against whoever sees messages, the only one that fedpriv claims. `final model`: epsilon as
the paper argues it for the final model alone, which is no bound where inactive nodes are silent (see
docs/papers/decentralised.md), so that a win there is no win in privacy.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch
from scipy.optimize import minimize
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.models import LinearSVM, resolve_loss
from fedpriv.network import topology
from fedpriv.network.activity import Activity, Always
from fedpriv.planning import make_plan
from fedpriv.privacy.calibration import calibrate
from fedpriv.strategies.proximal import L2

NODES, EACH, DIM, MU, ROUNDS, RATE, DELTA, SEEDS = 10, 40, 4, 0.1, 80, 0.2, 1e-5, 2
METHODS: dict[str, Activity] = {"none": Always(), "2 links": fp.RandomEdges(2), "1 link": fp.RandomEdges(1)}


def problem() -> tuple[np.ndarray, np.ndarray]:
    """Rows of norm 1 and signs that a noisy plane gives."""
    generator = np.random.default_rng(0)
    x = generator.standard_normal((NODES * EACH, DIM))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x, np.where(x[:, 0] + 0.3 * generator.standard_normal(len(x)) > 0, 1.0, -1.0)


def objective(w: np.ndarray) -> float:
    x, y = problem()
    return float(np.maximum(0, 1 - y * (x @ w)).mean() + MU / 2 * w @ w)


@lru_cache
def optimum() -> float:
    """Of the same problem as a quadratic programme with slacks, by another solver."""
    x, y = problem()
    n = len(y)
    start = np.concatenate([np.zeros(DIM), np.ones(n)])
    jacobian = np.hstack([y[:, None] * x, np.eye(n)])
    found = minimize(
        lambda v: MU / 2 * v[:DIM] @ v[:DIM] + v[DIM:].mean(),
        start,
        jac=lambda v: np.concatenate([MU * v[:DIM], np.full(n, 1 / n)]),
        constraints={"type": "ineq", "fun": lambda v: jacobian @ v - 1, "jac": lambda v: jacobian},
        bounds=[(None, None)] * DIM + [(0, None)] * n,
        method="SLSQP",
        options={"ftol": 1e-12, "maxiter": 500},
    )
    assert found.success
    return min(found.fun, objective(found.x[:DIM]))


def noise_for(view: str, epsilon: float, graph: fp.Graph) -> float:
    """The multiplier that spends epsilon in that view."""
    method, sizes = strategy(graph), [EACH] * NODES
    privacy = fp.Privacy(epsilon=epsilon, delta=DELTA, sampling=fp.Poisson(RATE))
    if view == "messages":
        found = make_plan(method, privacy, sizes, graph, rounds=ROUNDS).privacy.noise_multiplier
        assert found is not None
        return found
    unit = replace(privacy, epsilon=None, noise_multiplier=1.0)
    every = make_plan(method, unit, sizes, fp.Graph(topology.complete(NODES)), rounds=ROUNDS).records
    return calibrate([replace(r, rate=RATE * graph.active_fraction) for r in every], NODES, epsilon, DELTA)


def strategy(graph: fp.Graph) -> fp.Strategy:
    return fp.dual_averaging(
        L2(MU), gamma=MU * graph.active_fraction * ROUNDS**2 / 20, active_fraction=graph.active_fraction
    )


@lru_cache
def suboptimality(view: str, method: str, epsilon: float) -> float:
    """F of the mean of the nodes' averages at the end, less F*; the mean over seeds."""
    x, y = problem()
    parts = np.array_split(np.random.default_rng(1).permutation(len(y)), NODES)
    inputs, targets = torch.from_numpy(x).float(), torch.from_numpy((y > 0).astype(np.int64))
    graph = fp.Graph(topology.complete(NODES), activity=METHODS[method])
    privacy = fp.Privacy(noise_multiplier=noise_for(view, epsilon, graph), delta=DELTA, sampling=fp.Poisson(RATE))
    gaps = []
    for seed in range(SEEDS):
        clients = fp.make_clients(
            LinearSVM(DIM), resolve_loss("hinge"), [TensorDataset(inputs[p], targets[p]) for p in parts]
        )
        result = fp.train(clients, strategy(graph), privacy, rounds=ROUNDS, network=graph, seed=seed)
        gaps.append(objective(result.params.double().numpy()) - optimum())
    return float(np.mean(gaps))


def test_whoever_sees_messages_makes_node_sampling_lose() -> None:
    """Two links a round (36 % of the nodes) tie, one link (20 %) is more than twice as far from the optimum."""
    none, two, one = (suboptimality("messages", method, 1.0) for method in METHODS)
    assert two > 0.8 * none
    assert one > 1.5 * none


def test_the_papers_argument_for_the_final_model_makes_it_win_but_not_by_a_smaller_ratio() -> None:
    none, two, one = (suboptimality("final model" if m != "none" else "messages", m, 1.0) for m in METHODS)
    assert two < 0.6 * none
    assert one < 0.6 * none
    assert one > 0.8 * two
