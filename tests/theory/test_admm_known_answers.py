"""Inexact ADMM against iterates computed by hand, and against its own fixed points."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.models import SoftmaxRegression

X = ([[1, 0, 0.5], [0, 1, 0.25], [0.5, 0.5, 1]], [[0.2, 0.8, 0], [1, 1, 0], [0, 0.4, 0.6]])
Y = ([0, 1, 1], [1, 0, 0])

# column 0 of w in rounds 1..4 (column 1 is its negative), rho = 1, no noise
PROX = [
    (0, 0, 0),
    (0.0541666667, -0.0375, -0.00625),
    (0.0704794711, -0.0495874559, -0.0065082796),
    (0.0863651923, -0.0607961069, -0.0080518029),
]
TRUST = [
    (0, 0, 0),
    (0.1083333333, -0.075, -0.0125),
    (0.1553902251, -0.1114290625, -0.0101221091),
    (0.2030655041, -0.1412345502, -0.0238977271),
]


def tiny_run(strategy: fp.Strategy, rounds: int, backend: str = "linear") -> list[torch.Tensor]:
    """What the clients hear in each round, [rounds, 3, 2]."""
    data = [TensorDataset(torch.tensor(x, dtype=torch.float64), torch.tensor(y)) for x, y in zip(X, Y, strict=True)]
    clients = fp.make_clients(SoftmaxRegression(3, 2), nn.CrossEntropyLoss(), data)
    training = fp.Training(
        clients,
        strategy,
        fp.Privacy(noise_on="none"),
        rounds=rounds,
        compute=fp.Compute(backend=backend, dtype="float64", device="cpu"),
    )
    received = [training.progress.received[0]]
    received += [training.progress.received[0] for _ in training]
    return [w.view(2, 3).T for w in received]


@pytest.mark.parametrize("backend", ["loop", "vmap", "ghost", "linear"])
@pytest.mark.parametrize(("step", "expected"), [(fp.Prox(), PROX), (fp.Trust(), TRUST)], ids=["prox", "trust"])
def test_admm_iterates_equal_hand_computed(
    step: fp.Prox | fp.Trust, expected: list[tuple[float, ...]], backend: str
) -> None:
    received = tiny_run(fp.inexact_admm(step, fp.Penalty(scale=1.0)), rounds=3, backend=backend)
    for w, column in zip(received, expected, strict=True):
        torch.testing.assert_close(w[:, 0], torch.tensor(column, dtype=torch.float64), rtol=0, atol=1e-8)
        torch.testing.assert_close(w[:, 1], -w[:, 0], rtol=0, atol=1e-12)


def test_admm_message_uses_next_penalty() -> None:
    """Eq 4a divides the duals by rho_{t+1}: the server's w of round t + 1 minimises with that round's penalty."""
    penalty = fp.Penalty(scale=1.0, growth=2.0, period=1.0)  # rho_t = 2, 4, 8, ...
    assert [penalty(t) for t in (1, 2, 3)] == [2, 4, 8]
    step = fp.inexact_admm(fp.Prox(fp.Decay(1.0, 0.0)), penalty).local_step

    class ConstantGradient:
        n_clients = 1

        def gradient(self, params: torch.Tensor) -> torch.Tensor:
            return torch.full_like(params, 6.0)

    state = step.init(torch.zeros(1, 1))
    message, state = step(torch.zeros(1, 1), state, ConstantGradient())
    # z = -6 / (2 + 1) = -2, dual = 2 * 2 = 4, sent -2 - 4 / 4
    assert (float(state.z), float(state.dual), float(message)) == (-2.0, 4.0, -3.0)
    message, state = step(torch.full((1, 1), 2.0), state, ConstantGradient())
    # z = (4 * 2 + 4 - 6 - 2) / (4 + 1) = 0.8, dual = 4 + 4 * 1.2 = 8.8, sent 0.8 - 8.8 / 8
    assert [float(v) for v in (state.z, state.dual, message)] == pytest.approx([0.8, 8.8, -0.3], abs=1e-6)


def test_admm_published_radius_bounds_progress() -> None:
    """The radius 1/t^2 of the paper sums to pi^2/6: no coordinate of z can ever leave that ball."""
    strategy = fp.inexact_admm(fp.Trust(fp.Decay(0.01, 2.0)), fp.Penalty(scale=0.01))
    received = tiny_run(strategy, rounds=200)
    free = tiny_run(fp.inexact_admm(fp.Trust(), fp.Penalty(scale=0.01)), rounds=200)
    assert received[-1].abs().max() < 0.3
    assert free[-1].abs().max() > 1


@pytest.mark.parametrize("feasible", [fp.BoxSet(0.05), pytest.param(fp.BallSet(0.08), marks=pytest.mark.slow)])
def test_admm_projection_reaches_optimum(feasible: fp.BoxSet | fp.BallSet) -> None:
    strategy = fp.inexact_admm(fp.Prox(fp.Decay(5.0, 0.0)), fp.Penalty(scale=0.2), feasible=feasible)
    w = tiny_run(strategy, rounds=3000)[-1]
    x, y = torch.tensor(X).flatten(0, 1).double(), torch.tensor(Y).flatten()
    best = torch.zeros(3, 2, dtype=torch.float64)
    for _ in range(20000):  # projected gradient descent, independent of the library
        residual = torch.softmax(x @ best, 1) - nn.functional.one_hot(y, 2)
        best = feasible.project((best - 0.5 * x.T @ residual / len(y)).T.flatten().unsqueeze(0)).view(2, 3).T
    torch.testing.assert_close(w, best, rtol=0, atol=1e-5)


def test_admm_weight_decay_optimum() -> None:
    """At the optimum of (1/I) sum l + beta ||w||^2 the data gradient is -2 beta w."""
    beta = 0.1
    strategy = fp.inexact_admm(fp.Prox(fp.Decay(5.0, 0.0)), fp.Penalty(scale=0.2), weight_decay=beta)
    w = tiny_run(strategy, rounds=2000)[-1]
    x, y = torch.tensor(X).flatten(0, 1).double(), torch.tensor(Y).flatten()
    residual = torch.softmax(x @ w, 1) - nn.functional.one_hot(y, 2)
    torch.testing.assert_close(x.T @ residual / len(y), -2 * beta * w, rtol=0, atol=1e-6)


def test_strategy_mismatched_messages_raise() -> None:
    from fedpriv.algorithms.admm import AdmmServer, AdmmStep

    class GradientReceiver(AdmmServer):
        receives = ("gradient",)

    with pytest.raises(fp.ConfigError, match=r"sends .* receives"):
        fp.Strategy(AdmmStep(fp.Prox(), fp.Penalty()), GradientReceiver())


def test_linf_trust_region_with_ball_raises() -> None:
    with pytest.raises(fp.ConfigError, match="trust region only if it is a box and the norm is linf"):
        fp.inexact_admm(fp.Trust(), feasible=fp.BallSet(1.0))
