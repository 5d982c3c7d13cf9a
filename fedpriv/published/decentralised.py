"""Decentralised strategies with their papers' parameters; `published_...` also with their noise, not private."""

from __future__ import annotations

from fedpriv.checks import Count, NonNegative, Positive, PositiveOrInfinite, Probability, Ratio, checked
from fedpriv.plugins import Entry
from fedpriv.privacy import claims
from fedpriv.privacy.as_published import Published
from fedpriv.privacy.claims import TrackingNoise
from fedpriv.privacy.schedules import Geometric
from fedpriv.published.recipe import Recipe, Variants
from fedpriv.strategies.base import Strategy
from fedpriv.strategies.dpsgd import decentralized_sgd
from fedpriv.strategies.dual_averaging import dual_averaging
from fedpriv.strategies.gossip import StepSize
from fedpriv.strategies.proximal import L2, Proximal
from fedpriv.strategies.tracking import gradient_tracking, gradient_tracking_pair

_GAP_ASSUMED = "the gap between neighbours' gradients is assumed, not enforced"


@checked("strategy")
def dpop(gamma: Positive = 0.1, q1: Ratio = 0.97, q2: Ratio = 0.99, average: NonNegative | None = None) -> Recipe:
    """DPOP (Huang, Mitra, Vaidya, 2015): D-PSGD with step size `gamma q1^k` and budget share `(q1 / q2)^k`."""
    return Recipe(decentralized_sgd(StepSize(gamma, ratio=q1), average=average), schedule=Geometric(q1 / q2))


@checked("strategy")
def pp_doagt(gamma: Positive = 0.1, q1: Ratio = 0.97, average: NonNegative | None = None) -> Strategy:
    """PP-DOAGT, our reading: `gradient_tracking_pair` with step size `gamma q1^k` in round k."""
    return gradient_tracking_pair(StepSize(gamma, ratio=q1), average=average)


@checked("strategy")
def published_dual_averages(
    epsilon_bar: PositiveOrInfinite,
    rounds: int,
    examples: Count,
    lipschitz: Positive = 1.0,
    delta0: Ratio = 0.01,
    regularizer: Proximal = L2(5e-4),
    weight_power: NonNegative = 1.0,
    gamma: NonNegative = 0.0,
    gamma_power: NonNegative = 0.0,
    active_fraction: Probability = 1.0,
) -> Recipe:
    """Dual averaging as published (Liu, Johansson, Shi, 2023, algorithm 1, noise of theorem 1), not private.

    Use `privacy: {sampling: {fixed_size: {size: 1}}}`.
    """
    given = (epsilon_bar, rounds, examples, active_fraction)
    return Recipe(
        dual_averaging(
            regularizer,
            weight_power=weight_power,
            gamma=gamma,
            gamma_power=gamma_power,
            active_fraction=active_fraction,
            inactive="literal",
        ),
        published=Published(
            epsilon_bar,
            "gaussian",
            scale=lipschitz * claims.dual_averaging_noise(*given, delta0),
            lacks="the bound on the gradients is assumed, not enforced",
        ),
        claim=lambda delta: claims.dual_averaging_published(*given, delta, delta0=delta0),
    )


@checked("strategy")
def published_tracking(
    epsilon_bar: PositiveOrInfinite,
    rounds: int,
    gamma: Positive = 0.001,
    beta: NonNegative = 100.0,
    q1: Ratio = 0.97,
    q2: Ratio = 0.99,
    gap: Positive = 1.0,
) -> Recipe:
    """Gradient tracking with the noise of eq 5 (Xie, Liu, Chai, 2025), not private.

    The paper's noise xi(k+1) on z is noise `-xi(k+1) / alpha_k` on the gradient of round k.
    """
    strategy = gradient_tracking(StepSize(gamma, ratio=q1), beta)
    return _eq5(strategy, TrackingNoise(epsilon_bar, gamma, q1, q2, gap), rounds)


@checked("strategy")
def published_dpop(
    epsilon_bar: PositiveOrInfinite,
    rounds: int,
    gamma: Positive = 0.001,
    q1: Ratio = 0.97,
    q2: Ratio = 0.99,
    gap: Positive = 1.0,
) -> Recipe:
    """DPOP as Xie, Liu and Chai (2025) compare with it, in our reading: with the noise of their eq 5. Not private."""
    strategy = decentralized_sgd(StepSize(gamma, ratio=q1))
    return _eq5(strategy, TrackingNoise(epsilon_bar, gamma, q1, q2, gap), rounds)


@checked("strategy")
def published_pp_doagt(
    epsilon_bar: PositiveOrInfinite,
    rounds: int,
    gamma: Positive = 0.001,
    q1: Ratio = 0.97,
    q2: Ratio = 0.99,
    gap: Positive = 1.0,
) -> Recipe:
    """PP-DOAGT in our reading: eq 7 of Xie, Liu and Chai (2025) with the noise of eq 5 on x and y. Not private."""
    return _both_noised("PP-DOAGT", TrackingNoise(epsilon_bar, gamma, q1, q2, gap), rounds)


@checked("strategy")
def published_diff_tv_ab(
    epsilon_bar: PositiveOrInfinite,
    rounds: int,
    gamma: Positive = 0.001,
    q1: Ratio = 0.97,
    q2: Ratio = 0.99,
    gap: Positive = 1.0,
) -> Recipe:
    """Diff-TV-AB in our reading: `published_pp_doagt` with the claim of another row of the paper's table 3."""
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


NAMES = {
    "dpop": Entry(dpop, "D-PSGD with geometric steps and noise (Huang, Mitra, Vaidya, DPOP)"),
    "pp_doagt": Entry(pp_doagt, "gradient tracking that sends two variables, in our reading (PP-DOAGT)"),
    "diff_tv_ab": Entry(pp_doagt, "the iteration of pp_doagt; as published with its own price (Diff-TV-AB)"),
}
VARIANTS = {
    "dual_averaging": Variants(published_dual_averages, formula=claims.dual_averaging_stated),
    "gradient_tracking": Variants(published_tracking),
    "dpop": Variants(published_dpop),
    "pp_doagt": Variants(published_pp_doagt),
    "diff_tv_ab": Variants(published_diff_tv_ab),
}
