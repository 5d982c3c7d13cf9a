"""Proximal augmented Lagrangian with inner ADMM (He, Peng and Sun, 2024), without noise: not private.

Problem: min_w sum_i f_i(w) + h(w)  s.t. c_i(w) <= 0 (or = 0), i = 1..n. (Constraints on data of the server: one more
client, without an objective.) Outer k = 0, 1, ..., tau_k = s / (k + 1)^2:

    w^{k+1} ~ argmin l_k = sum_i P_i + h + ||w - w^k||^2 / (2 (n+1) beta)    with  dist_inf(0, dl_k) <= tau_k    (10)
    P_i = f_i + (||[mu_i + beta c_i]_+||^2 - ||mu_i||^2) / (2 beta) + ||w - w^k||^2 / (2 (n+1) beta)    (14)
    mu_i <- [mu_i + beta c_i(w^{k+1})]_+        (no [.]_+ for equalities)
    stop: ||w^{k+1} - w^k||_inf + beta tau_k <= beta eps_1  and  max_i ||mu_i^{k+1} - mu_i^k||_inf <= beta eps_2    (11)

Inner ADMM from u_i = w^k, lambda_i = -grad P_i(w^k), u~_i = u_i + lambda_i / rho, e_{t+1} = q^t:

    server  w = argmin h + ||w - w^k||^2 / (2 (n+1) beta) + sum_i rho/2 ||u~_i - w||^2    (18), closed form
    client  e~_i = ||grad P_i(w) + lambda_i - rho (w - u_i)||_inf    (22), with the OLD lambda_i and u_i
            u_i ~ argmin P_i(u) + <lambda_i, u - w> + rho/2 ||u - w||^2    (19), gradient at most e_{t+1}
            lambda_i += rho (u_i - w);  u~_i = u_i + lambda_i / rho
    until sum_i e~_i <= tau_k (the server's step is exact); then dist_inf(0, dl_k(w)) <= tau_k
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedpriv.checks import Count, Positive, Ratio, check_finite, checked
from fedpriv.strategies.base import Memory, Network, Oracle, State, Strategy
from fedpriv.strategies.lagrangian import STALLED, Outer, largest, penalty, raised, violations
from fedpriv.strategies.proximal import Proximal, Zero
from fedpriv.strategies.solvers import LBFGS, Solver, gradient

INNER, ACCEPTED, START = 0.0, 1.0, 2.0
_NUMBERS = "outer inner inner_total certified done converged stalled objective violation complementarity stationarity"
MONITOR = ("objective", "violation", "stationarity", "complementarity")


@dataclass(frozen=True)
class AdmmBlock:
    """Client i's block of the inner ADMM, and its multipliers.

    Receives `w`, the phase (whether w is an inner iterate or accepted as w^{k+1}) and the inner tolerance. Sends `u~_i`
    and five numbers: e~_i (in inner rounds, else 0), and objective, violation, complementarity and change of the
    multipliers if w is accepted.

    Args:
        outer: The outer loop's parameters.
        rho: ADMM penalty parameter.
        solver: Solves the subproblem.
    """

    hears: ClassVar[tuple[str, ...]] = ("consensus", "phase", "tolerance")
    says: ClassVar[tuple[str, ...]] = ("shifted_primal", "certificate")
    memory: ClassVar[Memory] = "private"  # multipliers and copies
    linear: ClassVar[bool] = False  # not in its answers

    outer: Outer
    rho: float
    solver: Solver

    def init(self, params: Tensor) -> State:
        """Zero multipliers; one column, which grows to the number of constraints in the first round."""
        rows = params.new_zeros(len(params), 1)
        return {
            "u": params.clone(),
            "dual": torch.zeros_like(params),
            "anchor": params.clone(),
            "multipliers": rows,
            "prepared": rows[:, :0],
        }

    def __call__(self, received: Tensor, state: State, oracle: Oracle) -> tuple[Tensor, State]:
        """One communication round."""
        w, phase, tolerance = received[:, :-2], float(received[0, -2]), float(received[0, -1])
        step = self._inner if phase == INNER else self._restart
        u, numbers, state = step(w, state, oracle, tolerance if phase == INNER else phase)
        return torch.cat([u + state["dual"] / self.rho, numbers], 1), state

    def _merit(self, state: State, oracle: Oracle) -> Callable[[Tensor], Tensor]:
        """`P_i`, eq 14."""
        beta, mu, n = self.outer.beta, state["multipliers"], oracle.n_clients

        def merit(u: Tensor) -> Tensor:
            objective, values = oracle.exact(u)
            proximal = (u - state["anchor"]).square().sum(1) / (2 * (n + 1) * beta)
            return objective + penalty(mu, values, beta, oracle.equality) + proximal

        return merit

    def _inner(self, w: Tensor, state: State, oracle: Oracle, tolerance: float) -> tuple[Tensor, Tensor, State]:
        _, seen = self._look(w, state, oracle)
        merit, dual, rho = self._merit(state, oracle), state["dual"], self.rho
        error = (_slope(merit, w) + dual - rho * (w - state["u"])).abs().amax(1)

        def subproblem(u: Tensor) -> Tensor:
            return merit(u) + (dual * (u - w)).sum(1) + rho / 2 * (u - w).square().sum(1)

        u = self.solver.solve(subproblem, state["u"], tolerance, state["prepared"])
        return u, torch.cat([error.unsqueeze(1), seen], 1), {**state, "u": u, "dual": dual + rho * (u - w)}

    def _restart(self, w: Tensor, state: State, oracle: Oracle, phase: float) -> tuple[Tensor, Tensor, State]:
        """Raise the multipliers (not at the start) and begin the next inner loop at w."""
        new, seen = self._look(w, state, oracle)
        new = new if phase == ACCEPTED else state["multipliers"] + 0 * new
        state = {**state, "multipliers": new, "anchor": w, "u": w}
        merit = self._merit(state, oracle)
        state["dual"] = -_slope(merit, w)
        if phase == START:
            rho = self.rho
            state["prepared"] = self.solver.prepare(lambda u: merit(u) + rho / 2 * u.square().sum(1), w)
        return w, torch.nn.functional.pad(seen, (1, 0)), state

    def _look(self, w: Tensor, state: State, oracle: Oracle) -> tuple[Tensor, Tensor]:
        """Updated multipliers if w is accepted, `[n, m]`, and the last four numbers of the message, `[n, 4]`."""
        with torch.no_grad():
            objective, values = oracle.exact(w)
        old, equality = state["multipliers"], oracle.equality
        new = raised(old, values, self.outer.beta, equality)
        slack = (new * values).where(~equality, 0.0)
        worst = [largest(v) for v in (violations(values, equality), slack, new - old)]
        return new, torch.stack([objective, *worst], 1)


@dataclass(frozen=True)
class AdmmServer:
    """The server: solves its step in closed form, checks the certificates, and decides when to stop.

    Args:
        outer: The outer loop's parameters.
        rho: ADMM penalty parameter.
        regularizer: h.
        inner_decay: `q` of `e_{t+1} = q^t`.
        inner_rounds: Most rounds of an inner loop; if the last loop needs more, the run reports `converged` as false.
    """

    hears: ClassVar[tuple[str, ...]] = ("shifted_primal", "certificate")
    says: ClassVar[tuple[str, ...]] = ("consensus", "phase", "tolerance")
    is_sum: ClassVar[bool] = False

    outer: Outer
    rho: float
    regularizer: Proximal
    inner_decay: float
    inner_rounds: int

    def init(self, params: Tensor) -> tuple[Tensor, State]:
        """`w^0` and the phase START, sent to all."""
        w = params[0]
        state = {name: w.new_zeros(()) for name in _NUMBERS.split()}
        state |= {"w": w, "anchor": w, "phase": w.new_tensor(START), "least_violation": w.new_tensor(torch.inf)}
        state["stationarity"] = w.new_tensor(torch.nan)  # until the first certificate
        return _broadcast(w, START, 1.0, len(params)), state

    def __call__(self, message: Tensor, network: Network, state: State) -> tuple[Tensor, State]:
        """One communication round."""
        rows = network.gather(message)
        shifted, numbers = rows[:, :-5], rows[:, -5:]
        worst = numbers.amax(0)
        objective = numbers[:, 1].sum() + self.regularizer.value(state["w"].unsqueeze(0))[0]
        state = {**state, "objective": objective, "violation": worst[2], "complementarity": worst[3]}
        if float(state["phase"]) == INNER:
            self._check_inner(numbers, state)
        else:
            self._check_outer(numbers, state)
        if float(state["phase"]) == ACCEPTED or bool(state["done"]):
            return _broadcast(state["w"], ACCEPTED, 1.0, len(rows)), state
        share = 1 / ((len(rows) + 1) * self.outer.beta)
        weight = len(rows) * self.rho + share
        center = (self.rho * shifted.sum(0) + share * state["anchor"]) / weight
        state["w"] = self.regularizer.prox(center, 1 / weight)
        tolerance = max(self.inner_decay ** float(state["inner"]), 1e-2 * self.outer.tau(int(state["outer"])))
        state["inner"] = state["inner"] + 1
        state["inner_total"] = state["inner_total"] + 1
        return _broadcast(state["w"], INNER, tolerance, len(rows)), state

    def _check_inner(self, numbers: Tensor, state: State) -> None:
        """Accept w when its certificate, or the cap, says so."""
        error, tau = numbers[:, 0].sum(), self.outer.tau(int(state["outer"]))
        # of the Lagrangian at w with the multipliers that it would raise, eq 11
        state["stationarity"] = error + (state["w"] - state["anchor"]).abs().max() / self.outer.beta
        certified = bool(error <= tau)
        if certified or int(state["inner"]) >= self.inner_rounds:
            state["phase"] = error.new_tensor(ACCEPTED)
            state["certified"] = error.new_tensor(float(certified))

    def _check_outer(self, numbers: Tensor, state: State) -> None:
        """With clients' numbers at an accepted w: stop, or begin the next inner loop."""
        first = float(state["phase"]) == START
        worst = numbers.amax(0)
        if not first:
            self._decide(float(worst[2]), float(worst[4]), state)
            state["outer"] = state["outer"] + 1
        if not bool(state["done"]):
            state |= {"anchor": state["w"], "inner": worst.new_zeros(()), "phase": worst.new_tensor(INNER)}

    def _decide(self, violation: float, change: float, state: State) -> None:
        """Converged, stalled, or neither."""
        k, moved = int(state["outer"]), float((state["w"] - state["anchor"]).abs().max())
        converged = self.outer.stops(k, moved, change) and bool(state["certified"])
        least = float(state["least_violation"])
        stalled, least = self.outer.stalls(int(state["stalled"]), least, violation)
        found = {"converged": converged, "stalled": stalled, "least_violation": least}
        found |= {"done": converged or stalled >= STALLED}
        state |= {name: state["w"].new_tensor(float(value)) for name, value in found.items()}


@dataclass(frozen=True)
class Consensus:
    """Report w, without what is broadcast beside it."""

    extras: int = 2

    def init(self, received: Tensor) -> State:
        """No state."""
        return {}

    def __call__(self, received: Tensor, state: State) -> tuple[Tensor, State]:
        """The server's w."""
        return received[:1, : -self.extras], state


@checked("strategy")
def proximal_al(
    outer: Outer = Outer(),
    rho: Positive = 1.0,
    *,
    regularizer: Proximal = Zero(),
    solver: Solver = LBFGS(),
    inner_decay: Ratio = 0.5,
    inner_rounds: Count = 2000,
) -> Strategy:
    """Constrained training without privacy: proximal augmented Lagrangian with inner ADMM (He, Peng and Sun, 2024).

    Messages reveal exact gradients and constraint values, so it needs `Privacy(at="none")`.

    Args:
        outer: Penalty, tolerances and stopping rule of the outer loop.
        rho: ADMM penalty parameter, in the units of the objective's curvature.
        regularizer: Convex h, added to the sum of the clients' objectives.
        solver: Of the clients' subproblems: `LBFGS()` (default), `Newton()`, `AcceleratedGradient()`, `Quadratic()`.
        inner_decay: Round t of an inner loop solves subproblems to the tolerance `inner_decay**t`; in (0, 1).
        inner_rounds: Most rounds of one inner loop.

    Returns:
        The strategy. It ends by itself when w is stationary and feasible to the tolerances of `outer`.

    Raises:
        ConfigError: an argument is out of range.
    """
    server = AdmmServer(outer, rho, regularizer, inner_decay, inner_rounds)
    block = AdmmBlock(outer, rho, solver)
    return Strategy(block, server, Consensus(), "proximal_al", regularizer, MONITOR)


def _slope(merit: Callable[[Tensor], Tensor], w: Tensor) -> Tensor:
    """Gradients at the point received, `[n, dim]`."""
    slope = gradient(merit, w)[1]
    check_finite(slope, "gradient of objective and constraints")
    return slope


def _broadcast(w: Tensor, phase: float, tolerance: float, n: int) -> Tensor:
    return torch.cat([w, w.new_tensor([phase, tolerance])]).expand(n, -1)
