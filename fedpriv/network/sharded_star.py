"""A star whose clients are in several processes, each of which plays the server, on the same numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from fedpriv.clients.shard import ClientShard
from fedpriv.distributed.devices import moved
from fedpriv.distributed.mesh import Communicator
from fedpriv.network.local import Star, sum_of
from fedpriv.randomness.streams import Randomness


class ShardedStar(Star):
    """A star as one of its processes sees it: rows are of clients here, and sums and maxima are over all processes.

    Cohorts are drawn from the public seed, so each process draws them all.

    Args:
        whole: The network of all clients.
        part: The clients that are here. Where there are none, one row stands for what they would hear: it counts
            nowhere.
        communicator: The processes among which the clients are split.
    """

    def __init__(self, whole: Star, part: ClientShard, communicator: Communicator) -> None:
        super().__init__(whole.n_clients, whole.cohort)
        self._part, self._communicator = part, communicator
        self._held, self._rows = max(len(part.ids), 1), self._drawn

    def participants(self, round_index: int, randomness: Randomness) -> Tensor:
        """Those of all processes, sorted, `[k]`."""
        found = super().participants(round_index, randomness)
        self._rows = self._part.rows(found)
        return found

    def here(self, cohort: Tensor, like: Tensor) -> Tensor:
        """Rows of those that are here."""
        (self._rows,) = moved(like.device, self._part.rows(cohort))
        return self._rows

    def total(self, rows: Tensor) -> Tensor:
        """Sum over all processes, `[k, dim] -> [1, dim]`."""
        return self._communicator.all_reduce(sum_of(self._own(rows)))

    def largest(self, rows: Tensor) -> Tensor:
        """Largest entry of each column in all processes: `[k, dim] -> [1, dim]`."""
        own = self._own(rows)
        lowest = own.new_full((1, own.shape[1]), -torch.inf)
        return self._communicator.all_reduce(torch.cat([lowest, own]).amax(0, keepdim=True), "max")

    def mean(self, rows: Tensor) -> Tensor:
        """Sum over all participants divided by their expected number: `[k, dim] -> [n, dim]`."""
        self._count(rows)
        return self.scatter(self.total(rows) / self.cohort.expected(self.n_clients))

    def mix(self, rows: Tensor) -> Tensor:
        """Each participant gets the mean over all participants, `[k, dim] -> [k, dim]`."""
        self._count(rows)
        return (self.total(rows) / len(self._drawn)).expand_as(rows)

    def fill(self, rows: Tensor, others: Tensor) -> Tensor:
        """The participants' rows, and those of `others` for the rest: `[k, dim], [n, dim] -> [n, dim]`."""
        if len(rows) == len(others):
            return rows
        return others.index_copy(0, self._rows.to(others.device), rows)

    def gather(self, rows: Tensor) -> Tensor:
        """Rows stay where they are."""
        self._count(rows)
        return rows

    def scatter(self, row: Tensor) -> Tensor:
        """The row for everyone here: `[1, dim] -> [n, dim]`."""
        return row.expand(self._held, -1)

    def _count(self, rows: Tensor) -> None:
        self.numbers_sent += len(self._drawn) * rows.shape[1]

    def _own(self, rows: Tensor) -> Tensor:
        """Without the row of a process that has no clients."""
        return rows[: len(self._part.ids)]
