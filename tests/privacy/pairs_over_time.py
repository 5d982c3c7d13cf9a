"""Runs whose noise cancels between pairs of clients and over rounds: their settings, and their noise alone."""

from __future__ import annotations

from typing import Any

import torch
from correlated_runs import Mean
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.privacy.pairwise import Links, Pairwise

RING = ((0, 1), (1, 2), (2, 3), (0, 3))
TRUST = Pairwise(1, 3.0, Links(RING))
PRIVACY = fp.Privacy(epsilon=4.0, trust=TRUST, sampling=fp.Cyclic(4), noise=fp.BSR(4))
ROUNDS, N = 10, 4


class Zeros:
    """Releases of clients whose gradients are zero: noise alone, `[rounds, n, dim]`."""

    def __init__(self, trust: Pairwise, noise: Any, dim: int, multiplier: float = 0.7, n: int = N) -> None:
        data = [TensorDataset(torch.zeros(8, dim), torch.zeros(8)) for _ in range(n)]
        model = nn.Linear(dim, 1, bias=False)
        nn.init.zeros_(model.weight)
        privacy = fp.Privacy(
            noise_multiplier=multiplier, relation="add_remove", trust=trust, sampling=fp.Cyclic(4), noise=noise
        )
        self.training = fp.Training(
            fp.make_clients(model, Mean(), data), fp.fedavg(1e-9), privacy, rounds=ROUNDS, seed=1, secret_seed=1
        )
        multiplier_of_own = self.training.plan.records[0].noise_multiplier
        assert isinstance(multiplier_of_own, float)
        self.own, self.n = multiplier_of_own * privacy.sensitivity / 2, n  # a mean over the two examples of a block

    def rows(self, t: int, clients: range | None = None) -> Tensor:
        oracle, everyone = self.training.oracle, range(self.n)
        oracle.begin_round(t, torch.tensor([*(clients or everyone)]))
        return oracle.gradient(self.training.population.params[[*(clients or everyone)]]).double()

    def all(self) -> Tensor:
        return torch.stack([self.rows(t) for t in range(ROUNDS)])
