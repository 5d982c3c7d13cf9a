"""Random allocation combined with noise that cancels over time: noise in the final model, at one epsilon.

    python benchmarks/reproduce/allocation_over_time.py
    FEDPRIV_DATA=<folder with mnist/> python benchmarks/reproduce/allocation_over_time.py --accuracy bsr 100 13.02 80

The run is study `mnist` of correlated.py: one trusted owner, add/remove, delta 1e-5, 10 epochs of 100 batches. All rows
except `bins` are settings of the library, with the library's privacy cost. `bins` is not in the library: each example
is in one of the 100 batches, uniformly and in secret, the same in all epochs, and the noise is `s C^-1 Z`
(Choquette-Choo and others 2025). With `m_i` the columns of C of batch i, summed over epochs, the pair is the mean of
`N(m_i, s^2 I)` against `N(0, s^2 I)`. Only the inner products of the noise with the `m_i` matter. Delta is estimated by
importance sampling. The noise is the smallest for which the estimate plus 5.2 standard errors plus 1e-7 is at most
delta.

`last` and `average` are standard deviations of the noise in the final model and in the average of late models, for SGD,
relative to fixed batches with independent noise. The optimised bands are optimised for the average. `s` is the noise
multiplier. `--accuracy FAMILY BAND s RATE` trains study `mnist` with this noise on fixed batches, which have the noise
of `bins` but a different privacy cost.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from statistics import mean, stdev

import numpy as np
from numpy.typing import NDArray
from torch import nn

import fedpriv as fp
from fedpriv.clients.public_info import PublicDataInfo
from fedpriv.models import SoftmaxRegression
from fedpriv.models.problem import Problem
from fedpriv.planning.impulses import compute_responses
from fedpriv.planning.plan import RunSketch
from fedpriv.privacy.accounting import gaussian
from fedpriv.privacy.accounting.allocation import delta_bounds
from fedpriv.privacy.correlated import INDEPENDENT, Factor, invert_column
from fedpriv.privacy.settings import Noise, Sampling
from fedpriv.randomness.streams import Randomness
from fedpriv.strategies.outputs import Ema

Array = NDArray[np.float64]
DELTA = 1e-5
ERRORS = 5.2  # standard errors: one in 1e7 for a normal variable
FAILURE = 1e-7  # of the estimate, part of delta
BLOCK = 50_000  # samples in memory
PILOT = 20_000
DEFENCE = 0.1  # at least this share of samples comes from the pair itself, so that no weight is above 10
STRATEGIES = {"last": fp.fedavg(1.0), "average": fp.fedavg(1.0, average=Ema(0.99))}


@dataclass(frozen=True)
class Estimate:
    """An estimate and its standard error."""

    value: float
    error: float

    @property
    def upper(self) -> float:
        """The upper end of the estimate, which is compared with delta."""
        return self.value + ERRORS * self.error + FAILURE

    def __str__(self) -> str:
        return f"{self.value:.3g} +- {1.96 * self.error:.1g}"


@dataclass(frozen=True)
class Tilts:
    """A mixture for sampling: parts `c` are the mean over j of `N(v_j, s^2 I)`.

    `v_j = along[c] mean(m) + across[c] (m_j - mean(m))`: P has ones, Q has zeros.
    """

    along: Array
    across: Array
    weights: Array

    def with_weights(self, weights: Array) -> Tilts:
        """Returns the mixture with other weights, without parts below a hundredth; the first keeps at least a tenth."""
        weights = np.where(weights < 0.01, 0.0, weights)
        weights = (1 - DEFENCE) * weights / weights.sum()
        weights[0] += DEFENCE
        kept = weights > 0
        return Tilts(self.along[kept], self.across[kept], weights[kept])


def broad(side: str) -> Tilts:
    """Returns a mixture that covers the support of the integrand; the pair itself comes first."""
    if side == "remove":
        pairs = [(1.0, 1.0)] + [(a, b) for b in (0.0, 1.0, 1.4, 2.0) for a in (1.0, 1.4, 2.0, 4.0, 8.0, 16.0)]
    else:
        pairs = [(0.0, 0.0)] + [(-a, 0.0) for a in (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)]
    along, across = np.array(pairs).T
    return Tilts(along, across, np.full(len(pairs), 1 / len(pairs)))


class Bins:
    """Balls in bins: each example in one batch, the same in all epochs, with the noise `s C^-1 Z`."""

    def __init__(self, factor: Factor, rounds: int, batches: int, seed: int = 0) -> None:
        column = factor.column(rounds)
        assert (column >= 0).all()  # otherwise the scalar pair may not be the worst
        moves = np.zeros((rounds, batches))
        for start in range(rounds):
            moves[start:, start % batches] += column[: rounds - start]
        self.gram: Array = moves.T @ moves
        values, vectors = np.linalg.eigh(self.gram)
        self._root: Array = vectors * np.sqrt(np.maximum(values, 0))
        self._random = np.random.default_rng(seed)

    def delta(
        self, side: str, s: float, epsilon: float, tilts: Tilts, sample: Iterable[tuple[Array, Array]]
    ) -> Estimate:
        """Estimates `E (S - c)_+` (remove) or `E (1 - c S)_+` (add) under Q."""
        total, total_square, count = 0.0, 0.0, 0
        for products in sample:
            log_values, log_parts = self._weigh(side, s, epsilon, tilts, products)
            values = np.exp(log_values - _log_mixture(log_parts, tilts.weights))
            total += float(values.sum())
            total_square += float((values**2).sum())
            count += len(values)
        value = total / count
        return Estimate(value, math.sqrt(max(total_square / count - value**2, 0.0) / count))

    def _weigh(
        self, side: str, s: float, epsilon: float, tilts: Tilts, products: tuple[Array, Array]
    ) -> tuple[Array, Array]:
        """Moves a sample to the mixture; returns the logarithms of the integrand and of each part's ratio to Q."""
        unit, uniform = products
        gram, k = self.gram / s**2, len(self.gram)
        means, weight = gram.mean(1), tilts.along - tilts.across
        edges = np.concatenate([[0.0], np.cumsum(tilts.weights)])
        part = np.clip(np.searchsorted(edges, uniform, "right") - 1, 0, len(weight) - 1)
        which = ((uniform - edges[part]) / tilts.weights[part] * k).astype(int).clip(0, k - 1)
        u = unit / s + weight[part, None] * means + tilts.across[part, None] * gram[which]
        log_ratio = _log_mean_exp(u - gram.diagonal() / 2)
        log_parts = np.empty((len(u), len(weight)))
        for c, (shared, across) in enumerate(zip(weight, tilts.across, strict=True)):
            squares = shared**2 * means.mean() + 2 * shared * across * means + across**2 * gram.diagonal()
            if across:
                log_parts[:, c] = shared * u.mean(1) + _log_mean_exp(across * u - squares / 2)
            else:
                log_parts[:, c] = shared * u.mean(1) - squares[0] / 2
        excess = log_ratio - epsilon if side == "remove" else -epsilon - log_ratio
        with np.errstate(divide="ignore"):
            log_values = np.log(-np.expm1(-np.maximum(excess, 0)))
        return log_values + (log_ratio if side == "remove" else 0.0), log_parts

    def draw(self, count: int) -> Iterator[tuple[Array, Array]]:
        """Yields blocks of inner products of unit noise with the `m_i`, and of uniform numbers."""
        for start in range(0, count, BLOCK):
            size = min(BLOCK, count - start)
            normal = self._random.standard_normal((size, len(self.gram)))
            yield normal @ self._root.T, self._random.random(size)

    def tune(self, side: str, s: float, epsilon: float, count: int) -> Tilts:
        """Returns weights with a small second moment, by multiplicative steps on a sample of the broad mixture."""
        start = broad(side)
        blocks = [self._weigh(side, s, epsilon, start, products) for products in self.draw(count)]
        log_values, log_parts = np.concatenate([b[0] for b in blocks]), np.concatenate([b[1] for b in blocks])
        sampled = _log_mixture(log_parts, start.weights)
        weights = start.weights
        for _ in range(50):
            mixture = _log_mixture(log_parts, weights)
            log_terms = (2 * log_values - sampled - 2 * mixture)[:, None] + log_parts
            top = log_terms.max()
            if not math.isfinite(top):
                return start
            weights = weights * np.sqrt(np.exp(log_terms - top).mean(0))
            weights = weights / weights.sum()
        return start.with_weights(weights)

    def noise(self, epsilon: float, samples: int) -> tuple[float, Estimate, Estimate]:
        """Returns the smallest noise, and both deltas estimated for it (remove, add)."""
        pilot = min(PILOT, samples)
        high = math.sqrt(self.gram.diagonal().max()) / gaussian.compute_ratio(epsilon, DELTA)  # no amplification
        s = max(self._least(side, epsilon, high, pilot, samples) for side in ("remove", "add"))
        tilts = {side: self.tune(side, s, epsilon, pilot) for side in ("remove", "add")}
        while True:
            removed, added = (self.delta(side, s, epsilon, of, self.draw(samples)) for side, of in tilts.items())
            if max(removed.upper, added.upper) <= DELTA:
                return s, removed, added
            s *= 1.002

    def _least(self, side: str, epsilon: float, high: float, pilot: int, samples: int) -> float:
        """Returns the noise at which an estimate from this many samples is expected to be low enough."""

        def excess(log_s: float) -> float:
            found = self.delta(side, math.exp(log_s), epsilon, tilts, sample)
            return math.log(Estimate(found.value, found.error * math.sqrt(pilot / samples)).upper / DELTA)

        low = high
        while True:
            low = low * 0.8
            tilts = self.tune(side, low, epsilon, pilot // 5)
            sample = list(self.draw(pilot))
            if excess(math.log(low)) > 0 or low < high / 100:
                break
        top = min(low / 0.8, high)
        if excess(math.log(top)) >= 0:
            return top
        return (
            math.exp(gaussian.find_root(excess, math.log(low), math.log(top), 5e-4))
            if excess(math.log(low)) > 0
            else low
        )


def _log_mixture(log_parts: Array, weights: Array) -> Array:
    top = log_parts.max(1)
    return top + np.log(np.exp(log_parts - top[:, None]) @ weights)


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
        """Returns the factor of each round's noise in the model after each round."""
        run = self.sketch(strategy, fp.Cyclic(self.batches), fp.Independent(), 1.0)
        found = compute_responses(run.strategy, run.privacy, run.network, run.rounds, Randomness(0))
        assert found is not None
        return found

    def planned(self, strategy: str, sampling: Sampling, noise: Noise, epsilon: float) -> tuple[float, Factor]:
        """Returns the noise multiplier that the library requires, and the matrix."""
        privacy = self.sketch(strategy, sampling, noise, epsilon).plan().privacy
        assert privacy.noise_multiplier is not None
        return privacy.noise_multiplier, INDEPENDENT if privacy.over_time is None else privacy.over_time.factor

    def left(self, final: Array, factor: Factor) -> float:
        """Standard deviation of the noise in the final model, for a noise multiplier of 1."""
        accumulated = np.convolve(final[::-1], invert_column(factor.column(self.rounds)))[: self.rounds]
        return float(np.linalg.norm(accumulated))


def validate(samples: int) -> None:
    """Compares estimates with values that are known otherwise."""
    print("| estimated delta, remove and add | known, remove |\n|---|---|")
    one = Bins(INDEPENDENT, 10, 1)
    s = math.sqrt(10) / gaussian.compute_ratio(1.0, DELTA)
    known = math.exp(float(gaussian.log_delta(math.sqrt(10) / s, np.asarray(1.0))))
    _compare("one batch, 10 epochs, epsilon 1", one, s, 1.0, samples, f"{known:.4g}")
    for epsilon, epochs in ((1.0, 1), (3.0, 10)):
        bins = Bins(INDEPENDENT, 100 * epochs, 100)
        s, _, _ = bins.noise(epsilon, min(samples, 100_000))
        bounds = delta_bounds(100, s / math.sqrt(epochs), 1, epsilon)
        known_text = f"{bounds.lower:.4g} to {bounds.upper:.4g}"
        _compare(
            f"100 batches, epochs: {epochs}, epsilon {epsilon:g}, s {s:.4g}", bins, s, epsilon, samples, known_text
        )


def _compare(words: str, bins: Bins, s: float, epsilon: float, samples: int, known: str) -> None:
    found = [
        bins.delta(side, s, epsilon, bins.tune(side, s, epsilon, min(PILOT, samples)), bins.draw(samples))
        for side in ("remove", "add")
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
                s, factor_of_blocks = sizes.planned("average", fp.Cyclic(band, band / k), noise(band), epsilon)
                row(f"{band} blocks with rate {band / k:g}, {family} {band}", s, factor_of_blocks)
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
        "noise": {"correlated": {family: {"band": band}}},
    }
    settings = {
        "data": study.data,
        "model": "softmax",
        "loss": "cross_entropy",
        "strategy": {**study.strategy, study.rate: rate},
        "privacy": privacy,
        "rounds": study.rounds,
        "log": {"evaluate_every": study.rounds},
        "compute": {"max_physical_batch_size": 65536},
        "seed": seed,
        "secret_seed": seed,
    }
    training = build(Config.model_validate(settings))
    list(training)
    found = training.result().test_accuracy
    assert found is not None
    return 100 * found


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 3.0, 8.0])
    parser.add_argument("--bands", type=int, nargs="+", default=[2, 5, 10, 20, 50, 100])
    parser.add_argument("--samples", type=int, default=200_000)
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
