"""Each paper's claim by name, with the settings of its experiments, and the noise that the claim would require."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedpriv.errors import ConfigError, check_count
from fedpriv.forecast.claim import Claim, check_positive
from fedpriv.papers.claims.admm import inexact_admm, output_perturbed_admm
from fedpriv.papers.claims.decentralised import (
    TrackingNoise,
    dual_averaging_noise,
    dual_averaging_published,
    gradient_tracking,
    two_variable_tracking,
)
from fedpriv.papers.claims.erm import accelerated_mirror_descent, svrg, svrg_deviation
from fedpriv.privacy.accounting import Event, History, estimate_sufficient_factor

Settings = Mapping[str, float]


@dataclass(frozen=True)
class Paper:
    """A claim that a paper makes.

    Attributes:
        title: Authors and method, in one line.
        claim: Returns the claim for settings.
        settings: The settings of the paper's experiments.
        history: The noise as published, over the run, under the paper's assumptions; None if no noise helps.
        rounds: Name of the setting with the number of rounds.
        counts: Settings that are integers.
    """

    title: str
    claim: Callable[..., Claim]
    settings: Settings
    history: Callable[..., tuple[History, float]] | None = None
    rounds: str = "rounds"
    counts: tuple[str, ...] = field(default=("rounds", "examples", "n_examples", "epochs", "epoch_length"))

    def filled(self, given: Mapping[str, Any]) -> dict[str, float]:
        """Returns the paper's settings, updated with the given ones.

        Raises:
            ConfigError: If there is no such setting, or its value is not a number.
        """
        for name, value in given.items():
            if name not in self.settings:
                raise ConfigError(name, value, f"is unknown; choose one of {', '.join(self.settings)}")
            if name in self.counts:
                check_count(name, value, "must be a whole number, at least 1")
            elif not isinstance(value, int | float) or isinstance(value, bool):
                raise ConfigError(name, value, "must be a number")
        settings = {**self.settings, **given}
        check_positive(**settings)
        for name in ("delta", "delta0", "delta_bar"):
            if settings.get(name, 0.5) >= 1:
                raise ConfigError(name, settings[name], "must be a probability below 1, e.g. 1e-5")
        return settings

    def more_noise(self, settings: Settings) -> float | None:
        """A factor for the published noise at which the run costs at most the stated epsilon; None if nothing helps.

        If a paper assumes a bound on gradients, clipping must also enforce it.
        """
        if self.history is None:
            return None
        history, delta = self.history(**settings)
        return estimate_sufficient_factor(history, self.claim(**settings).stated_epsilon, delta)

    def over_rounds(self, settings: Settings, points: int = 9) -> list[tuple[int, Claim]]:
        """Returns the claim for runs with fewer rounds, each with the paper's noise for that number of rounds."""
        largest = int(settings[self.rounds])
        numbers = sorted({max(1, round(largest ** (k / (points - 1)))) for k in range(points)} | {largest})
        return [(number, self.claim(**{**settings, self.rounds: number})) for number in numbers]


def _tracking(epsilon: float, rounds: int, delta: float, gamma: float, q1: float, q2: float, gap: float) -> Claim:
    return gradient_tracking(TrackingNoise(epsilon, gamma, q1, q2, gap), rounds, delta)


def _two_variables(method: str) -> Callable[..., Claim]:
    def claim(epsilon: float, rounds: int, delta: float, gamma: float, q1: float, q2: float, gap: float) -> Claim:
        return two_variable_tracking(method, TrackingNoise(epsilon, gamma, q1, q2, gap), rounds, delta)

    return claim


def _tracked(
    epsilon: float, rounds: int, delta: float, gamma: float, q1: float, q2: float, gap: float
) -> tuple[History, float]:
    noise = TrackingNoise(epsilon, gamma, q1, q2, gap)
    each = noise.gap * noise.steps(rounds) / (noise.q2 * noise.scales(rounds))
    return {Event("laplace", float(1 / cost)): 1 for cost in each}, 0.0  # the stated epsilon is a pure epsilon


def _laplace_rounds(epsilon_bar: float, rounds: int, delta: float) -> tuple[History, float]:
    return {Event("laplace", 1 / epsilon_bar): rounds}, delta


def _gaussian_rounds(epsilon_bar: float, rounds: int, delta: float, delta_bar: float) -> tuple[History, float]:
    return {Event("gaussian", math.sqrt(2 * math.log(1.25 / delta_bar)) / epsilon_bar): rounds}, delta


def _averaged(
    epsilon: float, rounds: int, examples: int, active_fraction: float, delta: float, delta0: float
) -> tuple[History, float]:
    noise = dual_averaging_noise(epsilon, rounds, examples, active_fraction, delta0)
    active = math.ceil(active_fraction * rounds)
    return {Event("gaussian", noise / 2, "poisson_replace", 1 / examples): active}, delta


def _reduced(epsilon: float, n_examples: int, epochs: int, epoch_length: int, delta: float) -> tuple[History, float]:
    sigma = svrg_deviation(epsilon, n_examples, epochs, epoch_length, delta=delta)
    return {Event("gaussian", sigma / 2, "amplified", 1 / n_examples): epochs * epoch_length}, delta


def _doubled(epsilon: float, n_examples: int, epochs: int, epoch_length: int, delta: float) -> tuple[History, float]:
    sigma = svrg_deviation(epsilon, n_examples, epochs, epoch_length, delta=delta, doubling=True)
    steps = epoch_length * (2 ** (epochs + 1) - 2)
    return {Event("gaussian", sigma / 2, "amplified", 1 / n_examples): steps}, delta


def _doubling(epsilon: float, n_examples: int, epochs: int, epoch_length: int, delta: float) -> Claim:
    return svrg(epsilon, n_examples, epochs, epoch_length, delta=delta, doubling=True)


def _exact_messages(rounds: int) -> Claim:
    return Claim(
        paper="He, Peng, Sun 2024",
        stated="none: clients send exact multipliers and iterates instead of data",
        stated_epsilon=math.inf,
        basic_total=math.inf,
        tight_total=math.inf,
        why_not=(
            "no message has noise, so each client's gradients and constraint values follow from its messages. "
            "Use private_al, which queries noisy values and gradients"
        ),
        scope=f"{rounds} rounds",
    )


_ERM = {"epsilon": 0.2, "n_examples": 200_000, "epochs": 15, "epoch_length": 5000, "delta": 1e-3}
_TRACKING = {"epsilon": 1.0, "rounds": 200, "delta": 1e-5, "gamma": 0.001, "q1": 0.97, "q2": 0.99, "gap": 1.0}
PAPERS: dict[str, Paper] = {
    "iadmm": Paper(
        "Ryu, Kim 2022: inexact ADMM, noise on the objective",
        inexact_admm,
        {"epsilon_bar": 0.05, "rounds": 20_000, "delta": 1e-5},
        _laplace_rounds,
    ),
    "iadmm_output": Paper(
        "Huang et al. 2020: inexact ADMM, noise on the output, as the baseline of Ryu and Kim",
        output_perturbed_admm,
        {"epsilon_bar": 0.05, "rounds": 20_000, "delta": 1e-5, "delta_bar": 1e-6},
        _gaussian_rounds,
    ),
    "dual_averaging": Paper(
        "Liu, Johansson, Shi 2023: dual averaging with node subsampling",
        dual_averaging_published,
        {"epsilon": 0.8, "rounds": 600_000, "examples": 20_000, "active_fraction": 0.1, "delta": 1e-5, "delta0": 0.01},
        _averaged,
    ),
    "proximal_al": Paper(
        "He, Peng, Sun 2024: proximal augmented Lagrangian, which states no epsilon", _exact_messages, {"rounds": 100}
    ),
    "dp_svrg": Paper("Wang, Ye, Xu 2017: DP-SVRG", svrg, _ERM, _reduced, rounds="epochs"),
    "dp_svrg_plus_plus": Paper(
        "Wang, Ye, Xu 2017: DP-SVRG++", _doubling, {**_ERM, "epoch_length": 10}, _doubled, rounds="epochs"
    ),
    "dp_accmd": Paper(
        "Wang, Ye, Xu 2017: DP-AccMD", accelerated_mirror_descent, {"epsilon": 0.2, "rounds": 100, "delta": 1e-3}
    ),
    "gradient_tracking": Paper("Xie, Liu, Chai 2025: gradient tracking", _tracking, _TRACKING, _tracked),
    "pp_doagt": Paper(
        "PP-DOAGT, with the privacy cost computed by Xie, Liu and Chai", _two_variables("PP-DOAGT"), _TRACKING
    ),
    "diff_tv_ab": Paper(
        "Diff-TV-AB, with the privacy cost computed by Xie, Liu and Chai", _two_variables("Diff-TV-AB"), _TRACKING
    ),
}

ALGORITHMS = {
    "iadmm_prox": "iadmm",
    "iadmm_trust": "iadmm",
    "inexact_admm": "iadmm",
    "svrg": "dp_svrg",
    "accelerated_mirror_descent": "dp_accmd",
    "dpop": "gradient_tracking",  # with the same steps and noise
}
"""Names of algorithms, in YAML or Python, that differ from the name of their claim."""


def paper(name: str) -> Paper:
    """Returns a paper by the name of its method or algorithm.

    Raises:
        ConfigError: If there is none with that name.
    """
    known = ALGORITHMS.get(name, name)
    if known not in PAPERS:
        raise ConfigError("PAPER", name, f"is unknown; choose one of {', '.join(PAPERS)}")
    return PAPERS[known]
