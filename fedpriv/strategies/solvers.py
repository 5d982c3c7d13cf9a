"""Minimises many small smooth problems at once. Row i belongs to problem i; rows that have converged no longer change.

L-BFGS: Nocedal and Wright (2006), algorithm 7.4. Accelerated gradient: Nesterov (1983) with the gradient restart of
O'Donoghue and Candes (2015) and backtracking. Newton on a fixed Hessian is exact for quadratics.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedpriv.settings.checks import Count, Positive, validate_arguments

Values = Callable[[Tensor], Tensor]
"""`[k, dim] -> [k]`, differentiable row by row."""
Direction = Callable[[Tensor, Tensor], tuple[Tensor, Tensor | float]]
"""Maps points and gradients `[k, dim]` to directions `[k, dim]` and first step sizes to try, `[k]` or one for all."""
Pair = tuple[Tensor, Tensor, Tensor]

_TRIALS = 40  # largest number of step sizes in a line search
_ARMIJO = 1e-4  # fraction of the predicted decrease that a step must reach
_ROUNDING = 1e-13  # relative rounding error of values


class Solver(Protocol):
    """Minimises `values` from `start` until every row's gradient is at most `tolerance` in the infinity norm."""

    def prepare(self, values: Values, start: Tensor) -> Tensor:
        """Returns values that can be computed once for many solves: one row for each problem, of any width."""
        ...

    def solve(self, values: Values, start: Tensor, tolerance: float, prepared: Tensor) -> Tensor:
        """Returns the minimisers `[k, dim]`; rows that reach the largest number of iterations may be inexact."""
        ...


def compute_gradient(values: Values, x: Tensor) -> tuple[Tensor, Tensor]:
    """Returns values `[k]` and gradients `[k, dim]`; a value that is not finite becomes infinite."""
    with torch.enable_grad():
        point = x.detach().requires_grad_()
        results = values(point)
        slope = torch.autograd.grad(results.sum(), point)[0]
    return results.detach().nan_to_num(torch.inf, torch.inf), slope


def _nothing(_: Solver, values: Values, start: Tensor) -> Tensor:
    """Computes nothing in advance."""
    return start.new_zeros(len(start), 0)


@validate_arguments("strategy.solver")
@dataclass(frozen=True)
class LBFGS:
    """Limited-memory BFGS with backtracking.

    Args:
        history: Number of stored pairs (step, change of the gradient).
        iterations: Largest number of iterations.

    Examples:
        >>> import torch
        >>> from fedpriv.strategies import LBFGS
        >>> values = lambda x: (x - 2.0).square().sum(-1)
        >>> start = torch.zeros(1, 1, dtype=torch.float64)
        >>> round(LBFGS().solve(values, start, 1e-6, start).item(), 3)
        2.0
    """

    history: Count = 10
    iterations: Count = 200

    prepare = _nothing

    def solve(self, values: Values, start: Tensor, tolerance: float, prepared: Tensor) -> Tensor:
        """See `Solver`."""
        visited: list[tuple[Tensor, Tensor]] = []
        pairs: list[Pair] = []

        def direction(x: Tensor, g: Tensor) -> tuple[Tensor, Tensor | float]:
            if visited:
                pairs.append(_pair(x - visited[-1][0], g - visited[-1][1]))
            visited[:] = [(x, g)]
            pairs[:] = pairs[-self.history :]
            step = _two_loops(g, pairs)
            if pairs:
                size = 1.0
            else:
                # nothing is known of the curvature yet: a step of length one at most
                size = 1 / g.norm(dim=1).clamp_min(1.0)
            return step.where(_falls(step, g), -g), size

        return _descend(values, start, tolerance, self.iterations, direction)


@validate_arguments("strategy.solver")
@dataclass(frozen=True)
class AcceleratedGradient:
    """Nesterov's method with adaptive restart and backtracking.

    Args:
        iterations: Largest number of iterations.
        step: First step size; it is halved where needed and grows by a tenth in each iteration.
    """

    iterations: Count = 2000
    step: Positive = 1.0

    prepare = _nothing

    def solve(self, values: Values, start: Tensor, tolerance: float, prepared: Tensor) -> Tensor:
        """See `Solver`."""
        x = start
        extrapolated = start
        momentum = start.new_ones(len(start))
        step = start.new_full((len(start),), self.step)
        for _ in range(self.iterations):
            f, g = compute_gradient(values, extrapolated)
            if bool((momentum > 1).any()):
                g_at_x = compute_gradient(values, x)[1]
            else:
                g_at_x = g
            open_rows = g_at_x.abs().amax(1) > tolerance
            if not bool(open_rows.any()):
                break
            x_new, step = _backtrack(values, extrapolated, f, g, step * 1.1)
            x_new = x_new.where(open_rows.unsqueeze(1), x)
            # restart where the momentum points uphill
            uphill = (g * (x_new - x)).sum(1) > 0
            grown = (1 + (1 + 4 * momentum.square()).sqrt()) / 2
            beta = ((momentum - 1) / grown).where(~uphill & open_rows, 0.0)
            extrapolated = x_new + beta.unsqueeze(1) * (x_new - x)
            momentum = grown.where(~uphill, 1.0)
            x = x_new
        return x


@validate_arguments("strategy.solver")
@dataclass(frozen=True)
class Newton:
    """Newton's method with backtracking: few iterations, each with a Hessian. It suits up to about 100 parameters.

    Args:
        iterations: Largest number of iterations.
    """

    iterations: Count = 50

    prepare = _nothing

    def solve(self, values: Values, start: Tensor, tolerance: float, prepared: Tensor) -> Tensor:
        """See `Solver`."""

        def direction(x: Tensor, g: Tensor) -> tuple[Tensor, float]:
            curvature = _hessian(values, x)
            size = curvature.diagonal(dim1=1, dim2=2).abs().amax(1).clamp_min(1e-8)
            eye = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
            step = -torch.linalg.solve(curvature + 1e-12 * size[:, None, None] * eye, g)
            falls = torch.isfinite(step).all(1, keepdim=True) & _falls(step, g)
            return step.where(falls, -g / size.unsqueeze(1)), 1.0

        return _descend(values, start, tolerance, self.iterations, direction)


@dataclass(frozen=True)
class Quadratic:
    """The closed form for quadratics: `prepare` inverts the Hessian, and each solve is one matrix product."""

    def prepare(self, values: Values, start: Tensor) -> Tensor:
        """Returns inverse Hessians `[k, dim, dim]`, from the gradients at the unit vectors."""
        zero = torch.zeros_like(start)
        base = compute_gradient(values, zero)[1]
        unit = torch.eye(start.shape[1], dtype=start.dtype, device=start.device)
        columns = [compute_gradient(values, zero + e)[1] - base for e in unit]
        return torch.linalg.inv(torch.stack(columns, 2))

    def solve(self, values: Values, start: Tensor, tolerance: float, prepared: Tensor) -> Tensor:
        """Makes one Newton step, and a second one to correct rounding errors."""
        x = start
        for _ in range(2):
            x = x - torch.einsum("kij,kj->ki", prepared, compute_gradient(values, x)[1])
        return x


def _hessian(values: Values, x: Tensor) -> Tensor:
    """Returns Hessians, `[k, dim, dim]`."""
    with torch.enable_grad():
        point = x.detach().requires_grad_()
        slope = torch.autograd.grad(values(point).sum(), point, create_graph=True)[0]
        unit = torch.eye(x.shape[1], dtype=x.dtype, device=x.device).unsqueeze(1).expand(-1, len(x), -1)
        columns = torch.autograd.grad(slope, point, unit, is_grads_batched=True)[0]
    return columns.transpose(0, 1)


def _descend(values: Values, start: Tensor, tolerance: float, iterations: int, direction: Direction) -> Tensor:
    """Repeats line searches along `direction` until every row has converged."""
    x = start
    f, g = compute_gradient(values, x)
    for _ in range(iterations):
        open_rows = g.abs().amax(1) > tolerance
        if not bool(open_rows.any()):
            break
        step, first = direction(x, g)
        x, f, g, moved = _search(values, x, f, g, step * open_rows.unsqueeze(1), torch.ones_like(f) * first)
        if not bool((moved & open_rows).any()):
            break  # rounding: no row can be improved any more
    return x


def _falls(step: Tensor, g: Tensor) -> Tensor:
    """Returns True if a step goes downhill, `[k, 1]`."""
    return (step * g).sum(1, keepdim=True) < 0


def _pair(s: Tensor, y: Tensor) -> Pair:
    """Returns a step s, the change y of the gradient along it, and `1 / <s, y>`, or 0 without positive curvature."""
    curvature = (s * y).sum(1)
    useful = curvature > 1e-12 * s.norm(dim=1) * y.norm(dim=1)
    return s, y, torch.where(useful, 1 / curvature.where(useful, 1.0), 0.0)


def _two_loops(g: Tensor, pairs: list[Pair]) -> Tensor:
    """Returns `-H g` for the inverse Hessian H of the pairs, by the two-loop recursion."""
    q = g
    alphas = []
    for s, y, rho in reversed(pairs):
        alpha = rho * (s * q).sum(1)
        q = q - alpha.unsqueeze(1) * y
        alphas.append(alpha)
    if pairs:
        s, y, rho = pairs[-1]
        scale = ((s * y).sum(1) / y.square().sum(1).clamp_min(torch.finfo(g.dtype).tiny)).where(rho > 0, 1.0)
        q = q * scale.unsqueeze(1)
    for (s, y, rho), alpha in zip(pairs, reversed(alphas), strict=True):
        q = q + (alpha - rho * (y * q).sum(1)).unsqueeze(1) * s
    return -q


def _search(
    values: Values, x: Tensor, f: Tensor, g: Tensor, direction: Tensor, step: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Halves each row's step until its value falls enough or, if the decrease is below rounding errors, until its slope
    falls enough.

    Returns:
        Points, values, gradients, and a mask of the rows that have moved.
    """
    slope = (direction * g).sum(1)
    done = slope == 0
    best = x, f, g
    for _ in range(_TRIALS):
        trial = x + step.unsqueeze(1) * direction
        f_new, g_new = compute_gradient(values, trial)
        falls = f_new <= f + _ARMIJO * step * slope
        flat = (f_new <= f + _ROUNDING * f.abs()) & ((direction * g_new).sum(1).abs() <= 0.9 * slope.abs())
        accept = (falls | flat) & ~done
        pick = accept.unsqueeze(1)
        best = trial.where(pick, best[0]), f_new.where(accept, best[1]), g_new.where(pick, best[2])
        done = done | accept
        if bool(done.all()):
            break
        step = step.where(done, step / 2)
    return *best, (best[0] != x).any(1)


def _backtrack(values: Values, x: Tensor, f: Tensor, g: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
    """Halves `step` until `f(x+) <= f - step/2 ||g||^2` up to rounding; returns `x+ = x - step g` and the step size."""
    trial = x
    for _ in range(_TRIALS):
        trial = x - step.unsqueeze(1) * g
        with torch.no_grad():
            f_new = values(trial).nan_to_num(torch.inf, torch.inf)
        good = f_new <= f - 0.5 * step * g.square().sum(1) + _ROUNDING * f.abs()
        if bool(good.all()):
            break
        step = step.where(good, step / 2)
    return trial, step
