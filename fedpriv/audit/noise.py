"""Check 6: noise has the distribution and scale of the ledger, and is new for every round, client and coordinate."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fedpriv.audit.check_result import CheckResult, summarize
from fedpriv.audit.probing import Trace, trace_run
from fedpriv.audit.residuals import NUMBERS, Residual, compute_residuals
from fedpriv.audit.target import AuditTarget, Data

Array = NDArray[np.float64]
NAME = "noise"
_MIN_ROUNDS = 6
_MAX_ROUNDS = 24
_ENOUGH_DRAWS = 100_000  # they show a deficit of two percent
_SURE = 6.0  # standard deviations: with some thousand comparisons a false alarm has a probability below 1e-5
_CLEARLY = 0.9  # a row is reported if its deviation is below this share of the deviation of all noise
_TINY = 2.0**-7  # of the scale: noise this small counts as none; the grid of a release is not coarser
_LAW_P_VALUE = 1e-8
_LAW_DRAWS = 20_000  # number of draws in the test of the distribution


def check_noise(subject: AuditTarget, data: Data) -> CheckResult:
    """Compares the noise added to every release with the noise assumed for its record."""
    width = sum(p.numel() for p in subject.model.parameters() if p.requires_grad)
    if subject.privacy.trust.sums_only:
        rows = 1
    else:
        rows = len(data)
    rounds = math.ceil(_ENOUGH_DRAWS / (rows * min(width, NUMBERS)))
    rounds = min(max(rounds, _MIN_ROUNDS), _MAX_ROUNDS)
    return check_trace_noise(trace_run(subject, data, rounds))


def check_trace_noise(trace: Trace) -> CheckResult:
    """Compares noise with its record, like `check_noise`, in rounds that are already traced."""
    noises = compute_residuals(trace)
    draws = sum(noise.standardized.size for noise in noises)
    if not draws:
        return CheckResult(NAME, "not checked", "nothing was released with noise, so there is no guarantee to check")
    ratio = math.sqrt(sum(float((noise.standardized**2).sum()) for noise in noises) / draws)
    spread = math.sqrt(max(noise.fourth for noise in noises) - 1) / 2
    broken = [
        *_check_noise_present(noises),
        *_check_noise_size(noises, ratio, draws),
        *_check_distribution(noises),
        *_check_repeated_noise(noises),
        *_check_client_correlation(noises),
        *_check_pair_covariance(noises),
        *_check_coordinate_correlation(noises),
    ]
    evidence = (
        f"{draws} draws of noise have {ratio:.4f} of the standard deviation in the ledger, its distribution, "
        "and no correlation between rounds, clients or coordinates"
    )
    power = f"noise that is too small by {(_SURE + 2) * spread / math.sqrt(draws):.2%} overall would have been found"
    deviation_of_ratio = spread / math.sqrt(draws)
    return summarize(NAME, broken, evidence, power, ratio=ratio, draws=draws, deviation_of_ratio=deviation_of_ratio)


def _check_noise_present(noises: Sequence[Residual]) -> Iterator[str]:
    """Yields a text for each query with coordinates without noise, which hardly occur by chance."""
    tiny_counts: Mapping[tuple[str, int], list[Array]] = {}
    for noise in noises:
        tiny_counts.setdefault((noise.query, noise.standardized.shape[1]), []).append((abs(noise.raw) < _TINY).sum(0))
    for (query, _), counts in tiny_counts.items():
        total = np.sum(counts, 0)
        rows = sum(len(noise.raw) for noise in noises if noise.query == query)
        chance = stats.binom.sf(total - 1, rows, 2 * _TINY)
        # one row alone shows too little of a coordinate
        if rows > 1:
            n_silent = int((chance < 1e-9).sum())
        else:
            n_silent = 0
        if n_silent or total.sum() > 20 + 4 * rows * len(total) * _TINY:
            yield f"{max(n_silent, 1)} coordinates of {query} have no noise"


def _check_noise_size(noises: Sequence[Residual], ratio: float, draws: int) -> Iterator[str]:
    """Yields a text if all noise, or the noise of a row, is smaller than recorded in the ledger."""

    def deviations(squares: float, count: int, fourth: float) -> float:
        """Returns the difference of a sum of squares of unit noise from its expectation, in standard deviations."""
        return (squares / count - 1) * math.sqrt(count / (fourth - 1))

    if deviations(ratio**2 * draws, draws, max(noise.fourth for noise in noises)) < -_SURE:
        yield f"the standard deviation of the noise is {ratio:.3f} of the one in the ledger"
    rows = [(noise, row, name) for noise in noises for row, name in zip(noise.standardized, noise.names, strict=True)]
    noise, row, name = min(rows, key=lambda item: deviations(float((item[1] ** 2).sum()), len(item[1]), item[0].fourth))
    share = math.sqrt(float((row**2).mean()))
    if deviations(share**2 * len(row), len(row), noise.fourth) < -_SURE and share < _CLEARLY * ratio:
        yield f"the noise of {name} in round {noise.round} has {share:.3f} of the standard deviation in the ledger"


def _check_distribution(noises: Sequence[Residual]) -> Iterator[str]:
    """Yields a text for each distribution that the noise does not have, by a Kolmogorov-Smirnov test."""
    laws = {noise.law.name: noise.law for noise in noises if noise.law is not None}
    for name, law in laws.items():
        draws = np.concatenate(
            [noise.standardized.ravel() for noise in noises if noise.law is not None and noise.law.name == name]
        )
        expected = getattr(stats, name)(scale=law.scale)
        if stats.kstest(draws[:: max(len(draws) // _LAW_DRAWS, 1)], expected.cdf).pvalue < _LAW_P_VALUE:
            if name == "norm":
                title = "gaussian"
            else:
                title = name
            spread = draws.std() / expected.std()
            yield (
                f"the noise does not follow the {title} distribution of the ledger (its standard deviation is "
                f"{spread:.3f} times the recorded one)"
            )


def _check_repeated_noise(noises: Sequence[Residual]) -> Iterator[str]:
    """Yields a text for the first two releases that share noise."""
    for noise, other in combinations(noises, 2):
        dim = noise.raw.shape[1]
        if dim != other.raw.shape[1]:
            continue
        rows = [
            (noise.clients.index(client), other.clients.index(client))
            for client in noise.clients
            if client in other.clients
        ]
        correlations = [float(_correlation(noise.raw[a], other.raw[b])) for a, b in rows]
        if rows and abs(sum(correlations)) * math.sqrt(dim / len(rows)) > _SURE:
            mean = sum(correlations) / len(rows)
            yield f"the noise of round {noise.round} occurs again in round {other.round} (correlation {mean:.2f})"
            return


def _correlation(a: Array, b: Array) -> float:
    """Returns the correlation of two rows of mean zero."""
    return float(a @ b) / max(math.sqrt(float(a @ a) * float(b @ b)), 1e-300)


def _check_client_correlation(noises: Sequence[Residual]) -> Iterator[str]:
    """Yields a text for the first two clients with correlated noise that should be independent."""
    # sum of products and number of coordinates, by pair of clients
    totals: dict[tuple[int, int], tuple[float, int]] = {}
    for noise in noises:
        products = np.asarray(noise.standardized @ noise.standardized.T)
        dim = noise.standardized.shape[1]
        for a, b in combinations(range(min(len(noise.standardized), 64)), 2):
            clients = (noise.clients[a], noise.clients[b])
            product, count = totals.get(clients, (0.0, 0))
            totals[clients] = (product + float(products[a, b]), count + dim)
    for (a, b), (product, count) in totals.items():
        if abs(product) / math.sqrt(count) > _SURE and noises[0].pairs is None:
            yield f"clients {a} and {b} draw the same noise (correlation {product / count:.2f})"
            return


def _check_pair_covariance(noises: Sequence[Residual]) -> Iterator[str]:
    """Yields a text for the first two clients with a covariance that differs from their shared noise.

    The noise that two clients share has opposite signs, so that it cancels in the sum.
    """
    paired = [(noise, noise.expected) for noise in noises if noise.pairs is not None and noise.expected is not None]
    for a, b in combinations(range(min((len(noise.raw) for noise, _ in paired), default=0)), 2):
        measured = sum(float(noise.raw[a] @ noise.raw[b]) for noise, _ in paired)
        priced = sum(float(expected[a, b]) * noise.raw.shape[1] for noise, expected in paired)
        variance = sum(
            (float(expected[a, a] * expected[b, b]) + float(expected[a, b]) ** 2) * noise.raw.shape[1]
            for noise, expected in paired
        )
        if abs(measured - priced) > _SURE * math.sqrt(variance):
            dims = sum(noise.raw.shape[1] for noise, _ in paired)
            clients = paired[0][0].clients
            yield (
                f"the noise that clients {clients[a]} and {clients[b]} share does not cancel (covariance "
                f"{measured / dims:.3g}, expected {priced / dims:.3g}): check its sign, scale and secret"
            )
            return


def _check_coordinate_correlation(noises: Sequence[Residual]) -> Iterator[str]:
    """Yields a text for the first distance along a row at which noise repeats itself."""
    lengths = {noise.standardized.shape[1] for noise in noises}
    for dim in lengths:
        rows = np.concatenate([noise.standardized for noise in noises if noise.standardized.shape[1] == dim])
        if dim < 3:
            continue
        # sums of products at all distances, by the Fourier transform
        power = (abs(np.fft.rfft(rows, axis=1)) ** 2).sum(0)
        products = np.fft.irfft(power, dim)[1 : dim // 2 + 1] / math.sqrt(rows.size)
        largest = int(abs(products).argmax())
        distance = largest + 1
        # halfway round each product is counted twice
        if 2 * distance == dim:
            scale = math.sqrt(2)
        else:
            scale = 1.0
        if abs(products[largest]) > scale * (_SURE + 1):
            correlation = products[largest] / math.sqrt(rows.size)
            yield f"coordinates at distance {distance} share noise (correlation {correlation:.2f})"
            return
