"""Convex problems with optima from an independent solver, and runs of a strategy on them without noise."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from scipy.optimize import minimize
from torch import nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.models import LogisticRegression, resolve_loss
from fedpriv.strategies.base import Strategy

EXACT = fp.Privacy(noise_on="none")
DOUBLE = fp.Compute(dtype="float64", device="cpu")


def logistic_data(n: int = 120, dim: int = 5, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of norm 1 and noisy labels of a linear rule."""
    stream = np.random.default_rng(seed)
    x = stream.normal(size=(n, dim))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = (x @ np.linspace(1, 2, dim) + 0.5 * stream.normal(size=n) > 0).astype(int)
    return torch.from_numpy(x), torch.from_numpy(y)


def logistic_objective(w: np.ndarray, x: torch.Tensor, y: torch.Tensor) -> tuple[float, np.ndarray]:
    """Mean logistic loss and its gradient, in numpy."""
    signs, rows = 2 * y.numpy() - 1, x.numpy()
    margins = signs * (rows @ w)
    slopes = -signs / (1 + np.exp(margins))
    return float(np.logaddexp(0, -margins).mean()), rows.T @ slopes / len(rows)


def l2_optimum(x: torch.Tensor, y: torch.Tensor, lam: float) -> np.ndarray:
    """Minimiser of the mean logistic loss plus `lam/2 ||w||^2`, by scipy's trust-region Newton method."""

    def value(w):
        loss, slope = logistic_objective(w, x, y)
        return loss + lam / 2 * w @ w, slope + lam * w

    found = minimize(value, np.zeros(x.shape[1]), jac=True, method="BFGS", options={"gtol": 1e-12, "maxiter": 10000})
    w = found.x
    for _ in range(20):  # Newton to the last digits
        s = 1 / (1 + np.exp(-(x.numpy() @ w)))
        hessian = (x.numpy() * (s * (1 - s))[:, None]).T @ x.numpy() / len(x) + lam * np.eye(len(w))
        w = w - np.linalg.solve(hessian, value(w)[1])
    return w


def run(
    strategy: Strategy,
    data: Sequence[tuple[torch.Tensor, torch.Tensor]],
    rounds: int,
    privacy: fp.Privacy = EXACT,
    model: nn.Module | None = None,
    loss: str = "logistic",
    seed: int = 0,
) -> list[np.ndarray]:
    """The reported models of all rounds, `[dim]` each."""
    clients = fp.make_clients(
        model or LogisticRegression(data[0][0].shape[1]), resolve_loss(loss), [TensorDataset(x, y) for x, y in data]
    )
    training = fp.Training(clients, strategy, privacy, rounds=rounds, seed=seed, secret_seed=seed, compute=DOUBLE)
    return [training.progress.models[0].numpy().copy() for _ in training]


def split(x: torch.Tensor, y: torch.Tensor, sizes: Sequence[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Consecutive parts."""
    return list(zip(x.split(list(sizes)), y.split(list(sizes)), strict=True))
