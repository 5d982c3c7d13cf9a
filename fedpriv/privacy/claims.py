"""What papers claim about their privacy, and what the claim amounts to.

One function for each paper. A claim that is not differential privacy still gets its numbers: the epsilon that the
stated noise would cost over a whole run if its stated sensitivity were a bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.stats import binom

from fedpriv.errors import ConfigError
from fedpriv.privacy import bounds, gaussian
from fedpriv.privacy.events import Event


@dataclass(frozen=True)
class Claim:
    """A paper's privacy claim, completed.

    Attributes:
        paper: Author and year.
        stated: The guarantee in the paper's words and symbols.
        stated_epsilon: The epsilon that the paper prints.
        basic_total: Epsilon of the whole run by basic composition, delta 0.
        tight_total: Epsilon of the whole run by the tightest bound, at the delta asked for.
        why_not: Why the published mechanism does not give even that; empty when it does.
        scope: What the paper's epsilon is about.
    """

    paper: str
    stated: str
    stated_epsilon: float
    basic_total: float
    tight_total: float
    why_not: str
    scope: str = "one round"


def output_perturbed_admm(epsilon_bar: float, rounds: int, delta: float = 1e-5, delta_bar: float = 1e-6) -> Claim:
    """Inexact ADMM with Gaussian noise on its output (Huang et al. 2020), as the baseline of Ryu and Kim (2022).

    Args:
        epsilon_bar: The stated epsilon of a single round.
        rounds: Number of rounds T.
        delta: Delta at which the whole run is priced.
        delta_bar: The stated delta of a single round.

    Raises:
        ConfigError: an argument is out of range.
    """
    _check(epsilon_bar, rounds)
    noise = math.sqrt(2 * math.log(1.25 / delta_bar)) / epsilon_bar
    return Claim(
        paper="Huang et al. 2020",
        stated=f"({epsilon_bar:g}, {delta_bar:g})-DP in each round, Gaussian noise for gradients of bounded norm",
        stated_epsilon=epsilon_bar,
        basic_total=rounds * epsilon_bar,
        tight_total=min(bounds.tight({Event("gaussian", noise): rounds}, delta).values()),
        why_not="The bound on each sample's gradient is assumed and nothing enforces it. Clip each gradient instead",
    )


def inexact_admm(epsilon_bar: float, rounds: int, delta: float = 1e-5) -> Claim:
    """Inexact ADMM with objective perturbation (Ryu, Kim 2022, theorem 1 and equation 20).

    Args:
        epsilon_bar: The paper's epsilon, of a single round.
        rounds: Number of rounds T.
        delta: Delta at which the whole run is priced.

    Raises:
        ConfigError: an argument is out of range.
    """
    _check(epsilon_bar, rounds)
    found = bounds.tight({Event("laplace", 1 / epsilon_bar): rounds}, delta)
    return Claim(
        paper="Ryu, Kim 2022",
        stated=f"epsilon_bar={epsilon_bar:g}-DP in each round, Laplace noise of scale Delta_t / epsilon_bar",
        stated_epsilon=epsilon_bar,
        basic_total=rounds * epsilon_bar,
        tight_total=min(found.values()),
        why_not=(
            "Delta_t is the largest l1 norm of the client's own gradients, so the noise scale itself depends on the "
            "private data and is not a bound on the sensitivity. It covers removing a record only. Clip each gradient "
            "to a public bound instead"
        ),
    )


@dataclass(frozen=True)
class SubsamplingClaim:
    """What the noise formula of a paper with node subsampling states, and what it amounts to.

    Attributes:
        stated_epsilon: The epsilon that the paper prints.
        noise: Its standard deviation, for gradients of norm `lipschitz`.
        final_model: Epsilon if a record were used with probability `iota / q` in each of T rounds and every round had
            noise: what the paper argues for an adversary who sees the final model only. It is not a bound where an
            inactive node adds no noise.
        messages: Epsilon against whoever sees messages, hence who is active: probability `1 / q` in `iota T` rounds.
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
        examples: q, of each node; one is drawn by an active node in a round (here: one in expectation).
        active_fraction: iota.
        delta: Delta at which the noise is priced.
        sensitivity: In units of the Lipschitz constant: 1 to add or remove a record, 2 to replace one.
        delta0: The paper's delta_0.

    Raises:
        ConfigError: an argument is out of range.
    """
    for name, value in (("epsilon", epsilon), ("rounds", rounds), ("examples", examples)):
        if value <= 0:
            raise ConfigError(name, value, "must be positive")
    if not 0 < active_fraction <= 1:
        raise ConfigError("active_fraction", active_fraction, "a fraction of nodes lies in (0, 1]")
    from fedpriv.privacy import pld  # dp-accounting takes a second to import

    noise = dual_averaging_noise(epsilon, rounds, examples, active_fraction, delta0)
    rate, active = 1 / examples, max(1, round(active_fraction * rounds))
    return SubsamplingClaim(
        stated_epsilon=epsilon,
        noise=noise,
        final_model=pld.rare_large(noise / sensitivity, active_fraction * rate, rounds, delta),
        messages=pld.rare_large(noise / sensitivity, rate, active, delta),
    )


@dataclass(frozen=True)
class NoiseClaim:
    """What a paper's formula for the noise would call the noise of a run.

    Attributes:
        paper: Author, year, where.
        stated_epsilon: The epsilon that the formula belongs to.
        assumes: Its further arguments.
    """

    paper: str
    stated_epsilon: float
    assumes: str


def dual_averaging_stated(noise: float, rounds: int, examples: int, active_fraction: float) -> NoiseClaim:
    """The epsilon that theorem 1 of Liu, Johansson and Shi states for a noise.

    Args:
        noise: Standard deviation on the gradient of one example, over the bound on its norm.
        rounds: T.
        examples: q, of each node.
        active_fraction: iota.
    """
    stated = dual_averaging_noise(noise, rounds, examples, active_fraction)  # the formula is its own inverse
    return NoiseClaim("Liu, Johansson, Shi 2023, theorem 1", stated, "delta_0 = 0.01")


def gradient_tracking_total(epsilon: float, q1: float, q2: float, rounds: float = math.inf) -> float:
    """Pure epsilon that the published schedule of gradient tracking spends (Xie, Liu, Chai 2025, eq 5).

    The gap `delta alpha_k` of x(k) is hidden by the noise of scale nu_{k+1}, one round later than the paper counts:
    `sum_k delta alpha_k / nu_{k+1} = epsilon / q2` over an infinite horizon.
    """
    ratio = q1 / q2
    return epsilon * (q2 - q1) / q2**2 * (1 - ratio**rounds) / (1 - ratio)


def _check(epsilon_bar: float, rounds: int) -> None:
    if epsilon_bar <= 0:
        raise ConfigError("epsilon_bar", epsilon_bar, "the budget of a round is positive, e.g. 0.05")
    if rounds < 1:
        raise ConfigError("rounds", rounds, "a run has at least one round")


def svrg(
    epsilon: float, n_examples: int, epochs: int, epoch_length: int, *, delta: float = 1e-3, doubling: bool = False
) -> Claim:
    """DP-SVRG and DP-SVRG++ with batches of one (Wang, Ye, Xu 2017, equations 3 and 6, with their constant c as 1).

    The inner steps are priced, anchors left out: a difference of two gradients of norm at most G moves by 4 G when its
    record is replaced, of which the paper counts 2 G, as here; each step draws one of n records.

    Args:
        epsilon: The paper's epsilon, of the whole run.
        n_examples: n.
        epochs: T.
        epoch_length: m; epoch s of DP-SVRG++ has `2^s m` steps.
        delta: Delta of the claim and of the price.
        doubling: DP-SVRG++.

    Raises:
        ConfigError: an argument is out of range.
    """
    _check_positive(epsilon=epsilon, n_examples=n_examples, epochs=epochs, epoch_length=epoch_length)
    counted = epoch_length * (2**epochs if doubling else epochs)
    steps = epoch_length * (2 ** (epochs + 1) - 2 if doubling else epochs)
    sigma = svrg_deviation(epsilon, n_examples, epochs, epoch_length, delta=delta, doubling=doubling)
    ratio = 2 / sigma  # sensitivity 2 G over the standard deviation, G = 1
    return Claim(
        paper="Wang, Ye, Xu 2017",
        stated=(
            f"({epsilon:g}, {delta:g})-DP with "
            f"sigma^2 = c G^2 {counted} ln({2 if doubling else 1}/delta) / (n epsilon)^2"
        ),
        stated_epsilon=epsilon,
        basic_total=steps * gaussian.epsilon_of(ratio, delta),
        tight_total=_drawn_now_and_then(ratio, steps, 1 / n_examples, delta),
        why_not=(
            f"the theorem holds for epsilon below c_1 {counted} / n^2 = {counted / n_examples**2:.2g} c_1 only, and "
            f"its c is not given. With c = 1 the noise is {sigma:.2g} G on a difference of norm up to 2 G: a record "
            "that is drawn shows itself. Calibrate the noise to the whole run instead (variant: sound)"
        ),
        scope="the whole run",
    )


def svrg_deviation(
    epsilon: float, n_examples: int, epochs: int, epoch_length: int, *, delta: float = 1e-3, doubling: bool = False
) -> float:
    """Standard deviation of the published noise for G = 1 and c = 1, equations 3 and 6."""
    steps = epoch_length * (2**epochs if doubling else epochs)
    return math.sqrt(steps * math.log((2 if doubling else 1) / delta)) / (n_examples * epsilon)


def accelerated_mirror_descent(epsilon: float, rounds: int, delta: float = 1e-5) -> Claim:
    """DP-AccMD (Wang, Ye, Xu 2017, algorithm 3 and theorem 5.3): no finite epsilon holds for it.

    Raises:
        ConfigError: an argument is out of range.
    """
    _check_positive(epsilon=epsilon, rounds=rounds)
    return Claim(
        paper="Wang, Ye, Xu 2017",
        stated=f"({epsilon:g}, {delta:g})-DP with sigma^2 = c G^2 {rounds} ln(1/delta) / (n epsilon)^2",
        stated_epsilon=epsilon,
        basic_total=math.inf,
        tight_total=math.inf,
        why_not=(
            "the gradient of the y-step has no noise and y is what the method returns: after one round it is "
            "a function of the exact gradient. Use one noised gradient in both steps instead (variant: sound)"
        ),
        scope="the whole run",
    )


def _drawn_now_and_then(ratio: float, steps: int, rate: float, delta: float) -> float:
    """Epsilon of `steps` Gaussian answers, each about the record with probability `rate`, seen by one who knows when.

    Who knows which answers were about the record sees more, so this is an upper bound; where the noise is as small as
    here, everyone knows. The record is in k answers with binomial probability; they compose to ratio `sqrt(k) ratio`.
    """
    most = int(binom.isf(delta * 1e-6, steps, rate)) + 1
    weights = binom.pmf(np.arange(most + 1), steps, rate)
    beyond = float(binom.sf(most, steps, rate))

    def excess(epsilon: float) -> float:
        parts = [
            w * math.exp(float(gaussian.log_delta(math.sqrt(k) * ratio, np.asarray(epsilon))))
            for k, w in enumerate(weights)
            if k
        ]
        return math.fsum(parts) + beyond - delta

    high = gaussian.epsilon_of(math.sqrt(most) * ratio, delta)
    return 0.0 if excess(0.0) <= 0 else gaussian.root(excess, 0.0, high, 1e-9 * high) * (1 + 1e-9)


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise ConfigError(name, value, "must be positive and finite")
