"""Measures the optimality of a point for a problem with constraints. Most values are computed from the clients' data
without noise, so they are not private.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedpriv.clients.shard import ClientShard
from fedpriv.distributed.mesh import Mesh
from fedpriv.evaluation.verdict import Verdict, judge_exact_values
from fedpriv.network.rounds import TrainState
from fedpriv.network.sharding import gather_rows
from fedpriv.oracle.data_query_engine import DataQueryEngine
from fedpriv.oracle.exact import ProblemValues
from fedpriv.oracle.oracle import Oracle
from fedpriv.privacy.mechanisms import NOISE_DISTRIBUTIONS
from fedpriv.strategies.lagrangian import HasMultipliers, Loops, Measured, Remeasures, compute_violations
from fedpriv.strategies.proximal import Proximal, Zero

_NEAREST = 1e-2  # slope of the violation at a point that counts as the nearest to feasible


@dataclass(frozen=True)
class Kkt:
    """The Karush-Kuhn-Tucker conditions at a point; all zero at a solution of a convex problem.

    Attributes:
        objective: Mean objective of the clients, regulariser h included.
        constraint_values: Values of each client, `[n, m]`.
        multipliers: Multipliers of each client, `[n, m]`, for the mean objective.
        stationarity: Infinity norm of `w - prox_h(w - g)`, g the gradient of the Lagrangian; of g itself without h.
        feasibility: Largest violation.
        complementarity: Largest `|multiplier * value|` of an inequality.
        infeasible_point: Infinity norm of the gradient of half the squared violations, over the violation. If it is
            near 0 at an infeasible point, no small step reduces the violation. It is 0 at a feasible point.
    """

    objective: float
    constraint_values: Tensor
    multipliers: Tensor
    stationarity: float
    feasibility: float
    complementarity: float
    infeasible_point: float


def kkt(
    problem: ProblemValues,
    params: Tensor,
    multipliers: Tensor,
    regularizer: Proximal | None = None,
    mesh: Mesh | None = None,
) -> Kkt:
    """Computes the optimality conditions at a point.

    Args:
        problem: The objectives and constraints of this process's clients.
        params: The point, `[dim]`.
        multipliers: The multipliers of this process's clients, `[n, m]`.
        regularizer: h; none by default.
        mesh: The processes of the run; by default this process has all clients. Results with a row for each client
            contain the clients of this process.
    """
    h = regularizer or Zero()
    mesh = mesh or Mesh()
    rows = params.detach().expand(len(multipliers), -1).clone().requires_grad_()
    objective, values = problem(rows)
    gradient = mesh.sum_clients(_gradient((objective + (multipliers * values).sum(1)).sum(), rows))[0]
    broken = values.where(problem.equality, values.clamp_min(0))
    violation_gradient = mesh.sum_clients(_gradient(broken.square().sum() / 2, rows))[0]
    point = params.detach()
    values = values.detach()
    step = point - h.prox((point - gradient).unsqueeze(0), 1.0)[0]
    feasibility = mesh.max_clients(_largest(broken.detach()))
    total = mesh.sum_clients(objective.detach().unsqueeze(1))[0]
    return Kkt(
        objective=float(total + h.value(point.unsqueeze(0))[0]),
        constraint_values=values,
        multipliers=multipliers,
        stationarity=_largest(step),
        feasibility=feasibility,
        complementarity=mesh.max_clients(_largest((multipliers * values).where(~problem.equality, 0.0))),
        infeasible_point=_largest(violation_gradient) / feasibility if feasibility > 0 else 0.0,
    )


def exact_report(
    progress: TrainState,
    problem: ProblemValues,
    params: Tensor,
    multipliers: Tensor,
    regularizer: Proximal | None,
    mesh: Mesh,
    shard: ClientShard,
) -> dict[str, Any]:
    """Returns fields of `result.json` for a run without privacy.

    Optimality is computed here from the data and does not rely on values of the algorithm. All processes call this
    function together. On rank 0, values with a row for each client contain all clients.
    """
    conditions = kkt(problem, params, multipliers, regularizer, mesh)
    loops = progress.server if isinstance(progress.server, Loops) else None
    converged = loops is not None and bool(loops.converged)
    if converged:
        status = "converged"
    else:
        status = _status_of_unfinished(conditions, stopped=loops is not None and bool(loops.done))
    return {
        "objective": conditions.objective,
        "constraint_values": gather_rows(conditions.constraint_values, shard, mesh).tolist(),
        "constraints": judge_exact_values(conditions.feasibility),
        "max_violation": conditions.feasibility,
        "multipliers": gather_rows(conditions.multipliers, shard, mesh).tolist(),
        "kkt": {name: getattr(conditions, name) for name in ("stationarity", "feasibility", "complementarity")},
        "converged": converged,
        "status": status,
        "infeasible_point": conditions.infeasible_point,
        "outer_rounds": 0 if loops is None else int(loops.outer),
        "inner_rounds": 0 if loops is None else int(loops.inner_total),
    }


def private_report(
    progress: TrainState, oracle: Oracle[DataQueryEngine], local: Measured, mesh: Mesh, shard: ClientShard
) -> dict[str, Any]:
    """Returns fields of `result.json` for a private run: estimates of the constraint values and their noise, from
    released values only.

    If the run stopped early, the reported model was not measured, and the estimates are from the last round. All
    processes call this function together. On rank 0, values with a row for each client contain all clients.
    """
    values = local.measured[: len(shard.ids)]
    equality = oracle.equality
    broken = mesh.max_clients(_largest(compute_violations(values, equality)))
    estimate = gather_rows(local.measured, shard, mesh)
    repeats = 0
    if isinstance(progress.server, Remeasures):
        repeats = int(progress.server.measurements)
    width = compute_half_width(oracle, progress.round - 1, max(repeats, 1))
    return {
        "constraint_estimates": estimate.tolist(),
        "constraint_confidence": {"level": 0.95, "half_width": width.tolist()},
        "estimates_of_reported_model": repeats > 0,
        "constraints": _verdict(values, equality, width[shard.ids.cpu()], mesh),
        "max_violation_estimate": broken,
        "multipliers": gather_rows(local.multipliers, shard, mesh).tolist(),
    }


def _verdict(values: Tensor, equality: Tensor, width: Tensor, mesh: Mesh) -> Verdict:
    """True if noisy values `[n, m]` of all processes' clients are within 95 % intervals of this half-width."""
    distances = values.abs().where(equality, values).double().cpu()
    is_violated = mesh.max_clients(float((distances > width).any()))
    may_be_violated = mesh.max_clients(float((distances > -width).any()))
    if is_violated > 0:
        return "violated"
    if may_be_violated > 0:
        return "unclear"
    return "hold"


def round_metrics(
    oracle: Oracle[DataQueryEngine], local: HasMultipliers, mesh: Mesh, shard: ClientShard
) -> dict[str, float]:
    """Returns the largest multiplier after a round and, if there are noisy constraint values, their largest violation.

    All processes call this function together. In a private run both numbers are computed from released values.
    """
    values = {"max_multiplier": mesh.max_clients(_largest(local.multipliers[: len(shard.ids)]))}
    if isinstance(local, Measured):
        broken = compute_violations(local.measured[: len(shard.ids)], oracle.equality)
        values["max_violation_estimate"] = mesh.max_clients(_largest(broken))
    return values


def compute_half_width(oracle: Oracle[DataQueryEngine], round_index: int, repeats: int) -> Tensor:
    """Returns the half-width `[n, m]` of a 95 % interval for the mean of `repeats` constraint values (public)."""
    return (
        NOISE_DISTRIBUTIONS[oracle.privacy.mechanism.name].within_95
        * oracle.engine.statistic_deviation(round_index)
        / repeats**0.5
    )


def _status_of_unfinished(conditions: Kkt, *, stopped: bool) -> str:
    """Returns the reason why a run ended without convergence. It is "infeasible" only if no direction reduces the
    violation.
    """
    if not stopped:
        return "round limit"
    if conditions.infeasible_point <= _NEAREST:
        return "infeasible"
    return "stalled"


def _gradient(value: Tensor, rows: Tensor) -> Tensor:
    """Returns the gradient of a value with respect to the rows; NaN becomes infinity."""
    if not value.requires_grad:  # the value does not depend on the parameters: no constraint, or constant ones
        return torch.zeros_like(rows)
    return torch.autograd.grad(value, rows, retain_graph=True, allow_unused=True)[0].nan_to_num(torch.inf)


def _largest(values: Tensor) -> float:
    if values.numel():
        return float(values.abs().max())
    return 0.0
