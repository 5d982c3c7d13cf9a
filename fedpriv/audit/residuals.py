"""What was added to releases, in units of the noise that their records were priced for."""

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
from fedpriv.privacy.pairwise import Pairs

Array = NDArray[np.float64]
NUMBERS = 20_000  # of a row that are looked at, evenly spaced


class Law(NamedTuple):
    """A law of scipy.stats."""

    name: str
    scale: float


@dataclass(frozen=True)
class Residual:
    """What was added to one release.

    Attributes:
        round: The round.
        query: What was asked.
        clients: Whose row it is, -1 for a sum.
        raw: What was added, over the scale of each row's own noise, `[k, dim]`.
        own: The same as independent numbers of variance 1: without what pairs of clients share.
        names: What each row of `own` is.
        law: Of `own`; None if it has no name.
        fourth: Fourth moment of `own` by that law.
        pairs: Who shares noise.
        expected: Covariance of the rows of `raw` where pairs share noise, `[k, k]`.
    """

    round: int
    query: str
    clients: Sequence[int]
    raw: Array
    own: Array
    names: Sequence[str]
    law: Law | None
    fourth: float
    pairs: Pairs | None = None
    expected: Array | None = None


def residuals(transcript: Trace) -> list[Residual]:
    """Of every release with noise."""
    noised = [heard for heard in transcript.heard if heard.record.mechanism != "none"]
    return [_residual(heard, transcript.plan.n_clients) for heard in uncorrelated(noised)]


def uncorrelated(heard: Sequence[ObservedRelease]) -> Iterator[ObservedRelease]:
    """Releases with the noise of the rounds before taken out, where rounds share some: C times what was heard."""
    for number, one in enumerate(heard):
        if one.record.time is None:
            yield one
            continue
        column, before = one.record.time.factor.column(number + 1).tolist(), heard[number::-1]
        released, exact, level = (
            torch.stack([weight * part for weight, part in zip(column, parts, strict=True)]).sum(0)
            for parts in zip(*((each.released, each.exact, each.level) for each in before), strict=True)
        )
        yield replace(one, released=released, exact=exact, level=level)


def _residual(heard: ObservedRelease, n_clients: int) -> Residual:
    record, clients = heard.record, heard.whose(n_clients)
    scale = heard.level.median(dim=1, keepdim=True).values
    raw = _some((heard.released - heard.exact) / scale)
    names = ["the sum" if client < 0 else f"client {client}" for client in clients]
    if record.pairs is not None and record.pairs.ratio > 0 and len(clients) > 1:
        pairs = record.pairs
    else:
        pairs = None
    if record.mechanism == "laplace":
        if heard.amount == 1:
            law = Law("laplace", 0.5**0.5)
        else:
            law = None
        own = raw / (2 * heard.amount) ** 0.5
        return Residual(record.round, record.query, clients, raw, own, names, law, 3 + 3 / heard.amount)
    if pairs is None:
        own = raw / heard.amount**0.5
        return Residual(record.round, record.query, clients, raw, own, names, Law("norm", 1.0), 3.0)
    expected = covariance(pairs, clients)
    values, vectors = np.linalg.eigh(expected)
    own = (vectors.T @ raw) / np.sqrt(values)[:, None]
    names = ["the sum" if value < 1 + 1e-9 else f"direction {i} of the pairs" for i, value in enumerate(values)]
    return Residual(record.round, record.query, clients, raw, own, names, Law("norm", 1.0), 3.0, pairs, expected)


def covariance(pairs: Pairs, clients: Sequence[int]) -> Array:
    """Of the clients' noise, over the variance of a client's own."""
    found = np.eye(len(clients))
    edges = pairs.edges
    for a, one in enumerate(clients):
        for b, other in enumerate(clients):
            if one < other and (edges is None or (one, other) in edges):
                found[[a, b], [a, b]] += pairs.ratio**2
                found[[a, b], [b, a]] -= pairs.ratio**2
    return found


def _some(rows: Tensor) -> Array:
    return rows[:, :: max(rows.shape[1] // NUMBERS, 1)].cpu().numpy()
