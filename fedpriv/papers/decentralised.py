"""Decentralised strategies with their papers' parameters; `published_...` also with their noise, not private."""

from __future__ import annotations

from fedpriv.algorithms.dpsgd import decentralized_sgd
from fedpriv.algorithms.dual_averaging import DualMap, dual_averaging
from fedpriv.algorithms.tracking import gradient_tracking, gradient_tracking_pair
from fedpriv.papers import claims
from fedpriv.papers.claims import TrackingNoise
from fedpriv.papers.published import Published
from fedpriv.papers.recipe import Recipe, Variants
from fedpriv.privacy import Geometric
from fedpriv.settings import Count, NonNegative, Positive, PositiveOrInfinite, Ratio, RegistryEntry, validate_arguments
from fedpriv.strategies import Average, StepSize, Strategy, flatten_parameters

_GAP_ASSUMED = "the gap between neighbours' gradients is assumed, not enforced"


@validate_arguments("strategy")
def dpop(gamma: Positive = 0.1, q1: Ratio = 0.97, q2: Ratio = 0.99, average: Average | None = None) -> Recipe:
    """DPOP (Huang, Mitra, Vaidya, 2015): D-PSGD with step size `gamma q1^k` and budget share `(q1 / q2)^k`."""
    return Recipe(decentralized_sgd(StepSize(gamma, ratio=q1), average=average), schedule=Geometric(q1 / q2))


@validate_arguments("strategy")
def pp_doagt(gamma: Positive = 0.1, q1: Ratio = 0.97, average: Average | None = None) -> Strategy:
    """PP-DOAGT, our reading: `gradient_tracking_pair` with step size `gamma q1^k` in round k."""
    return gradient_tracking_pair(StepSize(gamma, ratio=q1), average=average)


@validate_arguments("strategy")
def published_dual_averages(
    dual_map: DualMap,
    epsilon_bar: PositiveOrInfinite,
    rounds: int,
    examples: Count,
    lipschitz: Positive = 1.0,
    delta0: Ratio = 0.01,
) -> Recipe:
    """Dual averaging as published (Liu, Johansson, Shi, 2023, algorithm 1, noise of theorem 1), not private.

    Use `privacy: {sampling: {fixed_size: {size: 1}}}`.
    """
    active = dual_map.active_fraction
    return Recipe(
        dual_averaging(**vars(dual_map), inactive="literal"),
        published=Published(
            epsilon_bar,
            "gaussian",
            scale=lipschitz * claims.dual_averaging_noise(epsilon_bar, rounds, examples, active, delta0),
            flaw="the bound on the gradients is assumed, not enforced",
        ),
        claim=lambda delta: claims.dual_averaging_published(
            epsilon_bar, rounds, examples, active, delta, delta0=delta0
        ),
    )


@validate_arguments("strategy")
def published_tracking(noise: TrackingNoise, rounds: int, beta: NonNegative = 100.0) -> Recipe:
    """Gradient tracking with the noise of eq 5 (Xie, Liu, Chai, 2025), not private.

    The paper's noise xi(k+1) on z is noise `-xi(k+1) / alpha_k` on the gradient of round k.
    """
    return _eq5(gradient_tracking(_steps(noise), beta), noise, rounds)


@validate_arguments("strategy")
def published_dpop(noise: TrackingNoise, rounds: int) -> Recipe:
    """DPOP in the comparison of Xie, Liu and Chai (2025), in our reading: with the noise of their eq 5. Not private."""
    return _eq5(decentralized_sgd(_steps(noise)), noise, rounds)


@validate_arguments("strategy")
def published_pp_doagt(noise: TrackingNoise, rounds: int) -> Recipe:
    """PP-DOAGT in our reading: eq 7 of Xie, Liu and Chai (2025) with the noise of eq 5 on x and y. Not private."""
    return _both_noised("PP-DOAGT", noise, rounds)


@validate_arguments("strategy")
def published_diff_tv_ab(noise: TrackingNoise, rounds: int) -> Recipe:
    """Diff-TV-AB in our reading: `published_pp_doagt` with the claim of another row of the paper's table 3."""
    return _both_noised("Diff-TV-AB", noise, rounds)


def _steps(noise: TrackingNoise) -> StepSize:
    return StepSize(noise.gamma, ratio=noise.q1)


def _eq5(strategy: Strategy, noise: TrackingNoise, rounds: int) -> Recipe:
    published = Published(
        noise.epsilon_bar, "laplace", scale=noise.on_gradients, growth=noise.q2 / noise.q1, flaw=_GAP_ASSUMED
    )
    return Recipe(strategy, published=published, claim=lambda delta: claims.gradient_tracking(noise, rounds, delta))


def _both_noised(method: str, noise: TrackingNoise, rounds: int) -> Recipe:
    published = Published(
        noise.epsilon_bar, "laplace", scale=noise.on_messages, growth=noise.q2, noise_on="message", flaw=_GAP_ASSUMED
    )
    return Recipe(
        gradient_tracking_pair(_steps(noise)),
        published=published,
        claim=lambda delta: claims.two_variable_tracking(method, noise, rounds, delta),
    )


NAMES = {
    "dpop": RegistryEntry(dpop, "D-PSGD with geometric steps and noise (Huang, Mitra, Vaidya, DPOP)"),
    "pp_doagt": RegistryEntry(pp_doagt, "gradient tracking that sends two variables, in our reading (PP-DOAGT)"),
    "diff_tv_ab": RegistryEntry(
        pp_doagt, "the iteration of pp_doagt; as published with its own privacy cost (Diff-TV-AB)"
    ),
}
VARIANTS = {
    "dual_averaging": Variants(
        flatten_parameters(published_dual_averages, dual_map=DualMap), formula=claims.dual_averaging_stated
    ),
    "gradient_tracking": Variants(flatten_parameters(published_tracking, noise=TrackingNoise)),
    "dpop": Variants(flatten_parameters(published_dpop, noise=TrackingNoise)),
    "pp_doagt": Variants(flatten_parameters(published_pp_doagt, noise=TrackingNoise)),
    "diff_tv_ab": Variants(flatten_parameters(published_diff_tv_ab, noise=TrackingNoise)),
}
