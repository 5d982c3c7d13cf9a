"""The processes of a run: a communicator with the operations of torch.distributed, and the division of the run along
clients or examples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
ReduceOp = Literal["sum", "max"]


class Communicator(Protocol):
    """Collective operations over some processes, named as in torch.distributed.

    All processes make the same calls in the same order (SPMD). Every process is fully trusted.
    """

    @property
    def rank(self) -> int:
        """This process's number, from 0. Rank 0 owns the run's folder, ledger and reports."""
        ...

    @property
    def world_size(self) -> int:
        """Number of processes."""
        ...

    def all_reduce(self, tensor: Tensor, op: ReduceOp = "sum") -> Tensor:
        """Returns the sum or maximum of all ranks' tensors, entry by entry; bit-identical on every rank."""
        ...

    def broadcast(self, make: Callable[[], T]) -> T:
        """Calls `make()` on rank 0 and returns its result on every rank. An exception there is raised on every rank."""
        ...

    def broadcast_int(self, value: int) -> int:
        """Returns rank 0's `value` on every rank."""
        ...

    def all_gather_object(self, value: T) -> Sequence[T]:
        """Returns the values of all ranks, in order of rank."""
        ...

    def all_gather_bytes(self, value: bytes) -> Sequence[bytes]:
        """Returns the bytes of all ranks, in order of rank; all must have one length."""
        ...

    def gather_object(self, value: T) -> Sequence[T]:
        """Returns the values of all ranks on rank 0, and an empty sequence elsewhere."""
        ...

    def exchange(self, send: Mapping[int, Tensor], receive: Mapping[int, Tensor]) -> AbstractContextManager[None]:
        """Sends tensors to other ranks and fills those in `receive`, both by rank; complete when the context ends."""
        ...

    def raise_together(self) -> AbstractContextManager[None]:
        """Returns a context that raises on every rank if its body raises on one."""
        ...


class SingleProcess:
    """The communicator of one process: nothing is sent."""

    rank = 0
    world_size = 1

    def all_reduce(self, tensor: Tensor, op: ReduceOp = "sum") -> Tensor:
        """Returns `tensor`."""
        return tensor

    def broadcast(self, make: Callable[[], T]) -> T:
        """Returns `make()`."""
        return make()

    def broadcast_int(self, value: int) -> int:
        """Returns `value`."""
        return value

    def all_gather_object(self, value: T) -> Sequence[T]:
        """Returns `[value]`."""
        return [value]

    def all_gather_bytes(self, value: bytes) -> Sequence[bytes]:
        """Returns `[value]`."""
        return [value]

    def gather_object(self, value: T) -> Sequence[T]:
        """Returns `[value]`."""
        return [value]

    def exchange(self, send: Mapping[int, Tensor], receive: Mapping[int, Tensor]) -> AbstractContextManager[None]:
        """Does nothing: there is no other rank."""
        return nullcontext()

    def raise_together(self) -> AbstractContextManager[None]:
        """Does nothing: there is no other rank."""
        return nullcontext()


@dataclass(frozen=True)
class Mesh:
    """The processes of a run, as torch's DeviceMesh: one dimension splits the clients, the other their examples.

    At most one of the two dimensions has more than one process.

    Args:
        world: All processes of the run.
        clients: The processes among which clients are split; a single one if every process holds all clients.
        examples: The processes among which the examples of a batch are split; a single one if they are not.
    """

    world: Communicator = field(default_factory=SingleProcess)
    clients: Communicator = field(default_factory=SingleProcess)
    examples: Communicator = field(default_factory=SingleProcess)

    @property
    def is_main(self) -> bool:
        """True on rank 0, which owns the run's folder, ledger and reports."""
        return self.world.rank == 0

    def sum_clients(self, rows: Tensor) -> Tensor:
        """Returns the sum of the rows of all clients, `[k, dim] -> [1, dim]`."""
        return self.clients.all_reduce(rows.sum(0, keepdim=True))

    def max_clients(self, number: float) -> float:
        """Returns the largest of the numbers of the processes that split the clients."""
        return float(self.clients.all_reduce(torch.tensor([number], dtype=torch.float64), "max"))
