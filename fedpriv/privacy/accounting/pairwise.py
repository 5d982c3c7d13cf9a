"""Computes the privacy cost of noise that partly cancels between pairs of clients, if some clients collude.

A client's individual noise has variance 1, and the noise of a pair has variance `r^2`. Among the participants P, the
colluders Q can remove their own noise and the noise of every pair that contains a colluder. The remaining noise of the
honest clients H = P without Q is Gaussian with covariance `Sigma_H = I + r^2 L(S[H])`. Here S[H] is the graph of the
pairs of honest clients that share a secret, and L is its Laplacian. A change of client i's row by `delta` is, after
whitening, a shift by `|delta| sqrt([Sigma_H^-1]_ii)` in unit noise. So the release is a Gaussian mechanism for client
i, with the same cost as independent noise of variance `1 / [Sigma_H^-1]_ii`.

The *exposure* is the largest `[Sigma_H^-1]_ii` over i and over all Q of at most q clients. Fewer colluders can remove
less noise, so sets Q of exactly min(q, |P| - 1) clients are the worst. The exposure is computed as follows:

======================  =====================================================================
all pairs share         `1/h + (1 - 1/h) / (1 + r^2 h)` with h = max(1, |P| - q), exactly
few sets Q              the largest of all, exactly
lambda_2(L(S)) > q      at most `1/h + (1 - 1/h) / (1 + r^2 (lambda_2 - q))`: taking a client away lowers
                        lambda_2 by at most 1 (Fiedler, 1973), and 1/h is the weight of the constant vector
otherwise               raises ConfigError
======================  =====================================================================

If the row of a participant is not observed, the cost of the others does not grow, as long as they keep the noise that
they share with this participant. The observed rows are then a part of the same Gaussian vector. Their covariance is a
submatrix of `Sigma_H`, and the diagonal of its inverse is nowhere larger than the diagonal of `Sigma_H^-1`, because
leaving out rows is post-processing (algebraically, this follows from the Schur complement). If the noise of pairs with
a participant is left out, `participants` must contain only the other participants.
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
"""Largest number of additions and products for a check of all sets of colluders."""
_AT_ONCE = 2**22  # numbers of the matrices that are inverted together


def compute_exposure(pairs: Pairs, participants: Sequence[int] | None, n_clients: int) -> float:
    """Returns the largest `[Sigma_H^-1]_ii`, at most 1, which is a client's individual noise variance divided by the
    effective noise variance.

    Args:
        pairs: The pairwise noise of a record.
        participants: The clients that took part in the release; None means all.
        n_clients: Number of clients of the run.

    Raises:
        ConfigError: If there are too many sets of colluders to check, and no bound holds.
    """
    if participants is None:
        count = n_clients
    else:
        count = len(participants)
    if pairs.ratio == 0 or count <= 1:
        return 1.0
    if pairs.edges is None:
        return compute_complete_exposure(count, pairs.ratio, pairs.colluders)
    if participants is None or count == n_clients:
        subset = None  # one entry of the cache, for any order of the clients
    else:
        subset = tuple(participants)
    return _exposure_of_graph(pairs.edges, pairs.ratio, pairs.colluders, n_clients, subset)


def compute_complete_exposure(n: int, ratio: float, colluders: int) -> float:
    """Returns the exact exposure of `n` participants if every pair of them shares a secret."""
    h = max(1, n - colluders)
    return 1 / h + (1 - 1 / h) / (1 + ratio**2 * h)


@lru_cache(maxsize=4096)
def _exposure_of_graph(
    edges: Edges, ratio: float, colluders: int, n_clients: int, participants: tuple[int, ...] | None
) -> float:
    shared = make_adjacency(edges, n_clients)
    if participants is not None:
        shared = shared[np.ix_(participants, participants)]
    if estimate_work(len(shared), colluders) <= MOST_WORK:
        return float(compute_client_exposures(shared, ratio, colluders).max())
    bound = compute_spectral_bound(shared, ratio, colluders)
    if bound is None:
        fix = (
            f"with {len(shared)} clients and {colluders} colluders, there are too many possible sets of colluders to "
            "check, and the graph of the pairs is too sparse for the general bound: let more pairs share secrets, "
            "e.g. complete or random_regular of a higher degree"
        )
        raise ConfigError("privacy.trust.pairwise.secrets", f"{len(edges)} pairs", fix)
    return bound


def make_adjacency(edges: Edges, n_clients: int) -> NDArray[np.bool_]:
    """Returns the adjacency matrix `[n, n]` of the pairs that share a secret.

    Raises:
        ConfigError: If a pair holds one client twice, or a client that does not exist.
    """
    odd = next((pair for pair in edges if not 0 <= pair[0] < pair[1] < n_clients), None)
    if odd is not None:
        raise ConfigError(
            "record.pairs.edges",
            odd,
            f"must be two different clients from 0 to {n_clients - 1}, the smaller number first",
        )
    shared = np.zeros((n_clients, n_clients), dtype=bool)
    if edges:
        ends = np.asarray(edges)
        shared[ends[:, 0], ends[:, 1]] = shared[ends[:, 1], ends[:, 0]] = True
    return shared


def make_covariance(shared: NDArray[np.bool_], ratio: float) -> Array:
    """Returns `I + r^2 L` of participants with the adjacency matrix `shared [..., h, h]`."""
    joint = -(ratio**2) * shared.astype(float)
    diagonal = np.arange(shared.shape[-1])
    joint[..., diagonal, diagonal] = 1 + ratio**2 * shared.sum(-1)
    return joint


def estimate_work(n: int, colluders: int) -> float:
    """Returns the approximate number of operations of `compute_client_exposures`."""
    h = max(1, n - colluders)
    return min(math.comb(n, h), 10**12) * float(h) ** 3


def compute_client_exposures(shared: NDArray[np.bool_], ratio: float, colluders: int) -> Array:
    """Returns the largest `[Sigma_H^-1]_ii` over all sets of colluders without i, for each client i, `[n]`.

    The result includes the rounding error. `Sigma_H` is at least I, so the relative error of the inverse is little more
    than its condition number times the rounding unit.
    """
    n = len(shared)
    q = min(colluders, n - 1)
    everyone = np.arange(n)
    largest = np.zeros(n)
    rounding = 8 * n * np.finfo(float).eps * (1 + 2 * ratio**2 * shared.sum(1).max())
    sets = combinations(range(n), q)
    while chunk := list(islice(sets, max(1, _AT_ONCE // (n * n)))):
        honest = np.stack([np.delete(everyone, list(colluding)) for colluding in chunk])
        inverse = np.linalg.inv(make_covariance(shared[honest[:, :, None], honest[:, None, :]], ratio))
        np.maximum.at(largest, honest, inverse.diagonal(axis1=1, axis2=2))
    return np.minimum(largest + rounding, 1.0)


def compute_spectral_bound(shared: NDArray[np.bool_], ratio: float, colluders: int) -> float | None:
    """Returns a bound on the exposure of every client from `lambda_2`, the second smallest eigenvalue of the Laplacian.

    Returns None if no such bound holds.
    """
    n = len(shared)
    h = max(1, n - colluders)
    connectivity = _connectivity(shared.tobytes(), n) - colluders - 8 * n * np.finfo(float).eps * float(n)
    if connectivity <= 0:
        return None
    return 1 / h + (1 - 1 / h) / (1 + ratio**2 * connectivity)


@lru_cache(maxsize=64)
def _connectivity(shared: bytes, n: int) -> float:
    """Returns `lambda_2` of an adjacency matrix `[n, n]`; it is the same for every ratio and number of colluders."""
    adjacent = np.frombuffer(shared, dtype=bool).reshape(n, n)
    return float(np.linalg.eigvalsh(np.diag(adjacent.sum(1).astype(float)) - adjacent)[1])
