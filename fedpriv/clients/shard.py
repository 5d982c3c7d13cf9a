"""Which clients of a run are in this process, and what everybody knows of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import torch
from torch import Tensor

from fedpriv.clients.client import Client
from fedpriv.clients.client_set import as_client_set
from fedpriv.errors import ConfigError


@dataclass(frozen=True)
class ClientShard:
    """The clients of a run whose examples and rows are here, and the public facts of all.

    How much noise an answer gets, and what the ledger says of it, follows from the facts of all: from those of the
    clients here alone it would be too little noise.

    Args:
        numbers: Numbers of the clients here among all clients of the run, ascending.
        all_sizes: Public number of examples of every client of the run.
        n_objectives: How many of all clients have an objective, at least 1.
        widths: Constraints, and constraint values, of the client that has most of them; so rows are equally wide
            wherever clients are.

    Raises:
        ConfigError: the numbers are none of that many clients, or not in order.
    """

    numbers: Sequence[int]
    all_sizes: Sequence[int]
    n_objectives: int
    widths: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        numbers = self.ids
        if len(numbers) and not (numbers[0] >= 0 and numbers[-1] < self.n_clients and (numbers.diff() > 0).all()):
            fix = f"give numbers from 0 to {self.n_clients - 1}, ascending, each once"
            raise ConfigError("part.numbers", self.numbers, fix)

    @classmethod
    def whole(cls, clients: Sequence[Client]) -> Self:
        """All clients are here."""
        roster = as_client_set(clients)
        objectives = sum(problem.objective is not None for problem in roster.problems)
        problems = {id(problem): problem for problem in roster.problems}.values()
        widths = max(len(p.constraints) for p in problems), max(len(p.equality) for p in problems)
        return cls(range(len(clients)), roster.sizes, max(objectives, 1), widths)

    @property
    def n_clients(self) -> int:
        """Number of clients of the run."""
        return len(self.all_sizes)

    @cached_property
    def ids(self) -> Tensor:
        """`numbers`, `[n_here]`."""
        return torch.tensor(np.asarray(self.numbers, dtype=np.int64))

    @cached_property
    def sizes(self) -> Tensor:
        """Public sizes of the clients here, `[n_here]`."""
        return torch.tensor(np.asarray(self.all_sizes, dtype=np.int64))[self.ids]

    def of(self, clients: Sequence[Client]) -> Sequence[Client]:
        """Those of all clients that are here; the first one, for its model alone, where there are none."""
        if len(self.numbers) == len(clients):
            return clients
        return [clients[number] for number in self.numbers] or clients[:1]

    def rows(self, cohort: Tensor) -> Tensor:
        """Which of the rows here are those of clients of an ascending cohort `[k]`, ascending."""
        if len(self.ids) == self.n_clients:
            return cohort
        return self._found(cohort)[0]

    def places(self, cohort: Tensor) -> Tensor:
        """Which clients of an ascending cohort `[k]`, by their place in it, are here, ascending."""
        if len(self.ids) == self.n_clients:
            return torch.arange(len(cohort))
        return self._found(cohort)[1]

    def _found(self, cohort: Tensor) -> tuple[Tensor, Tensor]:
        """Rows and places of those who are here, at the cost of the cohort, not of all."""
        rows = torch.searchsorted(self.ids, cohort).clamp_max(max(len(self.ids) - 1, 0))
        if len(self.ids):
            places = (self.ids[rows] == cohort).nonzero()[:, 0]
        else:
            places = rows[:0]
        return rows[places], places
