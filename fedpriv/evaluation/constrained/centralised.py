"""The centralised proximal augmented Lagrangian method, a baseline that runs the outer loop of `proximal_al` on all
data together.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv.oracle.exact import ProblemValues
from fedpriv.strategies.lagrangian import Outer, compute_largest, compute_penalty, update_multipliers
from fedpriv.strategies.proximal import Proximal, Zero
from fedpriv.strategies.solvers import LBFGS, compute_gradient

_MOST = 50  # outer rounds


@dataclass(frozen=True)
class CentralisedSolution:
    """Result of the centralised method.

    Attributes:
        params: `[dim]`.
        multipliers: `[n, m]`.
        objective: Mean objective of the clients, regulariser included.
        outer_rounds: Number of outer rounds.
        evaluations: Number of evaluations of all clients' problems.
        cpu_seconds: Processor time.
        converged: True if the stopping rule of `Outer` holds and the last subproblem met its tolerance.
    """

    params: Tensor
    multipliers: Tensor
    objective: float
    outer_rounds: int
    evaluations: int
    cpu_seconds: float
    converged: bool


def centralised_al(problem: ProblemValues, start: Tensor, regularizer: Proximal | None = None) -> CentralisedSolution:
    """Solves a problem with all data in one place (He, Peng and Sun, 2024, algorithm 3).

    Args:
        problem: The clients' objectives and constraints.
        start: `[dim]`.
        regularizer: h; it must be smooth (none, or L2).
    """
    # a large penalty, and at most a tenth of the usual tolerances
    outer = Outer(300.0, tolerance=1e-3, stationarity=1e-4, feasibility=1e-6)
    solver = LBFGS(iterations=1000)
    h = regularizer or Zero()
    n = len(problem.equality)
    began = time.process_time()
    n_evaluations = 0
    w = start.detach().unsqueeze(0)
    mu = start.new_zeros(n, problem.width)
    converged = False
    k = 0

    def merit(point: Tensor) -> Tensor:
        """Returns the proximal augmented Lagrangian at a point `[1, dim]`, as `[1]`."""
        nonlocal n_evaluations
        n_evaluations += 1
        objective, values = problem(point.expand(n, -1))
        missing = compute_penalty(mu, values, outer.beta, problem.equality)
        proximal = (point - w).square().sum() / (2 * outer.beta)
        return ((objective + missing).sum() + h.value(point).sum() + proximal).view(1)

    for k in range(_MOST):
        new = solver.solve(merit, w, outer.tau(k), solver.prepare(merit, w))
        is_solved = float(compute_gradient(merit, new)[1].abs().max()) <= outer.tau(k)
        with torch.no_grad():
            raised_mu = update_multipliers(mu, problem(new.expand(n, -1))[1], outer.beta, problem.equality)
        step = float((new - w).abs().max())
        change = float(compute_largest(raised_mu - mu).max())
        w, mu = new, raised_mu
        converged = is_solved and outer.stops(k, step, change)
        if converged:
            break
    with torch.no_grad():
        objective = float(problem(w.expand(n, -1))[0].sum() + h.value(w)[0])
    return CentralisedSolution(w[0], mu, objective, k + 1, n_evaluations, time.process_time() - began, converged)
