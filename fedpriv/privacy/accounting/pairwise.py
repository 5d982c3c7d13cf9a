"""What a row's noise is worth when parts of it cancel between pairs of clients and some clients tell what they know.

Own noise has variance 1, that of a pair `r^2`. Of participants P, colluders Q know their own noise and that of every
pair with one of them in it. What is left on the honest H = P without Q is Gaussian with covariance
`Sigma_H = I + r^2 L(S[H])`: L is the Laplacian, S[H] who shares a secret with whom among the honest. Moving client i's
row by `delta` is, after whitening, a shift by `|delta| sqrt([Sigma_H^-1]_ii)` in unit noise. So the answer is a
Gaussian mechanism for client i, and costs what independent noise of variance `1 / [Sigma_H^-1]_ii` would.

The *exposure* is the largest `[Sigma_H^-1]_ii` over i and over all Q of at most q clients. Fewer colluders know less,
so sets of exactly min(q, |P| - 1) are the worst:

======================  =====================================================================
all pairs share         `1/h + (1 - 1/h) / (1 + r^2 h)` with h = max(1, |P| - q), exactly
few sets Q              the largest of all, exactly
lambda_2(L(S)) > q      at most `1/h + (1 - 1/h) / (1 + r^2 (lambda_2 - q))`: a client that goes lowers
                        lambda_2 by at most 1 (Fiedler, 1973), and 1/h is the weight of the constant vector
otherwise               refused
======================  =====================================================================
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations, islice

import numpy as np
from numpy.typing import NDArray

from fedpriv.errors import ConfigError
from fedpriv.privacy.pairwise import Edges, Pairs

Array = NDArray[np.float64]
MOST_WORK = 5e8
"""Additions and products that looking at every set of colluders may take."""
_AT_ONCE = 2**22  # numbers of the matrices that are inverted together


def exposure(pairs: Pairs, participants: Sequence[int] | None, n_clients: int) -> float:
    """The largest `[Sigma_H^-1]_ii`, at most 1: effective variance is that of a client's own noise divided by it.

    Args:
        pairs: Of a record.
        participants: Who took part in the answer; None means all.
        n_clients: Number of clients of the run.

    Raises:
        ConfigError: too many sets of colluders to look at, and no bound holds.
    """
    if participants is None:
        count = n_clients
    else:
        count = len(participants)
    if pairs.ratio == 0 or count <= 1:
        return 1.0
    if pairs.edges is None:
        return complete(count, pairs.ratio, pairs.colluders)
    whole = count == n_clients
    return _of_graph(pairs.edges, pairs.ratio, pairs.colluders, n_clients, None if whole else tuple(participants or ()))


def complete(n: int, ratio: float, colluders: int) -> float:
    """Of `n` participants who all share secrets: exact."""
    h = max(1, n - colluders)
    return 1 / h + (1 - 1 / h) / (1 + ratio**2 * h)


@lru_cache(maxsize=4096)
def _of_graph(
    edges: Edges, ratio: float, colluders: int, n_clients: int, participants: tuple[int, ...] | None
) -> float:
    shared = adjacency(edges, n_clients)
    if participants is not None:
        shared = shared[np.ix_(participants, participants)]
    if work(len(shared), colluders) <= MOST_WORK:
        return float(by_client(shared, ratio, colluders).max())
    bound = spectral(shared, ratio, colluders)
    if bound is None:
        fix = (
            f"{len(shared)} clients, {colluders} of them colluders, are too many sets to look at, and the graph is too "
            "sparse for the bound that needs none: let more pairs share secrets, e.g. complete or random_regular of a "
            "higher degree"
        )
        raise ConfigError("privacy.trust.pairwise.secrets", f"{len(edges)} pairs", fix)
    return bound


def adjacency(edges: Edges, n_clients: int) -> NDArray[np.bool_]:
    """Who shares a secret with whom, `[n, n]`.

    Raises:
        ConfigError: a pair of one client, or a client that does not exist.
    """
    odd = next((pair for pair in edges if not 0 <= pair[0] < pair[1] < n_clients), None)
    if odd is not None:
        raise ConfigError("record.pairs.edges", odd, f"name two of the clients 0..{n_clients - 1}, the smaller first")
    shared = np.zeros((n_clients, n_clients), dtype=bool)
    if edges:
        ends = np.asarray(edges)
        shared[ends[:, 0], ends[:, 1]] = shared[ends[:, 1], ends[:, 0]] = True
    return shared


def covariance(shared: NDArray[np.bool_], ratio: float) -> Array:
    """`I + r^2 L` of participants whose secrets are `shared [..., h, h]`."""
    joint = -(ratio**2) * shared.astype(float)
    here = np.arange(shared.shape[-1])
    joint[..., here, here] = 1 + ratio**2 * shared.sum(-1)
    return joint


def work(n: int, colluders: int) -> float:
    """How much there is to compute for `by_client`."""
    h = max(1, n - colluders)
    return min(math.comb(n, h), 10**12) * float(h) ** 3


def by_client(shared: NDArray[np.bool_], ratio: float, colluders: int) -> Array:
    """The largest `[Sigma_H^-1]_ii` over all sets of colluders without i, for each client i, `[n]`.

    Rounding is paid for: `Sigma_H` is at least I, so that the inverse is wrong by little more than its condition says.
    """
    n = len(shared)
    q, everyone = min(colluders, n - 1), np.arange(n)
    largest = np.zeros(n)
    rounding = 8 * n * np.finfo(float).eps * (1 + 2 * ratio**2 * shared.sum(1).max())
    sets = combinations(range(n), q)
    while chunk := list(islice(sets, max(1, _AT_ONCE // (n * n)))):
        honest = np.stack([np.delete(everyone, list(colluding)) for colluding in chunk])
        inverse = np.linalg.inv(covariance(shared[honest[:, :, None], honest[:, None, :]], ratio))
        np.maximum.at(largest, honest, inverse.diagonal(axis1=1, axis2=2))
    return np.minimum(largest + rounding, 1.0)


def spectral(shared: NDArray[np.bool_], ratio: float, colluders: int) -> float | None:
    """A bound for every client from `lambda_2`, the second smallest eigenvalue of the Laplacian; None if none holds."""
    n = len(shared)
    h = max(1, n - colluders)
    left = _connectivity(shared.tobytes(), n) - colluders - 8 * n * np.finfo(float).eps * float(n)
    if left <= 0:
        return None
    return 1 / h + (1 - 1 / h) / (1 + ratio**2 * left)


@lru_cache(maxsize=64)
def _connectivity(shared: bytes, n: int) -> float:
    """`lambda_2` of secrets `[n, n]`, the same for every ratio and number of colluders."""
    adjacent = np.frombuffer(shared, dtype=bool).reshape(n, n)
    return float(np.linalg.eigvalsh(np.diag(adjacent.sum(1).astype(float)) - adjacent)[1])
