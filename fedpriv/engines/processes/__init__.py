"""One organisation's processes, each with some of a run's clients: torch.distributed, as torchrun starts it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor

from fedpriv.clients.part import Part
from fedpriv.engines.local import Progress, RoundNetwork
from fedpriv.engines.place import EveryExample
from fedpriv.engines.processes.graph import SharedGraph
from fedpriv.engines.processes.group import Group, joined, local_rank
from fedpriv.engines.processes.rows import gathered, gathered_rows, of_part
from fedpriv.engines.processes.star import SharedStar
from fedpriv.errors import BudgetExhausted, ConfigError, FedprivError, PrivacyError, ProcessError
from fedpriv.network.graph import Graph
from fedpriv.network.local import Star, sum_of
from fedpriv.privacy.ledger import Ledger, Witness
from fedpriv.privacy.record import Record

T = TypeVar("T")
_DONE, _EXHAUSTED, _FAILED = range(3)


class Processes(EveryExample):
    """One of the processes of a run.

    Args:
        timeout: Seconds after which a process that waits for another one gives up.
        group: The processes; by default all that torchrun started.
    """

    _alike = False  # whether all of them have the same rows

    def __init__(self, timeout: float, group: Group | None = None) -> None:
        self._group = group or joined(timeout)
        self.leads, self.size, self.stream = self._group.rank == 0, self._group.size, self._group.rank
        self.together: Callable[[], AbstractContextManager[None]] = self._group.together

    def device(self, found: torch.device) -> torch.device:
        """A GPU of its own for each process of a machine, where the settings name no number."""
        if str(found) != "cuda":
            return found
        own = torch.device("cuda", local_rank() % torch.cuda.device_count())
        torch.cuda.set_device(own)
        return own

    def part(self, whole: Part) -> Part:
        """Consecutive clients, two or more for each process that has any, the first ones one more than the last."""
        return replace(whole, numbers=shares(whole.n_clients, self.size)[self._group.rank])

    def network(self, whole: RoundNetwork, part: Part) -> RoundNetwork:
        """The network as it is seen from here.

        Raises:
            ConfigError: it is neither a star nor a graph.
        """
        if isinstance(whole, Star):
            return SharedStar(whole, part, self._group)
        if isinstance(whole, Graph):
            return SharedGraph(whole, part, shares(whole.n_clients, self.size), self._group)
        fix = "only a star or a graph can be shared by processes: train in one process"
        raise ConfigError("network", type(whole).__name__, fix)

    def total(self, rows: Tensor) -> Tensor:
        """See `Place`."""
        return self._group.sum(sum_of(rows))

    def largest(self, number: float) -> float:
        """See `Place`."""
        return float(self._group.largest(torch.tensor([number], dtype=torch.float64)))

    def told(self, make: Callable[[], T]) -> T:
        """See `Place`."""
        return self._group.told(make)

    def all(self, own: T) -> Sequence[T]:
        """See `Place`."""
        return self._group.all(own)

    def ledger(self, make: Callable[[], Ledger], digest_key: bytes | None) -> Ledger | Witness:
        """See `Place`."""
        if not self.leads:
            return Witness(self, digest_key)
        ledger = make()
        ledger.together = self
        return ledger

    def rows(self, rows: Tensor, part: Part) -> Tensor:
        """See `Place`."""
        return gathered_rows(rows, part, self._group)

    def whole(self, progress: Progress, part: Part) -> Progress:
        """See `Place`."""
        return gathered(progress, part, self._group)

    def share(self, progress: Progress, part: Part) -> Progress:
        """See `Place`."""
        return of_part(progress, part)

    def enter(self, record: Record, write: Callable[[Record], None]) -> None:
        """Compare the releases of all processes; the first one writes the record, and tells the others that it has.

        The checksum is one of all processes' checksums, in their order. See `fedpriv.privacy.ledger.Together`.
        """
        own = bytes.fromhex(record.digest or "")
        same = hashlib.blake2b(repr(replace(record, digest=None)).encode(), digest_size=8).digest()
        found = self._group.all_bytes(same + own)
        if len({facts if self._alike else facts[: len(same)] for facts in found}) > 1:
            fix = "processes ask different questions or price them differently: a fault of the strategy"
            raise PrivacyError(f"round {record.round}, {record.query}: {fix}; train in one process")
        if record.digest is not None:
            both = b"".join(facts[len(same) :] for facts in found)
            record = replace(record, digest=hashlib.blake2b(both, digest_size=8).hexdigest())
        if self.leads:
            self._write(record, write)
            return
        heard = self._group.number(_DONE)
        if heard == _EXHAUSTED:
            raise BudgetExhausted(f"round {record.round} would pass the target epsilon")
        if heard == _FAILED:
            error = ProcessError(f"process 0 did not release round {record.round}, {record.query}; it says why")
            error.told_elsewhere = True
            raise error

    def _write(self, record: Record, write: Callable[[Record], None]) -> None:
        try:
            write(record)
        except BudgetExhausted:
            self._group.number(_EXHAUSTED)
            raise
        except FedprivError:
            self._group.number(_FAILED)
            raise
        self._group.number(_DONE)


def shares(n_clients: int, size: int) -> list[range]:
    """The clients of each of `size` processes.

    >>> shares(7, 3), shares(5, 3)
    ([range(0, 3), range(3, 5), range(5, 7)], [range(0, 3), range(3, 5), range(5, 5)])
    """
    working = max(min(size, n_clients // 2), 1)
    each, more = divmod(n_clients, working)
    ends = [min(rank, working) * each + min(rank, more) for rank in range(size + 1)]
    return [range(start, stop) for start, stop in pairwise(ends)]
