"""Which clients of a run are in this process, and what everybody knows of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from fedpriv.clients.client import Client
from fedpriv.errors import ConfigError


@dataclass(frozen=True)
class Part:
    """The clients of a run whose examples and rows are here, and the public facts of all.

    How much noise an answer gets, and what the ledger says of it, follows from the facts of all: from those of the
    clients here alone it would be too little noise.

    Args:
        numbers: Numbers of the clients here among all clients of the run, ascending.
        all_sizes: Public number of examples of every client of the run.
        n_objectives: How many of all clients have an objective, at least 1.

    Raises:
        ConfigError: the numbers are none of that many clients, or not in order.
    """

    numbers: tuple[int, ...]
    all_sizes: tuple[int, ...]
    n_objectives: int

    def __post_init__(self) -> None:
        if list(self.numbers) != sorted(set(self.numbers) & set(range(self.n_clients))):
            fix = f"give numbers from 0 to {self.n_clients - 1}, ascending, each once"
            raise ConfigError("part.numbers", self.numbers, fix)

    @classmethod
    def whole(cls, clients: Sequence[Client]) -> Self:
        """All clients are here."""
        objectives = sum(client.problem.objective is not None for client in clients)
        sizes = tuple(client.public_size for client in clients)
        return cls(tuple(range(len(clients))), sizes, max(objectives, 1))

    @property
    def n_clients(self) -> int:
        """Number of clients of the run."""
        return len(self.all_sizes)

    @cached_property
    def ids(self) -> Tensor:
        """`numbers`, `[n_here]`."""
        return torch.tensor(self.numbers, dtype=torch.long)

    @cached_property
    def sizes(self) -> Tensor:
        """Public sizes of the clients here, `[n_here]`."""
        return torch.tensor(self.all_sizes)[self.ids]

    def rows(self, cohort: Tensor) -> Tensor:
        """Which of the rows here are those of clients of a cohort `[k]`, ascending."""
        return torch.isin(self.ids, cohort).nonzero()[:, 0]

    def places(self, cohort: Tensor) -> Tensor:
        """Which clients of a cohort `[k]`, by their place in it, are here, ascending."""
        return torch.isin(cohort, self.ids).nonzero()[:, 0]
