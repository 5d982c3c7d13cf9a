"""What a ledger file costs, worked out a second time and in another way: nothing here is imported from the library.

Unsampled Gaussian noise has a closed form. For all else the loss ``log(a(x) / b(x))`` of one answer is tabulated over x
for the pair of densities that the design names, put on a grid of losses, and composed by Fourier transform. Where the
library's curves are pessimistic by construction, these are plain numerical integrals.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import chain, combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

Array = NDArray[np.float64]
GRID, POINTS, CELLS = 2.0**-11, 2**17, 60_000


class Answer(NamedTuple):
    """One answer as one client pays for it: noise over sensitivity, and the chance to be in it."""

    law: str
    noise: float
    rate: float
    amplified: bool
    """By the theorem on any sampling of that rate, rather than as a pair of mixtures."""
    replaced: bool


def epsilons_of(path: Path, n_clients: int, delta: float) -> list[float]:
    """Epsilon of each client, from the lines of a ledger file."""
    header, *lines = path.read_text().splitlines()
    assert json.loads(header)["n_clients"] == n_clients
    secrets = json.loads(header).get("secrets") or list(combinations(range(n_clients), 2))
    bills: list[Counter[Answer]] = [Counter() for _ in range(n_clients)]
    for record in map(json.loads, lines):
        assert record["non_private"] is None and record["mechanism"] in ("gaussian", "laplace")
        clients = range(n_clients) if record["clients"] is None else record["clients"]
        pairs, weight = record.get("pairs"), 1.0
        if pairs is not None:
            assert record["mechanism"] == "gaussian"
            weight = worth(secrets, frozenset(clients), pairs["ratio"], pairs["colluders"])
        for place, client in enumerate(clients):
            noise, rate = (v[place] if isinstance(v, list) else v for v in (record["noise_multiplier"], record["rate"]))
            law = "l2 laplace" if (record["mechanism"], record["norm"]) == ("laplace", "l2") else record["mechanism"]
            replaced = record["relation"] == "replace_one"
            # with a fixed size, or where the noise is not Gaussian, a replaced record has no pair of mixtures
            fixed = record["sampling"] == "without_replacement"
            assert not (fixed and not replaced and record["unit"] == "sample")
            amplified = fixed or (replaced and law != "gaussian")
            if record["sampling"] == "full":
                rate = 1.0
            bills[client][Answer(law, noise * weight, rate, amplified, replaced)] += 1
    return [epsilon(frozenset(bill.items()), delta) for bill in bills]


def worth(secrets: list[tuple[int, int]], present: frozenset[int], ratio: float, colluders: int) -> float:
    """How much more than a client's own noise is left of its row, where pairs add noise: deviation for deviation.

    What is left of one row when the best linear guess from the others is taken away, over the worst sets of colluders.
    """
    least = math.inf
    for known in chain.from_iterable(combinations(present, q) for q in range(min(colluders, len(present) - 1) + 1)):
        honest = sorted(present - set(known))
        draws = [[float(i == j) for j in honest] for i in honest]
        draws += [[ratio * ((j == a) - (j == b)) for j in honest] for a, b in secrets if a in honest and b in honest]
        rows = np.array(draws).T  # one row for each client, one column for each draw
        for place in range(len(honest)):
            others = np.delete(rows, place, 0)
            guess = np.linalg.lstsq(others.T, rows[place], rcond=None)[0] if len(others) else np.zeros(0)
            least = min(least, float(np.linalg.norm(rows[place] - guess @ others)))
    return least


@cache
def epsilon(bill: frozenset[tuple[Answer, int]], delta: float) -> float:
    """Epsilon of a client's answers; 0 where it gave none."""
    if not bill:
        return 0.0
    laws = {answer.law for answer, _ in bill}
    if laws == {"laplace"}:
        pure = math.fsum(count * math.log1p(a.rate * math.expm1(1 / a.noise)) for a, count in bill)
        return pure if delta == 0 else min(pure, numerically(bill, delta))
    if laws == {"l2 laplace"}:
        assert all(answer.rate == 1 for answer, _ in bill)
        return of_zcdp(sum(count / (2 * answer.noise**2) for answer, count in bill), delta)
    if all(answer.rate == 1 for answer, _ in bill):
        return of_gaussian(math.sqrt(sum(count / answer.noise**2 for answer, count in bill)), delta)
    return numerically(bill, delta)


def of_gaussian(mu: float, delta: float) -> float:
    """Balle and Wang (2018), theorem 8."""

    def curve(eps: float) -> float:
        above, below = stats.norm.logcdf([mu / 2 - eps / mu, -mu / 2 - eps / mu])
        return math.exp(above) - math.exp(eps + below)

    if curve(0.0) <= delta:
        return 0.0
    return optimize.bisect(lambda eps: curve(eps) - delta, 0.0, mu * mu + 10 * mu, xtol=1e-12)


def of_zcdp(rho: float, delta: float) -> float:
    """Canonne, Kamath and Steinke (2020), proposition 12, over all orders."""

    def bound(log_order: float) -> float:
        order = 1 + math.exp(log_order)
        return order * rho + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)

    return optimize.minimize_scalar(bound, bounds=(-6, 8), method="bounded", options={"xatol": 1e-9}).fun


def numerically(bill: frozenset[tuple[Answer, int]], delta: float) -> float:
    """The larger of the two directions of the composed losses."""
    return max(_composed(bill, delta, direction) for direction in (0, 1))


def _composed(bill: frozenset[tuple[Answer, int]], delta: float, direction: int) -> float:
    spectrum = np.ones(POINTS // 2 + 1, dtype=complex)
    for answer, count in bill:
        spectrum = spectrum * _spectrum(answer, direction) ** count
    mass = np.fft.fftshift(np.fft.irfft(spectrum, POINTS))
    losses = (np.arange(POINTS) - POINTS // 2) * GRID
    assert abs(mass.sum() - 1) < 1e-9 and mass[:100].sum() + mass[-100:].sum() < 1e-9  # nothing went round the end

    def missing(eps: float) -> float:
        above = losses > eps
        return float(mass[above] @ -np.expm1(eps - losses[above])) - delta

    return 0.0 if missing(0.0) <= 0 else optimize.bisect(missing, 0.0, losses[-1], xtol=1e-9)


@cache
def _spectrum(answer: Answer, direction: int) -> NDArray[np.complex128]:
    losses, mass = _losses(answer, direction)
    place = losses / GRID + POINTS // 2
    low = np.floor(place).astype(int)
    part = place - low  # a loss between two points is shared, so that its mean stays
    on_grid = np.bincount(low, mass * (1 - part), POINTS) + np.bincount(low + 1, mass * part, POINTS)
    return np.fft.rfft(np.fft.ifftshift(on_grid))


def _losses(answer: Answer, direction: int) -> tuple[Array, Array]:
    """Losses of small cells of x, and what one of the densities has in them."""
    mixtures = answer.replaced and not answer.amplified and answer.rate < 1
    # neighbours' sums lie one sensitivity apart: 1 from the sum without the record, or -1 and 1 about it
    scale = answer.noise * (2 if mixtures else 1)
    law = (stats.norm if answer.law == "gaussian" else stats.laplace)(scale=scale)
    reach = (14 if answer.law == "gaussian" else 45) * scale
    edges = np.linspace(-1 - reach, 1 + reach, CELLS + 1)
    one = _mixture(law, edges, answer.rate, 1.0)
    other = _mixture(law, edges, answer.rate, -1.0) if mixtures else _mixture(law, edges, 1.0, 0.0)
    here, there = (one, other) if direction == 0 or answer.amplified else (other, one)
    losses, mass = here[0] - there[0], here[1]
    if not answer.amplified or answer.rate == 1:
        return losses, mass
    # the theorem bounds both directions by the curve of the first, for positive losses; what lies below follows
    up = losses > 0
    losses, mass = losses[up], mass[up]
    mirrored = mass * np.exp(-losses)
    rest = 1 - mass.sum() - mirrored.sum()
    return np.concatenate([losses, -losses, [0.0]]), np.concatenate([mass, mirrored, [rest]])


def _mixture(law: object, edges: Array, rate: float, at: float) -> tuple[Array, Array]:
    """Log density at the middle of each cell and mass in it, of ``(1 - rate) law + rate (law moved to at)``."""
    middle = (edges[:-1] + edges[1:]) / 2

    def mixed(of: Callable[[Array], Array], x: Array) -> Array:
        return (1 - rate) * of(x) + rate * of(x - at)

    density = np.logaddexp(
        _log(1 - rate) + law.logpdf(middle),  # pyright: ignore[reportAttributeAccessIssue]
        _log(rate) + law.logpdf(middle - at),  # pyright: ignore[reportAttributeAccessIssue]
    )
    below = middle < 0  # differences of the smaller tail keep their digits
    cdf, sf = mixed(law.cdf, edges), mixed(law.sf, edges)  # pyright: ignore[reportAttributeAccessIssue]
    return density, np.where(below, np.diff(cdf), -np.diff(sf))


def _log(x: float) -> float:
    return math.log(x) if x > 0 else -math.inf
