"""Closed forms of the decentralised methods: optima, rates, biases, invariances."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

import fedpriv as fp
from fedpriv.algorithms.dpsgd import decentralized_sgd
from fedpriv.algorithms.dual_averaging import DualMap, dual_averaging
from fedpriv.algorithms.tracking import gradient_tracking, gradient_tracking_pair
from fedpriv.network import activity, topology
from fedpriv.network.graph import Graph
from fedpriv.network.rounds import RoundNetwork, initial_state, run_rounds
from fedpriv.randomness.streams import Randomness
from fedpriv.strategies import proximal
from fedpriv.strategies.base import Strategy
from fedpriv.strategies.schedules import StepSize

N, DIM = 10, 3


class ExactOracle:
    """An oracle of any gradient `[k, dim], clients -> [k, dim]`, without data or noise."""

    def __init__(self, gradient: Callable[[Tensor, Tensor], Tensor], n: int = N) -> None:
        self.n_clients, self._gradient = n, gradient
        self._cohort = torch.arange(n)

    is_aggregate = False

    def begin_round(self, round_index: int, cohort: Tensor, received: Tensor | None = None) -> None:
        self._cohort = cohort

    def release_message(self, message: Tensor) -> Tensor:
        return message

    def gradient(self, params: Tensor) -> Tensor:
        return self._gradient(params, self._cohort)


def quadratics(n: int = N) -> tuple[ExactOracle, Tensor]:
    """Node i has `x'A_i x / 2 - b_i'x`; the optimum of the mean."""
    generator = torch.Generator().manual_seed(0)
    factors = torch.randn(n, 6, DIM, generator=generator, dtype=torch.float64)
    a = factors.mT @ factors / 6 + 0.2 * torch.eye(DIM, dtype=torch.float64)
    b = torch.randn(n, DIM, generator=generator, dtype=torch.float64)
    oracle = ExactOracle(lambda x, who: (a[who] @ x.unsqueeze(-1)).squeeze(-1) - b[who], n)
    return oracle, torch.linalg.solve(a.mean(0), b.mean(0))


def final(strategy: Strategy, oracle: ExactOracle, network: RoundNetwork, rounds: int, dim: int = DIM) -> Tensor:
    progress = initial_state(strategy, torch.zeros(oracle.n_clients, dim, dtype=torch.float64))
    for done in run_rounds(strategy, oracle, network, progress, Randomness(0), rounds=rounds):
        progress = done.progress
    return progress.models.expand(oracle.n_clients, dim)


NETWORKS = {
    "ring": lambda: Graph(topology.ring(N)),
    "erdos_renyi": lambda: Graph(topology.erdos_renyi(N, 0.5, 1)),
    "star": lambda: fp.Star(N),
    "one_peer": lambda: Graph(topology.exponential(N), activity=activity.OnePeerExponential()),
}
TRACKING = {
    "sent": gradient_tracking(StepSize(0.1), beta=5),
    "mixed": gradient_tracking(StepSize(0.1), beta=5, gradient_at="mixed"),
    "pair": gradient_tracking_pair(StepSize(0.05)),
}


@pytest.mark.parametrize("network", ["ring", "erdos_renyi", "star"])
@pytest.mark.parametrize("name", TRACKING)
def test_tracking_reaches_optimum(network: str, name: str) -> None:
    oracle, optimum = quadratics()
    found = final(TRACKING[name], oracle, NETWORKS[network](), 900)
    torch.testing.assert_close(found, optimum.expand_as(found), rtol=0, atol=1e-8)


def test_tracking_converges_linearly() -> None:
    """The error falls by about the same factor in every hundred rounds."""
    oracle, optimum = quadratics()
    errors = [float((final(TRACKING["sent"], oracle, NETWORKS["ring"](), k) - optimum).norm()) for k in (100, 200, 300)]
    assert errors[1] / errors[0] == pytest.approx(errors[2] / errors[1], rel=0.5)
    assert errors[2] < errors[0] / 10


def test_dpsgd_bias_equals_closed_form() -> None:
    """The fixed point of x = W (x - a (A x - b)), in closed form; it halves with the step; on a star there is none."""
    oracle, optimum = quadratics()
    ring = Graph(topology.ring(N))
    biases = []
    for step in (0.1, 0.05):
        found = final(decentralized_sgd(StepSize(step)), oracle, ring, 1500)
        weights = torch.from_numpy(ring.weights.toarray())
        zero = torch.zeros(N, DIM, dtype=torch.float64)
        b = -oracle.gradient(zero)
        columns = [oracle.gradient(torch.eye(DIM, dtype=torch.float64)[i].expand(N, DIM)) + b for i in range(DIM)]
        a = torch.stack(columns, -1)
        whole = torch.eye(N * DIM, dtype=torch.float64) - torch.kron(weights, torch.eye(DIM, dtype=torch.float64)) @ (
            torch.eye(N * DIM, dtype=torch.float64) - step * torch.block_diag(*a)
        )
        pull = torch.kron(weights, torch.eye(DIM, dtype=torch.float64)) @ (step * b.flatten())
        torch.testing.assert_close(found.flatten(), torch.linalg.solve(whole, pull), rtol=0, atol=1e-8)
        biases.append(float((found - optimum).norm()))
    assert biases[0] > 0.1
    assert biases[1] == pytest.approx(biases[0] / 2, rel=0.3)
    star = final(decentralized_sgd(StepSize(0.1)), oracle, fp.Star(N), 600)
    torch.testing.assert_close(star, optimum.expand_as(star), rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    "strategy",
    [*TRACKING.values(), decentralized_sgd(StepSize(0.1)), dual_averaging(proximal.L2(0.1))],
    ids=[*TRACKING, "dpsgd", "dual"],
)
def test_uniform_weights_equal_centralised(strategy: Strategy) -> None:
    """W = 11'/n: the mean over nodes walks as one node with the mean objective does; so does the star."""
    oracle, _ = quadratics()
    alone = ExactOracle(lambda x, _: oracle._gradient(x.expand(N, DIM), torch.arange(N)).mean(0, keepdim=True), 1)
    complete = final(strategy, oracle, Graph(topology.complete(N)), 40)
    star = final(strategy, oracle, fp.Star(N), 40)
    torch.testing.assert_close(complete, star, rtol=0, atol=1e-10)
    if strategy.name != "gradient_tracking" and strategy.name != "gradient_tracking_pair":
        one = final(strategy, alone, Graph(topology.ring(1)), 40)
        torch.testing.assert_close(complete.mean(0), one[0], rtol=0, atol=1e-10)


def test_one_node_equals_gradient_descent() -> None:
    """n = 1: tracking is gradient descent, with its iterates in closed form."""
    oracle = ExactOracle(lambda x, _: 2 * x - 4, 1)
    for strategy in (TRACKING["sent"], TRACKING["mixed"], decentralized_sgd(StepSize(0.1))):
        found = final(strategy, oracle, Graph(topology.ring(1)), 7, 1)
        assert float(found) == pytest.approx(2 * (1 - 0.8**7), abs=1e-12)


@pytest.mark.parametrize("drawn", [activity.RandomLinks(0.5), activity.RandomEdges(2)], ids=["links", "edges"])
def test_dual_averaging_strongly_convex_rate(drawn: activity.Activity) -> None:
    """Strongly convex h: suboptimality of the average falls as 1/t. A fitted slope.

    The rate is one of the expectation over the draws of links: a single run scatters by a factor of two, so four are
    averaged. With two links a round each node is heard every third round or so; t times the gap settles after about
    200 rounds (2.2 over twelve seeds, at 200, 400, 800 and 1600 rounds alike), and the fit starts there.
    """
    generator = torch.Generator().manual_seed(2)
    centres = torch.randn(N, DIM, generator=generator, dtype=torch.float64)
    oracle = ExactOracle(lambda x, who: (x - centres[who]).sign())  # |x - c_i|: Lipschitz, not smooth
    mu = 0.5
    network = Graph(topology.complete(N), activity=drawn)
    strategy = dual_averaging(proximal.L2(mu), active_fraction=network.active_fraction)

    def objective(x: np.ndarray) -> float:
        return float(np.abs(x - centres.numpy()).sum(1).mean() + mu / 2 * (x**2).sum())

    options = {"xatol": 1e-10, "fatol": 1e-12, "maxiter": 20000}
    best = minimize(objective, np.median(centres.numpy(), 0), method="Nelder-Mead", options=options).fun
    horizons = [200, 400, 800]
    start = initial_state(strategy, torch.zeros(N, DIM, dtype=torch.float64))
    gaps = np.zeros(len(horizons))
    for seed in range(4):
        for k, done in enumerate(
            run_rounds(strategy, oracle, network, start, Randomness(seed), rounds=horizons[-1]), 1
        ):
            if k in horizons:
                average = done.progress.models.expand(N, DIM).mean(0).numpy()
                gaps[horizons.index(k)] += (objective(average) - best) / 4
    slope = np.polyfit(np.log(horizons), np.log(gaps), 1)[0]
    assert -1.25 < slope < -0.9


def test_dual_averaging_convex_rate() -> None:
    """Convex h, a_t = 1, gamma sqrt(t): suboptimality falls at least as 1/sqrt(t)."""
    generator = torch.Generator().manual_seed(3)
    centres = torch.randn(N, DIM, generator=generator, dtype=torch.float64)
    oracle = ExactOracle(lambda x, who: (x - centres[who]).sign())
    strategy = dual_averaging(proximal.L1(0.05), weight_power=0, gamma=1.0, gamma_power=0.5)

    def objective(x: Tensor) -> float:
        return float((x - centres).abs().sum(1).mean() + 0.05 * x.abs().sum())

    grid = torch.cat([centres, torch.zeros(1, DIM, dtype=torch.float64)])
    # piecewise linear and separable: the optimum is at a kink of each coordinate
    best = sum(min(float((c - centres[:, i]).abs().mean() + 0.05 * c.abs()) for c in grid[:, i]) for i in range(DIM))
    horizons = [50, 200, 800]
    gaps = [objective(final(strategy, oracle, Graph(topology.ring(N)), t).mean(0)) - best for t in horizons]
    assert np.polyfit(np.log(horizons), np.log(gaps), 1)[0] < -0.4


SETS = [
    proximal.L2(0.3), proximal.L1(0.2), proximal.ElasticNet(0.2, 0.3), proximal.Ball(0.4), proximal.Box(0.3),
    proximal.Simplex(1.0), proximal.Zero(),
]  # fmt: skip


@pytest.mark.parametrize("h", SETS, ids=lambda h: type(h).__name__)
def test_dual_map_minimises_subproblem(h: proximal.Proximal) -> None:
    """x minimises <z, x> + iota A h(x) + gamma/2 ||x||^2: no random feasible point is better."""
    generator = torch.Generator().manual_seed(1)
    z = torch.randn(1, 4, generator=generator, dtype=torch.float64)
    dual_map = DualMap(h, gamma=0.7, active_fraction=0.5)
    total, t = torch.tensor(6.0, dtype=torch.float64), torch.tensor(3.0, dtype=torch.float64)
    x = dual_map.primal(z, total, t)

    def value(x: Tensor) -> Tensor:
        return (z * x).sum(-1) + 3 * h.value(x) + 0.35 * x.square().sum(-1)

    others = x + torch.randn(2000, 4, generator=generator, dtype=torch.float64) * torch.logspace(-4, 0, 2000)[:, None]
    feasible = h.prox(others, 1e-12) if not (h.strong_convexity or h.remainder == proximal.L1(0.2)) else others
    assert value(feasible).min() >= value(x)[0] - 1e-9


@pytest.mark.parametrize("inactive", ["lazy", "literal"])
def test_dual_averaging_inactive_nodes_converges(inactive: str) -> None:
    oracle, _ = quadratics()
    network = Graph(topology.complete(N), activity=activity.RandomEdges(2))
    strategy = dual_averaging(proximal.L2(2.0), active_fraction=network.active_fraction, inactive=inactive)
    found = final(strategy, oracle, network, 1200).mean(0)
    oracle.begin_round(0, torch.arange(N))
    zero = oracle.gradient(torch.zeros(N, DIM, dtype=torch.float64))
    unit = torch.eye(DIM, dtype=torch.float64)
    matrix = torch.stack([(oracle.gradient(row.expand(N, DIM)) - zero).mean(0) for row in unit], -1)
    optimum = torch.linalg.solve(matrix + 2.0 * torch.eye(DIM, dtype=torch.float64), -zero.mean(0))
    assert (found - optimum).norm() < 0.1


def test_literal_dual_averaging_equals_algorithm_1() -> None:
    """Inactive nodes keep z and x, also in the reported average."""
    oracle, _ = quadratics()
    network = Graph(topology.complete(N), activity=activity.RandomEdges(2))
    mu, gamma, rounds = 0.5, 3.0, 30
    strategy = dual_averaging(proximal.L2(mu), gamma=gamma, active_fraction=network.active_fraction, inactive="literal")
    z, x = torch.zeros(2, N, DIM, dtype=torch.float64)
    average, total = torch.zeros_like(x), 0
    for t in range(1, rounds + 1):
        total += t
        average += t * x
        active = network.participants(t - 1, Randomness(0))
        oracle.begin_round(t - 1, active)
        z[active] = network.mix(z[active] + t * oracle.gradient(x[active]))
        x[active] = -z[active] / (mu * network.active_fraction * (total + t + 1) + gamma)
    torch.testing.assert_close(final(strategy, oracle, network, rounds), average / total, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "strategy",
    [*TRACKING.values(), decentralized_sgd(StepSize(0.1)), dual_averaging(proximal.L2(1.0))],
    ids=[*TRACKING, "dpsgd", "dual"],
)
def test_node_outages_models_stay_bounded(strategy: Strategy) -> None:
    """Drop out, come back, vanish for good; everyone gone for a round."""
    oracle, _ = quadratics()
    outages = [activity.Outage(0, 5, 9), activity.Outage(3, 7), *(activity.Outage(i, 20, 21) for i in range(N))]
    found = final(strategy, oracle, Graph(topology.ring(N), outages=outages), 60)
    assert torch.isfinite(found).all()
    assert found.norm() < 100


def test_step_size_decay_values() -> None:
    assert StepSize(2, power=0.5, ratio=0.9)(1) == 2
    assert StepSize(2, power=0.5, ratio=0.9)(4) == pytest.approx(2 * 0.9**3 / 2)


def test_tracking_schedule_total_epsilon() -> None:
    """Published: epsilon / q2 over an infinite horizon; ours: exactly epsilon."""
    from fedpriv.papers.claims import gradient_tracking_total

    epsilon, q1, q2, gap, gamma = 1.0, 0.97, 0.99, 1.0, 0.001
    spent = sum(
        gap * gamma * q1 ** (k - 1) / (gamma * gap * q2 / (epsilon * (q2 - q1)) * q2**k) for k in range(1, 4000)
    )
    assert spent == pytest.approx(epsilon / q2, abs=1e-12)
    assert gradient_tracking_total(epsilon, q1, q2) == pytest.approx(epsilon / q2, abs=1e-12)
    schedule = fp.Geometric(q1 / q2)
    for rounds in (50, math.inf):
        multiplier = schedule.noise_multiplier(epsilon, rounds)
        ours = sum(schedule.share(k) / multiplier for k in range(min(rounds, 4000)))
        assert ours == pytest.approx(epsilon, abs=1e-12)


@pytest.mark.parametrize(
    ("epsilon", "sensitivity", "final_model", "messages"),
    [(0.8, 1, 1479, 1508), (0.8, 2, 6375, 6405)],  # 0.2: in tests/papers/test_decentralised_claims.py
)
def test_dual_averaging_paper_true_epsilon(
    epsilon: float, sensitivity: float, final_model: float, messages: float
) -> None:
    from fedpriv.papers import claims

    found = claims.dual_averaging(epsilon, 600_000, 20_000, 0.1, sensitivity=sensitivity)
    assert found.noise == pytest.approx(0.0630, abs=1e-4)
    assert found.final_model == pytest.approx(final_model, rel=0.02)
    assert found.messages == pytest.approx(messages, rel=0.02)
