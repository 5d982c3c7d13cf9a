"""Inexact ADMM by Ryu and Kim (2022) as published, and its baseline (Huang et al., 2020): constants, noise, claims."""

from __future__ import annotations

from typing import Literal

from fedpriv.algorithms.admm import AdmmStep, OutputNoise, Prox, Trust, inexact_admm
from fedpriv.papers import claims
from fedpriv.papers.published import Published
from fedpriv.papers.recipe import Recipe, Variants
from fedpriv.settings import Positive, PositiveOrInfinite, Ratio, RegistryEntry, validate_arguments
from fedpriv.strategies import Decay, Penalty, Strategy, flatten_parameters

Preset = Literal["mnist", "femnist"]
_RHO: dict[Preset, tuple[float, float, float]] = {"mnist": (2.0, 5.0, 1e4), "femnist": (0.005, 0.05, 2e3)}


def constant_on_output(strategy: Strategy) -> Recipe:
    """Returns ADMM with a proximal step and constant noise on its result, the private form of `published_output`."""
    local = strategy.local_step
    assert isinstance(local, AdmmStep) and isinstance(local.step, Prox)
    return Recipe(strategy, schedule=OutputNoise(local.rho, local.step.eta))


@validate_arguments("strategy")
def published_rho(preset: Preset, epsilon_bar: PositiveOrInfinite) -> Penalty:
    """Eq 21: `c1 * 1.2**floor(t / period) + c2 / epsilon_bar` with the constants of the paper's section 4."""
    scale, per_epsilon, period = _RHO[preset]
    return Penalty(scale=scale, offset=per_epsilon / epsilon_bar, growth=1.2, period=period)


@validate_arguments("strategy")
def published_prox(
    epsilon_bar: PositiveOrInfinite, rounds: int, preset: Preset = "mnist", scale: Positive = 1.0
) -> Recipe:
    """Algorithm 1 of Ryu and Kim (2022) as published, not private: `eta_t = scale / sqrt(t)`."""
    return _perturbed_objective(Prox(Decay(scale, 0.5)), epsilon_bar, rounds, preset)


@validate_arguments("strategy")
def published_trust(
    epsilon_bar: PositiveOrInfinite, rounds: int, preset: Preset = "mnist", scale: Positive = 1.0
) -> Recipe:
    """Algorithm 2 of Ryu and Kim (2022) as published, not private: with the constant radius `scale` of their curves."""
    return _perturbed_objective(Trust(Decay(scale, 0.0)), epsilon_bar, rounds, preset)


@validate_arguments("strategy")
def published_output(
    epsilon_bar: PositiveOrInfinite,
    rounds: int,
    preset: Preset = "mnist",
    scale: Positive = 1.0,
    delta_bar: Ratio = 1e-6,
    gradient_bound: Positive = 1.0,
) -> Recipe:
    """The Gaussian baseline (Huang et al., 2020) as published, not private: `gradient_bound` is assumed."""
    return Recipe(
        inexact_admm(Prox(Decay(scale, 0.5)), published_rho(preset, epsilon_bar)),
        published=Published(epsilon_bar, "gaussian", delta_bar, gradient_bound),
        claim=lambda delta: claims.output_perturbed_admm(epsilon_bar, rounds, delta),
    )


def _perturbed_objective(step: Prox | Trust, epsilon_bar: float, rounds: int, preset: Preset) -> Recipe:
    return Recipe(
        inexact_admm(step, published_rho(preset, epsilon_bar)),
        published=Published(epsilon_bar),
        claim=lambda delta: claims.inexact_admm(epsilon_bar, rounds, delta),
    )


NAMES = {
    "iadmm_output": RegistryEntry(
        flatten_parameters(inexact_admm, step=Prox),
        "inexact ADMM with noise on its output (Huang et al., the baseline)",
    )
}
VARIANTS = {
    "iadmm_prox": Variants(published_prox),
    "iadmm_trust": Variants(published_trust),
    "iadmm_output": Variants(published_output, after=constant_on_output),
}
