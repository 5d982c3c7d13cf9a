"""Draws the noise that cancels between pairs of clients, as real numbers that are the same for both clients of a pair.

Each pair that shares a secret draws a row of normal numbers. The client with the smaller number adds this row, and the
other client subtracts it. One process with all secrets (a simulation) and sites with only their secrets compute the
same rows, bit for bit. The only exception is a simulation in which many clients all share secrets and would form too
many pairs. It draws noise with the same distribution from one draw fewer than the number of clients (`tree_terms`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from fedpriv.privacy.normal_combinations import NormalCombinations, Term
from fedpriv.privacy.pairwise import Edges, Pairs
from fedpriv.randomness.streams import PairSecrets, Randomness

MOST_BY_PAIRS = 16
"""If more participants than this number all share secrets, one process draws noise with the distribution of the sum
over pairs.
"""


def draw_pair_noise(
    pairs: Pairs,
    randomness: Randomness,
    round_index: int,
    index: int,
    participants: Sequence[int],
    clients: Sequence[int],
    dim: int,
    secrets: PairSecrets | None = None,
) -> NormalCombinations | None:
    """Returns the noise of pairs in some rows of a release, divided by the standard deviation of a client's individual
    noise.

    Args:
        pairs: The pairs that share secrets, and the amount of noise of a pair.
        randomness: The run's random streams.
        round_index: The round.
        index: Number of the release within the round.
        participants: Population indices of all participants.
        clients: The participants of these rows.
        dim: Length of a row.
        secrets: The secrets that these clients have agreed on with other clients. From them both clients of a pair draw
            the same noise in all their attempts. None if this process derives all secrets from its secret seed.

    Returns:
        The noise of these rows; None if there is none.
    """
    if not pairs.ratio or not clients or len(participants) < 2:
        return None
    if pairs.edges is None and secrets is None and len(participants) > MOST_BY_PAIRS:
        keys = randomness.keys("spread", round_index, index, participants[1:]).numpy()
        rows = tree_terms(len(participants))
        row_of = dict(zip(participants, rows, strict=True))
        return NormalCombinations(
            [key.tobytes() for key in keys], [row_of[client] for client in clients], pairs.ratio, dim
        )
    if secrets is not None:
        randomness = replace(randomness, attempt=0)
    ends = select_pairs(pairs.edges, participants, clients)
    keys = [randomness.pair_key(a, b, round_index, index, secrets) for a, b in ends]
    return NormalCombinations(keys, pair_terms(ends, clients), pairs.ratio, dim)


def select_pairs(edges: Edges | None, participants: Sequence[int], clients: Sequence[int]) -> Edges:
    """Returns the pairs of two participants that contain one of `clients`, the smaller number first, in order.

    Args:
        edges: The pairs that share secrets; None if all do.
        participants: Population indices of all participants.
        clients: Some of them.
    """
    if edges is None:
        pairs = {(min(a, b), max(a, b)) for a in clients for b in participants if a != b}
        return tuple(sorted(pairs))
    everyone, some = {*participants}, {*clients}
    return tuple((a, b) for a, b in edges if a in everyone and b in everyone and (a in some or b in some))


def pair_terms(ends: Edges, clients: Sequence[int]) -> list[list[Term]]:
    """Returns the terms of each client's row; draws are in the order of pairs. The first client of a pair adds the
    draw, the second subtracts it.
    """
    rows: dict[int, list[Term]] = {client: [] for client in clients}
    for draw, (a, b) in enumerate(ends):
        if a in rows:
            rows[a].append(Term(draw, 1))
        if b in rows:
            rows[b].append(Term(draw, -1))
    return list(rows.values())


@lru_cache(maxsize=8)
def tree_terms(count: int) -> list[list[Term]]:
    """Returns the terms of rows that have the distribution of the pairs' noise if all of `count` clients share secrets.

    The covariance of this noise is ``count I - 1 1'``, with standard deviation sqrt(count) in every direction
    orthogonal to the vector of ones. One basis of these directions is the Haar basis (1910): the clients are divided
    into two halves, and each half is divided again, down to single clients. At each division, one draw is added to one
    half and subtracted from the other, with weights that cancel in the sum. So a row has only log2(count) terms, one
    for each division, and the rows cancel exactly in the sum.
    """
    rows: list[list[Term]] = [[] for _ in range(count)]
    nodes = [range(count)]
    draw = 0
    while nodes:
        node = nodes.pop()
        if len(node) < 2:
            continue
        first, second = node[: len(node) // 2], node[len(node) // 2 :]
        weight = math.sqrt(count / (len(first) * len(second) * len(node)))
        for row in first:
            rows[row].append(Term(draw, len(second), weight))
        for row in second:
            rows[row].append(Term(draw, -len(first), weight))
        draw += 1
        nodes += [second, first]
    return rows
