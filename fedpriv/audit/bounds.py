"""Lower bounds on epsilon from guesses about who took part, with a given confidence.

None exceeds the true epsilon more often than the confidence leaves:

* Clopper and Pearson (1934): two independent error rates, each with half of what the confidence leaves.
* One run: Steinke, Nasr and Jagielski (2023), theorem 5.2, for canaries in one run, whatever they have in common.
* The parameter mu of Gaussian differential privacy (Dong, Roth and Su 2022): normal scores of one deviation, whose
  distance has an exact noncentral t interval. It sees more, and assumes what it says.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

from fedpriv.privacy.accounting.gaussian import epsilon_of

Array = NDArray[np.float64]
Marks = NDArray[np.bool_]
_LARGEST = 50.0  # epsilon
_CUTS = 49  # thresholds that are tried on the half that teaches


class Bounds(NamedTuple):
    """Lower bounds on epsilon at one delta; `mu` is the parameter, `of_mu` the epsilon that it stands for."""

    clopper_pearson: float
    one_run: float
    mu: float
    of_mu: float


def of_scores(scores: Array, took_part: Marks, delta: float, confidence: float, *, normal: bool) -> Bounds:
    """What guessing by scores proves: one half teaches where to cut, the other half is told apart once.

    Args:
        scores: Larger ones speak for having taken part, `[m]`, in random order.
        took_part: Who did, `[m]`.
        delta: Of the promise.
        confidence: With which each bound holds, e.g. 0.95.
        normal: Whether scores are normal with one deviation, for mu; else it is 0.
    """
    half = len(scores) // 2
    known, known_in, new, new_in = scores[:half], took_part[:half], scores[half:], took_part[half:]
    cut, share = _best_cut(known, known_in), _best_share(known, known_in)
    if normal:
        mu = largest_mu(scores[took_part], scores[~took_part], confidence)
    else:
        mu = 0.0
    return Bounds(
        _rates(new > cut, new_in, delta, confidence),
        _guessed(new, new_in, share, delta, confidence),
        mu,
        epsilon_of(mu, delta) if mu > 0 else 0.0,
    )


def clopper_pearson(hits: int, of: int, alarms: int, out_of: int, delta: float, confidence: float) -> float:
    """Lower bound from a true and a false positive rate: `hits` of `of` who took part, `alarms` of `out_of` others."""
    share = (1 - confidence) / 2
    if hits:
        least = float(stats.beta.ppf(share, hits, of - hits + 1))
    else:
        least = 0.0
    if alarms < out_of:
        most = float(stats.beta.ppf(1 - share, alarms + 1, out_of - alarms))
    else:
        most = 1.0
    if least > delta:
        return max(math.log((least - delta) / most), 0.0)
    return 0.0


def one_run(correct: int, guesses: int, canaries: int, delta: float, confidence: float) -> float:
    """Lower bound from `correct` of the `guesses` about independent coins of so many canaries in one run."""
    if guesses == 0 or _chance(0.0, correct, guesses, canaries, delta) >= 1 - confidence:
        return 0.0
    found: Any = optimize.brentq(
        lambda epsilon: _chance(epsilon, correct, guesses, canaries, delta) - (1 - confidence), 0.0, _LARGEST
    )
    return float(found)


def largest_mu(inside: Array, outside: Array, confidence: float) -> float:
    """Lower bound on the distance of two normal laws of one deviation, over that deviation."""
    n, m = len(inside), len(outside)
    if min(n, m) < 2:
        return 0.0
    free, weight = n + m - 2, math.sqrt(n * m / (n + m))
    pooled = math.sqrt((float(inside.var()) * n + float(outside.var()) * m) / free)
    seen = weight * float(inside.mean() - outside.mean()) / max(pooled, 1e-300)
    seen = min(seen, 300.0)  # where the law of t has no numbers any more
    return _root(lambda mu: float(stats.nct.sf(seen, free, weight * mu)) - (1 - confidence), seen / weight)


def _root(excess: Callable[[float], float], above: float) -> float:
    """The zero of a function that increases from below, at most `above`; 0 if it is positive there already."""
    if above <= 0 or excess(1e-9) >= 0:
        return 0.0
    if excess(above) > 0:
        found: Any = optimize.brentq(excess, 1e-9, above)
    else:
        found = above
    return float(found)


def _rates(guess: Marks, took_part: Marks, delta: float, confidence: float) -> float:
    """The better of both directions: who took part, and who did not."""
    n, m = int(took_part.sum()), int((~took_part).sum())
    hits, alarms = int((guess & took_part).sum()), int((guess & ~took_part).sum())
    # both directions follow from the same two intervals
    told = (hits, n, alarms, m), (m - alarms, m, n - hits, n)
    return max(clopper_pearson(*one, delta, confidence) for one in told)


def _best_cut(scores: Array, took_part: Marks) -> float:
    """Where guessing has the best ratio of right to wrong alarms that is sure, in one direction or the other."""
    cuts = np.quantile(scores, np.linspace(0.02, 0.98, _CUTS))
    above = scores[None] > cuts[:, None]
    n, m = int(took_part.sum()), int((~took_part).sum())
    hits, alarms = above[:, took_part].sum(1), above[:, ~took_part].sum(1)
    ways = (hits, n, alarms, m), (m - alarms, m, n - hits, n)
    sure = [_least(right, of) / (1 - _least(other - wrong, other)) for right, of, wrong, other in ways]
    return float(cuts[int(np.maximum(*sure).argmax())])


def _best_share(scores: Array, took_part: Marks) -> float:
    """How many guesses have the largest share of right ones that is sure."""
    shares = np.linspace(0.02, 1.0, _CUTS)
    each = np.maximum((shares * len(scores) / 2).astype(int), 1)
    ordered = took_part[np.argsort(scores)]
    right = np.cumsum(ordered[::-1])[each - 1] + np.cumsum(~ordered)[each - 1]
    return float(shares[int(_least(right, 2 * each).argmax())])


def _least(right: Any, of: Any) -> Array:  # noqa: ANN401 - counts
    """Lower bound on a rate, by Clopper and Pearson at 95 %."""
    return np.where(right > 0, stats.beta.ppf(0.05, np.maximum(right, 1), of - right + 1), 0.0)


def _guessed(scores: Array, took_part: Marks, share: float, delta: float, confidence: float) -> float:
    """Guess about a share of the canaries, those with the largest and smallest scores."""
    each = max(int(share * len(scores) / 2), 1)
    order = np.argsort(scores)
    correct = int(took_part[order[-each:]].sum() + (~took_part[order[:each]]).sum())
    return one_run(correct, 2 * each, len(scores), delta, confidence)


def _chance(epsilon: float, correct: int, guesses: int, canaries: int, delta: float) -> float:
    """Largest probability of so many correct guesses, of an (epsilon, delta) private run."""
    law: Any = stats.binom(guesses, 1 / (1 + math.exp(-epsilon)))
    above = float(law.sf(correct - 1))
    back = np.arange(1, correct + 1)
    if correct:
        slope = float(((law.sf(correct - 1 - back) - above) / back).max())
    else:
        slope = 0.0
    return min(above + 2 * canaries * delta * slope, 1.0)
