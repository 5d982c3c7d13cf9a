"""The noise of releases, in units of the noise assumed for their records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpriv.audit.observed_release import ObservedRelease
from fedpriv.audit.probing import Trace
from fedpriv.privacy import Pairs

Array = NDArray[np.float64]
NUMBERS = 20_000  # largest number of entries of a row that are used, evenly spaced


class Law(NamedTuple):
    """A distribution of `scipy.stats`, with its scale."""

    name: str
    scale: float


@dataclass(frozen=True)
class Residual:
    """The noise of one release.

    Attributes:
        round: The round.
        query: Name of the query.
        clients: The client of each row, -1 for a sum.
        raw: The noise, over the scale of each row's own noise, `[k, dim]`.
        standardized: The same as independent numbers of variance 1: without the noise that pairs of clients share.
        names: The name of each row of `standardized`.
        law: The distribution of `standardized`; None if it has no name.
        fourth: Fourth moment of `standardized` under that distribution.
        pairs: The pairs that share noise.
        expected: Covariance of the rows of `raw` if pairs share noise, `[k, k]`.
    """

    round: int
    query: str
    clients: Sequence[int]
    raw: Array
    standardized: Array
    names: Sequence[str]
    law: Law | None
    fourth: float
    pairs: Pairs | None = None
    expected: Array | None = None


def compute_residuals(trace: Trace) -> list[Residual]:
    """Returns the noise of every noised release."""
    noised = [release for release in trace.releases if release.record.mechanism != "none"]
    return [_residual(release, trace.plan.n_clients) for release in select_uncorrelated(noised)]


def select_uncorrelated(releases: Sequence[ObservedRelease]) -> Iterator[ObservedRelease]:
    """Yields releases with noise that is independent of earlier rounds.

    If rounds share noise by a matrix mechanism, releases are multiplied by its factor C; others are unchanged.
    """
    for number, release in enumerate(releases):
        if release.record.time is None:
            yield release
            continue
        column = release.record.time.factor.column(number + 1).tolist()
        newest_first = releases[number::-1]
        yield replace(
            release,
            released=_weighted_sum(column, [earlier.released for earlier in newest_first]),
            exact=_weighted_sum(column, [earlier.exact for earlier in newest_first]),
            level=_weighted_sum(column, [earlier.level for earlier in newest_first]),
        )


def _weighted_sum(weights: Sequence[float], rows: Sequence[Tensor]) -> Tensor:
    return torch.stack([weight * row for weight, row in zip(weights, rows, strict=True)]).sum(0)


def _residual(release: ObservedRelease, n_clients: int) -> Residual:
    """Returns the noise of one release."""
    record = release.record
    clients = release.row_clients(n_clients)
    scale = release.level.median(dim=1, keepdim=True).values
    raw = _sampled_columns((release.released - release.exact) / scale)
    names = ["the sum" if client < 0 else f"client {client}" for client in clients]

    if record.mechanism == "laplace":
        if release.amount == 1:
            law = Law("laplace", 0.5**0.5)
        else:
            law = None
        standardized = raw / (2 * release.amount) ** 0.5
        return Residual(record.round, record.query, clients, raw, standardized, names, law, 3 + 3 / release.amount)

    pairs = record.pairs
    if pairs is None or pairs.ratio <= 0 or len(clients) <= 1:
        standardized = raw / release.amount**0.5
        return Residual(record.round, record.query, clients, raw, standardized, names, Law("norm", 1.0), 3.0)

    # Gaussian noise that pairs share: its principal directions are independent
    expected = compute_covariance(pairs, clients)
    values, vectors = np.linalg.eigh(expected)
    standardized = (vectors.T @ raw) / np.sqrt(values)[:, None]
    names = ["the sum" if value < 1 + 1e-9 else f"direction {i} of the pairs" for i, value in enumerate(values)]
    return Residual(
        record.round, record.query, clients, raw, standardized, names, Law("norm", 1.0), 3.0, pairs, expected
    )


def compute_covariance(pairs: Pairs, clients: Sequence[int]) -> Array:
    """Returns the covariance of the clients' noise, over the variance of a client's own noise, `[k, k]`."""
    matrix = np.eye(len(clients))
    edges = pairs.edges
    for a, client in enumerate(clients):
        for b, other in enumerate(clients):
            if client < other and (edges is None or (client, other) in edges):
                matrix[[a, b], [a, b]] += pairs.ratio**2
                matrix[[a, b], [b, a]] -= pairs.ratio**2
    return matrix


def _sampled_columns(rows: Tensor) -> Array:
    return rows[:, :: max(rows.shape[1] // NUMBERS, 1)].cpu().numpy()
