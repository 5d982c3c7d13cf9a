"""Lower bounds on epsilon from guesses about participation, with a given confidence.

Each exceeds the true epsilon with a probability of at most 1 minus the confidence:

* Clopper and Pearson (1934): two independent error rates, each with half of that probability.
* One run: Steinke, Nasr and Jagielski (2023), theorem 5.2, for canaries in one run, whatever they have in common.
* The parameter mu of Gaussian differential privacy (Dong, Roth and Su 2022): for normal scores with equal deviations,
  their distance has an exact noncentral t interval. It detects more, but only under that assumption.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

from fedpriv.privacy.accounting import compute_epsilon

Array = NDArray[np.float64]
Marks = NDArray[np.bool_]
_LARGEST = 50.0  # epsilon
_CUTS = 49  # thresholds that are tested on the first half


class Bounds(NamedTuple):
    """Lower bounds on epsilon at one delta; `mu` is the parameter, and `of_mu` the epsilon that it implies."""

    clopper_pearson: float
    one_run: float
    mu: float
    of_mu: float


def bounds_from_scores(scores: Array, took_part: Marks, delta: float, confidence: float, *, normal: bool) -> Bounds:
    """Returns the bounds from guessing by scores: the first half chooses a threshold, one guess uses the second half.

    Args:
        scores: Larger values suggest that a canary took part, `[m]`, in random order.
        took_part: True if it did, `[m]`.
        delta: The delta of the guarantee.
        confidence: The confidence of each bound, e.g. 0.95.
        normal: True if scores are normal with equal deviations, so that mu has a bound; otherwise mu is 0.
    """
    half = len(scores) // 2
    cut = _choose_threshold(scores[:half], took_part[:half])
    share = _best_share(scores[:half], took_part[:half])
    new_scores = scores[half:]
    new_marks = took_part[half:]
    if normal:
        mu = largest_mu(scores[took_part], scores[~took_part], confidence)
    else:
        mu = 0.0
    if mu > 0:
        of_mu = compute_epsilon(mu, delta)
    else:
        of_mu = 0.0
    return Bounds(
        clopper_pearson=_bound_from_rates(new_scores > cut, new_marks, delta, confidence),
        one_run=_bound_from_guesses(new_scores, new_marks, share, delta, confidence),
        mu=mu,
        of_mu=of_mu,
    )


def clopper_pearson(hits: int, n_inside: int, alarms: int, n_outside: int, delta: float, confidence: float) -> float:
    """Returns a lower bound on epsilon from a true and a false positive rate.

    Args:
        hits: Right guesses among the `n_inside` that took part.
        n_inside: Number that took part.
        alarms: Wrong guesses among the `n_outside` that did not.
        n_outside: Number that did not take part.
        delta: The delta of the guarantee.
        confidence: The confidence of the bound.
    """
    # each rate is bounded with half of the failure probability
    failure = (1 - confidence) / 2
    if hits:
        least_hit_rate = float(stats.beta.ppf(failure, hits, n_inside - hits + 1))
    else:
        least_hit_rate = 0.0
    if alarms < n_outside:
        largest_alarm_rate = float(stats.beta.ppf(1 - failure, alarms + 1, n_outside - alarms))
    else:
        largest_alarm_rate = 1.0
    if least_hit_rate > delta:
        return max(math.log((least_hit_rate - delta) / largest_alarm_rate), 0.0)
    return 0.0


def compute_one_run_bound(correct: int, guesses: int, canaries: int, delta: float, confidence: float) -> float:
    """Returns a lower bound on epsilon from guesses about independent coins in one run.

    Args:
        correct: Number of correct guesses.
        guesses: Number of guesses.
        canaries: Number of canaries, each with an independent coin.
        delta: The delta of the guarantee.
        confidence: The confidence of the bound.
    """
    if guesses == 0 or _tail_probability(0.0, correct, guesses, canaries, delta) >= 1 - confidence:
        return 0.0
    epsilon: Any = optimize.brentq(
        lambda epsilon: _tail_probability(epsilon, correct, guesses, canaries, delta) - (1 - confidence),
        0.0,
        _LARGEST,
    )
    return float(epsilon)


def largest_mu(inside: Array, outside: Array, confidence: float) -> float:
    """Returns a lower bound on the distance of two normal distributions with equal deviations, in that deviation.

    Args:
        inside: Scores of the canaries that took part, `[n]`.
        outside: Scores of the others, `[m]`.
        confidence: The confidence of the bound.
    """
    n = len(inside)
    m = len(outside)
    if min(n, m) < 2:
        return 0.0
    degrees = n + m - 2
    weight = math.sqrt(n * m / (n + m))
    pooled = math.sqrt((float(inside.var()) * n + float(outside.var()) * m) / degrees)
    statistic = weight * float(inside.mean() - outside.mean()) / max(pooled, 1e-300)
    statistic = min(statistic, 300.0)  # scipy's noncentral t has no values beyond
    return _root(lambda mu: float(stats.nct.sf(statistic, degrees, weight * mu)) - (1 - confidence), statistic / weight)


def _root(excess: Callable[[float], float], upper: float) -> float:
    """Returns the zero of an increasing function in (0, upper]; 0 if the function is positive on all of it."""
    if upper <= 0 or excess(1e-9) >= 0:
        return 0.0
    if excess(upper) > 0:
        root: Any = optimize.brentq(excess, 1e-9, upper)
    else:
        root = upper
    return float(root)


def _bound_from_rates(guess: Marks, took_part: Marks, delta: float, confidence: float) -> float:
    """Returns the larger of the bounds from guessing participation and from guessing absence."""
    n = int(took_part.sum())
    m = int((~took_part).sum())
    hits = int((guess & took_part).sum())
    alarms = int((guess & ~took_part).sum())
    # both directions use the same two intervals, so choosing the better one costs no confidence
    return max(
        clopper_pearson(hits, n, alarms, m, delta, confidence),
        clopper_pearson(m - alarms, m, n - hits, n, delta, confidence),
    )


def _choose_threshold(scores: Array, took_part: Marks) -> float:
    """Returns the threshold with the largest certain ratio of right to wrong guesses, in one direction or the other."""
    cuts = np.quantile(scores, np.linspace(0.02, 0.98, _CUTS))
    guesses = scores[None] > cuts[:, None]
    n = int(took_part.sum())
    m = int((~took_part).sum())
    hits = guesses[:, took_part].sum(1)
    alarms = guesses[:, ~took_part].sum(1)
    least_hits = _least_rate(hits, n)
    least_rejections = _least_rate(m - alarms, m)
    ratio_in = least_hits / (1 - least_rejections)
    ratio_out = least_rejections / (1 - least_hits)
    return float(cuts[int(np.maximum(ratio_in, ratio_out).argmax())])


def _best_share(scores: Array, took_part: Marks) -> float:
    """Returns the share of canaries to guess for which the certain rate of right guesses is largest."""
    shares = np.linspace(0.02, 1.0, _CUTS)
    per_side = np.maximum((shares * len(scores) / 2).astype(int), 1)
    ordered = took_part[np.argsort(scores)]
    right = np.cumsum(ordered[::-1])[per_side - 1] + np.cumsum(~ordered)[per_side - 1]
    return float(shares[int(_least_rate(right, 2 * per_side).argmax())])


def _least_rate(right: Any, total: Any) -> Array:  # noqa: ANN401 - counts
    """Returns a lower bound on a rate, by Clopper and Pearson at 95 %."""
    return np.where(right > 0, stats.beta.ppf(0.05, np.maximum(right, 1), total - right + 1), 0.0)


def _bound_from_guesses(scores: Array, took_part: Marks, share: float, delta: float, confidence: float) -> float:
    """Returns the bound from guesses about a share of the canaries: those with the largest and smallest scores."""
    per_side = max(int(share * len(scores) / 2), 1)
    order = np.argsort(scores)
    correct = int(took_part[order[-per_side:]].sum() + (~took_part[order[:per_side]]).sum())
    return compute_one_run_bound(correct, 2 * per_side, len(scores), delta, confidence)


def _tail_probability(epsilon: float, correct: int, guesses: int, canaries: int, delta: float) -> float:
    """Returns the largest probability of at least this many correct guesses if the run is (epsilon, delta) private."""
    law: Any = stats.binom(guesses, 1 / (1 + math.exp(-epsilon)))
    tail = float(law.sf(correct - 1))
    steps = np.arange(1, correct + 1)
    if correct:
        slope = float(((law.sf(correct - 1 - steps) - tail) / steps).max())
    else:
        slope = 0.0
    return min(tail + 2 * canaries * delta * slope, 1.0)
