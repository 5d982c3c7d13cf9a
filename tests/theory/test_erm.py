"""Private ERM without noise: gradient descent, momentum, independent optima, and clients among whom data are shared."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from erm_optimum import LAM, ONE, OPTIMUM, X, Y
from erm_worlds import l2_optimum, logistic_objective, run, split
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression as Reference

import fedpriv as fp
from fedpriv.algorithms.mirror_descent import L1Ball, accelerated_mirror_descent
from fedpriv.algorithms.svrg import svrg
from fedpriv.strategies.erm import RandomIterate, gradient_descent
from fedpriv.strategies.proximal import L1, L2, Ball, Box, ElasticNet, Simplex


def test_gradient_descent_reaches_reference_optimum():
    found = run(gradient_descent(3.0, L2(LAM)), ONE, rounds=300)[-1]
    np.testing.assert_allclose(found, OPTIMUM, atol=1e-8)


@pytest.mark.parametrize("h", [L2(LAM), Ball(0.7), ElasticNet(0.02, 0.03)])
def test_momentum_reaches_optimum_within_set(h):
    path = run(gradient_descent(3.0, h, momentum=0.6), ONE, rounds=300)
    np.testing.assert_allclose(path[-1], run(gradient_descent(3.0, h), ONE, rounds=600)[-1], atol=1e-8)
    if isinstance(h, Ball):
        # what is reported are proximal points, not the points beyond them at which the gradient is asked
        assert max(np.linalg.norm(w) for w in path) <= 0.7 * (1 + 1e-12)


def test_momentum_equals_nesterov_and_is_faster():
    """Rows of unequal scale; theory: 1 - sqrt(mu / L) a step against 1 - mu / L."""
    scaled = X * torch.tensor([1.0, 0.3, 0.1, 0.1, 0.03], dtype=X.dtype)
    lam, eta, beta = 1e-3, 4.0, 0.9
    path = run(gradient_descent(eta, L2(lam), momentum=beta), [(scaled, Y)], rounds=100)
    x = y = np.zeros(X.shape[1])
    for found in path:
        new = (y - eta * logistic_objective(y, scaled, Y)[1]) / (1 + eta * lam)
        x, y = new, new + beta * (new - x)
        np.testing.assert_allclose(found, x, atol=1e-11)
    best = l2_optimum(scaled, Y, lam)

    def value(w):
        return logistic_objective(w, scaled, Y)[0] + lam / 2 * w @ w

    plain = run(gradient_descent(eta, L2(lam)), [(scaled, Y)], rounds=100)
    assert value(path[-1]) - value(best) < 0.05 * (value(plain[-1]) - value(best))


def test_momentum_with_random_iterate_raises():
    with pytest.raises(fp.ConfigError, match=r"momentum = 0\.9: the guarantee of random_iterate holds only for plain"):
        gradient_descent(1.0, momentum=0.9, random_iterate=5)


def test_optimum_equals_scikit_learn():
    """Its C is 1 / (n lam)."""
    reference = Reference(C=1 / (len(X) * LAM), fit_intercept=False, tol=1e-12, max_iter=10000).fit(X, Y)
    np.testing.assert_allclose(reference.coef_[0], OPTIMUM, atol=1e-6)


def test_split_data_equals_one_owner():
    """A mean over clients of scaled sums is the mean over all examples."""
    parts = split(X, Y, (20, 70, 30))
    for strategy in (
        gradient_descent(1.0, ElasticNet(0.01, 0.02)),
        svrg(1.0, 4, L2(LAM)),
        accelerated_mirror_descent(L1Ball(3.0), 0.25),
    ):
        one, many = (run(strategy, data, rounds=12) for data in (ONE, parts))
        np.testing.assert_allclose(many, one, atol=1e-12)


@pytest.mark.parametrize("h", [L1(0.02), ElasticNet(0.02, 0.03), Ball(0.7), Box(0.4), Simplex(1.0)])
def test_regularised_optimum_equals_scipy(h):
    found = run(gradient_descent(3.0, h), ONE, rounds=400)[-1]
    np.testing.assert_allclose(found, _solve(h), atol=2e-6)


def _solve(h) -> np.ndarray:
    """Split x = u - v for the l1 norm; SLSQP or L-BFGS-B with the constraint otherwise."""
    d = X.shape[1]
    if isinstance(h, L1 | ElasticNet):
        l1, l2 = (h.lam, 0.0) if isinstance(h, L1) else (h.l1, h.l2)

        def value(uv):
            w = uv[:d] - uv[d:]
            loss, slope = logistic_objective(w, X, Y)
            slope = slope + l2 * w
            return loss + l1 * uv.sum() + l2 / 2 * w @ w, np.concatenate([slope + l1, l1 - slope])

        options = {"ftol": 1e-16, "gtol": 1e-12, "maxiter": 20000}
        uv = minimize(value, np.full(2 * d, 0.1), jac=True, bounds=[(0, None)] * 2 * d, options=options).x
        return uv[:d] - uv[d:]
    constraints, bounds = [], None
    if isinstance(h, Ball):
        constraints = [{"type": "ineq", "fun": lambda w: h.radius**2 - w @ w, "jac": lambda w: -2 * w}]
    elif isinstance(h, Box):
        bounds = [(-h.bound, h.bound)] * d
    else:
        bounds = [(0, None)] * d
        constraints = [{"type": "eq", "fun": lambda w: w.sum() - 1, "jac": np.ones_like}]
    found = minimize(
        logistic_objective,
        np.full(d, 0.2),
        args=(X, Y),
        jac=True,
        method="SLSQP",
        bounds=bounds,
        constraints=constraints,
        options={"ftol": 1e-16, "maxiter": 1000},
    )
    return found.x


def test_random_iterate_chosen_by_seed():
    path = run(gradient_descent(1.0), ONE, rounds=10)
    for seed in range(12):
        chosen = RandomIterate(10, seed).chosen
        got = run(gradient_descent(1.0, random_iterate=10, seed=seed), ONE, rounds=10)[-1]
        expected = path[chosen - 1] if chosen else np.zeros_like(path[0])
        np.testing.assert_array_equal(got, expected)
    assert {RandomIterate(4, seed).chosen for seed in range(50)} == {0, 1, 2, 3}


def test_nonconvex_mean_gradient_norm_bounded():
    """Theorem 6.3 without noise: E ||grad F(x_m)||^2 <= 2 L (F(x_0) - F*) / T."""
    generator = torch.Generator().manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2))
    for p in model.parameters():
        p.data = torch.randn(p.shape, generator=generator) * 0.5
    path = run(gradient_descent(0.5), ONE, rounds=60, model=model.double(), loss="cross_entropy")
    norms = []
    for w in path:
        torch.nn.utils.vector_to_parameters(torch.from_numpy(w), model.parameters())
        loss = torch.nn.functional.cross_entropy(model(X), Y)
        norms.append(float(sum(g.square().sum() for g in torch.autograd.grad(loss, list(model.parameters())))))
    assert np.mean(norms) <= 2 * 2.0 * 1.5 / 60
