"""Inexact ADMM (Ryu and Kim, 2022) and its output-perturbed baseline (Huang et al., 2020).

Problem: min_w sum_p f_p(w) with f_p = (1/I) sum of client p's sample losses. Round t = 1, 2, ...:

    w      = mean_p(z_p) - mean_p(lambda_p) / rho_t    (4a)
    z_p    = argmin_{z in W} <g~_p, z> + rho_t/2 ||w - z + lambda_p/rho_t||^2 + step term    (8), (9)
    lambda_p += rho_t (w - z_p)    (4c)

g~_p is the private gradient of f_p at z_p. The step term is ||z - z_p||^2 / (2 eta_t) for `Prox`; `Trust` keeps z
within radius delta_t of z_p. The paper adds noise xi to the objective, as <xi, z>, which is noise xi on the gradient;
the baseline adds xi to z_p, which is noise (rho_t + 1/eta_t) xi on the gradient (`OutputNoise`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor

from fedpriv.errors import ConfigError
from fedpriv.settings import NonNegative, Positive, RegistryEntry, validate_arguments
from fedpriv.strategies import (
    Average,
    Decay,
    Memory,
    Network,
    Oracle,
    Penalty,
    PenaltyRate,
    RateOrInfinite,
    Strategy,
    choose_output,
    evaluate_rate,
    evaluate_rate_or_infinite,
    flatten_parameters,
)


class Step(Protocol):
    """Solves a client's subproblem in closed form, around the point `center` at which the gradient was computed."""

    def solve(self, w: Tensor, center: Tensor, dual: Tensor, gradient: Tensor, rho: float, t: int) -> Tensor:
        """Returns the new `z [k, dim]`."""
        ...


@validate_arguments("strategy.step")
@dataclass(frozen=True)
class Prox:
    """Proximal step with step size `eta_t`, eq 8: `z = (rho w + lambda - g~ + center / eta) / (rho + 1 / eta)`.

    g~ is the private gradient at `center`, which in the paper is the client's last z.

    Args:
        eta: Step size of round t: a number, a schedule, or inf for no step term. The default is `Decay()`, which is
            `1 / sqrt(t)`.

    Examples:
        >>> import fedpriv
        >>> fedpriv.inexact_admm(fedpriv.Prox(eta=0.1)).name
        'iadmm_prox'
    """

    eta: RateOrInfinite = field(default_factory=Decay)

    def solve(self, w: Tensor, center: Tensor, dual: Tensor, gradient: Tensor, rho: float, t: int) -> Tensor:
        """Solves the quadratic subproblem."""
        pull = 1 / evaluate_rate_or_infinite(self.eta, t)
        return (rho * w + dual - gradient + pull * center) / (rho + pull)


@validate_arguments("strategy.step")
@dataclass(frozen=True)
class Trust:
    """Trust-region step, eq 9: `w + (lambda - g~) / rho` projected onto the ball of radius `delta_t` around `center`.

    With the paper's radius 1/t^2 the total distance that z can move is finite, so the method can stop before the
    optimum; the paper's curves were made with a constant radius (`power = 0`).

    Args:
        radius: Radius `delta_t` of round t: a number or a schedule; infinite by default.
        norm: Norm of the ball, `"linf"` (default) or `"l2"`.

    Examples:
        >>> import fedpriv
        >>> fedpriv.inexact_admm(fedpriv.Trust(radius=0.1)).name
        'iadmm_trust'
    """

    radius: RateOrInfinite = field(default_factory=lambda: Decay(math.inf, 0.0))
    norm: Literal["linf", "l2"] = "linf"

    def solve(self, w: Tensor, center: Tensor, dual: Tensor, gradient: Tensor, rho: float, t: int) -> Tensor:
        """Projects the minimiser of the problem without a trust region."""
        move = w + (dual - gradient) / rho - center
        radius = evaluate_rate_or_infinite(self.radius, t)
        if math.isinf(radius):
            return center + move
        if self.norm == "linf":
            return center + move.clamp(-radius, radius)
        length = move.norm(dim=-1, keepdim=True)
        return center + move * (radius / length.clamp_min(radius))


@validate_arguments("strategy.feasible")
@dataclass(frozen=True)
class Unconstrained:
    """No constraint."""

    def project(self, z: Tensor) -> Tensor:
        """Returns the point itself."""
        return z


@validate_arguments("strategy.feasible")
@dataclass(frozen=True)
class BoxSet:
    """The box `W = [-bound, bound]^dim`.

    Args:
        bound: Largest absolute value of a parameter; positive.

    Examples:
        >>> import fedpriv, torch
        >>> fedpriv.BoxSet(1.0).project(torch.tensor([[3.0, -0.5]])).tolist()
        [[1.0, -0.5]]
    """

    bound: Positive

    def project(self, z: Tensor) -> Tensor:
        """Clamps each coordinate."""
        return z.clamp(-self.bound, self.bound)


@validate_arguments("strategy.feasible")
@dataclass(frozen=True)
class BallSet:
    """The ball `W = {z : ||z||_2 <= radius}`.

    Args:
        radius: Largest l2 norm of the parameters; positive.

    Examples:
        >>> import fedpriv, torch
        >>> [round(value, 3) for value in fedpriv.BallSet(1.0).project(torch.tensor([[3.0, 4.0]]))[0].tolist()]
        [0.6, 0.8]
    """

    radius: Positive

    def project(self, z: Tensor) -> Tensor:
        """Scales rows that are too long."""
        return z * (self.radius / z.norm(dim=-1, keepdim=True).clamp_min(self.radius))


@dataclass(frozen=True)
class AdmmState:
    """A client's state.

    Attributes:
        z: The client's z_p, `[n, dim]`.
        dual: The client's lambda_p, `[n, dim]`.
        t: Number of finished rounds.
    """

    z: Tensor
    dual: Tensor
    t: int


@validate_arguments("strategy")
@dataclass(frozen=True)
class AdmmStep:
    """The client update of inexact ADMM.

    Args:
        step: `Prox` or `Trust`.
        rho: Penalty sequence.
        feasible: The set W, onto which z is projected after the step.
        weight_decay: `beta` of the regulariser `beta ||w||^2` (of the sum over clients).
        linearize_at: Point at which the gradient is computed and the step term is centred: the client's z_p
            (`"local"`), as in the paper, or the `"received"` w. `"received"` works with secure aggregation; with
            constant rho and eta it is heavy-ball gradient descent with momentum 1 / (1 + rho eta).
    """

    receives: ClassVar[tuple[str, ...]] = ("consensus",)
    sends: ClassVar[tuple[str, ...]] = ("shifted_primal",)
    memory: ClassVar[Memory] = "private"  # the client's z_p and lambda_p

    step: Prox | Trust
    rho: PenaltyRate
    feasible: Unconstrained | BoxSet | BallSet = field(default_factory=Unconstrained)
    weight_decay: NonNegative = 0.0
    linearize_at: Literal["local", "received"] = "local"

    @property
    def linear(self) -> bool:
        """True for proximal steps without W on gradients at w: their messages are linear in the query results."""
        return (
            isinstance(self.step, Prox) and isinstance(self.feasible, Unconstrained) and self.linearize_at == "received"
        )

    def init(self, params: Tensor) -> AdmmState:
        """Starts `z_p` at the initial parameters (zero in the paper), and the duals at zero."""
        return AdmmState(params.clone(), torch.zeros_like(params), 0)

    def __call__(self, received: Tensor, state: AdmmState, oracle: Oracle) -> tuple[Tensor, AdmmState]:
        """Computes one round; the message is `z_p - lambda_p / rho_{t+1}`, which eq 4a averages."""
        w = received
        t = state.t + 1
        n = oracle.n_clients
        rho = evaluate_rate(self.rho, t)
        if self.linearize_at == "local":
            center = state.z
        else:
            center = w
        gradient = (oracle.gradient(center) + 2 * self.weight_decay * center) / n
        z = self.feasible.project(self.step.solve(w, center, state.dual, gradient, rho, t))
        dual = state.dual + rho * (w - z)
        message = z - dual / evaluate_rate(self.rho, t + 1)
        return message, AdmmState(z, dual, t)


@dataclass(frozen=True)
class AdmmServer:
    """`w = mean_p(z_p - lambda_p / rho)`, eq 4a: a plain mean of the messages."""

    receives: ClassVar[tuple[str, ...]] = ("shifted_primal",)
    sends: ClassVar[tuple[str, ...]] = ("consensus",)
    is_sum: ClassVar[bool] = True

    def init(self, params: Tensor) -> tuple[Tensor, None]:
        """Starts all clients from the first client's parameters (zero in the paper)."""
        return params[:1].expand_as(params), None

    def __call__(self, message: Tensor, network: Network, state: None) -> tuple[Tensor, None]:
        """Averages the messages."""
        return network.mean(message), None


@validate_arguments("strategy.step")
@dataclass(frozen=True)
class OutputNoise:
    """Budget schedule under which the noise on `z_p`, the result of a step, is constant: `1 / (rho_t + 1/eta_t)`.

    Args:
        rho: Penalty parameter of each round, as for `inexact_admm`.
        eta: Step size of each round, as for `Prox`.

    Examples:
        >>> import fedpriv
        >>> fedpriv.OutputNoise(rho=2.0, eta=0.5).share(0)
        0.25
    """

    rho: PenaltyRate
    eta: RateOrInfinite

    def share(self, round_index: int) -> float:
        """Returns the share of round `round_index` (from 0)."""
        t = round_index + 1
        return 1 / (evaluate_rate(self.rho, t) + 1 / evaluate_rate_or_infinite(self.eta, t))


@validate_arguments("strategy")
def inexact_admm(
    step: Prox | Trust = Prox(),
    rho: PenaltyRate = Penalty(),
    *,
    feasible: Unconstrained | BoxSet | BallSet = Unconstrained(),
    weight_decay: NonNegative = 0.0,
    linearize_at: Literal["local", "received"] = "local",
    average: Average | None = None,
) -> Strategy:
    """Creates inexact ADMM with a server (Ryu and Kim, 2022): each client computes one private gradient a round.

    A client then solves its subproblem in closed form.

    Args:
        step: The client update: proximal, `Prox()` (default), or in a trust region, `Trust()`.
        rho: Penalty parameter of each round; `Penalty()` by default.
        feasible: Set W of allowed models: `Unconstrained()`, `BoxSet(bound)` or `BallSet(radius)`.
        weight_decay: `beta` of the regulariser `beta ||w||^2` (of the sum over clients).
        linearize_at: Point at which a client computes its gradient: the client's own model (`"local"`, default), as in
            the paper, or the `"received"` model, which secure aggregation needs.
        average: Reported model: the last w (None, default), or for a number p the average of all rounds' w with
            weights `t**p` (the paper's theorem holds for p = 0).

    Returns:
        The strategy.

    Raises:
        ConfigError: If an argument is out of range, or `Trust` is combined with a set W for which its step has no
            closed form: only a box with an l-infinity ball has one.

    Examples:
        >>> import fedpriv
        >>> strategy = fedpriv.inexact_admm(fedpriv.Prox(0.1), rho=fedpriv.Penalty(2.0))
        >>> fedpriv.plan([100] * 4, strategy, fedpriv.Privacy(epsilon=1.0), rounds=5).releases
        5
    """
    if isinstance(step, Trust) and not (
        isinstance(feasible, Unconstrained) or (isinstance(feasible, BoxSet) and step.norm == "linf")
    ):
        raise ConfigError(
            "strategy.feasible",
            feasible,
            "can be combined with a trust region only if it is a box and the norm is linf: use step: prox, or leave "
            "it out",
        )
    local = AdmmStep(step, rho, feasible, weight_decay, linearize_at)
    if isinstance(step, Prox):
        name = "iadmm_prox"
    else:
        name = "iadmm_trust"
    return Strategy(local, AdmmServer(), choose_output(average), name)  # pyright: ignore[reportArgumentType] - linear is a property: it depends on the step


NAMES = {
    "iadmm_prox": RegistryEntry(
        flatten_parameters(inexact_admm, step=Prox), "inexact ADMM, proximal step (Ryu and Kim, ObjP)"
    ),
    "iadmm_trust": RegistryEntry(
        flatten_parameters(inexact_admm, step=Trust), "inexact ADMM, trust-region step (Ryu and Kim, ObjT)"
    ),
}
