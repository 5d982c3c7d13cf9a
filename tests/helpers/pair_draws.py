"""Draws of noise that cancels between pairs, as an oracle makes them, and the law that they must have."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import networkx as nx
import numpy as np
import torch
from torch import Tensor

from fedpriv.privacy import pair_noise
from fedpriv.privacy.accounting import pairwise as price
from fedpriv.privacy.accounting.accountant import Accountant
from fedpriv.privacy.ledger import Ledger, Release
from fedpriv.privacy.mechanisms import Gaussian, add_noise
from fedpriv.privacy.normal_combinations import NormalCombinations
from fedpriv.privacy.pairwise import Edges, Pairs, name_pairs, sort_pairs
from fedpriv.privacy.record import Record
from fedpriv.randomness.streams import Randomness

DIM, SIGMA = 20_000, 0.7
RANDOM = Randomness(0, 3, run="a run")


def pairs_of(edges: Edges | None, ratio: float = 3.0, colluders: int = 1) -> Pairs:
    return Pairs(ratio, colluders, name_pairs(edges), edges)


def record_of(pairs: Pairs, round_index: int = 0, index: int = 0) -> Record:
    return Record(round_index, "gradient", index, "gaussian", 1.0, "sample", "replace_one", pairs=pairs)


def rows_of(
    pairs: Pairs, clients: Sequence[int], dim: int = DIM, at: int = 0, randomness: Randomness = RANDOM
) -> Tensor:
    """Noised rows of zeros, as an oracle makes them."""
    return Ledger(Accountant(10, 1e-5)).open(release_of(pairs, clients, dim, at, randomness))


def release_of(
    pairs: Pairs, clients: Sequence[int], dim: int, at: int, randomness: Randomness, scale: float = SIGMA
) -> Release:
    """Rows of zeros with their noise and that of their pairs."""
    record = replace(record_of(pairs, at), clients=tuple(clients))

    def noise_of_pairs(round_index: int, some: Sequence[int]) -> NormalCombinations | None:
        return pair_noise.draw_pair_noise(pairs, randomness, round_index, 0, clients, some, dim)

    zeros, scales = torch.zeros(len(clients), dim), [scale] * len(clients)
    return add_noise(zeros, scales, Gaussian(), record, randomness, clients, pair_noise=noise_of_pairs)


def covariance_of(pairs: Pairs, n: int, clients: Sequence[int]) -> np.ndarray:
    shared = price.make_adjacency(sort_pairs(nx.complete_graph(n).edges) if pairs.edges is None else pairs.edges, n)
    return SIGMA**2 * price.make_covariance(shared[np.ix_(clients, clients)], pairs.ratio)


def law_holds(rows: Tensor, joint: np.ndarray) -> bool:
    """Whether rows `[k, dim]` look like `dim` draws of N(0, joint): to five deviations."""
    k, dim = rows.shape
    assert k == len(joint)
    white = np.linalg.solve(np.linalg.cholesky(joint), rows.numpy())
    sampled = white @ white.T / dim
    within = np.abs(sampled - np.eye(k)) < 5 * np.sqrt((1 + np.eye(k)) / dim)
    return bool(within.all()) and bool((np.abs(white.mean(1)) < 5 / math.sqrt(dim)).all())
