"""An attacker's view of real runs: 500 of each of two neighbouring worlds, all messages seen.

Half of the runs teach a linear statistic and its threshold, the other half are told apart by it once. What follows for
epsilon with 95 % confidence (Clopper and Pearson, 1934) must not pass what the ledger claims.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from privacy_worlds import Wiretap
from scipy import stats
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.clients.population import Population
from fedpriv.models import Loss, logistic
from fedpriv.network.rounds import initial_state, run_rounds, server_view
from fedpriv.oracle.backends import build_backend
from fedpriv.oracle.clipped_sums import ClippedSums
from fedpriv.oracle.data_query_engine import data_oracle
from fedpriv.planning.plan import make_plan
from fedpriv.privacy.accounting.accountant import Accountant, account
from fedpriv.privacy.ledger import Ledger
from fedpriv.privacy.settings import Trust
from fedpriv.randomness.streams import Randomness
from fedpriv.strategies.base import Strategy

pytestmark = pytest.mark.slow
RUNS, ROUNDS, CONFIDENCE, N = 500, 3, 0.95, 3
FEATURES = 2


@dataclass(frozen=True)
class ScaledGaussian(fp.Gaussian):
    """Says that it is Gaussian noise of unit scale, and draws a part of it."""

    part: float = 0.25

    def draw(self, keys: Tensor, dim: int, amount: float = 1.0) -> Tensor:
        return self.part * super().draw(keys, dim, amount)


def clients(x: float, problem: fp.Problem | None) -> list[fp.Client]:
    """Three clients of four examples; the first example of the first is the one in question."""
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(N, 4, FEATURES, generator=draw)
    targets = torch.tensor([[1, 0, 1, 0]] * N)
    inputs[0, 0] = torch.tensor([x, 0.0])
    model = nn.Sequential(nn.Linear(FEATURES, 1, bias=False))
    nn.init.zeros_(model[0].weight)
    data = [TensorDataset(a, b) for a, b in zip(inputs, targets, strict=True)]
    return fp.make_clients(model, Loss(logistic), data, problem)


def views(strategy: Strategy, privacy: fp.Privacy, x: float, problem: fp.Problem | None) -> tuple[np.ndarray, float]:
    """All that was sent in each of `RUNS` runs, `[RUNS, numbers]`, and the epsilon that a run's ledger claims."""
    population = Population(clients(x, problem))
    backend, start = build_backend("auto", population.model, population.loss), population.params.clone()
    network = Wiretap(N)
    plan = make_plan(strategy, privacy, population.shard.sizes.tolist(), network, rounds=ROUNDS)
    seen, ledger = [], None
    for _ in range(RUNS):
        randomness, ledger = Randomness(secrets.randbits(128)), Ledger(Accountant(N, privacy.delta))
        sums = ClippedSums(backend, len(population), population.device)
        oracle = data_oracle(population, sums, plan.privacy, ledger, randomness)
        network.sent.clear()
        view, state = server_view(network, privacy), initial_state(strategy, start.clone())
        for _done in run_rounds(strategy, oracle, network, state, randomness, rounds=ROUNDS, seen=view):
            pass
        seen.append(torch.cat([rows.flatten() for rows in network.sent]).double().numpy())
    assert ledger is not None
    return np.stack(seen), account(ledger.records, N, privacy.delta).epsilon


def lower_bound(a: np.ndarray, b: np.ndarray, delta: float) -> float:
    """What telling the worlds apart proves of epsilon: a statistic from the first halves, counts from the second."""
    half = len(a) // 2
    spread = np.cov(np.concatenate([a[:half] - a[:half].mean(0), b[:half] - b[:half].mean(0)]).T)
    spread = np.atleast_2d(spread) + 1e-9 * np.trace(np.atleast_2d(spread)) / a.shape[1] * np.eye(a.shape[1])
    direction = np.linalg.solve(spread, a[:half].mean(0) - b[:half].mean(0))
    known = (np.sort(a[:half] @ direction), np.sort(b[:half] @ direction))
    # the threshold with the best bound on the half that teaches
    cuts = np.quantile(np.concatenate(known), np.linspace(0.02, 0.98, 49))
    threshold = max(cuts, key=lambda cut: _proved(known[0] > cut, known[1] > cut, delta))
    return _proved(a[half:] @ direction > threshold, b[half:] @ direction > threshold, delta)


def _proved(in_a: np.ndarray, in_b: np.ndarray, delta: float) -> float:
    """Both errors are bounded at half of what the confidence leaves; the better of both directions."""
    share, found = (1 - CONFIDENCE) / 2, 0.0
    for right, wrong in ((in_a, in_b), (~in_b, ~in_a)):
        hits, alarms, n = int(right.sum()), int(wrong.sum()), len(right)
        least = stats.beta.ppf(share, hits, n - hits + 1) if hits else 0.0
        most = stats.beta.ppf(1 - share, alarms + 1, n - alarms) if alarms < n else 1.0
        if least > delta:
            found = max(found, math.log((least - delta) / most))
    return found


CONSTRAINED = fp.Problem(constraints=(fp.ClassLossAtMost(1, 0.3, fraction=0.5),))
STRATEGIES: dict[str, Callable[[], Strategy]] = {
    "inexact_admm": fp.inexact_admm,
    "trust region": lambda: fp.inexact_admm(fp.Trust(fp.Decay(0.1, 0))),
    "fedavg": lambda: fp.fedavg(0.5, local_steps=2),
    "fedprox": lambda: fp.fedprox(0.5, proximal_mu=0.1, local_steps=2),
    "fedopt": lambda: fp.fedopt(0.5),
    "scaffold": lambda: fp.scaffold(0.5, local_steps=2),
    "dual_averaging": fp.dual_averaging,
    "gradient_tracking": lambda: fp.gradient_tracking(fp.StepSize(0.1)),
    "gradient_tracking_pair": lambda: fp.gradient_tracking_pair(fp.StepSize(0.1)),
    "decentralized_sgd": lambda: fp.decentralized_sgd(fp.StepSize(0.1)),
    "dp_gd": lambda: fp.gradient_descent(1.0),
    "dp_svrg": lambda: fp.svrg(1.0, 2, smoothness=0.25),
    "dp_accmd": lambda: fp.accelerated_mirror_descent(fp.L1Ball(1.0), 0.25),
    "private_al": lambda: fp.private_al(beta=2),
}
LOCAL = fp.Privacy(noise_multiplier=3.0, clip=fp.Clip(0.1), trust=fp.Local())
MESSAGES = replace(LOCAL, noise_on="message", unit="client")


def audited(strategy: Strategy, privacy: fp.Privacy, problem: fp.Problem | None = None) -> tuple[float, float]:
    (a, claimed), (b, _) = (views(strategy, privacy, x, problem) for x in (30.0, -30.0))
    return lower_bound(a, b, privacy.delta), claimed


@pytest.mark.parametrize("name", STRATEGIES)
def test_strategy_passes_audit(name: str) -> None:
    proved, claimed = audited(STRATEGIES[name](), LOCAL, CONSTRAINED if name == "private_al" else None)
    assert proved <= claimed


SUMS_OR_NOT = [
    *((name, trust) for name in ("fedavg", "fedopt") for trust in (fp.Local(), fp.SecureAggregation(2), fp.Central())),
    ("scaffold", fp.Local()),  # it needs single messages
]


@pytest.mark.parametrize(("name", "trust"), SUMS_OR_NOT, ids=str)
def test_noisy_messages_pass_audit(name: str, trust: Trust) -> None:
    proved, claimed = audited(STRATEGIES[name](), replace(MESSAGES, trust=trust))
    assert proved <= claimed


def test_audit_detects_too_little_noise() -> None:
    """With an eighth of the noise, the same attack proves a larger epsilon than claimed."""
    for privacy in (LOCAL, MESSAGES):
        proved, claimed = audited(
            fp.fedavg(0.5), replace(privacy, mechanism=ScaledGaussian(part=0.125), noise_multiplier=9.0)
        )
        assert proved > claimed
