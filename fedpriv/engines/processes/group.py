"""The processes of a run, as torch.distributed connects them: sums of tensors, and facts that all are told.

Everybody in the group is trusted with everything: rows, the secret seed, sums before their noise. Connections are not
encrypted, and whoever reaches their ports can take part: one machine, or a network of one's own.
"""

from __future__ import annotations

import atexit
import os
import pickle
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from fedpriv.errors import ConfigError, FedprivError, ProcessError, in_short

T = TypeVar("T")
_INLINE = 2**16  # bytes of what is told with the news that it was made
_STORES: list[Store] = []  # where processes that this module brought together leave notes for each other
_TOLD = "(the other processes of the run were told)"
Failure = tuple[int, str]
"""Rank and words."""


class Group:
    """Some or all processes of torch.distributed's default group.

    Every call is made by all of them, in the same order. One that waits longer than the timeout fails.

    Args:
        handle: The group; None is the default one.
        timeout: Seconds, for errors.
    """

    def __init__(self, handle: dist.ProcessGroup | None, timeout: float) -> None:
        self._handle, self._timeout = handle, timeout
        self.rank, self.size = dist.get_rank(handle), dist.get_world_size(handle)
        world = range(self.size) if handle is None else dist.get_process_group_ranks(handle)
        self._ranks, self._first = list(world), world[0]

    def sum(self, values: Tensor) -> Tensor:
        """Sum of everybody's tensors, which have one shape; the same in all processes, to the last bit."""
        return self._reduced(values, dist.ReduceOp.SUM)

    def largest(self, values: Tensor) -> Tensor:
        """Largest entry, place by place."""
        return self._reduced(values, dist.ReduceOp.MAX)

    def _reduced(self, values: Tensor, operation: Any) -> Tensor:  # noqa: ANN401 - an enumeration that is not typed
        found = values.detach().clone(memory_format=torch.contiguous_format)
        with self._waiting():
            dist.all_reduce(found, operation, self._handle)
        return found

    @contextmanager
    def swapping(self, send: Mapping[int, Tensor], receive: Mapping[int, Tensor]) -> Generator[None]:
        """Send tensors to other processes by rank, and fill those that come from others: done when the context ends.

        Only processes that have something for each other take part, and each knows of what shape it is.
        """
        both = ((dist.irecv, receive), (dist.isend, send))
        calls = [
            dist.P2POp(call, tensor, self._ranks[rank], self._handle)
            for call, tensors in both
            for rank, tensor in tensors.items()
        ]
        with self._waiting():
            works = dist.batch_isend_irecv(calls) if calls else []
        yield
        with self._waiting():
            for work in works:
                work.wait()

    def all_bytes(self, own: bytes) -> list[bytes]:
        """Everybody's bytes, of one length."""
        mine = torch.frombuffer(bytearray(own), dtype=torch.uint8)
        found = [torch.empty_like(mine) for _ in range(self.size)]
        with self._waiting():
            dist.all_gather(found, mine, self._handle)
        return [part.numpy().tobytes() for part in found]

    def number(self, own: int) -> int:
        """The first process's number."""
        found = torch.tensor([own])
        with self._waiting():
            dist.broadcast(found, self._first, self._handle)
        return int(found)

    def all(self, own: T) -> list[T]:
        """Everybody's value.

        Raises:
            ProcessError: another process failed before it came here, and says why.
        """
        return [cast("T", value) for value in self._exchanged((None, own))]

    def told(self, make: Callable[[], T]) -> T:
        """What the first process makes, and tells the others.

        Raises:
            ProcessError: it failed there, or another process before it came here.
        """
        if self.rank:
            return self._heard()
        with self._failing():
            value = make()
            data = _pickled(value)
        inline = data if len(data) <= _INLINE else None
        self._exchanged((None, inline))
        if inline is None:
            with self._waiting():
                dist.broadcast_object_list([data], self._first, self._handle)
        return value

    def _heard(self) -> Any:  # noqa: ANN401 - what the first process makes
        data = self._exchanged((None, None))[0]
        if data is None:
            found: list[Any] = [None]
            with self._waiting():
                dist.broadcast_object_list(found, self._first, self._handle)
            (data,) = found
        return pickle.loads(data)

    def gathered(self, own: T) -> list[T]:
        """Everybody's value, in the first process; empty elsewhere."""
        found: list[Any] = [None] * self.size
        with self._waiting():
            dist.gather_object(own, found if self.rank == 0 else None, self._first, self._handle)
        return found if self.rank == 0 else []

    @contextmanager
    def together(self) -> Generator[None]:
        """A context that fails in all processes where it fails in one. Only `all` and `told` are called in it."""
        with self._failing():
            yield
        self._exchanged((None, None))

    @contextmanager
    def _failing(self) -> Generator[None]:
        """Tell the others, who wait for what comes next, of an error that they do not know yet."""
        try:
            yield
        except ProcessError:
            raise
        except Exception as error:
            if _TOLD not in getattr(error, "__notes__", ()):
                error.add_note(_TOLD)
                text = str(error) if isinstance(error, FedprivError) else in_short(error)
                if isinstance(error, FedprivError):
                    error.told_elsewhere = self.rank != 0
                self._tell((self.rank, text))
            raise

    def _tell(self, failure: Failure) -> None:
        with self._waiting():
            dist.all_gather_object([None] * self.size, (failure, None), self._handle)

    def _exchanged(self, own: tuple[Failure | None, Any]) -> Sequence[Any]:
        found: list[Any] = [None] * self.size
        with self._waiting():
            dist.all_gather_object(found, own, self._handle)
        failures: list[Failure] = [failure for failure, _ in found if failure is not None]
        if failures:
            rank, text = failures[0]
            error = ProcessError(text if rank == 0 else f"process {rank}: {text}")
            error.told_elsewhere = self.rank != 0
            raise error
        return [value for _, value in found]

    @contextmanager
    def _waiting(self) -> Generator[None]:
        try:
            yield
        except (RuntimeError, ValueError) as error:  # what torch raises differs from backend to backend
            told = f"process {self.rank} of {self.size} lost another one, which ended or gave no answer"
            fix = "see what that one says; then go on with: fedpriv resume RUN"
            raise ProcessError(f"{told} for {self._timeout:g} s ({in_short(error)}); {fix}") from error


def _pickled(value: object) -> bytes:
    try:
        return pickle.dumps(value)
    except Exception as error:  # whatever a user's class raises
        fix = "a part of the settings cannot be sent to the other processes; define it at the top of a module"
        raise FedprivError(f"{fix} ({in_short(error)})") from error


@cache
def joined(timeout: float) -> Group:
    """The group of all processes that torchrun started, or of a default group that the caller has made.

    Args:
        timeout: Seconds after which a process that waits for another one gives up.

    Raises:
        ConfigError: torchrun did not start this process.
        ProcessError: the others do not come.
    """
    wait = timedelta(seconds=timeout)
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    if dist.is_initialized():
        return Group(cast("dist.ProcessGroup", dist.new_group(timeout=wait, backend=backend)), timeout)
    if not dist.is_torchelastic_launched():
        fix = "is for processes that torchrun starts: fedpriv train CONFIG --processes 2, or torchrun -m fedpriv train"
        raise ConfigError("compute.engine", "processes", fix)
    try:
        store, rank, size = next(iter(rendezvous("env://", timeout=wait)))
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=wait)
    except (RuntimeError, ValueError) as error:
        fix = "start all of them, on machines that reach each other"
        raise ProcessError(f"not all processes of the run came together ({in_short(error)}); {fix}") from error
    _STORES.append(store)
    atexit.register(_leave)
    return Group(None, timeout)


def _leave() -> None:
    """Stop the group's threads while Python still runs: one that lets go of a tensor later aborts the process."""
    if dist.is_initialized():
        dist.destroy_process_group()


def first_to_tell(*, default: bool) -> bool:
    """Whether no other process of the run has told the user of an error; `default` before they have met."""
    if not _STORES:
        return default
    try:
        return _STORES[0].add("fedpriv/errors told", 1) == 1
    except RuntimeError:  # what started the processes is gone, and so may the others be
        return True


def local_rank() -> int:
    """Number of this process on its machine."""
    return int(os.environ.get("LOCAL_RANK", "0"))
