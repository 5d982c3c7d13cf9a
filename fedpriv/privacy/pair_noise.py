"""Draws the noise that cancels between pairs of clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from fedpriv.privacy.exact_rounding import multiplied, sum_of_intervals
from fedpriv.privacy.pairwise import Edges, Pairs
from fedpriv.privacy.record import Record
from fedpriv.randomness.keystream import Keystream
from fedpriv.randomness.real_draws import Interval, real_normal
from fedpriv.randomness.short_rows import BoundedRows
from fedpriv.randomness.streams import PairSecrets, Randomness, normal

_ZERO = 1e-10  # eigenvalues of Laplacians below it
_COLUMNS = 1024  # columns at a time, which fit into the cache
_EVEN = 300  # with so many clients, a number of `spread`, a sum over all of them, takes twice the time of one draw


def with_pair_noise(
    rows: Tensor,
    scales: Sequence[float],
    pairs: Pairs,
    record: Record,
    randomness: Randomness,
    clients: Sequence[int],
) -> Tensor:
    """Returns bounded rows plus the noise of the pairs among these clients, in float64.

    Each client's individual noise is not added here.

    Args:
        rows: The rows, `[k, dim]`.
        scales: Standard deviation of each client's individual noise: the same for all, in the units of `rows`.
        pairs: The pairs that share secrets, and how much noise a pair adds.
        record: The record of the answer, which names its noise.
        randomness: The run's random streams.
        clients: Population index of each row.
    """
    if pairs.ratio == 0 or len(clients) < 2:
        return rows
    (scale,) = set(scales)  # both clients of a pair add the same noise, so that there is only one scale
    noise = noise_of_answer(pairs, randomness, record.round, record.index, clients, rows.shape[1], scale)
    return noise.to(rows.device).add_(rows)


def noise_of_answer(
    pairs: Pairs,
    randomness: Randomness,
    round_index: int,
    index: int,
    clients: Sequence[int],
    dim: int,
    scale: float = 1.0,
) -> Tensor:
    """Returns the noise of all pairs among these clients, `[k, dim]` in float64.

    `scale` is the standard deviation of a client's individual noise.
    """
    deviation = pairs.ratio * scale
    # one draw for each pair, or one for each client, whichever is faster
    if pairs.edges is None or len(within(pairs.edges, tuple(clients))) > len(clients) * (1 + len(clients) / _EVEN):
        return spread(randomness, round_index, index, clients, pairs.edges, dim, deviation)
    return of_pairs(randomness, round_index, index, clients, pairs.edges, dim).mul_(deviation)


def of_pairs(
    randomness: Randomness, round_index: int, index: int, clients: Sequence[int], edges: Edges, dim: int
) -> Tensor:
    """Draws unit noise for every pair of participants that shares a secret.

    It is added to the row of the client with the smaller number and subtracted from the other.

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
    """Returns the pairs of two of these clients, as pairs of rows; noise is added to the first one's row."""
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
    """Draws one client's row of `of_pairs`, from the secrets that it shares with its partners.

    Args:
        randomness: The run's random streams, which name the run and its attempt.
        round_index: The round.
        index: Number of the answer within the round.
        client: Number of the client.
        partners: Numbers of the participants with which it shares a secret.
        dim: Length of the row.
        secrets: The client's secrets with each partner.
    """
    total = torch.zeros(dim).double()
    for other in sorted(partners):
        draw = normal(randomness.pair_stream(client, other, round_index, index, secrets), dim)
        if client < other:
            total += draw
        else:
            total -= draw
    return total


@dataclass(frozen=True)
class OwnPairsNoise:
    """The noise of the pairs of the one client in this process, as real numbers: the same at both ends of a pair.

    Attributes:
        keys: Key of the stream of each pair.
        signs: 1 for each pair whose noise is added, -1 for each whose noise is subtracted.
        deviation: Standard deviation of the noise of a pair.
        dim: Length of the row.
    """

    keys: Sequence[bytes]
    signs: Sequence[int]
    deviation: float
    dim: int

    def approximate(self, rows: slice) -> BoundedRows:
        """See `RealNoise`; there is one row."""
        total = np.zeros((1, self.dim))
        error, largest = 0.0, 0.0
        for key, sign in zip(self.keys, self.signs, strict=True):
            draws, draw_error, draw_largest = Keystream(key).bounded_normal(self.dim, self.deviation)
            total += sign * draws
            largest += draw_largest
            error += draw_error + 1.01 * 2.0**-53 * largest  # of the draw, and of the sum so far
        return BoundedRows(total, np.array([[error]]), largest)

    def interval(self, row: int, column: int, extra: int) -> Interval | None:
        """See `RealNoise`."""
        total = None
        for key, sign in zip(self.keys, self.signs, strict=True):
            draw = multiplied(real_normal(key, self.dim, column, extra), sign * self.deviation)
            if draw is None:
                return None
            if total is None:
                total = draw
            else:
                total = sum_of_intervals(total, draw)
        return total


def noise_of_own_pairs(
    scales: Sequence[float],
    pairs: Pairs,
    record: Record,
    randomness: Randomness,
    clients: Sequence[int],
    client: int,
    dim: int,
    secrets: PairSecrets,
) -> OwnPairsNoise | None:
    """Returns the noise of one client's pairs as real numbers; None if it has none. See `with_noise_of_own_pairs`."""
    others = partners_of(client, clients, pairs)
    if not pairs.ratio or not others:
        return None
    (scale,) = set(scales)
    first_attempt = replace(randomness, attempt=0)
    keys = [first_attempt.pair_key(client, other, record.round, record.index, secrets) for other in others]
    signs = [1 if client < other else -1 for other in others]
    return OwnPairsNoise(keys, signs, pairs.ratio * scale, dim)


def partners_of(client: int, clients: Sequence[int], pairs: Pairs) -> list[int]:
    """Returns the participants with which a client shares a secret, in ascending order."""
    others = {*clients} - {client}
    if pairs.edges is not None:
        others &= {a + b - client for a, b in pairs.edges if client in (a, b)}
    return sorted(others)


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
    """Returns `with_pair_noise` for the row of the one client in this process.

    Both clients of a pair draw the same noise, whatever attempt either of them is at.

    Args:
        rows: The client's bounded row, `[1, dim]`; `[0, dim]` if it does not take part.
        scales: Standard deviations of the individual noise of all participants, which are the same.
        pairs: The pairs that share secrets, and how much noise a pair adds.
        record: The record of the answer, which names its noise.
        randomness: The run's random streams.
        clients: Population index of each participant.
        own: Population index of the client of this process; empty if it does not take part.
        secrets: The secrets that it has agreed with the others.
    """
    noised = rows.double()
    if not pairs.ratio:
        return noised
    (scale,) = set(scales)
    for client in own:
        others = partners_of(client, clients, pairs)
        first_attempt = replace(randomness, attempt=0)
        noise = of_one_client(first_attempt, record.round, record.index, client, others, rows.shape[1], secrets)
        noised = noised + noise.mul_(pairs.ratio * scale).to(rows.device)
    return noised


def spread(
    randomness: Randomness,
    round_index: int,
    index: int,
    clients: Sequence[int],
    edges: Edges | None,
    dim: int,
    deviation: float = 1.0,
) -> Tensor:
    """Draws noise with the distribution of `of_pairs` times `deviation`, with one draw for each client, not each pair.

    With w independent normal rows and L the Laplacian of the pairs of k clients, `L^(1/2) w` has covariance L between
    rows and is Gaussian. Where all pairs share secrets, `L^(1/2) = sqrt(k) (I - 11' / k)`.
    """
    rows = torch.empty(len(clients), dim).double()
    total = torch.zeros(dim).double()
    for row, client in zip(rows, clients, strict=True):
        draw = normal(randomness.stream("spread", round_index, index, client), dim)
        row.copy_(draw)
        total += draw
    if edges is None:
        mean = total / len(clients)
        factor = len(clients) ** 0.5 * deviation
        for row in rows:  # one at a time: it stays in the cache
            row.sub_(mean).mul_(factor)
        return rows
    factors = deviation * root(edges, tuple(clients))
    for columns in rows.split(_COLUMNS, dim=1):
        columns.copy_(factors @ columns)
    return rows


@lru_cache(maxsize=64)
def root(edges: Edges, clients: tuple[int, ...]) -> Tensor:
    """Returns the symmetric square root of the pairs' Laplacian, `[k, k]`.

    Of all square roots, it is the only one that is the same on every machine: eigenvectors may differ.
    """
    laplacian = torch.zeros(len(clients), len(clients)).double()
    for a, b in within(edges, clients):
        ends = torch.tensor([a, b])
        laplacian[ends[:, None], ends] += torch.tensor([[1.0, -1.0], [-1.0, 1.0]]).double()
    values, vectors = torch.linalg.eigh(laplacian)
    # zeros come out as 1e-15, whose root is no longer small; of a connected graph of k the next one is above 4 / k^2
    return (vectors * values.where(values > _ZERO, 0.0).sqrt()) @ vectors.T
