"""The methods of He, Peng and Sun (2024) in plain torch, for many starting points side by side.

`federated` is their algorithm 1 with algorithm 2 inside (`fedpriv.proximal_al`); `central` is their algorithm 3. The
tests compare both with the library's runs. Losses are logistic, so that gradients and Hessians are closed forms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import softplus

import fedpriv as fp

_FALL = 1e-4  # fraction of the predicted decrease that a step must reach
_LEAST = 1e-13  # relative rounding error of values


@dataclass(frozen=True)
class Block:
    """Clients with equally many examples: objective `objective @ losses`, constraints `weights' losses - bound`.

    Attributes:
        x: Features, multiplied by -1 for class 1, so that the loss is `softplus(x w)`; `[g, m, d]`.
        objective: Coefficients of the objective, `[g, m]`.
        weights: Coefficients of the constraints, `[g, m, q]`.
        bound: Bound of the constraints.
    """

    x: Tensor
    objective: Tensor
    weights: Tensor
    bound: float


@dataclass(frozen=True)
class Losses:
    """Clients with logistic losses, in blocks."""

    blocks: tuple[Block, ...]

    @property
    def n(self) -> int:
        """Number of clients, with the server if it has data."""
        return sum(len(block.x) for block in self.blocks)

    @property
    def q(self) -> int:
        """Number of constraints of a client."""
        return self.blocks[0].weights.shape[2]

    def values(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """Returns objectives and constraints: `[r, n, d] -> [r, n], [r, n, q]`."""
        found = []
        for block, rows in self._split(w):
            losses = softplus(torch.einsum("gmd,rgd->rgm", block.x, rows))
            objective = (losses * block.objective).sum(2)
            found.append((objective, torch.einsum("rgm,gmq->rgq", losses, block.weights) - block.bound))
        objectives, values = zip(*found, strict=True)
        return torch.cat(objectives, 1), torch.cat(values, 1)

    def slopes(self, w: Tensor, price: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Returns objectives, constraints, prices of constraints and gradients of `f + <prices, c>`, `[r, n, d]`."""
        objective, values = self.values(w)
        prices = price(values)
        slopes, start = [], 0
        for block, rows in self._split(w):
            share = prices[:, start : start + len(block.x)]
            start += len(block.x)
            grade = torch.sigmoid(torch.einsum("gmd,rgd->rgm", block.x, rows))
            factor = block.objective + torch.einsum("gmq,rgq->rgm", block.weights, share)
            slopes.append(torch.einsum("gmd,rgm->rgd", block.x, factor * grade))
        return objective, values, prices, torch.cat(slopes, 1)

    def curvature(self, w: Tensor, prices: Tensor, beta: float) -> Tensor:
        """Returns the Hessians of the merit functions, without their negative parts: `[r, n, d, d]`."""
        found, start = [], 0
        for block, rows in self._split(w):
            share = prices[:, start : start + len(block.x)]
            start += len(block.x)
            grade = torch.sigmoid(torch.einsum("gmd,rgd->rgm", block.x, rows))
            factor = (block.objective + torch.einsum("gmq,rgq->rgm", block.weights, share)).clamp_min(0)
            bend = factor * grade * (1 - grade)
            hessian = torch.stack([(block.x * one.unsqueeze(2)).mT @ block.x for one in bend])
            slopes = torch.einsum("gmd,rgm,gmq->rgqd", block.x, grade, block.weights)
            slopes = slopes * (share > 0).unsqueeze(3)
            found.append(hessian + beta * slopes.mT @ slopes)
        return torch.cat(found, 1)

    def _split(self, w: Tensor) -> list[tuple[Block, Tensor]]:
        parts = w.split([len(block.x) for block in self.blocks], 1)
        return list(zip(self.blocks, parts, strict=True))


@dataclass
class Result:
    """What a method found, for each starting point.

    Attributes:
        w: Solutions, `[r, d]`.
        objective: `[r]`.
        values: Constraint values of each client, `[r, n, q]`.
        converged: The stopping rule of eq 11 holds, with every certificate, `[r]`.
        outer: Outer iterations, `[r]`.
        rounds: Inner iterations, `[r]`; of the central method, evaluations.
        path: Of the first starting point, each client's objective and constraints after each outer iteration.
    """

    w: Tensor
    objective: Tensor
    values: Tensor
    converged: Tensor
    outer: Tensor
    rounds: Tensor
    path: list[tuple[Tensor, Tensor]] = field(default_factory=list)


def federated(
    problem: Losses,
    start: Tensor,
    outer: fp.Outer,
    rho: float,
    *,
    decay: float = 0.5,
    cap: int = 2000,
    most: int = 20_000,
) -> Result:
    """Runs algorithm 1 from each starting point `[r, d]`.

    Args:
        problem: The clients.
        start: Starting points.
        outer: Parameters of the outer loop.
        rho: Penalty of the inner ADMM, of each client.
        decay: Inner iteration t solves subproblems to the tolerance `decay**t`.
        cap: Largest number of iterations of an inner loop.
        most: Largest number of inner iterations in all.
    """
    n, beta = problem.n, outer.beta
    share = 1 / ((n + 1) * beta)
    result = _none(start, problem.n, problem.q)
    runs = list(range(len(start)))
    anchor = start.clone()
    mu = start.new_zeros(len(start), n, problem.q)
    u = anchor.unsqueeze(1).expand(-1, n, -1).clone()
    dual = -_merit(problem, u, mu, anchor, beta, share)[1]
    k, inner = [0] * len(start), [0] * len(start)
    w = anchor
    path = result.path
    path.append(_first(problem, anchor))
    total = 0
    while runs and total < most:
        total += 1
        w = ((rho * u + dual).sum(1) + share * anchor) / (n * rho + share)
        spread = w.unsqueeze(1).expand(-1, n, -1)
        slope = _merit(problem, spread, mu, anchor, beta, share)[1]
        error = (slope + dual - rho * (spread - u)).abs().amax(2).sum(1)
        # the library checks the certificate at the iterate after it was sent: its inner count is the same
        inner = [count + 1 for count in inner]
        tau = [outer.tau(count) for count in k]
        certified = [float(e) <= limit for e, limit in zip(error, tau, strict=True)]
        accepted = [yes or count >= cap for yes, count in zip(certified, inner, strict=True)]
        tolerance = start.new_tensor(
            [max(decay ** (count - 1), 1e-2 * limit) for count, limit in zip(inner, tau, strict=True)]
        )
        solve = torch.tensor([not yes for yes in accepted])
        if solve.any():
            u[solve] = _newton(
                problem, u[solve], mu[solve], anchor[solve], beta, share, tolerance[solve], rho, w[solve], dual[solve]
            )
            dual[solve] += rho * (u[solve] - spread[solve])
        if not any(accepted):
            continue
        stop = []
        for row, yes in enumerate(accepted):
            if not yes:
                continue
            point = spread[row : row + 1]
            raised = (mu[row : row + 1] + beta * problem.values(point)[1]).clamp_min(0)
            moved, change = float((w[row] - anchor[row]).abs().max()), float((raised - mu[row]).abs().max())
            done = outer.stops(k[row], moved, change) and certified[row]
            k[row] += 1
            result.rounds[runs[row]] += inner[row]
            inner[row] = 0
            mu[row], anchor[row], u[row] = raised[0], w[row], w[row]
            dual[row] = -_merit(problem, point, mu[row : row + 1], anchor[row : row + 1], beta, share)[1][0]
            if runs[row] == 0:
                path.append(_first(problem, w[row : row + 1]))
            if done:
                stop.append(row)
                _finish(result, problem, runs[row], w[row], k[row], converged=True)
        keep = [row for row in range(len(runs)) if row not in stop]
        runs, k, inner = [runs[row] for row in keep], [k[row] for row in keep], [inner[row] for row in keep]
        mu, anchor, u, dual, w = mu[keep], anchor[keep], u[keep], dual[keep], w[keep]
    for row, run in enumerate(runs):
        result.rounds[run] += inner[row]
        _finish(result, problem, run, w[row], k[row], converged=False)
    return result


def central(problem: Losses, start: Tensor, outer: fp.Outer, most: int = 60) -> Result:
    """Runs algorithm 3, the same outer loop with all data in one place, from each starting point `[r, d]`."""
    n, beta = problem.n, outer.beta
    result = _none(start, problem.n, problem.q)
    for run in range(len(start)):
        w, mu = start[run : run + 1], start.new_zeros(1, n, problem.q)
        converged, k = False, 0
        while not converged and k < most:
            new, solved = _together(problem, w, mu, beta, outer.tau(k))
            raised = (mu + beta * problem.values(new.unsqueeze(1).expand(-1, n, -1))[1]).clamp_min(0)
            converged = solved and outer.stops(k, float((new - w).abs().max()), float((raised - mu).abs().max()))
            w, mu, k = new, raised, k + 1
        _finish(result, problem, run, w[0], k, converged=converged)
    return result


def _together(problem: Losses, w: Tensor, mu: Tensor, beta: float, tolerance: float) -> tuple[Tensor, bool]:
    """Minimises the sum of the merit functions and `||. - w||^2 / (2 beta)`; also returns True if it is solved."""
    n, point = problem.n, w
    for _ in range(200):
        value, slope, prices = _sum(problem, point, mu, w, beta)
        if float(slope.abs().max()) <= tolerance:
            return point, True
        hessian = problem.curvature(point.unsqueeze(1).expand(-1, n, -1), prices, beta).sum(1)
        hessian = hessian + torch.eye(w.shape[1], dtype=w.dtype) / beta
        step = -torch.linalg.solve(hessian, slope)
        size = 1.0
        while True:
            trial = point + size * step
            fall = _FALL * size * float((slope * step).sum())
            if float(_sum(problem, trial, mu, w, beta)[0]) <= float(value) + fall + _LEAST or size < 1e-9:
                break
            size /= 2
        point = trial
    return point, False


def _sum(problem: Losses, point: Tensor, mu: Tensor, anchor: Tensor, beta: float) -> tuple[Tensor, Tensor, Tensor]:
    value, slope, prices = _merit(problem, point.unsqueeze(1).expand(-1, problem.n, -1), mu, anchor, beta, 0.0)
    near = point - anchor
    return value.sum(1) + near.square().sum(1) / (2 * beta), slope.sum(1) + near / beta, prices


def _merit(
    problem: Losses, u: Tensor, mu: Tensor, anchor: Tensor, beta: float, share: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns values, gradients and prices of the clients' merit functions, eq 14."""
    objective, _, prices, slope = problem.slopes(u, lambda values: (mu + beta * values).clamp_min(0))
    near = u - anchor.unsqueeze(1)
    penalty = (prices.square() - mu.square()).sum(2) / (2 * beta)
    return objective + penalty + share / 2 * near.square().sum(2), slope + share * near, prices


def _newton(
    problem: Losses,
    u: Tensor,
    mu: Tensor,
    anchor: Tensor,
    beta: float,
    share: float,
    tolerance: Tensor,
    rho: float,
    w: Tensor,
    dual: Tensor,
) -> Tensor:
    """Solves the subproblems of eq 19 by Newton's method with backtracking."""
    eye = (rho + share) * torch.eye(u.shape[2], dtype=u.dtype)
    far = w.unsqueeze(1)

    def subproblem(point: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        value, slope, prices = _merit(problem, point, mu, anchor, beta, share)
        off = point - far
        value = value + (dual * off).sum(2) + rho / 2 * off.square().sum(2)
        return value, slope + dual + rho * off, prices

    value, slope, prices = subproblem(u)
    for _ in range(50):
        open_rows = slope.abs().amax(2) > tolerance.unsqueeze(1)
        if not bool(open_rows.any()):
            break
        hessian = problem.curvature(u, prices, beta) + eye
        step = -torch.linalg.solve(hessian, slope) * open_rows.unsqueeze(2)
        fall = (step * slope).sum(2)
        size = torch.ones_like(fall)
        done = ~open_rows
        for _ in range(40):
            trial = u + size.unsqueeze(2) * step
            new = subproblem(trial)
            good = (new[0] <= value + _FALL * size * fall + _LEAST * value.abs()) | done
            if bool(good.all()):
                break
            size = torch.where(good, size, size / 2)
        u, (value, slope, prices) = trial, new
    return u


def _first(problem: Losses, w: Tensor) -> tuple[Tensor, Tensor]:
    objective, values = problem.values(w[:1].unsqueeze(1).expand(-1, problem.n, -1))
    return objective[0], values[0]


def _finish(result: Result, problem: Losses, run: int, w: Tensor, outer: int, *, converged: bool) -> None:
    objective, values = _first(problem, w.unsqueeze(0))
    result.w[run], result.objective[run], result.values[run] = w, objective.sum(), values
    result.converged[run], result.outer[run] = converged, outer


def neyman_pearson(parts: list[tuple[Tensor, Tensor]], bound: float) -> Losses:
    """Returns clients that minimise class 0's mean loss while class 1's is at most a bound (eq 30).

    Args:
        parts: Each client's features `[m, d]` and classes `[m]`; all clients have equally many examples.
        bound: r.
    """
    x = torch.stack([(1 - 2 * y.to(x.dtype)).unsqueeze(1) * x for x, y in parts])
    y = torch.stack([y.to(x.dtype) for _, y in parts])
    zeros, ones = (1 - y) / (1 - y).sum(1, keepdim=True), y / y.sum(1, keepdim=True)
    return Losses((Block(x, zeros / len(parts), ones.unsqueeze(2), bound),))


def fairness(parts: list[tuple[Tensor, Tensor]], server: tuple[Tensor, Tensor], at_most: float) -> Losses:
    """Returns clients whose mean losses of two groups, given by the last feature, differ by at most a bound (eq 32).

    Args:
        parts: Each client's features and classes.
        server: The server's; it has constraints only.
        at_most: r.
    """
    size = min(len(y) for _, y in parts)
    blocks = []
    for group, share in (([(x[:size], y[:size]) for x, y in parts], 1 / len(parts)), ([server], 0.0)):
        x = torch.stack([x for x, _ in group])
        sign = 1 - 2 * torch.stack([y.to(x.dtype) for _, y in group])
        one = (x[:, :, -1] > 0.5).to(x.dtype)
        gap = one / one.sum(1, keepdim=True) - (1 - one) / (1 - one).sum(1, keepdim=True)
        objective = torch.full_like(one, share / x.shape[1])
        blocks.append(Block(sign.unsqueeze(2) * x, objective, torch.stack([gap, -gap], 2), at_most))
    return Losses(tuple(blocks))


def tight(problem: Losses, start: Tensor) -> float:
    """Returns the smallest objective, by algorithm 3 with a large penalty and a feasibility of 1e-6."""
    return float(central(problem, start[:1], fp.Outer(300.0, 1e-3, 1e-4, 1e-6)).objective[0])


@dataclass(frozen=True)
class Quadratics:
    """Clients with `w' a w / 2 + b' w` and constraints `c w + d = 0` (eq 86); the last is the server, with a = b = 0.

    Attributes:
        a: `[n, dim, dim]`.
        b: `[n, dim]`.
        c: `[n, m, dim]`.
        d: `[n, m]`.
    """

    a: Tensor
    b: Tensor
    c: Tensor
    d: Tensor

    def objective(self, w: Tensor) -> Tensor:
        """Returns the sum of the objectives: `[r, dim] -> [r]`."""
        return torch.einsum("rd,de,re->r", w, self.a.sum(0), w) / 2 + w @ self.b.sum(0)

    def values(self, w: Tensor) -> Tensor:
        """Returns the constraint values, `[r, n, m]`."""
        return torch.einsum("nmd,rd->rnm", self.c, w) + self.d

    def optimum(self) -> float:
        """Returns the smallest objective, by one linear system."""
        rows, right = self.c.flatten(0, 1), self.d.flatten()
        size, count = rows.shape[1], len(rows)
        system = torch.zeros(size + count, size + count, dtype=rows.dtype)
        system[:size, :size], system[:size, size:], system[size:, :size] = self.a.sum(0), rows.T, rows
        w = torch.linalg.solve(system, -torch.cat([self.b.sum(0), right]))[:size]
        return float(self.objective(w.unsqueeze(0)))


def federated_quadratic(
    problem: Quadratics, start: Tensor, outer: fp.Outer, rho: float, *, cap: int = 2000, most: int = 20_000
) -> Result:
    """Runs algorithm 1 on quadratics, with closed forms for all subproblems, from each starting point `[r, dim]`."""
    n, beta = len(problem.a), outer.beta
    share = 1 / ((n + 1) * beta)
    eye = torch.eye(start.shape[1], dtype=start.dtype)
    hessian = problem.a + beta * problem.c.mT @ problem.c + share * eye
    inverse = torch.linalg.inv(hessian + rho * eye)
    result = _none(start, n, problem.c.shape[1])
    for run in range(len(start)):  # the starting points are few, and each ends at its own time
        w = anchor = start[run]
        mu = torch.zeros_like(problem.d)
        total, k, converged = 0, 0, False
        while total < most and not converged:
            linear = problem.b + torch.einsum("nmd,nm->nd", problem.c, mu + beta * problem.d) - share * anchor
            u = anchor.expand(n, -1).clone()
            dual = -(hessian @ u.unsqueeze(2)).squeeze(2) - linear
            certified, inner = False, 0
            while not certified and inner < cap and total < most:
                total, inner = total + 1, inner + 1
                w = ((rho * u + dual).sum(0) + share * anchor) / (n * rho + share)
                error = (hessian @ w + linear + dual - rho * (w - u)).abs().amax(1).sum()
                certified = float(error) <= outer.tau(k)
                if not certified:
                    u = (inverse @ (rho * w - dual - linear).unsqueeze(2)).squeeze(2)
                    dual = dual + rho * (u - w)
            raised = mu + beta * problem.values(w.unsqueeze(0))[0]
            moved, change = float((w - anchor).abs().max()), float((raised - mu).abs().max())
            converged = certified and outer.stops(k, moved, change)
            mu, anchor, k = raised, w, k + 1
        result.rounds[run] = total
        _note(result, problem, run, w, k, converged)
    return result


def central_quadratic(problem: Quadratics, start: Tensor, outer: fp.Outer, most: int = 200) -> Result:
    """Runs algorithm 3 on quadratics; each subproblem is one linear system."""
    beta, result = outer.beta, _none(start, len(problem.a), problem.c.shape[1])
    eye = torch.eye(start.shape[1], dtype=start.dtype)
    hessian = (problem.a + beta * problem.c.mT @ problem.c).sum(0) + eye / beta
    inverse = torch.linalg.inv(hessian)
    for run in range(len(start)):
        w, mu, k, converged = start[run], torch.zeros_like(problem.d), 0, False
        while k < most and not converged:
            linear = (problem.b + torch.einsum("nmd,nm->nd", problem.c, mu + beta * problem.d)).sum(0) - w / beta
            new = -inverse @ linear
            raised = mu + beta * problem.values(new.unsqueeze(0))[0]
            converged = outer.stops(k, float((new - w).abs().max()), float((raised - mu).abs().max()))
            w, mu, k = new, raised, k + 1
        _note(result, problem, run, w, k, converged)
    return result


def _none(start: Tensor, n: int, m: int) -> Result:
    runs = len(start)
    none = torch.zeros(runs, dtype=torch.int64)
    return Result(
        start.clone(), start.new_zeros(runs), start.new_zeros(runs, n, m), none.bool(), none.clone(), none.clone()
    )


def _note(result: Result, problem: Quadratics, run: int, w: Tensor, outer: int, converged: bool) -> None:
    result.w[run], result.objective[run] = w, problem.objective(w.unsqueeze(0))[0]
    result.values[run], result.converged[run] = problem.values(w.unsqueeze(0))[0], converged
    result.outer[run] = outer
