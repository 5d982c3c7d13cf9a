"""Batched solvers against scipy and closed forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from fedpriv.strategies.solvers import LBFGS, AcceleratedGradient, Newton, Quadratic, Solver, compute_gradient

K, M, DIM = 3, 30, 4
X = torch.tensor(np.random.default_rng(0).normal(size=(K, M, DIM)))
Y = torch.tensor(np.random.default_rng(1).integers(0, 2, size=(K, M)) * 2.0 - 1)


def ridge_logistic(w: Tensor) -> Tensor:
    margins = Y * torch.einsum("kmd,kd->km", X, w)
    return torch.nn.functional.softplus(-margins).mean(1) + 0.01 * w.square().sum(1)


@pytest.mark.parametrize("solver", [LBFGS(), Newton(), AcceleratedGradient()], ids=lambda s: type(s).__name__)
def test_solvers_on_logistic_regression_match_scipy(solver: Solver) -> None:
    start = torch.zeros(K, DIM, dtype=torch.float64)
    found = solver.solve(ridge_logistic, start, 1e-8, solver.prepare(ridge_logistic, start))
    assert compute_gradient(ridge_logistic, found)[1].abs().max() <= 1e-8
    for k in range(K):
        x, y = X[k].numpy(), Y[k].numpy()
        best = minimize(
            lambda w, x=x, y=y: np.logaddexp(0, -y * (x @ w)).mean() + 0.01 * w @ w, np.zeros(DIM), tol=1e-12
        )
        np.testing.assert_allclose(found[k].numpy(), best.x, atol=1e-5)


@pytest.mark.parametrize(
    "solver", [LBFGS(), Newton(), AcceleratedGradient(), Quadratic()], ids=lambda s: type(s).__name__
)
def test_solvers_on_quadratics_match_closed_form(solver: Solver) -> None:
    a = X.mT @ X + torch.eye(DIM)
    b = X[:, 0]

    def values(w: Tensor) -> Tensor:
        return 0.5 * torch.einsum("kd,kde,ke->k", w, a, w) + (b * w).sum(1)

    start = torch.ones(K, DIM, dtype=torch.float64)
    found = solver.solve(values, start, 1e-9, solver.prepare(values, start))
    torch.testing.assert_close(found, -torch.linalg.solve(a, b), atol=1e-8, rtol=0)


def test_solver_keeps_converged_rows() -> None:
    start = torch.zeros(K, DIM, dtype=torch.float64)
    best = LBFGS().solve(ridge_logistic, start, 1e-10, start[:, :0])
    mixed = best.clone()
    mixed[1] = 5.0
    again = LBFGS().solve(ridge_logistic, mixed, 1e-6, start[:, :0])
    assert torch.equal(again[0], best[0])
    assert torch.equal(again[2], best[2])
    torch.testing.assert_close(again[1], best[1], atol=1e-4, rtol=0)


def test_solver_backtracks_from_infinite_value() -> None:
    def barrier(w: Tensor) -> Tensor:
        return (w - 3).square().sum(1) - (4 - w).clamp_min(0).log().sum(1)

    start = torch.zeros(1, 1, dtype=torch.float64)
    for solver in (LBFGS(), Newton()):
        w = solver.solve(barrier, start, 1e-8, start[:, :0])
        assert float(2 * (w - 3) + 1 / (4 - w)) == pytest.approx(0, abs=1e-6)
