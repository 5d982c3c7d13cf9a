"""Decentralised strategies in a configuration, and as their papers publish them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedpriv.config.recipes import Recipe, StrategyEntry
from fedpriv.config.regularizers import RegularizerChoice
from fedpriv.privacy import claims
from fedpriv.privacy.as_published import Published
from fedpriv.privacy.claims import TrackingNoise
from fedpriv.privacy.schedules import Geometric
from fedpriv.strategies.base import Strategy
from fedpriv.strategies.dpsgd import decentralized_sgd
from fedpriv.strategies.dual_averaging import dual_averaging
from fedpriv.strategies.gossip import StepSize
from fedpriv.strategies.proximal import L2
from fedpriv.strategies.tracking import gradient_tracking, gradient_tracking_pair

Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Ratio = Annotated[float, Field(gt=0, lt=1)]
H = RegularizerChoice(l2=L2(5e-4))
_GAP_ASSUMED = "the gap between neighbours' gradients is assumed, not enforced"


def dual_averages(
    regularizer: RegularizerChoice = H,
    weight_power: NonNegative = 1.0,
    gamma: NonNegative = 0.0,
    gamma_power: NonNegative = 0.0,
    inactive: Literal["lazy", "literal"] = "lazy",
    active_fraction: float = 1.0,
) -> Strategy:
    """See `fedpriv.dual_averaging`; `active_fraction` follows from the network."""
    return dual_averaging(
        regularizer.build(),
        weight_power=weight_power,
        gamma=gamma,
        gamma_power=gamma_power,
        active_fraction=active_fraction,
        inactive=inactive,
    )


def tracking(
    step_size: StepSize = StepSize(0.1),
    beta: NonNegative | None = None,
    gradient_at: Literal["sent", "mixed"] = "sent",
    average: NonNegative | None = None,
) -> Strategy:
    """One exchanged variable; see `fedpriv.gradient_tracking`."""
    return gradient_tracking(step_size, beta, gradient_at=gradient_at, average=average)


def tracking_pair(
    step_size: StepSize = StepSize(0.1),
    average: NonNegative | None = None,
) -> Strategy:
    """Two exchanged variables; see `fedpriv.gradient_tracking_pair`."""
    return gradient_tracking_pair(step_size, average=average)


def dpsgd(
    step_size: StepSize = StepSize(0.1),
    average: NonNegative | None = None,
) -> Strategy:
    """See `fedpriv.decentralized_sgd`."""
    return decentralized_sgd(step_size, average=average)


def dpop(gamma: Positive = 0.1, q1: Ratio = 0.97, q2: Ratio = 0.99, average: NonNegative | None = None) -> Recipe:
    """D-PSGD with steps `gamma q1^k` and a budget of shares `(q1 / q2)^k`."""
    return Recipe(decentralized_sgd(StepSize(gamma, ratio=q1), average=average), schedule=Geometric(q1 / q2))


def pp_doagt(gamma: Positive = 0.1, q1: Ratio = 0.97, average: NonNegative | None = None) -> Strategy:
    """`gradient_tracking_pair` with steps `gamma q1^k`: one noised answer enters both variables."""
    return gradient_tracking_pair(StepSize(gamma, ratio=q1), average=average)


def published_dual_averages(
    epsilon_bar: float,
    rounds: int,
    examples: Annotated[int, Field(ge=1)],
    lipschitz: Positive = 1.0,
    delta0: Annotated[float, Field(gt=0, lt=1)] = 0.01,
    regularizer: RegularizerChoice = H,
    weight_power: NonNegative = 1.0,
    gamma: NonNegative = 0.0,
    gamma_power: NonNegative = 0.0,
    active_fraction: float = 1.0,
) -> Recipe:
    """Algorithm 1 as printed, noise of theorem 1; use `privacy: {sampling: {fixed_size: {size: 1}}}`."""
    given = (epsilon_bar, rounds, examples, active_fraction)
    return Recipe(
        dual_averages(regularizer, weight_power, gamma, gamma_power, "literal", active_fraction),
        published=Published(
            epsilon_bar,
            "gaussian",
            scale=lipschitz * claims.dual_averaging_noise(*given, delta0),
            lacks="the bound on the gradients is assumed, not enforced",
        ),
        claim=lambda delta: claims.dual_averaging_published(*given, delta, delta0=delta0),
    )


def published_tracking(
    epsilon_bar: float,
    rounds: int,
    gamma: Positive = 0.001,
    beta: NonNegative = 100.0,
    q1: Ratio = 0.97,
    q2: Ratio = 0.99,
    gap: Positive = 1.0,
) -> Recipe:
    """Algorithm 1 with eq 5; noise xi(k+1) on z is noise `-xi(k+1) / alpha_k` on the gradient of round k."""
    strategy = gradient_tracking(StepSize(gamma, ratio=q1), beta)
    return _eq5(strategy, TrackingNoise(epsilon_bar, gamma, q1, q2, gap), rounds)


def published_dpop(
    epsilon_bar: float,
    rounds: int,
    gamma: Positive = 0.001,
    q1: Ratio = 0.97,
    q2: Ratio = 0.99,
    gap: Positive = 1.0,
) -> Recipe:
    """Gradient descent with the noise of eq 5, as Xie, Liu and Chai compare it, in our reading."""
    strategy = decentralized_sgd(StepSize(gamma, ratio=q1))
    return _eq5(strategy, TrackingNoise(epsilon_bar, gamma, q1, q2, gap), rounds)


def published_pp_doagt(
    epsilon_bar: float,
    rounds: int,
    gamma: Positive = 0.001,
    q1: Ratio = 0.97,
    q2: Ratio = 0.99,
    gap: Positive = 1.0,
) -> Recipe:
    """Eq 7 with the noise of eq 5 on x and on y, in our reading."""
    return _both_noised("PP-DOAGT", TrackingNoise(epsilon_bar, gamma, q1, q2, gap), rounds)


def published_diff_tv_ab(
    epsilon_bar: float,
    rounds: int,
    gamma: Positive = 0.001,
    q1: Ratio = 0.97,
    q2: Ratio = 0.99,
    gap: Positive = 1.0,
) -> Recipe:
    """The same, with the other row of table 3."""
    return _both_noised("Diff-TV-AB", TrackingNoise(epsilon_bar, gamma, q1, q2, gap), rounds)


def _eq5(strategy: Strategy, noise: TrackingNoise, rounds: int) -> Recipe:
    published = Published(
        noise.epsilon, "laplace", scale=noise.on_gradients, growth=noise.q2 / noise.q1, lacks=_GAP_ASSUMED
    )
    return Recipe(strategy, published=published, claim=lambda delta: claims.gradient_tracking(noise, rounds, delta))


def _both_noised(method: str, noise: TrackingNoise, rounds: int) -> Recipe:
    published = Published(
        noise.epsilon, "laplace", scale=noise.on_messages, growth=noise.q2, at="message", lacks=_GAP_ASSUMED
    )
    return Recipe(
        gradient_tracking_pair(StepSize(noise.gamma, ratio=noise.q1)),
        published=published,
        claim=lambda delta: claims.two_variable_tracking(method, noise, rounds, delta),
    )


STRATEGIES: dict[str, StrategyEntry] = {
    "dual_averaging": StrategyEntry(
        dual_averages,
        "dual averaging on a graph, with node subsampling (Liu, Johansson, Shi)",
        published_dual_averages,
        formula=claims.dual_averaging_stated,
    ),
    "gradient_tracking": StrategyEntry(
        tracking, "gradient tracking on a graph, one exchanged variable (Xie, Liu, Chai)", published_tracking
    ),
    "gradient_tracking_pair": StrategyEntry(
        tracking_pair, "gradient tracking on a graph, two exchanged variables (the family of PP-DOAGT, Diff-TV-AB)"
    ),
    "decentralized_sgd": StrategyEntry(dpsgd, "decentralised gradient descent on a graph (Lian et al., D-PSGD)"),
    "dpop": StrategyEntry(dpop, "the same with geometric steps and noise (Huang, Mitra, Vaidya, DPOP)", published_dpop),
    "pp_doagt": StrategyEntry(
        pp_doagt, "gradient tracking that sends two variables, in our reading (PP-DOAGT)", published_pp_doagt
    ),
    "diff_tv_ab": StrategyEntry(
        pp_doagt, "the same iteration; as published with its own price (Diff-TV-AB)", published_diff_tv_ab
    ),
}
