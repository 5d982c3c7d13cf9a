"""Dual averaging and gradient tracking on graphs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedpriv.errors import ConfigError
from fedpriv.forecast.claim import Claim, NoiseClaim, check_positive
from fedpriv.privacy.accounting import Event, bounds, gaussian
from fedpriv.settings import Positive, PositiveOrInfinite, Ratio, validate_arguments

_ROUGH = 50.0  # above this epsilon, coarse bounds are close enough, and finer ones slow


@dataclass(frozen=True)
class SubsamplingClaim:
    """The epsilon that a paper with node subsampling states, and the epsilons of its noise.

    Attributes:
        stated_epsilon: The epsilon that the paper prints.
        noise: Standard deviation of the noise over the Lipschitz constant, the bound on gradient norms.
        final_model: Epsilon by the paper's argument: a record is used with probability `iota / q` in each of T rounds.
            Against an observer of messages, who also observes the set of active nodes, this is wrong. For the final
            model it is not a bound either, if inactive nodes add no noise.
        messages: Epsilon against an observer of messages: a record is used with probability `1 / q` in `iota T` rounds.
    """

    stated_epsilon: float
    noise: float
    final_model: float
    messages: float


def dual_averaging_noise(
    epsilon: float, rounds: int, examples: int, active_fraction: float, delta0: float = 0.01
) -> float:
    """Standard deviation over the Lipschitz constant (Liu, Johansson, Shi 2023, theorem 1): the square root of
    `32 iota^2 T ln(2/delta0) / (q^2 epsilon^2)`. The formula is its own inverse in (noise, epsilon).
    """
    return math.sqrt(32 * rounds * math.log(2 / delta0)) * active_fraction / (examples * epsilon)


def dual_averaging(
    epsilon: float,
    rounds: int,
    examples: int,
    active_fraction: float,
    delta: float = 1e-5,
    *,
    sensitivity: float = 1.0,
    delta0: float = 0.01,
) -> SubsamplingClaim:
    """Dual averaging with node subsampling (Liu, Johansson, Shi 2023, theorem 1).

    Args:
        epsilon: The epsilon that the paper states.
        rounds: T.
        examples: q, number of examples of each node; an active node draws one in a round (here: one in expectation).
        active_fraction: iota, expected fraction of nodes that are active in a round.
        delta: Delta of the epsilons.
        sensitivity: In units of the Lipschitz constant: 1 to add or remove a record, 2 to replace one.
        delta0: The paper's delta_0.

    Raises:
        ConfigError: If an argument is out of range.
    """
    check_positive(epsilon=epsilon, rounds=rounds, examples=examples)
    if not 0 < active_fraction <= 1:
        raise ConfigError("active_fraction", active_fraction, "must be a fraction of the nodes in (0, 1]")
    noise = dual_averaging_noise(epsilon, rounds, examples, active_fraction, delta0)
    rate, active = 1 / examples, _mean_rounds(active_fraction, rounds)
    return SubsamplingClaim(
        stated_epsilon=epsilon,
        noise=noise,
        final_model=_sampled(noise / sensitivity, active_fraction * rate, rounds, delta),
        messages=_sampled(noise / sensitivity, rate, active, delta),
    )


def dual_averaging_published(
    epsilon: float, rounds: int, examples: int, active_fraction: float, delta: float = 1e-5, *, delta0: float = 0.01
) -> Claim:
    """Returns `dual_averaging` as a `Claim`: for an observer of messages and as in the paper, for both relations.

    Args:
        epsilon: The epsilon that the paper states.
        rounds: T.
        examples: q, number of examples of each node.
        active_fraction: iota, expected fraction of nodes that are active in a round.
        delta: Delta at which the cost of the noise is computed.
        delta0: The paper's delta_0.

    Raises:
        ConfigError: If an argument is out of range.
    """
    replaced, added = (
        dual_averaging(epsilon, rounds, examples, active_fraction, delta, sensitivity=s, delta0=delta0) for s in (2, 1)
    )
    paper_delta = 1 - max(0.0, 1 - epsilon) * (1 - active_fraction * delta0 / examples) ** rounds
    needed = 1.25 * (examples * epsilon / active_fraction) ** 2
    active = _mean_rounds(active_fraction, rounds)
    return Claim(
        paper="Liu, Johansson, Shi 2023, theorem 1",
        stated=f"({epsilon:g}, delta)-DP for some delta, sigma^2 = 32 iota^2 L^2 T ln(2/{delta0:g}) / (q epsilon)^2",
        stated_epsilon=epsilon,
        basic_total=active * gaussian.compute_epsilon(2 / replaced.noise, delta / active),
        tight_total=replaced.messages,
        why_not=(
            "the bound L on the gradients is assumed, not enforced. The proof sets delta' = epsilon, so its "
            f"delta is {paper_delta:.2g}, and requires T >= {needed:.2g}, where T = {rounds}. Against anyone "
            f"who sees messages, the privacy cost is for a node active in {active} rounds, the mean; a node "
            "that is active more often has a higher cost"
        ),
        scope="the whole run",
        views=(
            ("observer of messages, replace one", replaced.messages),
            ("observer of messages, add or remove", added.messages),
            ("final model, at the paper's rate iota / q (not claimed), replace one", replaced.final_model),
            ("final model, at the paper's rate iota / q (not claimed), add or remove", added.final_model),
        ),
    )


def _mean_rounds(active_fraction: float, rounds: int) -> int:
    """Average number of active rounds of a node, rounded up."""
    return math.ceil(active_fraction * rounds * (1 - 1e-12))


def _sampled(noise: float, rate: float, count: int, delta: float) -> float:
    """Epsilon of sampled Gaussian queries; uses the finer bound only where it is useful."""
    from fedpriv.privacy.accounting import rare_large

    coarse = rare_large(noise, rate, count, delta)
    if coarse > _ROUGH:
        return coarse
    return min(
        coarse, *bounds.compute_tight_epsilons({Event("gaussian", noise, "poisson", rate): count}, delta).values()
    )


def dual_averaging_stated(noise: float, rounds: int, examples: int, active_fraction: float) -> NoiseClaim:
    """The epsilon that theorem 1 of Liu, Johansson and Shi states for a noise.

    Args:
        noise: Standard deviation on the gradient of one example, over the bound on its norm.
        rounds: T.
        examples: q, number of examples of each node.
        active_fraction: iota, expected fraction of nodes that are active in a round.
    """
    stated = dual_averaging_noise(noise, rounds, examples, active_fraction)  # the formula is its own inverse
    return NoiseClaim("Liu, Johansson, Shi 2023, theorem 1", stated, "delta_0 = 0.01")


def gradient_tracking_total(epsilon: float, q1: float, q2: float, rounds: float = math.inf) -> float:
    """Epsilon (at delta = 0) of the published noise schedule of gradient tracking (Xie, Liu, Chai 2025, eq 5).

    Between neighbours x(k) differs by `delta alpha_k`, and the noise on it has scale nu_{k+1} instead of the larger
    nu_k that the paper uses. Infinitely many rounds therefore cost `sum_k delta alpha_k / nu_{k+1} = epsilon / q2`.
    """
    ratio = q1 / q2
    return epsilon * (q2 - q1) / q2**2 * (1 - ratio**rounds) / (1 - ratio)


@validate_arguments("strategy")
@dataclass(frozen=True)
class TrackingNoise:
    """Step and Laplace noise of gradient tracking, eq 5 of Xie, Liu and Chai (2025), for rounds k = 1, 2, ...

    `alpha_k = gamma q1^(k-1)` and `nu_k = gamma delta q2 / (epsilon (q2 - q1)) q2^(k-1)`.

    Args:
        epsilon_bar: The epsilon that the paper states.
        gamma: First step size.
        q1: Ratio of the steps, below q2.
        q2: Ratio of the noise, below 1.
        gap: delta, the assumed bound on the l1 distance between gradients of neighbouring data sets.

    Raises:
        ConfigError: If an argument is out of range.
    """

    epsilon_bar: PositiveOrInfinite
    gamma: Positive = 0.001
    q1: Ratio = 0.97
    q2: Ratio = 0.99
    gap: Positive = 1.0

    def __post_init__(self) -> None:
        if not self.q1 < self.q2:
            raise ConfigError("strategy.q1", self.q1, f"must satisfy 0 < q1 < q2 < 1, and q2 is {self.q2:g}")

    @property
    def on_messages(self) -> float:
        """nu_1, the scale on a message of round 1; it is multiplied by q2 each round."""
        return self.gamma * self.gap * self.q2 / (self.epsilon_bar * (self.q2 - self.q1))

    @property
    def on_gradients(self) -> float:
        """nu_2 / alpha_1, the same noise on the gradient of round 1; it is multiplied by q2 / q1 each round."""
        return self.q2 * self.on_messages / self.gamma

    def steps(self, rounds: int) -> NDArray[np.float64]:
        """`alpha_k`, `[rounds]`."""
        return self.gamma * np.power(self.q1, np.arange(rounds), dtype=np.float64)

    def scales(self, rounds: int) -> NDArray[np.float64]:
        """`nu_k`, `[rounds]`."""
        return self.on_messages * np.power(self.q2, np.arange(rounds), dtype=np.float64)


def gradient_tracking(noise: TrackingNoise, rounds: int, delta: float = 1e-5) -> Claim:
    """Gradient tracking with one exchanged variable (Xie, Liu, Chai 2025, theorem 4.5), and DPOP with its noise.

    Args:
        noise: Its parameters.
        rounds: Number of rounds.
        delta: Delta of the tightest bound.
    """
    total = gradient_tracking_total(noise.epsilon_bar, noise.q1, noise.q2, rounds)
    forever = gradient_tracking_total(noise.epsilon_bar, noise.q1, noise.q2)
    each = noise.gap * noise.steps(rounds) / (noise.q2 * noise.scales(rounds))
    return Claim(
        paper="Xie, Liu, Chai 2025, theorem 4.5",
        stated=f"{noise.epsilon_bar:g}-DP for any number of rounds, Laplace noise of eq 5",
        stated_epsilon=noise.epsilon_bar,
        basic_total=total,
        tight_total=_laplace_total(each, delta),
        why_not=(
            f"delta = {noise.gap:g}, the l1 gap of neighbours' gradients, is assumed and not enforced: without "
            "that bound, epsilon is infinite. If it holds, the x(k) of a round is protected by the smaller "
            f"noise of the next, so that any number of rounds costs epsilon / q2 = {forever:.6g}"
        ),
        scope="any number of rounds",
    )


# Table 3 of Xie, Liu and Chai: smallest sensitivity of a round over delta, with its unnamed constants at 0
_TABLE_3 = {"PP-DOAGT": "3 alpha_k", "Diff-TV-AB": "2"}


def two_variable_tracking(method: str, noise: TrackingNoise, rounds: int, delta: float = 1e-5) -> Claim:
    """Gradient tracking that sends x and y with noise on both: our reading of eq 7 of Xie, Liu and Chai (2025).

    Sensitivities (l1), for a client that keeps its exact x and y and has gradients that differ by at most delta between
    neighbours: `2 delta` for y and `2 alpha_k delta` for x, both under noise of scale nu_k. In the first round only y
    differs, by delta; in the second x differs by `alpha_2 delta`.

    Args:
        method: `"PP-DOAGT"` or `"Diff-TV-AB"`: the row of the paper's table 3 for the stated epsilon.
        noise: Parameters of the steps and the noise; the paper uses its own method's parameters for all methods.
        rounds: Number of rounds.
        delta: Delta of the tightest bound.
    """
    steps, scales = noise.steps(rounds), noise.scales(rounds)
    if method == "PP-DOAGT":
        table = 3 * steps
    else:
        table = np.full(rounds, 2.0)
    moved = 2 + 2 * steps
    moved[:1] = 1.0
    moved[1:2] -= steps[1:2]
    with np.errstate(divide="ignore", over="ignore"):
        stated, each = noise.gap * table / scales, noise.gap * moved / scales
    return Claim(
        paper=f"{method}, in table 3 of Xie, Liu, Chai 2025",
        stated=(
            f"a round moves messages by at least {_TABLE_3[method]} delta, so epsilon is at least "
            f"{float(stated.sum()):.4g} with the noise of eq 5 for {noise.epsilon_bar:g}"
        ),
        stated_epsilon=float(stated.sum()),
        basic_total=float(each.sum()),
        tight_total=_laplace_total(each, delta),
        why_not=(
            f"delta = {noise.gap:g} is assumed and not enforced: without that bound, epsilon is infinite. y is "
            "not scaled by the step, so the noise decreases while the quantity that it protects does not: the "
            "privacy cost grows without bound"
        ),
        scope="these rounds, as a lower bound",
    )


def _laplace_total(each: NDArray[np.float64], delta: float) -> float:
    """Epsilon of Laplace queries with these pure epsilons: tight, or by basic composition if that is large."""
    total = float(each.sum())
    if total > _ROUGH or delta == 0:
        return total
    return min(
        bounds.compute_tight_epsilons({Event("laplace", float(1 / epsilon)): 1 for epsilon in each}, delta).values()
    )
