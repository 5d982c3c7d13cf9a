"""How far a point is from optimal for a problem with constraints, computed from the clients' data: not private."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedpriv.clients.shard import ClientShard
from fedpriv.distributed.mesh import Mesh
from fedpriv.evaluation.verdict import Verdict, of_exact_values
from fedpriv.network.rounds import TrainState
from fedpriv.network.sharding import gather_rows
from fedpriv.oracle.data_answerer import DataAnswerer
from fedpriv.oracle.exact import ProblemValues
from fedpriv.oracle.oracle import Oracle
from fedpriv.privacy.mechanisms import NOISE_DISTRIBUTIONS
from fedpriv.strategies.lagrangian import Loops, Measured, Priced, Remeasures, violations
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
        infeasible_point: Infinity norm of the gradient of half the squared violations, over the violation. Near 0 at an
            infeasible point, no small step makes it more feasible. 0 at a feasible point.
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
    """Compute the optimality conditions at a point.

    Args:
        problem: The objectives and constraints of the clients here.
        params: The point, `[dim]`.
        multipliers: Of the clients here, `[n, m]`.
        regularizer: h; none by default.
        mesh: Where other clients are; by default all are here. What the conditions have a row of is of those here.
    """
    h, mesh = regularizer or Zero(), mesh or Mesh()
    rows = params.detach().expand(len(multipliers), -1).clone().requires_grad_()
    objective, values = problem(rows)
    gradient = mesh.sum_clients(_slopes((objective + (multipliers * values).sum(1)).sum(), rows))[0]
    broken = values.where(problem.equality, values.clamp_min(0))
    push = mesh.sum_clients(_slopes(broken.square().sum() / 2, rows))[0]
    point, values = params.detach(), values.detach()
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
        infeasible_point=_largest(push) / feasibility if feasibility > 0 else 0.0,
    )


def exact_report(
    progress: TrainState,
    problem: ProblemValues,
    params: Tensor,
    multipliers: Tensor,
    regularizer: Proximal | None,
    mesh: Mesh,
    part: ClientShard,
) -> dict[str, Any]:
    """Fields of `result.json` for a run without privacy; optimality is computed anew, not taken from the algorithm.

    All places compute it together; what it has a row of is of all clients in the place that leads.
    """
    found, server = kkt(problem, params, multipliers, regularizer, mesh), progress.server
    if isinstance(server, Loops):
        loops = server
    else:
        loops = None
    converged = loops is not None and bool(loops.converged)
    return {
        "objective": found.objective,
        "constraint_values": gather_rows(found.constraint_values, part, mesh).tolist(),
        "constraints": of_exact_values(found.feasibility),
        "max_violation": found.feasibility,
        "multipliers": gather_rows(found.multipliers, part, mesh).tolist(),
        "kkt": {name: getattr(found, name) for name in ("stationarity", "feasibility", "complementarity")},
        "converged": converged,
        "status": "converged" if converged else _unfinished(found, stopped=loops is not None and bool(loops.done)),
        "infeasible_point": found.infeasible_point,
        "outer_rounds": 0 if loops is None else int(loops.outer),
        "inner_rounds": 0 if loops is None else int(loops.inner_total),
    }


def private_report(
    progress: TrainState, oracle: Oracle[DataAnswerer], local: Measured, mesh: Mesh, part: ClientShard
) -> dict[str, Any]:
    """Fields of `result.json` for a private run, from releases only: estimates of constraint values and their noise.

    If the run stopped early, the reported model was not measured, and the estimates are those of the last round. All
    places compute it together; what it has a row of is of all clients in the place that leads.
    """
    values, equality = local.measured[: len(part.ids)], oracle.equality
    broken = mesh.max_clients(_largest(violations(values, equality)))
    estimate, server = gather_rows(local.measured, part, mesh), progress.server
    if isinstance(server, Remeasures):
        repeats = int(server.measurements)
    else:
        repeats = 0
    width = half_width(oracle, progress.round - 1, max(repeats, 1))
    return {
        "constraint_estimates": estimate.tolist(),
        "constraint_confidence": {"level": 0.95, "half_width": width.tolist()},
        "estimates_of_reported_model": repeats > 0,
        "constraints": _verdict(values, equality, width[part.ids.cpu()], mesh),
        "max_violation_estimate": broken,
        "multipliers": gather_rows(local.multipliers, part, mesh).tolist(),
    }


def _verdict(values: Tensor, equality: Tensor, width: Tensor, mesh: Mesh) -> Verdict:
    """Whether noisy values `[n, m]` of all processes' clients are within 95 % intervals of this half-width."""
    far = values.abs().where(equality, values).double().cpu()
    is_violated = mesh.max_clients(float((far > width).any()))
    may_be_violated = mesh.max_clients(float((far > -width).any()))
    if is_violated > 0:
        return "violated"
    if may_be_violated > 0:
        return "unclear"
    return "hold"


def as_it_goes(oracle: Oracle[DataAnswerer], local: Priced, mesh: Mesh, part: ClientShard) -> dict[str, float]:
    """The largest multiplier after a round and, of noisy constraint values, the largest violation.

    All places compute it together. In a private run both are made of releases.
    """
    found = {"max_multiplier": mesh.max_clients(_largest(local.multipliers[: len(part.ids)]))}
    if isinstance(local, Measured):
        broken = violations(local.measured[: len(part.ids)], oracle.equality)
        found["max_violation_estimate"] = mesh.max_clients(_largest(broken))
    return found


def half_width(oracle: Oracle[DataAnswerer], round_index: int, repeats: int) -> Tensor:
    """Half-width `[n, m]` of a 95 % interval for the mean of `repeats` answers about constraints (public)."""
    return (
        NOISE_DISTRIBUTIONS[oracle.privacy.mechanism.name].within_95
        * oracle.answerer.statistic_deviation(round_index)
        / repeats**0.5
    )


def _unfinished(found: Kkt, *, stopped: bool) -> str:
    """Why a run that has not converged is over; "infeasible" only where no direction lessens the violation."""
    if not stopped:
        return "round limit"
    if found.infeasible_point <= _NEAREST:
        return "infeasible"
    return "stalled"


def _slopes(value: Tensor, rows: Tensor) -> Tensor:
    if not value.requires_grad:  # nothing there depends on the parameters: no constraint, or constant ones
        return torch.zeros_like(rows)
    return torch.autograd.grad(value, rows, retain_graph=True, allow_unused=True)[0].nan_to_num(torch.inf)


def _largest(values: Tensor) -> float:
    if values.numel():
        return float(values.abs().max())
    return 0.0
