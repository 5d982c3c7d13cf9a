"""Inexact ADMM by Ryu and Kim (2022) as published, and its baseline (Huang et al., 2020): constants, noise, claims."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from fedpriv.algorithms.admm import AdmmStep, OutputNoise, Prox, Trust, inexact_admm
from fedpriv.papers import claims
from fedpriv.papers.published import Published
from fedpriv.papers.recipe import Recipe, Variants
from fedpriv.settings import Count, NonNegative, Positive, PositiveOrInfinite, Ratio, RegistryEntry, validate_arguments
from fedpriv.strategies import Decay, Penalty, PenaltyRate, Strategy, evaluate_rate, flatten_parameters

Preset = Literal["mnist", "femnist"]
_RHO: dict[Preset, tuple[float, float, float]] = {"mnist": (2.0, 5.0, 1e4), "femnist": (0.005, 0.05, 2e3)}
_SIZES: dict[Preset, tuple[int, int]] = {"mnist": (6000, 10), "femnist": (188, 195)}  # examples, clients: table 1


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
    epsilon_bar: PositiveOrInfinite,
    rounds: int,
    preset: Preset = "mnist",
    scale: Positive = 1.0,
    rho: PenaltyRate | None = None,
) -> Recipe:
    """Algorithm 1 of Ryu and Kim (2022) as published, not private.

    Args:
        epsilon_bar: The epsilon that the paper states for a round.
        rounds: Number of rounds.
        preset: Data set of the paper, for the constants of `rho`.
        scale: Factor a of the step size `a / sqrt(t)`.
        rho: Penalty parameter instead of the paper's (eq 21).
    """
    return _perturbed_objective(Prox(Decay(scale, 0.5)), epsilon_bar, rounds, preset, rho)


@validate_arguments("strategy")
def published_trust(
    epsilon_bar: PositiveOrInfinite,
    rounds: int,
    preset: Preset = "mnist",
    scale: Positive = 1.0,
    radius_power: NonNegative = 0.0,
    rho: PenaltyRate | None = None,
) -> Recipe:
    """Algorithm 2 of Ryu and Kim (2022) as published, not private.

    Args:
        epsilon_bar: The epsilon that the paper states for a round.
        rounds: Number of rounds.
        preset: Data set of the paper, for the constants of `rho`.
        scale: Factor a of the radius `a / t**radius_power`.
        radius_power: 0 (default) as in the public code and the paper's curves, 2 as in the text.
        rho: Penalty parameter instead of the paper's (eq 21).
    """
    return _perturbed_objective(Trust(Decay(scale, radius_power)), epsilon_bar, rounds, preset, rho)


@validate_arguments("strategy")
@dataclass(frozen=True)
class EtaHat:
    """Step size of Huang et al. (2020), theorem 4, for an objective that is the mean over clients.

    `n_clients * scale / (c3 + 2 c1 sqrt(t ln(1.25 / delta)) / (m epsilon))` in round t = 1, 2, ..., where m is the
    number of examples of a client, and a gradient bound G gives c1 = G and c3 = G^2 / 4. The public code of Ryu and Kim
    multiplies both constants by m.

    Args:
        epsilon_bar: The stated epsilon of a round.
        scale: Factor a.
        delta_bar: The stated delta of a round.
        gradient_bound: The assumed gradient bound G.
        examples: Number m of examples of a client.
        n_clients: Number of clients.
        times_examples: True for the public code's constants.
    """

    epsilon_bar: PositiveOrInfinite
    scale: Positive
    delta_bar: Ratio
    gradient_bound: Positive
    examples: Count
    n_clients: Count
    times_examples: bool

    def __call__(self, t: int) -> float:
        """Returns the step size of round `t`, from 1."""
        noise = 2 * self.gradient_bound * math.sqrt(t * math.log(1.25 / self.delta_bar))
        inverse = self.gradient_bound**2 / 4 + noise / (self.examples * self.epsilon_bar)
        if self.times_examples:
            inverse *= self.examples
        return self.n_clients * self.scale / inverse


@dataclass(frozen=True)
class PenaltyOfMeans:
    """A penalty parameter for the sum of the clients' mean losses, divided for their average.

    Args:
        rho: The penalty parameter.
        n_clients: Number of clients.
    """

    rho: PenaltyRate
    n_clients: int

    def __call__(self, t: int) -> float:
        """Returns the value in round `t`, from 1."""
        return evaluate_rate(self.rho, t) / self.n_clients


@dataclass(frozen=True)
class VarianceAsDeviation(Published):
    """Noise on z whose deviation is the square of the intended one, as in the public code of Ryu and Kim.

    Args:
        shares: Factor of `scale` in each round, `1 / (rho_t + 1 / eta_t)`.
    """

    shares: OutputNoise | None = None

    def deviation(self, round_index: int) -> float:
        """Returns the standard deviation of the noise on the gradient."""
        assert self.scale is not None and self.shares is not None
        return self.scale * self.shares.share(round_index)


@validate_arguments("strategy")
def published_output(
    epsilon_bar: PositiveOrInfinite,
    rounds: int,
    preset: Preset = "mnist",
    scale: Positive = 1.0,
    delta_bar: Ratio = 1e-6,
    gradient_bound: Positive = 1.0,
    form: Literal["code", "deviation", "corrected"] = "code",
    examples: Count | None = None,
    n_clients: Count | None = None,
    rho: PenaltyRate | None = None,
) -> Recipe:
    """The Gaussian baseline (Huang et al., 2020) of Ryu and Kim (2022), not private: `gradient_bound` is assumed.

    Args:
        epsilon_bar: The epsilon that the paper states for a round.
        rounds: Number of rounds.
        preset: Data set of the paper, for the constants of `rho` and for `examples` and `n_clients`.
        scale: Factor a of the step size `EtaHat`.
        delta_bar: The delta that the paper states for a round.
        gradient_bound: The assumed l2 norm of an example's gradient; nothing enforces it.
        form: `"code"` is the public code, which passes the variance of the noise as its deviation and omits the
            division by the number of examples; `"deviation"` repairs the first; `"corrected"` repairs both.
        examples: Number of examples of each client; by default the mean of the preset.
        n_clients: Number of clients; by default the preset's.
        rho: Penalty parameter instead of the paper's (eq 21).
    """
    examples, n_clients = examples or _SIZES[preset][0], n_clients or _SIZES[preset][1]
    eta = EtaHat(epsilon_bar, scale, delta_bar, gradient_bound, examples, n_clients, form != "corrected")
    penalty = PenaltyOfMeans(published_rho(preset, epsilon_bar) if rho is None else rho, n_clients)
    if math.isinf(epsilon_bar):
        published = Published(epsilon_bar, "gaussian", delta_bar, gradient_bound)
    else:
        width = 2 * gradient_bound * math.sqrt(2 * math.log(1.25 / delta_bar)) / epsilon_bar
        flaw = "the gradient bound is assumed, not enforced"
        if form == "code":
            shares = OutputNoise(penalty, eta)
            published = VarianceAsDeviation(
                epsilon_bar,
                "gaussian",
                delta_bar,
                gradient_bound,
                scale=width**2 / n_clients,
                flaw=flaw,
                shares=shares,
            )
        else:
            each = examples if form == "corrected" else 1
            published = Published(epsilon_bar, "gaussian", delta_bar, gradient_bound, scale=width / each, flaw=flaw)
    return Recipe(
        inexact_admm(Prox(eta), penalty),
        published=published,
        claim=lambda delta: claims.output_perturbed_admm(epsilon_bar, rounds, delta),
    )


def _perturbed_objective(
    step: Prox | Trust, epsilon_bar: float, rounds: int, preset: Preset, rho: PenaltyRate | None
) -> Recipe:
    return Recipe(
        inexact_admm(step, published_rho(preset, epsilon_bar) if rho is None else rho),
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
