"""Computes the privacy cost of a search that tries several settings and publishes one result, if the number of trials
stays secret.

A search draws a number K of trials in secret, makes K runs with settings drawn independently from a public
distribution, and publishes the best run by its score; the score is a function of what that run released. If one run is
(a, r(a))-Rényi differentially private, then for every order a > 1 the published result is (a, r'(a))-Rényi private:

=================================  ===================================================================================
K                                  r'(a)
=================================  ===================================================================================
truncated negative binomial,       ``r(a) + (1 + eta) (1 - 1/b) r(b) + (1 + eta) log(1/gamma) / b + log E[K] / (a - 1)``
shape eta > -1, gamma in (0, 1)    for any order b >= 1 (Papernot and Steinke 2022, theorem 2)
Poisson of mean mu                 ``r(a) + mu d + log(mu) / (a - 1)``, if a run is (e, d)-private with
                                   ``e^e <= 1 + 1 / (a - 1)`` (the same, theorem 6)
=================================  ===================================================================================

Shape 1 is the geometric distribution (Liu and Talwar 2019), shape 0 the logarithmic one. With
``P(K = k) ~ (1 - gamma)^k / k`` for shape 0 and ``~ (1 - gamma)^k binom(k + eta - 1, k)`` otherwise, k from 1 on:

    E[K] = (1/gamma - 1) / log(1/gamma)  for shape 0,      E[K] = eta (1 - gamma) / (gamma (1 - gamma^eta))  otherwise
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedpriv.errors import ConfigError
from fedpriv.privacy.accounting import gaussian, rdp
from fedpriv.privacy.accounting.events import History
from fedpriv.privacy.accounting.orders import ORDERS
from fedpriv.settings.checks import Positive, validate_arguments

__all__ = ["compute_hidden_epsilon"]

Array = NDArray[np.float64]
_MOST_TRIALS = 10_000


class NumberOfTrials(Protocol):
    """A distribution of the number of trials."""

    @property
    def mean(self) -> float:
        """Expected number of trials."""
        ...

    def draw(self, uniform: float) -> int:
        """Returns the number of trials for a uniform draw in [0, 1), which must stay secret."""
        ...

    def curve(self, trial_curve: Array) -> Array:
        """Returns the Rényi divergences of the published result from those of one trial, ``[orders] -> [orders]``."""
        ...


@validate_arguments("trials")
@dataclass(frozen=True)
class NegativeBinomial:
    """Truncated negative binomial: at least one trial.

    Args:
        mean: Expected number of trials, above 1.
        shape: The parameter eta. 0 is the logarithmic distribution, 1 the geometric one. Smaller shapes have a smaller
            epsilon, but make a small number of trials more probable.

    Raises:
        ConfigError: If a number is out of range.

    Examples:
        >>> from fedpriv.privacy.accounting.search import NegativeBinomial
        >>> number = NegativeBinomial(mean=10.0)
        >>> number.draw(0.0), number.draw(0.5) >= 1
        (1, True)
    """

    mean: Positive
    shape: float = 0.0

    def __post_init__(self) -> None:
        if not 1 < self.mean <= _MOST_TRIALS:
            raise ConfigError(
                "trials", self.mean, f"the expected number of trials must be more than 1 and at most {_MOST_TRIALS}"
            )
        if self.shape not in (0, 1):
            raise ConfigError("trials.shape", self.shape, "must be 0 (logarithmic) or 1 (geometric)")

    @property
    def gamma(self) -> float:
        """The parameter that gives this mean."""
        if self.shape == 1:
            return 1 / self.mean

        def gap(log_gamma: float) -> float:
            return math.log(math.expm1(-log_gamma) / -log_gamma / self.mean)

        return math.exp(gaussian.find_root(gap, -2 * math.log(_MOST_TRIALS) - 10, -1e-9, 1e-12))

    def draw(self, uniform: float) -> int:
        """Returns the smallest k with ``P(K <= k) > uniform``."""
        gamma = self.gamma
        k = 1
        cumulative = 0.0
        if self.shape == 1:
            weight = gamma
        else:
            weight = (1 - gamma) / math.log(1 / gamma)
        # sums of weights may end below the largest numbers: then no further weight changes the sum
        while cumulative < cumulative + weight <= uniform:
            cumulative += weight
            weight *= (1 - gamma) * (1 if self.shape == 1 else k / (k + 1))
            k += 1
        return k

    def curve(self, trial_curve: Array) -> Array:
        """Returns the divergences of theorem 2, with the best order b in `ORDERS`."""
        second = (1 + self.shape) * float(np.min((1 - 1 / ORDERS) * trial_curve + math.log(1 / self.gamma) / ORDERS))
        return trial_curve + second + math.log(self.mean) / (ORDERS - 1)


@validate_arguments("trials")
@dataclass(frozen=True)
class PoissonTrials:
    """Poisson distribution. The number of trials may be 0; in this case no result is published.

    Args:
        mean: Expected number of trials.

    Raises:
        ConfigError: If the mean is out of range.

    Examples:
        >>> from fedpriv.privacy.accounting.search import PoissonTrials
        >>> PoissonTrials(mean=3.0).draw(0.5)
        3
    """

    mean: Positive

    def __post_init__(self) -> None:
        if not self.mean <= _MOST_TRIALS:
            raise ConfigError("trials", self.mean, f"the expected number of trials must be at most {_MOST_TRIALS}")

    def draw(self, uniform: float) -> int:
        """Returns the smallest k with ``P(K <= k) >= uniform``."""
        from scipy.stats import poisson

        return max(0, int(poisson.ppf(uniform, self.mean)))  # scipy returns -1 for 0

    def curve(self, trial_curve: Array) -> Array:
        """Returns the divergences of theorem 6."""
        levels = np.log1p(1 / (ORDERS - 1))
        toll = np.array([_delta(trial_curve, level) for level in levels])
        return trial_curve + self.mean * toll + np.maximum(math.log(self.mean), 0.0) / (ORDERS - 1)


def _delta(curve: Array, epsilon: float) -> float:
    """Returns the smallest delta that Rényi divergences prove at epsilon (Canonne, Kamath, Steinke 2020, prop. 12)."""
    with np.errstate(over="ignore"):
        logs = (ORDERS - 1) * (curve - epsilon) + (ORDERS - 1) * np.log1p(-1 / ORDERS) - np.log(ORDERS)
    return float(min(1.0, np.exp(np.minimum(logs, 0.0)).min()))


def compute_hidden_epsilon(number: NumberOfTrials, histories: Sequence[History], delta: float) -> float:
    """Returns the epsilon at `delta` of the published result of a search, for an observer who sees nothing else of the
    search.

    Guarantee: an upper bound, if settings are drawn independently from a public distribution, the score is computed
    from the releases of a trial and from public data, and no observer ever learns the number of trials, their times, or
    the other trials.

    Args:
        number: Distribution of the number of trials.
        histories: Histories of one trial. For every unit, one of them has at least the cost of the trial for this unit.
        delta: Failure probability.
    """
    return max(
        (float(rdp.compute_epsilons(number.curve(rdp.compute_total(history)), delta)) for history in histories),
        default=0.0,
    )
