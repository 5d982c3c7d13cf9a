"""Draws of the noise that cancels between pairs of clients."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from fedpriv.privacy.pairwise import Edges, Pairs
from fedpriv.privacy.record import Record
from fedpriv.randomness.streams import PairSecrets, Randomness, normal

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
    at, dim = (record.round, record.index), rows.shape[1]
    if pairs.edges is None or len(within(pairs.edges, tuple(clients))) > len(clients) * (1 + len(clients) / _EVEN):
        unit = spread(randomness, *at, clients, pairs.edges, dim)
    else:
        unit = of_pairs(randomness, *at, clients, pairs.edges, dim)
    return unit.to(rows.device).mul_(pairs.ratio * scale).add_(rows)


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


def spread(
    randomness: Randomness, round_index: int, index: int, clients: Sequence[int], edges: Edges | None, dim: int
) -> Tensor:
    """What `of_pairs` draws, in law, with one draw for each of k clients instead of one for each pair.

    With w independent normal rows and L the Laplacian of the pairs, `L^(1/2) w` has covariance L between rows and is
    Gaussian. Where all pairs share secrets, `L^(1/2) = sqrt(k) (I - 11' / k)`.
    """
    draws = torch.stack([normal(randomness.stream("spread", round_index, index, client), dim) for client in clients])
    if edges is None:
        return draws.sub_(draws.mean(0)).mul_(len(clients) ** 0.5)
    return root(edges, tuple(clients)) @ draws


@lru_cache(maxsize=64)
def root(edges: Edges, clients: tuple[int, ...]) -> Tensor:
    """The symmetric square root of the pairs' Laplacian, `[k, k]`. (It alone is the same on every machine.)"""
    laplacian = torch.zeros(len(clients), len(clients)).double()
    for a, b in within(edges, clients):
        ends = torch.tensor([a, b])
        laplacian[ends[:, None], ends] += torch.tensor([[1.0, -1.0], [-1.0, 1.0]]).double()
    values, vectors = torch.linalg.eigh(laplacian)
    return (vectors * values.clamp_min(0).sqrt()) @ vectors.T
