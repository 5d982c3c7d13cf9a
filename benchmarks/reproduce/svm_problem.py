"""Regularised SVMs on public data, each with an optimum and its certificate.

The optimum is computed by solvers outside fedpriv (liblinear for l2, HiGHS for l1), and `gap` is the difference of the
primal value at a point and the dual value at a feasible point: F* is between the two.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from scipy import sparse
from scipy.optimize import linprog, lsq_linear
from sklearn.datasets import load_svmlight_file
from sklearn.preprocessing import normalize
from sklearn.svm import LinearSVC

from fedpriv.data.covertype import covertype

Regularizer = Literal["l2", "l1"]
DATA = ("a9a", "covertype", "reuters", "rcv1_small")
FILES = {
    "a9a": ("a9a.gz", "a9a.t.gz", 123),
    "reuters": ("reuters.trn.bz2", "reuters.tst.bz2", 8315),
    "rcv1_small": ("rcv1_small1000.gz", "rcv1_small500.t.gz", 47236),
}


@dataclass(frozen=True)
class Problem:
    """`F(w) = mean hinge + weight/2 ||w||^2` or `+ weight ||w||_1`; rows have norm 1, labels are -1 and 1."""

    x: sparse.csr_array
    y: np.ndarray
    regularizer: Regularizer
    weight: float
    best: float = 0.0
    gap: float = np.inf

    def objective(self, w):
        """Returns F of each column of `w [dim, k]`."""
        hinge = np.maximum(0, 1 - self.y[:, None] * (self.x @ w)).mean(0)
        norm = np.square(w).sum(0) / 2 if self.regularizer == "l2" else np.abs(w).sum(0)
        return hinge + self.weight * norm

    def solved(self) -> Problem:
        """Returns the problem with `best`, a lower bound on F* (a dual value), and `gap`, its largest error."""
        upper, lower = (_solve_l2 if self.regularizer == "l2" else _solve_l1)(self)
        return replace(self, best=lower, gap=upper - lower)


def load(name: str, root: Path, nodes: int) -> tuple[sparse.csr_array, np.ndarray]:
    """Rows of norm 1 (zero rows stay) and labels, shuffled, as many as divide evenly among the nodes."""
    if name == "covertype":
        x, y = covertype(root=str(root / "covertype"), n_train=40_000).train.tensors
        rows, labels = sparse.csr_array(x.double().numpy()), 2.0 * y.numpy() - 1
    else:
        file, _, width = FILES[name]
        rows, labels = load_svmlight_file(str(root / "libsvm" / file), n_features=width)
    order = np.random.default_rng(0).permutation(len(labels))[: len(labels) // nodes * nodes]
    return sparse.csr_array(normalize(rows)[order]), labels[order]


def load_test(name: str, root: Path) -> tuple[sparse.csr_array, np.ndarray]:
    """Rows of norm 1 and labels of the test file."""
    _, file, width = FILES[name]
    rows, labels = load_svmlight_file(str(root / "libsvm" / file), n_features=width)
    return sparse.csr_array(normalize(rows)), labels


def _solve_l2(problem: Problem) -> tuple[float, float]:
    x, y, mu, n = problem.x, problem.y, problem.weight, len(problem.y)
    svm = LinearSVC(C=1 / (n * mu), loss="hinge", fit_intercept=False, tol=1e-10, max_iter=100_000)
    w = svm.fit(sparse.csr_matrix(x), y).coef_[0]
    margins = y * (x @ w)
    # dual variables: 1/n below the margin, 0 above, and on it any values for which w is their combination
    on = abs(margins - 1) < 1e-4
    alpha = np.where(margins < 1, 1 / n, 0.0)
    rest = mu * w - x.T[:, ~on] @ (alpha * y)[~on]
    columns = (sparse.diags_array(y) @ x)[on].T.toarray()
    alpha[on] = lsq_linear(columns, rest, bounds=(0, 1 / n), tol=1e-14).x
    combined = x.T @ (alpha * y)
    candidates = np.stack([w, combined / mu], 1)
    return float(problem.objective(candidates).min()), float(alpha.sum() - combined @ combined / (2 * mu))


def _solve_l1(problem: Problem) -> tuple[float, float]:
    """Solves the dual linear program: `max sum(a) / n` over `0 <= a <= 1` with `|sum_i a_i y_i x_i| / n <= weight`."""
    n, dim = problem.x.shape
    signed = sparse.csr_array((sparse.diags_array(problem.y) @ problem.x).T / n)
    tight = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    both, bound = sparse.vstack([signed, -signed]), np.full(2 * dim, problem.weight)
    found = linprog(-np.ones(n) / n, both, bound, bounds=(0, 1), method="highs", options=tight)
    prices = -found.ineqlin.marginals
    w = prices[:dim] - prices[dim:]
    alpha = np.clip(found.x, 0, 1)
    alpha *= min(1.0, problem.weight / np.abs(signed @ alpha).max())  # certainly feasible
    return float(problem.objective(w[:, None])[0]), float(alpha.sum() / n)
