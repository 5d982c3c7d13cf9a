"""The problem and the algorithms of Wang, Ye and Xu (2017, appendix A) in numpy, with noise as they publish it.

Runs with different noise and seeds are rows of one matrix, so that 655 340 steps on single rows take a minute.
`tests/reproduce/test_erm_figures.py` compares them with the library's runs.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit, log_ndtr
from scipy.stats import binom

from fedpriv.data.covertype import covertype

Array = NDArray[np.float64]
SMOOTHNESS = 0.25  # of both logistic losses, on rows of norm 1
PAPERS_ROWS = 200_000
_SAMPLES = ("covtype_sample92962.data.gz", "covtype.20k.data.gz")


@dataclass(frozen=True)
class Problem:
    """Mean of `log(1 + exp(shift - s w'x))` on rows `x [n, p]` of norm 1 with signs `s [n]`, plus `lam/2 ||w||^2`."""

    x: Array
    s: Array
    lam: float
    shift: float = 1.0

    def values(self, w: Array) -> Array:
        """Returns the objective of each row of `w [k, p]`."""
        losses = np.logaddexp(0, self.shift - self.s[:, None] * (self.x @ w.T)).mean(0)
        return losses + self.lam / 2 * np.square(w).sum(1)

    def slopes(self, margins: Array, signs: Array) -> Array:
        """Returns the derivative of the loss in `w'x`."""
        return -signs * expit(self.shift - signs * margins)

    def mean_gradient(self, w: Array) -> tuple[Array, Array]:
        """Returns the gradient of the mean loss without the l2 term at rows `w [k, p]`, and all slopes `[n, k]`."""
        slopes = self.slopes(self.x @ w.T, self.s[:, None])
        return (self.x.T @ slopes).T / len(self.x), slopes

    def gaps(self, w: Array) -> Array:
        """Returns the difference of the objective from its minimum, for each row of `w [k, p]`."""
        return self.values(w) - self.optimum

    @cached_property
    def optimum(self) -> float:
        """The minimum, by Newton's method with halved steps; the Hessian may be singular."""
        w = np.zeros((1, self.x.shape[1]))
        value = self.values(w)[0]
        for _ in range(100):
            gradient, slopes = self.mean_gradient(w)
            gradient = gradient[0] + self.lam * w[0]
            weights = np.abs(slopes[:, 0]) * (1 - np.abs(slopes[:, 0]))
            hessian = (self.x * weights[:, None]).T @ self.x / len(self.x) + self.lam * np.eye(w.shape[1])
            move = np.linalg.pinv(hessian, rcond=1e-10, hermitian=True) @ gradient
            rate, new = 1.0, self.values(w - move)[0]
            while new > value and rate > 1e-6:
                rate /= 2
                new = self.values(w - rate * move)[0]
            w, done, value = w - rate * move, value - new < 1e-15, min(new, value)
            if done:
                break
        return float(value)


@lru_cache(maxsize=2)
def covertype_rows(count: int | None = None) -> tuple[Array, Array]:
    """Returns rows of norm 1 and signs: 200 000 of UCI's file, or all distinct rows of two samples of it.

    Args:
        count: Number of rows; None for all.
    """
    folder = Path(os.environ.get("FEDPRIV_DATA", "data")) / "covertype"
    samples = [name for name in _SAMPLES if (folder / name).exists()]
    whole = any((folder / name).exists() for name in ("covtype.data", "covtype.data.gz"))
    splits = [covertype(root=str(folder), file=name) for name in ([None] if whole else samples)]
    tensors = [torch.cat([x, y[:, None]], 1) for one in splits for x, y in (one.train.tensors, one.test.tensors)]
    rows = np.unique(torch.cat(tensors).numpy(), axis=0)
    rows = rows[np.random.default_rng(0).permutation(len(rows))][: min(count or PAPERS_ROWS, PAPERS_ROWS)]
    return rows[:, :-1].astype(np.float64), 2.0 * rows[:, -1] - 1


@dataclass(frozen=True)
class Paths:
    """Runs side by side.

    Attributes:
        models: The reported models, `[k, p]`.
        gaps: Their gaps after each epoch, `[epochs, k]`.
        passes: Gradient evaluations / n so far, at the same times.
        seconds: Processor seconds so far, without the gaps.
        distances: `||x_{t-1} - x~||` in each step of the first three runs, `[steps, 3]`.
    """

    models: Array
    gaps: list[list[float]]
    passes: list[float]
    seconds: list[float]
    distances: Array


def svrg(
    problem: Problem,
    lengths: Sequence[int],
    step: float,
    deviations: Sequence[float],
    seed: int,
    *,
    doubling: bool = False,
    barzilai_borwein: bool = False,
    anchor_deviations: Sequence[float] | None = None,
) -> Paths:
    """Algorithms 1 and 2 as printed: batches of one, exact anchors, noise in each inner step.

    Args:
        problem: The problem.
        lengths: Inner steps of each epoch.
        step: eta; with `barzilai_borwein` of the first epoch only.
        deviations: Noise in a step of each run, `[k]`.
        seed: Seed of draws and noise.
        doubling: True for algorithm 2: an epoch starts from the last iterate of the one before.
        barzilai_borwein: True for `eta_s = ||dx||^2 / (m <dx, dg>)` of the objective's gradients at two anchors.
        anchor_deviations: Noise of the anchor gradients, which the paper does not have.
    """
    draws = np.random.default_rng(seed)
    x, s, lam, n = problem.x, problem.s, problem.lam, len(problem.x)
    sigma = np.asarray(deviations, dtype=np.float64)[:, None]
    k, p = len(sigma), x.shape[1]
    columns = np.arange(k)
    point, anchor, last = np.zeros((k, p)), np.zeros((k, p)), None
    rates = np.full((k, 1), step)
    gaps, passes, seconds, distances = [], [], [], []
    evaluations, spent = 0.0, 0.0
    for m in lengths:
        start = time.process_time()
        full, at_anchor = problem.mean_gradient(anchor)
        if anchor_deviations is not None:
            full = full + np.asarray(anchor_deviations)[:, None] * draws.standard_normal((k, p))
        if barzilai_borwein and last is not None:
            dx, dg = anchor - last[0], full - last[1]
            curvature = (dx * dg).sum(1, keepdims=True) / np.square(dx).sum(1, keepdims=True)
            rates = 1 / (m * (np.clip(curvature, 0, SMOOTHNESS) + lam))
        last = anchor, full
        if not doubling:
            point = anchor.copy()
        total, shrink = np.zeros((k, p)), 1 / (1 + rates * lam)
        for begin in range(0, m, 4096):
            size = min(4096, m - begin)
            chosen = draws.integers(n, size=(size, k))
            noise = draws.standard_normal((size, k, p))
            noise *= sigma
            noise += full
            old = at_anchor[chosen, columns]
            signs = s[chosen]
            for t in range(size):
                rows = x[chosen[t]]
                away = point[:3] - anchor[:3]
                distances.append(np.einsum("kp,kp->k", away, away))
                sign = signs[t]
                slope = -sign * expit(problem.shift - sign * np.einsum("kp,kp->k", rows, point))
                direction = rows * (slope - old[t])[:, None]
                direction += noise[t]
                direction *= rates
                point = (point - direction) * shrink
                total += point
        anchor = total / m
        spent += time.process_time() - start
        evaluations += 1 + 2 * m / n
        gaps.append(problem.gaps(anchor).tolist())
        passes.append(evaluations)
        seconds.append(spent)
    return Paths(anchor, gaps, passes, seconds, np.sqrt(np.array(distances)))


def exact_descent(problem: Problem, step: float, steps: int, at: Sequence[int]) -> tuple[list[Array], list[float]]:
    """Returns the iterates of gradient descent on the objective after the steps `at`, and the processor seconds."""
    w = np.zeros((1, problem.x.shape[1]))
    found, seconds, start = [], [], time.process_time()
    for t in range(1, steps + 1):
        w = w - step * (problem.mean_gradient(w)[0] + problem.lam * w)
        if t in at:
            found.append(w[0])
            seconds.append(time.process_time() - start)
    return found, seconds


def sensitivity(n: int, lam: float, step: float, steps: int) -> float:
    """Returns a bound on the change of `exact_descent`'s last iterate when one of n rows of norm 1 is replaced.

    The mean loss is convex and 1/4-smooth and its slope is at most 1, so for steps up to `2 / (1/4 + 2 lam)` one step
    brings two iterates together by the factor `1 - step lam`, and the replaced row moves them apart by at most
    `2 step / n`. The sum is below `2 / (n lam)`, and `2 step steps / n` for lam = 0. A part in a million is added for
    rounding.

    Raises:
        ValueError: If the step is longer.
    """
    if not 0 < step <= 2 / (SMOOTHNESS + 2 * lam):
        raise ValueError(f"a step of {step} is too long for the bound: at most {2 / (SMOOTHNESS + 2 * lam):g}")
    apart = 0.0
    for _ in range(steps):
        apart = (1 - step * lam) * apart + 2 * step / n
    return apart * (1 + 1e-6)


def classical_deviation(sensitivity: float, epsilon: float, delta: float) -> float:
    """Returns the noise of the paper's definition 3.4, `sqrt(2 ln(1.25/delta)) sensitivity / epsilon`."""
    return math.sqrt(2 * math.log(1.25 / delta)) * sensitivity / epsilon


def printed_epsilon(sigma: float, n: int, steps: int, delta: float) -> float:
    """Returns an upper bound on the epsilon of the printed DP-SVRG for a replaced row.

    Slopes of the logistic loss are between 0 and 1 and of one sign, so a drawn row's difference of gradients is at most
    1 long, and replacing that row changes the step by up to 2, besides 2/n through the anchor's gradient in each step.
    The observer is assumed to see all iterates and to know which steps drew the row.
    """
    most = int(binom.isf(delta * 1e-6, steps, 1 / n)) + 1
    k = np.arange(most + 1)
    ratios = np.sqrt(k * (2 + 2 / n) ** 2 + (steps - k) * (2 / n) ** 2) / sigma
    return _mixture_epsilon(ratios, binom.pmf(k, steps, 1 / n), delta - float(binom.sf(most, steps, 1 / n)))


def epsilon_on_path(distances: Array, sigma: float, n: int, delta: float, seed: int = 0) -> float:
    """Returns an estimate of the same epsilon if a drawn row changes a step only as far as it could on a run's path.

    For a loss of smoothness 1/4 that is `2 ||x - x~|| / 4`, which is below 2. It is no guarantee, since another run has
    another path; it shows how much the paper's noise hides in the run itself.

    Args:
        distances: `||x - x~||` in each step, `[steps]`.
        sigma: Noise of a step.
        n: Number of rows.
        delta: Delta.
        seed: Seed of the drawn steps.
    """
    draws, steps = np.random.default_rng(seed), len(distances)
    extra = np.square(np.minimum(2 * SMOOTHNESS * distances, 2) + 2 / n) - (2 / n) ** 2
    count = draws.binomial(steps, 1 / n, 100_000)
    runs = np.repeat(np.arange(len(count)), count)
    sums = np.bincount(runs, extra[draws.integers(steps, size=len(runs))], len(count))
    ratios = np.sort(np.sqrt(sums + steps * (2 / n) ** 2) / sigma)
    thinned = ratios.reshape(-1, 10).max(1)  # ten at a time, rounded up
    return _mixture_epsilon(thinned, np.full(len(thinned), 1 / len(thinned)), delta)


def _mixture_epsilon(ratios: Array, weights: Array, delta: float) -> float:
    """Returns epsilon at delta of Gaussian mechanisms with these ratios, one of which is drawn and known."""
    ratios = np.maximum(ratios, 1e-12)

    def excess(epsilon: float) -> float:
        upper = log_ndtr(ratios / 2 - epsilon / ratios)
        lower = epsilon + log_ndtr(-ratios / 2 - epsilon / ratios)
        return float((weights * np.exp(upper) * -np.expm1(np.minimum(lower - upper, 0.0))).sum()) - delta

    low, high = 0.0, 1.0
    while excess(high) > 0:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return high
