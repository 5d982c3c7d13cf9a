"""Processes that have all clients each, and share the examples: for few clients with large batches."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TypeVar

from torch import Tensor

from fedpriv.clients.batch import Batch
from fedpriv.engines.place import EveryClient
from fedpriv.engines.processes import Processes
from fedpriv.errors import ConfigError

T = TypeVar("T")


class SharedExamples(EveryClient, Processes):
    """One of the processes of a run, each of which sums the gradients of its part of every batch.

    Batches, noise, rows and the server are the same in all of them, to the last bit; so are the examples that they
    have read, or an example could be in the parts of two.
    """

    _alike = True

    def agree(self, data: Callable[[], Sequence[Sequence[bytes]]]) -> None:
        """Refuse other examples, or another order, than other processes have.

        Raises:
            ConfigError: they have.
        """
        own = hashlib.blake2b(repr(data()).encode(), digest_size=32).digest()
        if len({*self._group.all_bytes(own)}) > 1:
            fix = "every process must read the same examples in the same order: leave out shuffling"
            raise ConfigError("compute.engine", "examples", f"{fix}, or take processes")

    def own(self, batch: Batch) -> Batch:
        """Each in turn, so that all work on as many: padding is at the end of a row."""
        return batch.every(self._group.rank, self._group.size)

    def summed(self, sums: Tensor) -> Tensor:
        """See `Place`."""
        return self._group.sum(sums)

    def all(self, own: T) -> Sequence[T]:
        """What one of them has, since all have the same; it still fails in all where one has failed."""
        return super().all(own)[:1]
