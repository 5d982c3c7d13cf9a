"""Draws of the noise that cancels between pairs of clients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedpriv.privacy.pairwise import Edges, Pairs
from fedpriv.privacy.record import Record
from fedpriv.randomness.streams import PairSecrets, Randomness, normal


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
    at = record.round, record.index
    if pairs.edges is None:
        unit = spread(randomness, *at, clients, rows.shape[1])
    else:
        unit = of_pairs(randomness, *at, clients, pairs.edges, rows.shape[1])
    return rows.double() + (pairs.ratio * scale * unit).to(rows.device)


def of_pairs(
    randomness: Randomness, round_index: int, index: int, clients: Sequence[int], edges: Edges, dim: int
) -> Tensor:
    """Unit noise of every pair whose ends both take part, added at its smaller number and subtracted at the other.

    Returns:
        `[k, dim]` in float64: covariance between rows is the Laplacian of the pairs. Columns sum to zero.
    """
    row_of, total = {client: row for row, client in enumerate(clients)}, torch.zeros(len(clients), dim).double()
    for i, j in edges:
        if i in row_of and j in row_of:
            draw = normal(randomness.pair_stream(i, j, round_index, index), dim)
            total[row_of[i]] += draw
            total[row_of[j]] -= draw
    return total


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


def spread(randomness: Randomness, round_index: int, index: int, clients: Sequence[int], dim: int) -> Tensor:
    """Unit noise of all pairs of k clients with one draw for each client instead of one for each pair.

    With w independent normal rows, `sqrt(k) (w_i - mean(w))` has covariance `k I - 11'` between rows, the Laplacian of
    the complete graph, and is Gaussian: it has the law of `of_pairs`.
    """
    draws = [normal(randomness.stream("spread", round_index, index, client), dim) for client in clients]
    rows = torch.stack(draws)
    return len(clients) ** 0.5 * (rows - rows.mean(0))
