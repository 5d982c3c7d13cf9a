"""The law of noise that cancels between pairs and over rounds."""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from pair_draws import law_holds
from pairs_over_time import RING, ROUNDS, N, Zeros
from test_correlated_price import matrix_of

import fedpriv as fp
from fedpriv.privacy.accounting import pairwise as price
from fedpriv.privacy.correlated import Factor
from fedpriv.privacy.mechanisms import Gaussian
from fedpriv.privacy.pairwise import Complete, Links, Pairwise, Secrets, sort_pairs

SECRETS: dict[str, Secrets] = {"ring": Links(RING), "one pair": Links(((0, 1),)), "complete": Complete()}


def expected_law(trust: Pairwise, factor: Factor) -> np.ndarray:
    """Covariance of all rounds and clients over the variance of own noise: a Kronecker product."""
    edges = trust.pairs(N).edges
    shared = price.make_adjacency(sort_pairs(nx.complete_graph(N).edges) if edges is None else edges, N)
    inverse = np.linalg.inv(matrix_of(factor.column(ROUNDS)))
    return np.kron(inverse @ inverse.T, price.make_covariance(shared, trust.ratio))


@pytest.mark.parametrize("noise", [fp.BSR(4), fp.BLT(2), fp.Independent()], ids=str)
@pytest.mark.parametrize("secrets", SECRETS)
def test_noise_covariance_equals_kronecker_product(secrets: str, noise: Any) -> None:
    trust, dim = Pairwise(1, 3.0, SECRETS[secrets]), 4000
    made = Zeros(trust, noise, dim)
    over_time = made.training.plan.privacy.over_time
    assert over_time is not None
    law = made.own**2 * expected_law(trust, over_time.factor)
    assert law_holds(made.all().reshape(ROUNDS * N, dim), law)


@pytest.mark.parametrize("noise", [fp.BSR(4), fp.BLT(2)], ids=str)
@pytest.mark.parametrize("secrets", SECRETS)
def test_pair_noise_cancels_in_sum_of_every_round(secrets: str, noise: Any) -> None:
    made = Zeros(Pairwise(1, 30.0, SECRETS[secrets]), noise, dim=50)
    keys = [made.training.oracle.engine._randomness.keys("noise", t, 0, range(N)) for t in range(ROUNDS)]
    units = torch.stack([Gaussian().draw(key, 50).sum(0) for key in keys]).numpy()
    factor = noise.factor(ROUNDS, 4)
    own = made.own * np.linalg.inv(matrix_of(factor.column(ROUNDS))) @ units
    assert np.abs(made.all().sum(1).numpy() - own).max() < 1e-4 * made.own
