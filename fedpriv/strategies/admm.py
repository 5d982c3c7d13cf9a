"""Inexact ADMM (Ryu and Kim, 2022) and its output-perturbed baseline (Huang et al., 2020).

Problem: min_w sum_p f_p(w) with f_p = (1/I) sum of client p's sample losses. Round t = 1, 2, ...:

    w      = mean_p(z_p) - mean_p(lambda_p) / rho_t    (4a)
    z_p    = argmin_{z in W} <g~_p, z> + rho_t/2 ||w - z + lambda_p/rho_t||^2 + step term    (8), (9)
    lambda_p += rho_t (w - z_p)    (4c)

The step term tells the family's members apart: `Prox` adds ||z - z_p||^2 / (2 eta_t), `Trust` keeps z within radius
delta_t of z_p. Perturbing the objective by <xi, z> is noise xi on the gradient g~_p; the baseline's noise xi on z_p is
noise (rho_t + 1/eta_t) xi on g~_p (`OutputNoise`). So the noise stands in the oracle, and one class serves all three.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor

from fedpriv.checks import Finite, NonNegative, Positive, PositiveOrInfinite, checked
from fedpriv.errors import ConfigError
from fedpriv.strategies.base import Averaged, Last, Memory, Network, Oracle, Output, State, Strategy


@checked("strategy.rho")
@dataclass(frozen=True)
class Penalty:
    """Penalty parameter `rho_t = min(1e9, scale * growth**floor(t / period) + offset)`, eq 21."""

    scale: NonNegative = 2.0
    offset: NonNegative = 0.0
    growth: Positive = 1.0
    period: Positive = 1e4

    def __post_init__(self) -> None:
        if not self.scale + self.offset > 0:
            raise ConfigError("strategy.rho", self, "scale or offset must be positive")

    def __call__(self, t: int) -> float:
        """`rho_t` for round `t` = 1, 2, ..."""
        return min(1e9, self.scale * self.growth ** (t // self.period) + self.offset)


@checked("strategy.eta")
@dataclass(frozen=True)
class Decay:
    """A positive sequence `scale / t**power`; `scale = inf` switches the term off."""

    scale: PositiveOrInfinite = 1.0
    power: Finite = 0.5

    def __call__(self, t: int) -> float:
        """Value for round `t` = 1, 2, ..."""
        return self.scale / t**self.power


class Step(Protocol):
    """Solves the local subproblem in closed form."""

    def solve(self, w: Tensor, at: Tensor, dual: Tensor, gradient: Tensor, rho: float, t: int) -> Tensor:
        """New `z [k, dim]`."""
        ...


@checked("strategy.step")
@dataclass(frozen=True)
class Prox:
    """Proximal step, eq 8: `z = (rho w + lambda - g~ + at / eta) / (rho + 1 / eta)`; g~ was asked for at `at`."""

    eta: Decay = field(default_factory=Decay)

    def solve(self, w: Tensor, at: Tensor, dual: Tensor, gradient: Tensor, rho: float, t: int) -> Tensor:
        """Closed form of the quadratic subproblem."""
        pull = 1 / self.eta(t)
        return (rho * w + dual - gradient + pull * at) / (rho + pull)


@checked("strategy.step")
@dataclass(frozen=True)
class Trust:
    """Trust-region step, eq 9: `w + (lambda - g~) / rho` projected on the ball of radius `delta_t` around `at`.

    The paper's radius 1/t^2 freezes the method; its curves come from a constant radius (`power = 0`).
    """

    radius: Decay = field(default_factory=lambda: Decay(math.inf, 0.0))
    norm: Literal["linf", "l2"] = "linf"

    def solve(self, w: Tensor, at: Tensor, dual: Tensor, gradient: Tensor, rho: float, t: int) -> Tensor:
        """Free minimiser, then projection."""
        move = w + (dual - gradient) / rho - at
        radius = self.radius(t)
        if math.isinf(radius):
            return at + move
        if self.norm == "linf":
            return at + move.clamp(-radius, radius)
        length = move.norm(dim=-1, keepdim=True)
        return at + move * (radius / length.clamp_min(radius))


@dataclass(frozen=True)
class Everywhere:
    """No constraint."""

    def project(self, z: Tensor) -> Tensor:
        """The point itself."""
        return z


@checked("strategy.feasible")
@dataclass(frozen=True)
class Box:
    """`W = [-bound, bound]^dim`."""

    bound: Positive

    def project(self, z: Tensor) -> Tensor:
        """Clamp each coordinate."""
        return z.clamp(-self.bound, self.bound)


@checked("strategy.feasible")
@dataclass(frozen=True)
class Ball:
    """`W = {z : ||z||_2 <= radius}`."""

    radius: Positive

    def project(self, z: Tensor) -> Tensor:
        """Scale each row."""
        return z * (self.radius / z.norm(dim=-1, keepdim=True).clamp_min(self.radius))


@checked("strategy")
@dataclass(frozen=True)
class AdmmStep:
    """The local part of a round.

    Args:
        step: `Prox` or `Trust`.
        rho: Penalty sequence.
        feasible: The set W; a projection after the step (exact for `Prox` on any of the sets, and for boxes).
        weight_decay: `beta` of the regulariser `beta ||w||^2` (in all clients together).
        linearize_at: Where the gradient is asked for and the step term is centred: the client's `"local"` z_p as in
            the paper, or the `"received"` w. With the latter and a constant rho and eta, the mean over clients is
            heavy-ball gradient descent with momentum 1 / (1 + rho eta), and it fits secure aggregation.
    """

    hears: ClassVar[tuple[str, ...]] = ("consensus",)
    says: ClassVar[tuple[str, ...]] = ("shifted_primal",)
    memory: ClassVar[Memory] = "private"  # the client's own z_p and lambda_p

    step: Prox | Trust
    rho: Penalty
    feasible: Everywhere | Box | Ball = field(default_factory=Everywhere)
    weight_decay: NonNegative = 0.0
    linearize_at: Literal["local", "received"] = "local"

    @property
    def linear(self) -> bool:
        """The free prox step is linear in the answers, and those are asked for at w."""
        return isinstance(self.step, Prox) and isinstance(self.feasible, Everywhere) and self.linearize_at == "received"

    def init(self, params: Tensor) -> State:
        """`z_p` starts at the initial parameters (zero in the paper), the duals at zero."""
        return {"z": params.clone(), "dual": torch.zeros_like(params), "t": torch.zeros((), dtype=torch.long)}

    def __call__(self, received: Tensor, state: State, oracle: Oracle) -> tuple[Tensor, State]:
        """One round; the message `z_p - lambda_p / rho_{t+1}` is all that eq 4a needs of a client."""
        w, z, dual = received, state["z"], state["dual"]
        t = int(state["t"]) + 1
        rho, n = self.rho(t), oracle.n_clients
        at = z if self.linearize_at == "local" else w
        gradient = (oracle.gradient(at) + 2 * self.weight_decay * at) / n
        z = self.feasible.project(self.step.solve(w, at, dual, gradient, rho, t))
        dual = dual + rho * (w - z)
        message = z - dual / self.rho(t + 1)
        return message, {"z": z, "dual": dual, "t": torch.tensor(t)}


@dataclass(frozen=True)
class AdmmServer:
    """`w = mean_p(z_p - lambda_p / rho)`, eq 4a: a plain mean of the messages."""

    hears: ClassVar[tuple[str, ...]] = ("shifted_primal",)
    says: ClassVar[tuple[str, ...]] = ("consensus",)
    is_sum: ClassVar[bool] = True

    def init(self, params: Tensor) -> tuple[Tensor, State]:
        """The mean of the initial parameters (zero in the paper), given to all."""
        return params.mean(0).expand_as(params), {}

    def __call__(self, message: Tensor, network: Network, state: State) -> tuple[Tensor, State]:
        """Average and give back."""
        return network.mean(message), state


@dataclass(frozen=True)
class OutputNoise:
    """Budget shares that make the noise on `z_p` constant: share `1 / (rho_t + 1/eta_t)` at the gradient."""

    rho: Penalty
    eta: Decay

    def share(self, round_index: int) -> float:
        """Share of round `round_index` (from 0)."""
        t = round_index + 1
        return 1 / (self.rho(t) + 1 / self.eta(t))


@checked("strategy")
def inexact_admm(
    step: Prox | Trust = Prox(),
    rho: Penalty = Penalty(),
    *,
    feasible: Everywhere | Box | Ball = Everywhere(),
    weight_decay: NonNegative = 0.0,
    linearize_at: Literal["local", "received"] = "local",
    average: NonNegative | None = None,
) -> Strategy:
    """Inexact ADMM on a star.

    Args:
        step: `Prox()` (default) or `Trust()`.
        rho: Penalty sequence.
        feasible: Compact set W.
        weight_decay: `beta` of `beta ||w||^2`.
        linearize_at: `"local"` or `"received"`.
        average: None reports the last w; a power p reports the average of w weighted by `t**p` (the paper's theorem
            is about the plain average, p = 0).

    Returns:
        The strategy. The oracle's privacy is its own; `AdmmStep.linear` says where secure aggregation fits.

    Raises:
        ConfigError: a trust region and a set W whose joint projection is not one after the other.
    """
    if isinstance(step, Trust) and not (
        isinstance(feasible, Everywhere) or (isinstance(feasible, Box) and step.norm == "linf")
    ):
        raise ConfigError("strategy.feasible", feasible, "only an linf trust region joins with a box; use step: prox")
    output: Output = Last() if average is None else Averaged(average)
    local = AdmmStep(step, rho, feasible, weight_decay, linearize_at)
    name = "iadmm_prox" if isinstance(step, Prox) else "iadmm_trust"
    return Strategy(local, AdmmServer(), output, name)  # pyright: ignore[reportArgumentType] - linear is a property: it depends on the step
