"""A star with clients in several processes. Each process computes the server's part from the same numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from fedpriv.clients.shard import ClientShard
from fedpriv.distributed.devices import move_to_device
from fedpriv.distributed.mesh import Communicator
from fedpriv.network.local import Star, sum_replicated_rows
from fedpriv.randomness.streams import Randomness


class ShardedStar(Star):
    """The part of a star in one process. Rows belong to the clients of this process; sums and maxima are over all
    processes.

    Cohorts are drawn from the public seed, so each process draws them all.

    Args:
        whole: The network of all clients.
        shard: The clients of this process. A process without clients has one placeholder row, which is left out of all
            sums.
        communicator: The processes among which the clients are split.
    """

    def __init__(self, whole: Star, shard: ClientShard, communicator: Communicator) -> None:
        super().__init__(whole.n_clients, whole.cohort)
        self._shard = shard
        self._communicator = communicator
        self._n_rows = max(len(shard.ids), 1)
        self._rows = self._drawn

    def participants(self, round_index: int, randomness: Randomness) -> Tensor:
        """Draws and returns the participants of all processes, sorted, `[k]`."""
        cohort = super().participants(round_index, randomness)
        self._rows = self._shard.rows(cohort)
        return cohort

    def local_positions(self, cohort: Tensor, like: Tensor) -> Tensor:
        """Returns the positions of the cohort's clients among the rows in this process."""
        (self._rows,) = move_to_device(like.device, self._shard.rows(cohort))
        return self._rows

    def total(self, rows: Tensor) -> Tensor:
        """Returns the sum over all processes, `[k, dim] -> [1, dim]`."""
        return self._communicator.all_reduce(sum_replicated_rows(self._without_placeholder(rows)))

    def largest(self, rows: Tensor) -> Tensor:
        """Returns the largest entry of each column in all processes: `[k, dim] -> [1, dim]`."""
        local = self._without_placeholder(rows)
        lowest = local.new_full((1, local.shape[1]), -torch.inf)
        return self._communicator.all_reduce(torch.cat([lowest, local]).amax(0, keepdim=True), "max")

    def mean(self, rows: Tensor) -> Tensor:
        """Returns the sum over all participants divided by their expected number, `[k, dim] -> [n, dim]`."""
        self._count(rows)
        return self.scatter(self.total(rows) / self.cohort.expected(self.n_clients))

    def mix(self, rows: Tensor) -> Tensor:
        """Returns the mean over all participants for each participant, `[k, dim] -> [k, dim]`."""
        self._count(rows)
        return (self.total(rows) / len(self._drawn)).expand_as(rows)

    def replace_rows(self, rows: Tensor, others: Tensor) -> Tensor:
        """Returns `others` with the participants' rows replaced: `[k, dim], [n, dim] -> [n, dim]`."""
        if len(rows) == len(others):
            return rows
        return others.index_copy(0, self._rows.to(others.device), rows)

    def gather(self, rows: Tensor) -> Tensor:
        """Returns this process's rows unchanged: each process keeps the rows of its clients."""
        self._count(rows)
        return rows

    def scatter(self, row: Tensor) -> Tensor:
        """Returns the row for all clients of this process: `[1, dim] -> [n, dim]`."""
        return row.expand(self._n_rows, -1)

    def _count(self, rows: Tensor) -> None:
        self.numbers_sent += len(self._drawn) * rows.shape[1]

    def _without_placeholder(self, rows: Tensor) -> Tensor:
        """Returns the rows without the placeholder of a process that has no clients."""
        return rows[: len(self._shard.ids)]
