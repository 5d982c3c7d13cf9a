"""Where a run's clients are: all in this process, or some of them; and what its processes tell each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from fedpriv.clients.batch import Batch
from fedpriv.clients.part import Part
from fedpriv.engines.local import Progress, RoundNetwork
from fedpriv.privacy.ledger import Ledger, Witness

T = TypeVar("T")


class Place(Protocol):
    """One of the processes of a run. All of them call the same methods in the same order."""

    @property
    def leads(self) -> bool:
        """Whether this is the one process that has the run's folder, plans and reports."""
        ...

    @property
    def size(self) -> int:
        """Number of processes."""
        ...

    @property
    def stream(self) -> int:
        """Number of this process's own random draws of torch, as in dropout."""
        ...

    def device(self, found: torch.device) -> torch.device:
        """The device of this process, where the settings have `found` one."""
        ...

    def part(self, whole: Part) -> Part:
        """The clients that are here."""
        ...

    def network(self, whole: RoundNetwork, part: Part) -> RoundNetwork:
        """The network as it is seen from here: rows are those of the clients that are here."""
        ...

    def agree(self, data: Callable[[], Sequence[Sequence[bytes]]]) -> None:
        """Refuse other examples than other processes have, where they have to be the same."""
        ...

    def own(self, batch: Batch) -> Batch:
        """The examples of a batch that are worked on here."""
        ...

    def summed(self, sums: Tensor) -> Tensor:
        """Sums over examples, of the processes that worked on them."""
        ...

    def total(self, rows: Tensor) -> Tensor:
        """Sum of the rows of all processes, `[k, dim] -> [1, dim]`."""
        ...

    def largest(self, number: float) -> float:
        """Largest of the numbers that the processes have."""
        ...

    def told(self, make: Callable[[], T]) -> T:
        """What the process that leads makes; the others are told. An error there is one in all."""
        ...

    def all(self, own: T) -> Sequence[T]:
        """What each process has."""
        ...

    def together(self) -> AbstractContextManager[None]:
        """A context, of setting a run up, that fails in all processes where it fails in one."""
        ...

    def ledger(self, make: Callable[[], Ledger], digest_key: bytes | None) -> Ledger | Witness:
        """What opens releases here: `make()` where the ledger is written."""
        ...

    def rows(self, rows: Tensor, part: Part) -> Tensor:
        """Rows of all clients, `[n, dim]`, or one for all, where this process leads; else its own."""
        ...

    def whole(self, progress: Progress, part: Part) -> Progress:
        """The progress of all clients where this process leads; else its own."""
        ...

    def share(self, progress: Progress, part: Part) -> Progress:
        """The progress of the clients that are here, from that of all."""
        ...


class EveryClient:
    """What a `Place` says where all clients are in the process."""

    def part(self, whole: Part) -> Part:
        """See `Place`."""
        return whole

    def network(self, whole: RoundNetwork, part: Part) -> RoundNetwork:
        """See `Place`."""
        return whole

    def total(self, rows: Tensor) -> Tensor:
        """See `Place`."""
        return rows.sum(0, keepdim=True)

    def largest(self, number: float) -> float:
        """See `Place`."""
        return number

    def rows(self, rows: Tensor, part: Part) -> Tensor:
        """See `Place`."""
        return rows

    def whole(self, progress: Progress, part: Part) -> Progress:
        """See `Place`."""
        return progress

    def share(self, progress: Progress, part: Part) -> Progress:
        """See `Place`."""
        return progress


class EveryExample:
    """What a `Place` says where a client's examples are in one process."""

    def agree(self, data: Callable[[], Sequence[Sequence[bytes]]]) -> None:
        """See `Place`."""

    def own(self, batch: Batch) -> Batch:
        """See `Place`."""
        return batch

    def summed(self, sums: Tensor) -> Tensor:
        """See `Place`."""
        return sums


class Here(EveryClient, EveryExample):
    """All clients are in this process.

    Args:
        timeout: Not needed: there is nobody to wait for.
    """

    leads, size, stream = True, 1, 0

    def __init__(self, timeout: float = 0.0) -> None:
        """Nothing to prepare."""

    def device(self, found: torch.device) -> torch.device:
        """See `Place`."""
        return found

    def told(self, make: Callable[[], T]) -> T:
        """See `Place`."""
        return make()

    def all(self, own: T) -> Sequence[T]:
        """See `Place`."""
        return [own]

    def together(self) -> AbstractContextManager[None]:
        """See `Place`."""
        return nullcontext()

    def ledger(self, make: Callable[[], Ledger], digest_key: bytes | None) -> Ledger | Witness:
        """See `Place`."""
        return make()
