"""Inexact ADMM and its baseline."""

from __future__ import annotations

import math

from fedpriv.errors import ConfigError
from fedpriv.forecast.claim import Claim
from fedpriv.privacy.accounting import Event, bounds


def output_perturbed_admm(epsilon_bar: float, rounds: int, delta: float = 1e-5, delta_bar: float = 1e-6) -> Claim:
    """Inexact ADMM with Gaussian noise on its output (Huang et al. 2020), as the baseline of Ryu and Kim (2022).

    Args:
        epsilon_bar: The stated epsilon of a single round.
        rounds: Number of rounds T.
        delta: Delta at which the cost of the whole run is computed.
        delta_bar: The stated delta of a single round.

    Raises:
        ConfigError: If an argument is out of range.
    """
    _check(epsilon_bar, rounds)
    noise = math.sqrt(2 * math.log(1.25 / delta_bar)) / epsilon_bar
    return Claim(
        paper="Huang et al. 2020",
        stated=f"({epsilon_bar:g}, {delta_bar:g})-DP in each round, Gaussian noise for gradients of bounded norm",
        stated_epsilon=epsilon_bar,
        basic_total=rounds * epsilon_bar,
        tight_total=min(bounds.compute_tight_epsilons({Event("gaussian", noise): rounds}, delta).values()),
        why_not="The bound on each sample's gradient is assumed and not enforced. Clip each gradient instead",
    )


def inexact_admm(epsilon_bar: float, rounds: int, delta: float = 1e-5) -> Claim:
    """Inexact ADMM with objective perturbation (Ryu, Kim 2022, theorem 1 and equation 20).

    Args:
        epsilon_bar: The paper's epsilon, of a single round.
        rounds: Number of rounds T.
        delta: Delta at which the cost of the whole run is computed.

    Raises:
        ConfigError: If an argument is out of range.
    """
    _check(epsilon_bar, rounds)
    epsilons = bounds.compute_tight_epsilons({Event("laplace", 1 / epsilon_bar): rounds}, delta)
    return Claim(
        paper="Ryu, Kim 2022",
        stated=f"epsilon_bar={epsilon_bar:g}-DP in each round, Laplace noise of scale Delta_t / epsilon_bar",
        stated_epsilon=epsilon_bar,
        basic_total=rounds * epsilon_bar,
        tight_total=min(epsilons.values()),
        why_not=(
            "Delta_t is the largest l1 norm of the client's own gradients, so the noise scale itself depends "
            "on the private data and is not a bound on the sensitivity. It covers only the removal of a "
            "record. Clip each gradient to a public bound instead"
        ),
    )


def _check(epsilon_bar: float, rounds: int) -> None:
    if epsilon_bar <= 0:
        raise ConfigError(
            "epsilon_bar", epsilon_bar, "must be positive, since it is the epsilon of one round, e.g. 0.05"
        )
    if rounds < 1:
        raise ConfigError("rounds", rounds, "must be at least 1")
