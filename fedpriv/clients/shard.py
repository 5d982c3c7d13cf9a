"""The clients of a run that are in this process, and the public facts of all clients."""

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
    """The clients of a run with examples and rows in this process, and the public facts of all clients.

    The noise of a query result and its ledger record depend on the facts of all clients. If they were computed from
    this process's clients alone, the noise would be too small.

    Args:
        numbers: Numbers of this process's clients among all clients of the run, ascending.
        all_sizes: Public number of examples of every client of the run.
        n_objectives: Number of clients in the run with an objective, at least 1.
        widths: Largest number of constraints, and of constraint values, of a client of the run, so that rows are
            equally wide in all processes.

    Raises:
        ConfigError: If a number is out of range, or the numbers are not in order.
    """

    numbers: Sequence[int]
    all_sizes: Sequence[int]
    n_objectives: int
    widths: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        numbers = self.ids
        if len(numbers) and not (numbers[0] >= 0 and numbers[-1] < self.n_clients and (numbers.diff() > 0).all()):
            fix = f"must be numbers from 0 to {self.n_clients - 1} in ascending order, each once"
            raise ConfigError("part.numbers", self.numbers, fix)

    @classmethod
    def whole(cls, clients: Sequence[Client]) -> Self:
        """Returns the shard of a process that has all clients."""
        roster = as_client_set(clients)
        objectives = sum(problem.objective is not None for problem in roster.problems)
        problems = {id(problem): problem for problem in roster.problems}.values()
        most_constraints = max(len(problem.constraints) for problem in problems)
        most_values = max(len(problem.equality) for problem in problems)
        widths = most_constraints, most_values
        return cls(range(len(clients)), roster.sizes, max(objectives, 1), widths)

    @property
    def n_clients(self) -> int:
        """Number of clients of the run."""
        return len(self.all_sizes)

    @cached_property
    def ids(self) -> Tensor:
        """`numbers` as a tensor, `[n_local]`."""
        return torch.tensor(np.asarray(self.numbers, dtype=np.int64))

    @cached_property
    def sizes(self) -> Tensor:
        """Public sizes of this process's clients, `[n_local]`."""
        return torch.tensor(np.asarray(self.all_sizes, dtype=np.int64))[self.ids]

    @property
    def is_whole(self) -> bool:
        """True if all clients of the run are in this process."""
        return self.ids.shape[0] == self.n_clients

    def select(self, clients: Sequence[Client]) -> Sequence[Client]:
        """Returns this process's clients. If the process has none, returns the first client, as a template of the
        model.
        """
        if len(self.numbers) == len(clients):
            return clients
        return [clients[number] for number in self.numbers] or clients[:1]

    def rows(self, cohort: Tensor) -> Tensor:
        """Returns this process's rows, ascending, that belong to clients of an ascending cohort `[k]`."""
        if self.is_whole:
            return cohort
        return self._rows_and_positions(cohort)[0]

    def positions(self, cohort: Tensor) -> Tensor:
        """Returns the positions in an ascending cohort `[k]` of the clients that are in this process, ascending."""
        if self.is_whole:
            return torch.arange(cohort.shape[0])
        return self._rows_and_positions(cohort)[1]

    def _rows_and_positions(self, cohort: Tensor) -> tuple[Tensor, Tensor]:
        """Returns rows and positions of the cohort's clients in this process. The computing time depends only on the
        size of the cohort.
        """
        rows = torch.searchsorted(self.ids, cohort).clamp_max(max(len(self.ids) - 1, 0))
        if len(self.ids):
            positions = (self.ids[rows] == cohort).nonzero()[:, 0]
        else:
            positions = rows[:0]
        return rows[positions], positions
