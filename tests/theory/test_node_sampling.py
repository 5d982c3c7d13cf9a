"""Does sampling nodes pay at equal epsilon? The claim of Liu, Johansson and Shi, for each adversary view.

`messages`: the true epsilon against whoever sees messages, the only one that fedpriv claims. `final model`: epsilon at
the rate that the paper argues, which is no bound for the final model either where inactive nodes are silent (see
docs/papers/dual_averaging.md), so that a win there is no win in privacy.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch
from sklearn.svm import LinearSVC
from torch import Tensor

import fedpriv as fp
from fedpriv.network import topology
from fedpriv.network.activity import Activity, Always
from fedpriv.network.rounds import initial_state, run_rounds
from fedpriv.planning.plan import make_plan
from fedpriv.privacy.accounting.calibration import calibrate
from fedpriv.randomness.streams import Randomness
from fedpriv.strategies.proximal import L2

NODES, EACH, DIM, MU, ROUNDS, RATE, DELTA = 10, 40, 4, 0.1, 80, 0.2, 1e-5
RUNS, LINKS = 50, 6  # of noise for each draw of links
METHODS: dict[str, Activity] = {"none": Always(), "2 links": fp.RandomEdges(2), "1 link": fp.RandomEdges(1)}


@lru_cache
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
    """By liblinear."""
    x, y = problem()
    svm = LinearSVC(C=1 / (len(y) * MU), loss="hinge", fit_intercept=False, tol=1e-10, max_iter=200_000)
    return objective(svm.fit(x, y).coef_[0])


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


class SampledOracle:
    """Noised subgradients of norm at most 1 of Poisson batches, for `RUNS` independent runs side by side.

    Dual averaging with h = l2 treats coordinates alike, so that runs that share their links are one run of `RUNS * DIM`
    coordinates.
    """

    n_clients = NODES

    def __init__(self, noise: float, seed: int) -> None:
        x, y = problem()
        order = np.random.default_rng(1).permutation(len(y)).reshape(NODES, EACH)
        self.rows = torch.from_numpy((y[:, None] * x)[order])
        self.deviation = noise * 2 / (RATE * EACH)  # a replaced example moves the sum by 2
        self.generator = torch.Generator().manual_seed(seed)

    is_aggregate = False

    def begin_round(self, round_index: int, cohort: Tensor, received: Tensor | None = None) -> None:
        self.cohort = cohort

    def release_message(self, message: Tensor) -> Tensor:
        return message

    def gradient(self, params: Tensor) -> Tensor:
        rows = self.rows[self.cohort]
        margins = torch.einsum("kmd,krd->krm", rows, params.unflatten(1, (RUNS, DIM)))
        drawn = torch.rand(margins.shape, generator=self.generator, dtype=torch.float64) < RATE
        mean = torch.einsum("krm,kmd->krd", ((margins < 1) & drawn).double(), -rows) / (RATE * EACH)
        return (mean + self.deviation * torch.randn(mean.shape, generator=self.generator)).flatten(1)


@lru_cache
def suboptimality(view: str, method: str, epsilon: float) -> float:
    """F of the mean of the nodes' averages at the end, less F*; the mean over draws of links and of noise."""
    graph = fp.Graph(topology.complete(NODES), activity=METHODS[method])
    noise, made, gaps = noise_for(view, epsilon, graph), strategy(graph), []
    for seed in range(LINKS):
        start = initial_state(made, torch.zeros(NODES, RUNS * DIM, dtype=torch.float64))
        for done in run_rounds(made, SampledOracle(noise, seed), graph, start, Randomness(seed), rounds=ROUNDS):
            start = done.progress
        means = start.models.mean(0).unflatten(0, (RUNS, DIM)).numpy()
        gaps += [objective(w) - optimum() for w in means]
    return float(np.mean(gaps))


def test_node_sampling_worse_at_true_epsilon() -> None:
    """At the true epsilon: .036 without sampling, .061 and .066 with two links and one, over 300 runs each."""
    none, two, one = (suboptimality("messages", method, 1.0) for method in METHODS)
    assert two > 1.3 * none
    assert one > 1.3 * none


def test_node_sampling_better_at_paper_epsilon() -> None:
    """At the epsilon that it argues, which is no bound here: .016 and .010."""
    none, two, one = (suboptimality("messages" if m == "none" else "final model", m, 1.0) for m in METHODS)
    assert two < 0.7 * none
    assert one < 0.8 * two
