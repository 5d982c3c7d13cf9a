"""Private empirical risk minimisation."""

from __future__ import annotations

import math

import numpy as np

from fedpriv.forecast.claim import Claim, check_positive
from fedpriv.privacy.accounting import gaussian


def svrg(
    epsilon: float, n_examples: int, epochs: int, epoch_length: int, *, delta: float = 1e-3, doubling: bool = False
) -> Claim:
    """DP-SVRG and DP-SVRG++ with batches of one (Wang, Ye, Xu 2017, equations 3 and 6, with their constant c as 1).

    Only the inner steps are counted, not the full gradients. Each draws one of n records. Replacing a record changes a
    difference of two gradients of norm at most G by up to 4 G; the paper uses 2 G, and so does this function.

    Args:
        epsilon: The paper's epsilon, of the whole run.
        n_examples: n.
        epochs: T.
        epoch_length: m; epoch s of DP-SVRG++ has `2^s m` steps.
        delta: Delta of the paper's claim and of the computed epsilon.
        doubling: True for DP-SVRG++.

    Raises:
        ConfigError: If an argument is out of range.
    """
    check_positive(epsilon=epsilon, n_examples=n_examples, epochs=epochs, epoch_length=epoch_length)
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
        basic_total=steps * gaussian.compute_epsilon(ratio, delta),
        tight_total=_epsilon_of_known_draws(ratio, steps, 1 / n_examples, delta),
        why_not=(
            f"the theorem holds only for epsilon below c_1 {counted} / n^2 = {counted / n_examples**2:.2g} c_1, "
            f"and its c is not given. With c = 1, the noise is {sigma:.2g} G on a difference of norm up to 2 G: "
            "a drawn record is visible. Calibrate the noise to the whole run instead (variant: sound)"
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
        ConfigError: If an argument is out of range.
    """
    check_positive(epsilon=epsilon, rounds=rounds)
    return Claim(
        paper="Wang, Ye, Xu 2017",
        stated=f"({epsilon:g}, {delta:g})-DP with sigma^2 = c G^2 {rounds} ln(1/delta) / (n epsilon)^2",
        stated_epsilon=epsilon,
        basic_total=math.inf,
        tight_total=math.inf,
        why_not=(
            "the gradient of the y-step has no noise, and the method returns y: after one round it is a "
            "function of the exact gradient. Use one noisy gradient in both steps instead (variant: sound)"
        ),
        scope="the whole run",
    )


def _epsilon_of_known_draws(ratio: float, steps: int, rate: float, delta: float) -> float:
    """Returns the epsilon of `steps` Gaussian queries, each of which uses the record with probability `rate`.

    The observer is assumed to know which queries used the record, so this is an upper bound. With as little noise as
    here, these queries are obvious. The record is in k queries with binomial probability; they compose to ratio
    `sqrt(k) ratio`.
    """
    from scipy.stats import binom  # slow to import

    largest = int(binom.isf(delta * 1e-6, steps, rate)) + 1
    weights = binom.pmf(np.arange(largest + 1), steps, rate)
    beyond = float(binom.sf(largest, steps, rate))

    def excess(epsilon: float) -> float:
        terms = [
            w * math.exp(float(gaussian.log_delta(math.sqrt(k) * ratio, np.asarray(epsilon))))
            for k, w in enumerate(weights)
            if k
        ]
        return math.fsum(terms) + beyond - delta

    high = gaussian.compute_epsilon(math.sqrt(largest) * ratio, delta)
    if excess(0.0) <= 0:
        return 0.0
    return gaussian.find_root(excess, 0.0, high, 1e-9 * high) * (1 + 1e-9)
