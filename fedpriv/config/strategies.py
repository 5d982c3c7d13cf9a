"""The strategies that a configuration can name.

To add one: write its file in `fedpriv/strategies/`, then add a row to `STRATEGIES`. The options are the builder's typed
keyword parameters; of `CONTEXT` it is given what it has parameters for.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from fedpriv.config import decentralised, erm, federated
from fedpriv.config.recipes import Recipe, StrategyEntry
from fedpriv.config.regularizers import RegularizerChoice
from fedpriv.plugins import Registry
from fedpriv.privacy import claims
from fedpriv.privacy.as_published import Published
from fedpriv.strategies import admm
from fedpriv.strategies.admm import Decay, OutputNoise, Penalty, Prox, Trust, inexact_admm
from fedpriv.strategies.augmented_lagrangian import proximal_al
from fedpriv.strategies.base import Strategy
from fedpriv.strategies.lagrangian import Outer
from fedpriv.strategies.private_augmented_lagrangian import private_al
from fedpriv.strategies.solvers import LBFGS, AcceleratedGradient, Newton, Quadratic, Solver

CONTEXT = ("rounds", "epsilon_bar", "active_fraction")


class _Set(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Everywhere(_Set):
    """No constraint."""

    kind: Literal["everywhere"] = "everywhere"

    def build(self) -> admm.Everywhere:
        """The set."""
        return admm.Everywhere()


class Box(_Set):
    """`[-bound, bound]` in every coordinate."""

    kind: Literal["box"] = "box"
    bound: float = Field(gt=0)

    def build(self) -> admm.Box:
        """The set."""
        return admm.Box(self.bound)


class Ball(_Set):
    """l2 ball."""

    kind: Literal["ball"] = "ball"
    radius: float = Field(gt=0)

    def build(self) -> admm.Ball:
        """The set."""
        return admm.Ball(self.radius)


Feasible = Annotated[Everywhere | Box | Ball, Field(discriminator="kind")]
NonNegative = Annotated[float, Field(ge=0)]
LinearizeAt = Literal["local", "received"]
EVERYWHERE = Everywhere()


def iadmm_prox(
    eta: Decay = Decay(),  # noqa: B008 - frozen
    rho: Penalty = Penalty(),
    feasible: Feasible = EVERYWHERE,
    weight_decay: NonNegative = 0.0,
    linearize_at: LinearizeAt = "local",
    average: NonNegative | None = None,
) -> Strategy:
    """Proximal step, eq 8; see `fedpriv.inexact_admm`."""
    return inexact_admm(
        Prox(eta),
        rho,
        feasible=feasible.build(),
        weight_decay=weight_decay,
        linearize_at=linearize_at,
        average=average,
    )


def iadmm_trust(
    radius: Decay = Decay(math.inf, 0.0),  # noqa: B008
    norm: Literal["linf", "l2"] = "linf",
    rho: Penalty = Penalty(),
    feasible: Feasible = EVERYWHERE,
    weight_decay: NonNegative = 0.0,
    linearize_at: LinearizeAt = "local",
    average: NonNegative | None = None,
) -> Strategy:
    """Trust-region step, eq 9; see `fedpriv.inexact_admm`."""
    return inexact_admm(
        Trust(radius, norm),
        rho,
        feasible=feasible.build(),
        weight_decay=weight_decay,
        linearize_at=linearize_at,
        average=average,
    )


def iadmm_output(
    eta: Decay = Decay(),  # noqa: B008
    rho: Penalty = Penalty(),
    feasible: Feasible = EVERYWHERE,
    weight_decay: NonNegative = 0.0,
    linearize_at: LinearizeAt = "local",
    average: NonNegative | None = None,
) -> Recipe:
    """The proximal step with noise that is constant on its output."""
    strategy = iadmm_prox(eta, rho, feasible, weight_decay, linearize_at, average)
    return Recipe(strategy, schedule=OutputNoise(rho, eta))


Preset = Literal["mnist", "femnist"]
Positive = Annotated[float, Field(gt=0)]


def published_rho(preset: Preset, epsilon_bar: float) -> Penalty:
    """Eq 21: `c1 * 1.2**floor(t / period) + c2 / epsilon_bar` with the constants of the paper's section 4."""
    scale, per_epsilon, period = {"mnist": (2.0, 5.0, 1e4), "femnist": (0.005, 0.05, 2e3)}[preset]
    return Penalty(scale=scale, offset=per_epsilon / epsilon_bar, growth=1.2, period=period)


def published_prox(epsilon_bar: float, preset: Preset = "mnist", scale: Positive = 1.0) -> Recipe:
    """Algorithm 1 as published: `eta_t = scale / sqrt(t)`."""
    strategy = inexact_admm(Prox(Decay(scale, 0.5)), published_rho(preset, epsilon_bar))
    return Recipe(strategy, published=Published(epsilon_bar))


def published_trust(epsilon_bar: float, preset: Preset = "mnist", scale: Positive = 1.0) -> Recipe:
    """Algorithm 2 with the constant radius that the paper's curves come from."""
    strategy = inexact_admm(Trust(Decay(scale, 0.0)), published_rho(preset, epsilon_bar))
    return Recipe(strategy, published=Published(epsilon_bar))


def published_output(
    epsilon_bar: float,
    preset: Preset = "mnist",
    scale: Positive = 1.0,
    delta_bar: Annotated[float, Field(gt=0, lt=1)] = 1e-6,
    gradient_bound: Positive = 1.0,
) -> Recipe:
    """The Gaussian baseline as published; `gradient_bound` is assumed there, not enforced."""
    strategy = inexact_admm(Prox(Decay(scale, 0.5)), published_rho(preset, epsilon_bar))
    return Recipe(strategy, published=Published(epsilon_bar, "gaussian", delta_bar, gradient_bound))


SolverName = Literal["lbfgs", "newton", "accelerated_gradient", "quadratic"]
_SOLVERS: dict[SolverName, Solver] = {
    "lbfgs": LBFGS(),
    "newton": Newton(),
    "accelerated_gradient": AcceleratedGradient(),
    "quadratic": Quadratic(),
}


def constrained_al(
    beta: Positive = Outer.beta,
    rho: Positive = 1.0,
    tolerance: Positive = Outer.tolerance,
    stationarity: Positive = Outer.stationarity,
    feasibility: Positive = Outer.feasibility,
    regularizer: RegularizerChoice = erm.NONE,
    solver: SolverName = "lbfgs",
    inner_decay: Annotated[float, Field(gt=0, lt=1)] = 0.5,
    inner_rounds: Annotated[int, Field(ge=1)] = 2000,
) -> Strategy:
    """Exact proximal augmented Lagrangian; see `fedpriv.proximal_al`."""
    outer = Outer(beta, tolerance, stationarity, feasibility)
    return proximal_al(
        outer,
        rho,
        regularizer=regularizer.build(),
        solver=_SOLVERS[solver],
        inner_decay=inner_decay,
        inner_rounds=inner_rounds,
    )


def noisy_al(
    rounds: int,
    beta: Positive = 1.0,
    largest: Positive = 3.0,
    learning_rate: Positive = 1.0,
    decay: NonNegative = 0.5,
    average: NonNegative = 2.0,
    measurements: Annotated[int, Field(ge=1)] = 4,
    regularizer: RegularizerChoice = erm.NONE,
) -> Strategy:
    """Private augmented Lagrangian; see `fedpriv.private_al`."""
    return private_al(
        rounds,
        beta=beta,
        largest=largest,
        learning_rate=learning_rate,
        decay=decay,
        average=average,
        measurements=measurements,
        regularizer=regularizer.build(),
    )


_OWN: dict[str, StrategyEntry] = {
    "iadmm_prox": StrategyEntry(
        iadmm_prox, "inexact ADMM, proximal step (Ryu and Kim, ObjP)", published_prox, claims.inexact_admm
    ),
    "iadmm_trust": StrategyEntry(
        iadmm_trust, "inexact ADMM, trust-region step (Ryu and Kim, ObjT)", published_trust, claims.inexact_admm
    ),
    "iadmm_output": StrategyEntry(
        iadmm_output,
        "inexact ADMM with noise on its output (Huang et al., the baseline)",
        published_output,
        claims.output_perturbed_admm,
    ),
    "proximal_al": StrategyEntry(
        constrained_al, "proximal augmented Lagrangian for constraints (He, Peng and Sun), exact: needs at: none"
    ),
    "private_al": StrategyEntry(
        noisy_al, "augmented Lagrangian for constraints with private values and gradients, a fixed number of rounds"
    ),
    **decentralised.STRATEGIES,
    **federated.STRATEGIES,
    **erm.STRATEGIES,
}
STRATEGIES = Registry(_OWN, (Strategy, Recipe), "fedpriv.strategies", StrategyEntry)
