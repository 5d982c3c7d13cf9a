"""Random allocation together with noise that cancels over time: what is left in the final model, at one epsilon.

    python benchmarks/reproduce/allocation_over_time.py
    FEDPRIV_DATA=<folder with mnist/> python benchmarks/reproduce/allocation_over_time.py --accuracy banded 5 3.2 40

The run is study `mnist` of correlated.py: one trusted owner, add/remove, delta 1e-5, 10 epochs of 100 batches. All rows
but `bins` are settings of the library, with the price that it asks. `bins` is not in it: each example is in one of the
100 batches, uniformly and in secret, the same in all epochs, and the noise is `s C^-1 Z` (Choquette-Choo and others
2025). With `m_i` the columns of C of batch i, added up over epochs, the pair is the mean of `N(m_i, s^2 I)` against
`N(0, s^2 I)`. Only the inner products of the noise with the `m_i` matter. Their delta is estimated by importance
sampling. The noise is the least whose estimate, 5.2 standard errors and 1e-7 are at most delta.

`last` and `average` are standard deviations of the noise in the final model and in the average of late models, for SGD,
over those of fixed batches with independent noise. `s` is the noise multiplier. `--accuracy FAMILY BAND s RATE` trains
study `mnist` with this noise on fixed batches, which have the noise of `bins` but not its price.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import mean, stdev

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from torch import nn

import fedpriv as fp
from fedpriv.clients.public_info import PublicDataInfo
from fedpriv.models import SoftmaxRegression
from fedpriv.models.problem import Problem
from fedpriv.planning.impulses import responses
from fedpriv.planning.plan import RunSketch
from fedpriv.privacy.accounting import gaussian
from fedpriv.privacy.accounting.allocation import delta_bounds
from fedpriv.privacy.correlated import INDEPENDENT, Factor, inverse
from fedpriv.privacy.settings import Noise, Sampling
from fedpriv.randomness.streams import Randomness
from fedpriv.strategies.outputs import Ema

Array = NDArray[np.float64]
DELTA = 1e-5
ERRORS = 5.2  # standard errors: one in 1e7 for a normal variable
FAILURE = 1e-7  # of the estimate, part of delta
BLOCK = 50_000  # samples in memory
PILOT = 50_000
FARTHEST = 1e4
DEFENCE = 0.1  # of the samples come from the pair itself, so that no weight is above 10
STRATEGIES = {"last": fp.fedavg(1.0), "average": fp.fedavg(1.0, average=Ema(0.99))}


@dataclass(frozen=True)
class Estimate:
    """An estimate and its standard error."""

    value: float
    error: float

    @property
    def upper(self) -> float:
        """What is compared with delta."""
        return self.value + ERRORS * self.error + FAILURE

    def __str__(self) -> str:
        return f"{self.value:.3g} +- {1.96 * self.error:.1g}"


@dataclass(frozen=True)
class Tilt:
    """Samples come from the mean of `N(v_j, s^2 I)` with `v_j = along mean(m) + across (m_j - mean(m))`."""

    along: float
    across: float


class Bins:
    """Balls in bins: each example in one batch, the same in all epochs, with the noise `s C^-1 Z`."""

    def __init__(self, factor: Factor, rounds: int, batches: int, seed: int = 0) -> None:
        column = factor.column(rounds)
        assert (column >= 0).all()  # else the scalar pair need not be the worst
        moves = np.zeros((rounds, batches))
        for start in range(rounds):
            moves[start:, start % batches] += column[: rounds - start]
        self.gram: Array = moves.T @ moves
        values, vectors = np.linalg.eigh(self.gram)
        self._root: Array = vectors * np.sqrt(np.maximum(values, 0))
        self._random = np.random.default_rng(seed)

    def delta(
        self, side: str, s: float, epsilon: float, tilt: Tilt, products: Iterator[tuple[Array, Array]]
    ) -> Estimate:
        """Estimates `E (S - c)_+` (remove) or `E (1 - c S)_+` (add) under Q, from inner products of unit noise."""
        gram, k = self.gram / s**2, len(self.gram)
        means = gram.mean(1)
        weight = tilt.along - tilt.across
        shifts = weight * means[:, None] + tilt.across * gram  # column j: what v_j moves the products by
        squares = weight**2 * means.mean() + 2 * weight * tilt.across * means + tilt.across**2 * gram.diagonal()
        total, total_square, count = 0.0, 0.0, 0
        for unit, uniform in products:
            which = (uniform * k / (1 - DEFENCE)).astype(int)
            tilted = which < k
            own = ((uniform - (1 - DEFENCE)) / DEFENCE * k).astype(int).clip(0, k - 1)
            moved = np.where(tilted[:, None], shifts.T[which.clip(0, k - 1)], gram[own] if side == "remove" else 0.0)
            u = unit / s + moved
            log_ratio = _log_mean_exp(u - gram.diagonal() / 2)
            log_tilted = weight * u.mean(1) + _log_mean_exp(tilt.across * u - squares / 2)
            log_own = log_ratio if side == "remove" else np.zeros(len(u))
            log_sampled = np.logaddexp(log_tilted + math.log(1 - DEFENCE), log_own + math.log(DEFENCE))
            if side == "remove":
                values = np.where(log_ratio > epsilon, -np.expm1(np.minimum(epsilon - log_ratio, 0)), 0)
                values *= np.exp(np.where(values > 0, log_ratio - log_sampled, 0))
            else:
                values = np.where(log_ratio < -epsilon, -np.expm1(np.minimum(epsilon + log_ratio, 0)), 0)
                values *= np.exp(np.where(values > 0, -log_sampled, 0))
            total += float(values.sum())
            total_square += float((values**2).sum())
            count += len(values)
        value = total / count
        return Estimate(value, math.sqrt(max(total_square / count - value**2, 0.0) / count))

    def draw(self, count: int) -> Iterator[tuple[Array, Array]]:
        """Yields blocks of inner products of unit noise with the `m_i`, and of uniform numbers."""
        for start in range(0, count, BLOCK):
            size = min(BLOCK, count - start)
            normal = self._random.standard_normal((size, len(self.gram)))
            yield normal @ self._root.T, self._random.random(size)

    def tune(self, side: str, s: float, epsilon: float, start: Tilt, count: int) -> Tilt:
        """Returns a tilt with a small relative error, found by steps along and across."""

        def score(tilt: Tilt) -> float:
            found = self.delta(side, s, epsilon, tilt, iter(sample))
            return found.error / found.value if found.value > 0 else math.inf

        sample = list(self.draw(count))
        best, least = start, score(start)
        while math.isinf(least) and abs(best.along) < FARTHEST:  # not one event among the samples
            best = Tilt(2 * best.along, best.across)
            least = score(best)
        for factor in (2.0, 1.4, 1.2):
            improves = True
            while improves:
                improves = False
                options = [Tilt(best.along * f, best.across) for f in (factor, 1 / factor)]
                if side == "remove":
                    options += [Tilt(best.along, best.across * f) for f in (factor, 1 / factor)]
                for option in options:
                    if (found := score(option)) < 0.97 * least:
                        best, least, improves = option, found, True
        return best

    def noise(self, epsilon: float, samples: int) -> tuple[float, Estimate, Estimate]:
        """Returns the least noise, and both deltas that were estimated for it (remove, add)."""
        pilot = min(PILOT, samples)
        shrink = math.sqrt(pilot / samples)
        high = math.sqrt(self.gram.diagonal().max()) / gaussian.ratio_of(epsilon, DELTA)  # no amplification

        def least(side: str, tilt: Tilt, high: float) -> tuple[float, Tilt]:
            def excess(log_s: float) -> float:
                found = self.delta(side, math.exp(log_s), epsilon, tilt, iter(sample))
                return math.log(Estimate(found.value, found.error * shrink).upper / DELTA)

            low = high
            while True:
                low *= 0.75
                tilt = self.tune(side, low, epsilon, tilt, pilot // 5)
                sample = list(self.draw(pilot))
                if excess(math.log(low)) > 0:
                    break
                high = low
            found = brentq(excess, math.log(low), math.log(high), xtol=5e-4) if excess(math.log(high)) < 0 else 1e9
            return min(math.exp(found), high) if found < 1e8 else high, tilt

        s, tilt = least("remove", Tilt(2.0, 1.5), high)
        add_tilt = self.tune("add", s, epsilon, Tilt(-1.0, 0.0), pilot // 5)
        while True:
            removed = self.delta("remove", s, epsilon, tilt, self.draw(samples))
            added = self.delta("add", s, epsilon, add_tilt, self.draw(samples))
            if max(removed.upper, added.upper) <= DELTA:
                return s, removed, added
            s *= 1.003


def _log_mean_exp(rows: Array) -> Array:
    top = rows.max(1)
    return top + np.log(np.exp(rows - top[:, None]).mean(1))


@dataclass(frozen=True)
class Sizes:
    """Rounds of a run, and batches of an epoch."""

    rounds: int
    batches: int

    def sketch(self, strategy: str, sampling: Sampling, noise: Noise, epsilon: float) -> RunSketch:
        """A run without data."""
        privacy = fp.Privacy(
            epsilon=epsilon, delta=DELTA, relation="add_remove", trust=fp.Central(), sampling=sampling, noise=noise
        )
        outline, model = PublicDataInfo((60 * self.batches,), (4,), 2), SoftmaxRegression(4, 2)
        return RunSketch(
            STRATEGIES[strategy], privacy, fp.Star(1), self.rounds, outline, [Problem()], model, nn.CrossEntropyLoss()
        )

    def response(self, strategy: str) -> Array:
        """How much of each round's noise is in the model after each round."""
        run = self.sketch(strategy, fp.Cyclic(self.batches), fp.Independent(), 1.0)
        found = responses(run.strategy, run.privacy, run.network, run.rounds, Randomness(0))
        assert found is not None
        return found

    def planned(self, strategy: str, sampling: Sampling, noise: Noise, epsilon: float) -> tuple[float, Factor]:
        """The noise multiplier that the library asks, and the matrix."""
        privacy = self.sketch(strategy, sampling, noise, epsilon).plan().privacy
        assert privacy.noise_multiplier is not None
        return privacy.noise_multiplier, INDEPENDENT if privacy.over_time is None else privacy.over_time.factor

    def left(self, final: Array, factor: Factor) -> float:
        """Standard deviation of the noise in the final model, for a noise multiplier of 1."""
        accumulated = np.convolve(final[::-1], inverse(factor.column(self.rounds)))[: self.rounds]
        return float(np.linalg.norm(accumulated))


def validate(samples: int) -> None:
    """Compares estimates with what is known otherwise."""
    print("| estimated delta, remove and add | known, remove |\n|---|---|")
    one = Bins(INDEPENDENT, 10, 1)
    s = math.sqrt(10) / gaussian.ratio_of(1.0, DELTA)
    known = math.exp(float(gaussian.log_delta(math.sqrt(10) / s, np.asarray(1.0))))
    _compare("one batch, 10 epochs, epsilon 1", one, s, 1.0, samples, f"{known:.4g}")
    for epsilon, epochs in ((1.0, 1), (3.0, 10)):
        bins = Bins(INDEPENDENT, 100 * epochs, 100)
        s, _, _ = bins.noise(epsilon, min(samples, PILOT))
        bounds = delta_bounds(100, s / math.sqrt(epochs), 1, epsilon)
        known_text = f"{bounds.lower:.4g} to {bounds.upper:.4g}"
        _compare(
            f"100 batches, epochs: {epochs}, epsilon {epsilon:g}, s {s:.4g}", bins, s, epsilon, samples, known_text
        )


def _compare(words: str, bins: Bins, s: float, epsilon: float, samples: int, known: str) -> None:
    tilts = {"remove": Tilt(2.0, 1.5), "add": Tilt(-1.0, 0.0)}
    found = [
        bins.delta(side, s, epsilon, bins.tune(side, s, epsilon, tilt, 10_000), bins.draw(samples))
        for side, tilt in tilts.items()
    ]
    print(f"| {words}: {found[0]}, {found[1]} | {known} |", flush=True)


def compare(sizes: Sizes, bands: list[int], epsilon: float, samples: int) -> None:
    """Prints the table of one epsilon."""
    k = sizes.batches
    finals = {strategy: sizes.response(strategy)[-1] for strategy in STRATEGIES}
    base, _ = sizes.planned("last", fp.Cyclic(k), fp.Independent(), epsilon)
    bases = {strategy: base * sizes.left(final, INDEPENDENT) for strategy, final in finals.items()}

    def row(words: str, s: float, factor: Factor, more: str = "") -> None:
        ratios = [f"{s * sizes.left(finals[name], factor) / bases[name]:.4f}" for name in STRATEGIES]
        print(f"| {epsilon:g} | {words} | {s:.4g} | " + " | ".join(ratios) + f" | {more} |", flush=True)

    row("fixed batches", base, INDEPENDENT)
    for words, sampling in ((f"Poisson, rate {1 / k:g}", fp.Poisson(1 / k)), ("allocation", fp.Allocation(k))):
        row(words, sizes.planned("last", sampling, fp.Independent(), epsilon)[0], INDEPENDENT)
    families: dict[str, Callable[[int], Noise]] = {"bsr": fp.BSR, "banded": fp.Banded}
    for family, noise in families.items():
        for band in bands:
            # the optimised band follows the strategy with an average, which a study reports
            s, factor = sizes.planned("average", fp.Cyclic(k), noise(band), epsilon)
            row(f"fixed batches, {family} {band}", s, factor)
            if band < k:
                s, slots = sizes.planned("average", fp.Cyclic(band, band / k), noise(band), epsilon)
                row(f"{band} slots with rate {band / k:g}, {family} {band}", s, slots)
            if (factor.column(sizes.rounds) >= 0).all():
                s, removed, added = Bins(factor, sizes.rounds, k).noise(epsilon, samples)
                row(f"bins, {family} {band}", s, factor, f"remove {removed}, add {added}")


def accuracy(family: str, band: int, multiplier: float, rate: float, seed: int) -> float:
    """Test accuracy of study `mnist` with this noise on fixed batches, in percent."""
    from correlated import STUDIES

    from fedpriv.config import Config
    from fedpriv.config.building import build

    study = STUDIES["mnist"]
    privacy = {
        "noise_multiplier": multiplier,
        "delta": DELTA,
        **study.privacy,
        "sampling": {"cyclic": {"blocks": 100}},
        "noise": {"time": {family: {"band": band}}},
    }
    settings = {
        "data": study.data,
        "model": "softmax",
        "loss": "cross_entropy",
        "strategy": {**study.strategy, study.rate: rate},
        "privacy": privacy,
        "rounds": study.rounds,
        "log": {"evaluate_every": study.rounds},
        "compute": {"chunk": 65536},
        "seed": seed,
        "secret_seed": seed,
    }
    training = build(Config.model_validate(settings))
    list(training)
    found = training.result().test_accuracy
    assert found is not None
    return 100 * found


def main() -> None:
    """Print tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 3.0, 8.0])
    parser.add_argument("--bands", type=int, nargs="+", default=[2, 5, 10, 20, 50, 100])
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--accuracy", nargs=4, metavar=("FAMILY", "BAND", "S", "RATE"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--quick", action="store_true", help="small sizes, which say nothing")
    asked = parser.parse_args()
    if asked.accuracy:
        family, band, multiplier, rate = asked.accuracy
        runs = [accuracy(family, int(band), float(multiplier), float(rate), seed) for seed in asked.seeds]
        spread = f" +- {stdev(runs):.2f}" if len(runs) > 1 else ""
        print(f"{family} {band}, s {multiplier}, learning rate {rate}: {mean(runs):.2f} %{spread}")
        return
    samples = 3_000 if asked.quick else asked.samples
    sizes = Sizes(20, 5) if asked.quick else Sizes(1000, 100)
    validate(samples)
    print("\n| epsilon | settings | s | last | average | estimated delta |\n|---|---|---|---|---|---|")
    for epsilon in asked.epsilon[:1] if asked.quick else asked.epsilon:
        compare(sizes, [2] if asked.quick else asked.bands, epsilon, samples)


if __name__ == "__main__":
    main()
