"""Proximal augmented Lagrangian with inner ADMM (He, Peng and Sun, 2024). It adds no noise and is not private.

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

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Real
from typing import ClassVar

import torch
from torch import Tensor

from fedpriv.errors import ConfigError, format_count
from fedpriv.settings import Count, Positive, Ratio, RegistryEntry, check_finite, validate_arguments
from fedpriv.strategies import (
    LBFGS,
    STALLED,
    Consensus,
    Memory,
    Network,
    Oracle,
    Outer,
    Proximal,
    Solver,
    Strategy,
    Zero,
    compute_gradient,
    compute_largest,
    compute_penalty,
    compute_violations,
    flatten_parameters,
    update_multipliers,
)

INNER, ACCEPTED, START = 0.0, 1.0, 2.0
MONITOR = ("objective", "violation", "stationarity", "complementarity")


@dataclass(frozen=True)
class LocalBlock:
    """A client's state.

    Attributes:
        u: u_i, `[n, dim]`.
        dual: lambda_i, `[n, dim]`.
        anchor: w^k, `[n, dim]`.
        multipliers: mu_i, `[n, m]`.
        prepared: Values that the solver computed in advance for this inner loop, `[n, ...]`.
    """

    u: Tensor
    dual: Tensor
    anchor: Tensor
    multipliers: Tensor
    prepared: Tensor


@dataclass(frozen=True)
class AdmmBlock:
    """Client i's block of the inner ADMM, and its multipliers.

    A client receives `w`, the phase (whether w is an inner iterate or accepted as w^{k+1}) and the inner tolerance. It
    sends `u~_i` and five numbers: e~_i (0 outside of inner rounds) and, if w is accepted, the objective, the violation,
    the complementarity and the change of the multipliers.

    Args:
        outer: The outer loop's parameters.
        rho: ADMM penalty parameter.
        solver: Solves the subproblem.
        client_rho: ADMM penalty parameter of each client; none: `rho`.
    """

    receives: ClassVar[tuple[str, ...]] = ("consensus", "phase", "tolerance")
    sends: ClassVar[tuple[str, ...]] = ("shifted_primal", "certificate")
    memory: ClassVar[Memory] = "private"  # multipliers and copies
    linear: ClassVar[bool] = False  # messages are not linear in the query results

    outer: Outer
    rho: float
    solver: Solver
    client_rho: tuple[float, ...] = ()

    def init(self, params: Tensor) -> LocalBlock:
        """Returns zero multipliers in one column; the first round extends it to one column for each constraint."""
        rows = params.new_zeros(len(params), 1)
        return LocalBlock(params.clone(), torch.zeros_like(params), params.clone(), rows, rows[:, :0])

    def __call__(self, received: Tensor, state: LocalBlock, oracle: Oracle) -> tuple[Tensor, LocalBlock]:
        """Computes one communication round."""
        w = received[:, :-2]
        phase = float(received[0, -2])
        tolerance = float(received[0, -1])
        rho = self._rho(oracle, w)
        if phase == INNER:
            u, numbers, state = self._inner(w, state, oracle, tolerance, rho)
        else:
            u, numbers, state = self._restart(w, state, oracle, phase, rho)
        shifted = u + state.dual / rho
        if self.client_rho:
            # the server multiplies the sum by the mean of all penalties
            shifted = shifted * (rho / _mean(self.client_rho))
        return torch.cat([shifted, numbers], 1), state

    def _rho(self, oracle: Oracle, like: Tensor) -> Tensor | float:
        """Returns the penalty of each client, `[k, 1]`, or one for all.

        Raises:
            ConfigError: If the number of penalties is not the number of clients.
        """
        if not self.client_rho:
            return self.rho
        if len(self.client_rho) != oracle.n_clients:
            given, clients = format_count(len(self.client_rho), "value"), format_count(oracle.n_clients, "client")
            fix = f"has {given}, but the run has {clients}: list one value for each client, or set only rho"
            raise ConfigError("strategy.client_rho", list(self.client_rho), fix)
        rows = [self.client_rho[number] for number in oracle.numbers.tolist()]
        return like.new_tensor(rows).unsqueeze(1)

    def _merit(self, state: LocalBlock, oracle: Oracle) -> Callable[[Tensor], Tensor]:
        """Returns the merit function `P_i`, eq 14."""
        beta = self.outer.beta
        mu = state.multipliers
        n = oracle.n_clients

        def merit(u: Tensor) -> Tensor:
            objective, values = oracle.exact(u)
            proximal = (u - state.anchor).square().sum(1) / (2 * (n + 1) * beta)
            return objective + compute_penalty(mu, values, beta, oracle.equality) + proximal

        return merit

    def _inner(
        self, w: Tensor, state: LocalBlock, oracle: Oracle, tolerance: float, rho: Tensor | float
    ) -> tuple[Tensor, Tensor, LocalBlock]:
        """Computes e~_i of eq 22, solves the subproblem (19) and moves the dual."""
        _, measures = self._measure(w, state, oracle)
        merit = self._merit(state, oracle)
        dual = state.dual
        error = (_gradient_at(merit, w) + dual - rho * (w - state.u)).abs().amax(1)

        def subproblem(u: Tensor) -> Tensor:
            return merit(u) + (dual * (u - w)).sum(1) + _half_squares(rho, u - w)

        u = self.solver.solve(subproblem, state.u, tolerance, state.prepared)
        return u, torch.cat([error.unsqueeze(1), measures], 1), replace(state, u=u, dual=dual + rho * (u - w))

    def _restart(
        self, w: Tensor, state: LocalBlock, oracle: Oracle, phase: float, rho: Tensor | float
    ) -> tuple[Tensor, Tensor, LocalBlock]:
        """Updates the multipliers (not at the start) and begins the next inner loop at w."""
        multipliers, measures = self._measure(w, state, oracle)
        if phase != ACCEPTED:
            # unchanged, in the width of the constraints
            multipliers = state.multipliers + 0 * multipliers
        state = replace(state, multipliers=multipliers, anchor=w, u=w)
        merit = self._merit(state, oracle)
        state = replace(state, dual=-_gradient_at(merit, w))
        if phase == START:
            prepared = self.solver.prepare(lambda u: merit(u) + _half_squares(rho, u), w)
            state = replace(state, prepared=prepared)
        return w, torch.nn.functional.pad(measures, (1, 0)), state

    def _measure(self, w: Tensor, state: LocalBlock, oracle: Oracle) -> tuple[Tensor, Tensor]:
        """Returns the multipliers to set if w is accepted, `[n, m]`, and the message's last four numbers, `[n, 4]`."""
        with torch.no_grad():
            objective, values = oracle.exact(w)
        old = state.multipliers
        equality = oracle.equality
        raised_multipliers = update_multipliers(old, values, self.outer.beta, equality)
        slack = (raised_multipliers * values).where(~equality, 0.0)
        worst = [compute_largest(v) for v in (compute_violations(values, equality), slack, raised_multipliers - old)]
        return raised_multipliers, torch.stack([objective, *worst], 1)


@dataclass(frozen=True)
class Loop:
    """The server's state: its position in the loops, its decisions, and the numbers that a run shows.

    Attributes:
        w: The newest w, `[dim]`.
        anchor: w^k, `[dim]`.
        phase: INNER if `w` is an inner iterate, ACCEPTED if it is w^{k+1}, or START.
        outer: Number of outer rounds.
        inner: Number of rounds of this inner loop.
        inner_total: Number of rounds of all inner loops.
        certified: True if the last inner loop ended by its certificate; False if it reached its largest number of
            rounds.
        done: True if the run is over.
        converged: True if eq 11 and the certificate hold.
        stalled: Number of outer rounds without progress.
        least_violation: Violation with which the next round's violation is compared.
        objective: Value of the objective, with h, `[]`.
        violation: Largest violation of a client, `[]`.
        complementarity: Largest `|mu_i c_i|` of an inequality, `[]`.
        stationarity: Upper bound on `dist_inf(0, dL)`; NaN before the first certificate, `[]`.
    """

    w: Tensor
    anchor: Tensor
    objective: Tensor
    violation: Tensor
    complementarity: Tensor
    stationarity: Tensor
    phase: float = START
    outer: int = 0
    inner: int = 0
    inner_total: int = 0
    certified: bool = False
    done: bool = False
    converged: bool = False
    stalled: int = 0
    least_violation: float = math.inf


@dataclass(frozen=True)
class ConstrainedAdmmServer:
    """The server: solves its step in closed form, checks the certificates, and decides when to stop.

    Args:
        outer: The outer loop's parameters.
        rho: ADMM penalty parameter.
        regularizer: h.
        inner_decay: Factor q by which the tolerance e of the inner problem shrinks in each outer round:
            `e_{t+1} = q^t`.
        inner_rounds: Largest number of rounds of an inner loop; if the last loop needs more, `converged` is False.
        client_rho: ADMM penalty parameters of the clients, see `AdmmBlock`.
    """

    receives: ClassVar[tuple[str, ...]] = ("shifted_primal", "certificate")
    sends: ClassVar[tuple[str, ...]] = ("consensus", "phase", "tolerance")
    is_sum: ClassVar[bool] = False

    outer: Outer
    rho: float
    regularizer: Proximal
    inner_decay: float
    inner_rounds: int
    client_rho: tuple[float, ...] = ()

    def init(self, params: Tensor) -> tuple[Tensor, Loop]:
        """Sends `w^0` and the phase START to all."""
        w = params[0]
        zero = params.new_zeros(())
        return _broadcast_row(w, START, 1.0).expand(len(params), -1), Loop(w, w, zero, zero, zero, zero + math.nan)

    def __call__(self, message: Tensor, network: Network, state: Loop) -> tuple[Tensor, Loop]:
        """Computes one communication round."""
        n = network.n_clients
        # u~_i, e~_i and objectives are added up; for the other numbers the largest is used
        rows = network.gather(message)
        sums = network.total(rows[:, :-3])[0]
        violation, complementarity, change = network.largest(rows[:, -3:])[0]
        shifted = sums[:-2]
        error = sums[-2]
        objective = sums[-1]
        objective = objective + self.regularizer.value(state.w.unsqueeze(0))[0]
        state = replace(state, objective=objective, violation=violation, complementarity=complementarity)
        if state.phase == INNER:
            state = self._check_certificate(error, state)
        else:
            state = self._start_next_outer(float(change), state)
        if state.phase == ACCEPTED or state.done:
            return network.scatter(_broadcast_row(state.w, ACCEPTED, 1.0)), state
        # the server's step in closed form, eq 18
        share = 1 / ((n + 1) * self.outer.beta)
        rho = _mean(self.client_rho) if self.client_rho else self.rho
        weight = n * rho + share
        center = (rho * shifted + share * state.anchor) / weight
        w = self.regularizer.prox(center, 1 / weight)
        tolerance = max(self.inner_decay**state.inner, 1e-2 * self.outer.tau(state.outer))
        state = replace(state, w=w, inner=state.inner + 1, inner_total=state.inner_total + 1)
        return network.scatter(_broadcast_row(w, INNER, tolerance)), state

    def _check_certificate(self, error: Tensor, state: Loop) -> Loop:
        """Accepts w if the certificate holds, or if the inner loop has reached its largest number of rounds."""
        # stationarity of the Lagrangian at w, with the multipliers that w would set, eq 11
        state = replace(state, stationarity=error + (state.w - state.anchor).abs().max() / self.outer.beta)
        certified = bool(error <= self.outer.tau(state.outer))
        if certified or state.inner >= self.inner_rounds:
            return replace(state, phase=ACCEPTED, certified=certified)
        return state

    def _start_next_outer(self, change: float, state: Loop) -> Loop:
        """Stops, or begins the next inner loop, from clients' numbers at an accepted w."""
        if state.phase != START:
            state = replace(self._decide(float(state.violation), change, state), outer=state.outer + 1)
        if state.done:
            return state
        return replace(state, anchor=state.w, inner=0, phase=INNER)

    def _decide(self, violation: float, change: float, state: Loop) -> Loop:
        """Decides whether the run has converged or stalled."""
        moved = float((state.w - state.anchor).abs().max())
        converged = self.outer.stops(state.outer, moved, change) and state.certified
        stalled, least = self.outer.stalls(state.stalled, state.least_violation, violation)
        done = converged or stalled >= STALLED
        return replace(state, converged=converged, stalled=stalled, least_violation=least, done=done)


@validate_arguments("strategy")
def proximal_al(
    outer: Outer = Outer(),
    rho: Positive = 1.0,
    *,
    regularizer: Proximal = Zero(),
    solver: Solver = LBFGS(),
    inner_decay: Ratio = 0.5,
    inner_rounds: Count = 2000,
    client_rho: tuple[Positive, ...] | None = None,
) -> Strategy:
    """Creates a proximal augmented Lagrangian with inner ADMM (He, Peng and Sun, 2024), for constrained training.

    It is not private, because messages reveal exact gradients and constraint values. It needs
    `Privacy(noise_on="none")`.

    Args:
        outer: Penalty, tolerances and stopping rule of the outer loop.
        rho: ADMM penalty parameter, in the units of the objective's curvature.
        regularizer: Convex h, added to the sum of the clients' objectives.
        solver: Solver of subproblems: `LBFGS()` (default), `Newton()`, `AcceleratedGradient()`, `Quadratic()`.
        inner_decay: Round t of an inner loop solves subproblems to the tolerance `inner_decay**t`; in (0, 1).
        inner_rounds: Largest number of rounds of one inner loop.
        client_rho: An ADMM penalty parameter for each client, in their order, instead of `rho`. They change the number
            of rounds, not the solution.

    Returns:
        The strategy. The run ends when w is stationary and feasible to the tolerances of `outer`.

    Raises:
        ConfigError: If an argument is out of range.

    Examples:
        >>> import fedpriv, torch
        >>> from torch import nn
        >>> data = torch.utils.data.TensorDataset(torch.ones(8, 1), torch.full((8, 1), 2.0))
        >>> at_one = fedpriv.LinearEquality(torch.tensor([[1.0]]), torch.tensor([-1.0]))
        >>> problem = fedpriv.Problem(constraints=(at_one,))
        >>> clients = fedpriv.make_clients(nn.Linear(1, 1, bias=False), nn.MSELoss(), [data], problem)
        >>> result = fedpriv.train(clients, fedpriv.proximal_al(), fedpriv.Privacy(noise_on="none"), rounds=200)
        >>> round(result.params.item(), 2)  # the constraint is w = 1, the unconstrained optimum 2
        1.0
    """
    penalties = tuple(client_rho or ())
    if not all(isinstance(value, Real) and 0 < value < math.inf for value in penalties):
        raise ConfigError("strategy.client_rho", client_rho, "must be a list of positive, finite numbers")
    server = ConstrainedAdmmServer(outer, rho, regularizer, inner_decay, inner_rounds, penalties)
    block = AdmmBlock(outer, rho, solver, penalties)
    return Strategy(block, server, Consensus(), "proximal_al", regularizer, MONITOR)


def _mean(penalties: tuple[float, ...]) -> float:
    """Returns the mean of the clients' penalties."""
    return sum(penalties) / len(penalties)


def _half_squares(rho: Tensor | float, rows: Tensor) -> Tensor:
    """Returns `rho / 2 ||row||^2` of each row; rho is one number, or `[k, 1]`."""
    if isinstance(rho, Tensor):
        return (rho / 2 * rows.square()).sum(1)
    return rho / 2 * rows.square().sum(1)


def _gradient_at(merit: Callable[[Tensor], Tensor], w: Tensor) -> Tensor:
    """Returns gradients at the received point, `[n, dim]`; raises if one is not finite."""
    slope = compute_gradient(merit, w)[1]
    check_finite(slope, "gradient of objective and constraints")
    return slope


def _broadcast_row(w: Tensor, phase: float, tolerance: float) -> Tensor:
    """Returns the server's row: w, the phase and the tolerance, `[1, dim + 2]`."""
    return torch.cat([w, w.new_tensor([phase, tolerance])]).unsqueeze(0)


NAMES = {
    "proximal_al": RegistryEntry(
        flatten_parameters(proximal_al, outer=Outer),
        "proximal augmented Lagrangian for constraints (He, Peng and Sun), exact: needs noise_on: none",
    )
}
