"""Accelerated mirror descent without noise: the rate of its theorem, and steps that are optimal."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from erm_optimum import ONE, X, Y
from erm_worlds import logistic_objective, run
from scipy.optimize import linprog

import fedpriv as fp
from fedpriv.algorithms.mirror_descent import EuclideanBall, L1Ball, MirrorStep, accelerated_mirror_descent
from fedpriv.strategies.erm import gradient_descent
from fedpriv.strategies.proximal import Ball


def test_mirror_descent_gap_within_theorem_rate():
    """Gap at most 8 L D^2 B_w(x*, x_0) / (T + 1)^2 (equation 76), and fitted at least as fast as 1 / T^2."""
    radius, smoothness, rounds = 4.0, 0.25, 200
    best = run(gradient_descent(4.0, Ball(radius)), ONE, rounds=1000)[-1]
    low = logistic_objective(best, X, Y)[0]
    path = run(accelerated_mirror_descent(EuclideanBall(radius), smoothness), ONE, rounds=rounds)
    gaps = np.array([logistic_objective(w, X, Y)[0] - low for w in path])
    t = np.arange(1, rounds + 1)
    divergence = best @ best / (2 * radius**2)
    assert (gaps <= 8 * smoothness * (2 * radius) ** 2 * divergence / (t + 1) ** 2 + 1e-12).all()
    window = slice(20, 120)
    slope = np.polyfit(np.log(t[window]), np.log(np.maximum(gaps[window], 1e-16)), 1)[0]
    assert slope < -1.8


@pytest.mark.slow
def test_mirror_descent_l1_recovers_sparse_vector():
    """100 unknowns, 3 of them not zero, 60 equations: the l1 ball of the right radius finds them (linprog agrees)."""
    stream = np.random.default_rng(1)
    dim, n = 100, 60
    truth = np.zeros(dim)
    truth[[7, 40, 88]] = 0.5, -0.3, 0.2
    a = stream.normal(size=(n, dim))
    b = a @ truth
    data = [(torch.from_numpy(a), torch.from_numpy(b))]
    largest = 2 * np.linalg.eigvalsh(a.T @ a / n)[-1]
    strategy = accelerated_mirror_descent(L1Ball(1.0), largest / 4)  # true smoothness in the l1 norm is smaller still
    model = torch.nn.Linear(dim, 1, bias=False).double()
    torch.nn.init.zeros_(model.weight)
    found = run(strategy, data, rounds=400, model=model, loss="mse")[-1]
    reference = linprog(np.ones(2 * dim), A_eq=np.hstack([a, -a]), b_eq=b).x
    np.testing.assert_allclose(reference[:dim] - reference[dim:], truth, atol=1e-8)
    assert np.abs(found - truth).max() < 0.01
    assert set(np.argsort(-np.abs(found))[:3]) == {7, 40, 88}
    assert np.abs(found).sum() <= 1 + 1e-9


@pytest.mark.parametrize("ball", [EuclideanBall(1.5), L1Ball(1.5)])
def test_mirror_descent_steps_equal_paper(ball: EuclideanBall | L1Ball):
    """a = (k + 2) / (4 L D^2), r = 1 / (2 a L D^2); D is the diameter, 3."""
    step, generator = MirrorStep(ball, 0.25), torch.Generator().manual_seed(0)
    received, state = step.init(torch.zeros(1, 4, dtype=torch.float64))
    x = y = z = torch.zeros(1, 4, dtype=torch.float64)
    for k in range(6):
        a = (k + 2) / (4 * 0.25 * 9)
        r = 1 / (2 * a * 0.25 * 9)
        x = r * z + (1 - r) * y
        torch.testing.assert_close(received, torch.cat([x, y], 1), rtol=0, atol=1e-12)
        g = torch.randn(1, 4, generator=generator, dtype=torch.float64)
        previous, z = z, ball.mirror_step(z, a * g)
        y = x + r * (z - previous) if isinstance(ball, L1Ball) else ball.project(x - 1.5**2 / (0.25 * 9) * g)
        received, state = step(torch.cat([g, g], 1), fp.Star(1), state)


@pytest.mark.parametrize("dim", [1, 2, 3, 17])
def test_l1_mirror_step_is_optimal(dim: int):
    """No feasible direction lowers the objective: compared with random feasible points and with vertices."""
    stream = np.random.default_rng(dim)
    ball = L1Ball(1.5)
    p, scale = ball._geometry(dim)

    def w(v: np.ndarray) -> float:
        return scale / 2 * np.linalg.norm(v, p) ** 2

    for _ in range(10):
        z = stream.normal(size=dim)
        z *= stream.uniform(0, 1.5) / np.abs(z).sum()
        slope = stream.normal(size=dim) * stream.choice([0.1, 10, 1000])
        u = ball.mirror_step(torch.from_numpy(z)[None], torch.from_numpy(slope)[None])[0].numpy()
        assert np.abs(u).sum() <= 1.5 * (1 + 1e-9)
        tangent = scale * np.sign(z) * np.abs(z) ** (p - 1) * np.linalg.norm(z, p) ** (2 - p)

        def value(v, slope=slope, tangent=tangent):
            return w(v) + (slope - tangent) @ v

        for _ in range(50):
            other = stream.normal(size=dim)
            other *= 1.5 * stream.uniform() / np.abs(other).sum()
            for step in (1e-3, 0.1, 1.0):
                assert value(u) <= value(u + step * (other - u)) + 1e-9 * max(1, abs(value(u)))


@pytest.mark.parametrize("ball", [EuclideanBall, L1Ball])
@pytest.mark.parametrize("radius", [0.0, -1.0, np.inf, np.nan])
def test_ball_radius_invalid_raises(ball, radius: float):
    with pytest.raises(fp.ConfigError, match=r"strategy\.radius"):
        accelerated_mirror_descent(ball(radius), 0.25)


def test_mirror_descent_infeasible_start_projected():
    model = torch.nn.Linear(5, 1, bias=False).double()
    torch.nn.init.constant_(model.weight, 3.0)
    for feasible in (EuclideanBall(0.5), L1Ball(0.5)):
        path = run(accelerated_mirror_descent(feasible, 0.25), ONE, rounds=5, model=model)
        for point in path:
            assert np.linalg.norm(point, 1 if isinstance(feasible, L1Ball) else 2) <= 0.5 + 1e-9
