"""Draws of the noise that cancels between pairs of clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from fedpriv.privacy.pairwise import Edges, Pairs
from fedpriv.privacy.record import Record
from fedpriv.randomness.streams import PairSecrets, Randomness, normal

_ZERO = 1e-10  # eigenvalues of Laplacians below it
_COLUMNS = 1024  # that fit into the cache
_EVEN = 300  # clients times a draw cost what a draw does: each of `spread`'s numbers is a sum over all of them


def with_pair_noise(
    rows: Tensor,
    scales: Sequence[float],
    pairs: Pairs,
    record: Record,
    randomness: Randomness,
    clients: Sequence[int],
) -> Tensor:
    """Bounded rows and the noise of the pairs among these clients, in float64; each client's own is still to be added.

    Args:
        rows: `[k, dim]`.
        scales: Standard deviation of each client's own noise: the same for all, in the units of `rows`.
        pairs: Who shares secrets, and how much noise a pair adds.
        record: Names the answer.
        randomness: The run's streams.
        clients: Population index of each row.
    """
    if pairs.ratio == 0 or len(clients) < 2:
        return rows
    (scale,) = set(scales)  # both ends of a pair add the same
    noise = of_answer(pairs, randomness, record.round, record.index, clients, rows.shape[1], scale)
    return noise.to(rows.device).add_(rows)


def of_answer(
    pairs: Pairs,
    randomness: Randomness,
    round_index: int,
    index: int,
    clients: Sequence[int],
    dim: int,
    scale: float = 1.0,
) -> Tensor:
    """Noise of all pairs among these clients, `[k, dim]` in float64, where each client's own has deviation `scale`."""
    at, deviation = (round_index, index), pairs.ratio * scale
    if pairs.edges is None or len(within(pairs.edges, tuple(clients))) > len(clients) * (1 + len(clients) / _EVEN):
        return spread(randomness, *at, clients, pairs.edges, dim, deviation)
    return of_pairs(randomness, *at, clients, pairs.edges, dim).mul_(deviation)


def of_pairs(
    randomness: Randomness, round_index: int, index: int, clients: Sequence[int], edges: Edges, dim: int
) -> Tensor:
    """Unit noise of every pair whose ends both take part, added at its smaller number and subtracted at the other.

    Returns:
        `[k, dim]` in float64: covariance between rows is the Laplacian of the pairs. Columns sum to zero.
    """
    total = torch.zeros(len(clients), dim).double()
    for a, b in within(edges, tuple(clients)):
        draw = normal(randomness.pair_stream(clients[a], clients[b], round_index, index), dim)
        total[a] += draw
        total[b] -= draw
    return total


@lru_cache(maxsize=64)
def within(edges: Edges, clients: tuple[int, ...]) -> Edges:
    """The pairs whose ends are both among these clients, as rows: the plus stands first."""
    row_of = {client: row for row, client in enumerate(clients)}
    return tuple((row_of[i], row_of[j]) for i, j in edges if i in row_of and j in row_of)


def of_one_client(
    randomness: Randomness,
    round_index: int,
    index: int,
    client: int,
    partners: Sequence[int],
    dim: int,
    secrets: PairSecrets,
) -> Tensor:
    """A client's row of `of_pairs`, made where its owner is: from the secrets that it shares with its partners.

    Args:
        randomness: Names the run and its attempt.
        round_index: The round.
        index: Which answer of the round.
        client: Who it is.
        partners: With whom it shares secrets and who take part.
        dim: How many draws.
        secrets: Its own, with each of them.
    """
    total = torch.zeros(dim).double()
    for other in sorted(partners):
        draw = normal(randomness.pair_stream(client, other, round_index, index, secrets), dim)
        total += draw if client < other else -draw
    return total


def with_noise_of_own_pairs(
    rows: Tensor,
    scales: Sequence[float],
    pairs: Pairs,
    record: Record,
    randomness: Randomness,
    clients: Sequence[int],
    own: Sequence[int],
    secrets: PairSecrets,
) -> Tensor:
    """`with_pair_noise` where a client is alone: its row `[1, dim]` and the noise of its pairs.

    Both ends draw alike, whatever attempt either of them is at.

    Args:
        rows: Its bounded row; `[0, dim]` where it takes no part.
        scales: As there, of all participants.
        pairs: As there.
        record: As there.
        randomness: As there.
        clients: Population index of each participant.
        own: Its own, where it takes part.
        secrets: What it has agreed with the others.
    """
    (scale,), found = set(scales) if pairs.ratio else {0.0}, rows.double()
    for client in own if pairs.ratio else ():
        others = {*clients} - {client}
        if pairs.edges is not None:
            others &= {a + b - client for a, b in pairs.edges if client in (a, b)}
        named = replace(randomness, attempt=0)
        noise = of_one_client(named, record.round, record.index, client, sorted(others), rows.shape[1], secrets)
        found = found + noise.mul_(pairs.ratio * scale).to(rows.device)
    return found


def spread(
    randomness: Randomness,
    round_index: int,
    index: int,
    clients: Sequence[int],
    edges: Edges | None,
    dim: int,
    deviation: float = 1.0,
) -> Tensor:
    """What `of_pairs` draws times `deviation`, in law, with one draw for each client instead of one for each pair.

    With w independent normal rows and L the Laplacian of the pairs of k clients, `L^(1/2) w` has covariance L between
    rows and is Gaussian. Where all pairs share secrets, `L^(1/2) = sqrt(k) (I - 11' / k)`.
    """
    rows, total = torch.empty(len(clients), dim).double(), torch.zeros(dim).double()
    for row, client in zip(rows, clients, strict=True):
        draw = normal(randomness.stream("spread", round_index, index, client), dim)
        row.copy_(draw)
        total += draw
    if edges is None:
        mean, factor = total / len(clients), len(clients) ** 0.5 * deviation
        for row in rows:  # one at a time: it stays in the cache
            row.sub_(mean).mul_(factor)
        return rows
    factors = deviation * root(edges, tuple(clients))
    for columns in rows.split(_COLUMNS, dim=1):
        columns.copy_(factors @ columns)
    return rows


@lru_cache(maxsize=64)
def root(edges: Edges, clients: tuple[int, ...]) -> Tensor:
    """The symmetric square root of the pairs' Laplacian, `[k, k]`. (It alone is the same on every machine.)"""
    laplacian = torch.zeros(len(clients), len(clients)).double()
    for a, b in within(edges, clients):
        ends = torch.tensor([a, b])
        laplacian[ends[:, None], ends] += torch.tensor([[1.0, -1.0], [-1.0, 1.0]]).double()
    values, vectors = torch.linalg.eigh(laplacian)
    # zeros come out as 1e-15, whose root is no longer small; of a connected graph of k the next one is above 4 / k^2
    return (vectors * values.where(values > _ZERO, 0.0).sqrt()) @ vectors.T
