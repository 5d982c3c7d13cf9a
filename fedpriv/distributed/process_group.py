"""The processes of a run over torch.distributed.

Every process of the group is fully trusted: it can read rows, the secret of the noise, and sums before noise is added.
Connections are not encrypted, and any program that reaches the ports can take part. Use one machine, or a private
network.
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

from fedpriv.distributed.mesh import ReduceOp
from fedpriv.errors import ConfigError, FedprivError, ProcessError, summarize_error

T = TypeVar("T")
_REDUCE_OPS: dict[ReduceOp, Any] = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}
_MAX_INLINE_BYTES = 2**16  # a broadcast value up to this size travels with the message that it was made
_STORES: list[Store] = []  # of the default group, when this module made it: marks the reporter of an error
_SENT_NOTE = "(the other processes of the run were notified)"
Failure = tuple[int, str]
"""Rank and message of an exception."""


class ProcessGroup:
    """A `Communicator` over a group of torch.distributed.

    Each exchange of objects transmits a value or an exception. So an exception on one rank reaches the other ranks at
    their next exchange, and they do not wait forever.

    Args:
        handle: The group; None is torch.distributed's default group.
        timeout: Seconds after which a waiting process raises an error, which contains this number.
    """

    def __init__(self, handle: dist.ProcessGroup | None, timeout: float) -> None:
        self._handle = handle
        self._timeout = timeout
        self.rank = dist.get_rank(handle)
        self.world_size = dist.get_world_size(handle)
        if handle is None:
            self._global_ranks = list(range(self.world_size))
        else:
            self._global_ranks = dist.get_process_group_ranks(handle)
        self._leader = self._global_ranks[0]  # the default group's number of this group's rank 0

    def all_reduce(self, tensor: Tensor, op: ReduceOp = "sum") -> Tensor:
        """Returns the sum or maximum of all ranks' tensors, entry by entry; bit-identical on every rank."""
        reduced = tensor.detach().clone(memory_format=torch.contiguous_format)
        with self._lost_peer_as_error():
            dist.all_reduce(reduced, _REDUCE_OPS[op], self._handle)
        return reduced

    @contextmanager
    def exchange(self, send: Mapping[int, Tensor], receive: Mapping[int, Tensor]) -> Generator[None]:
        """Sends tensors to other ranks and fills those in `receive`, both by rank; complete when the context ends.

        Only ranks that have tensors for each other take part. Sender and receiver must know the shapes.
        """
        operations = [
            dist.P2POp(call, tensor, self._global_ranks[rank], self._handle)
            for call, tensors in ((dist.irecv, receive), (dist.isend, send))
            for rank, tensor in tensors.items()
        ]
        with self._lost_peer_as_error():
            if operations:
                pending = dist.batch_isend_irecv(operations)
            else:
                pending = []
        yield
        with self._lost_peer_as_error():
            for work in pending:
                work.wait()

    def all_gather_bytes(self, value: bytes) -> list[bytes]:
        """Returns the bytes of all ranks, in order of rank; all must have one length."""
        sent = torch.frombuffer(bytearray(value), dtype=torch.uint8)
        received = [torch.empty_like(sent) for _ in range(self.world_size)]
        with self._lost_peer_as_error():
            dist.all_gather(received, sent, self._handle)
        return [tensor.numpy().tobytes() for tensor in received]

    def broadcast_int(self, value: int) -> int:
        """Returns rank 0's `value` on every rank."""
        tensor = torch.tensor([value])
        with self._lost_peer_as_error():
            dist.broadcast(tensor, self._leader, self._handle)
        return int(tensor)

    def all_gather_object(self, value: T) -> list[T]:
        """Returns the values of all ranks, in order of rank.

        Raises:
            ProcessError: If another rank failed before; the message is from that rank.
        """
        return [cast("T", received) for received in self._exchange_or_raise(None, value)]

    def broadcast(self, make: Callable[[], T]) -> T:
        """Calls `make()` on rank 0 and returns its result on every rank.

        Raises:
            ProcessError: If rank 0 failed in `make`, or another rank failed before this call.
        """
        if self.rank != 0:
            return self._receive_broadcast()
        with self._report_failure():
            value = make()
            data = _pickled(value)
        if len(data) <= _MAX_INLINE_BYTES:
            inline = data
        else:
            inline = None
        self._exchange_or_raise(None, inline)
        if inline is None:
            with self._lost_peer_as_error():
                dist.broadcast_object_list([data], self._leader, self._handle)
        return value

    def _receive_broadcast(self) -> Any:  # noqa: ANN401 - what rank 0 makes
        data = self._exchange_or_raise(None, None)[0]
        if data is None:
            received: list[Any] = [None]
            with self._lost_peer_as_error():
                dist.broadcast_object_list(received, self._leader, self._handle)
            data = received[0]
        return pickle.loads(data)

    def gather_object(self, value: T) -> list[T]:
        """Returns the values of all ranks on rank 0, and an empty list elsewhere."""
        received: list[Any] = [None] * self.world_size
        with self._lost_peer_as_error():
            dist.gather_object(value, received if self.rank == 0 else None, self._leader, self._handle)
        if self.rank == 0:
            return received
        return []

    @contextmanager
    def raise_together(self) -> Generator[None]:
        """Raises an error on every rank if the body raises one on any rank. The body may call only `broadcast` and
        `all_gather_object`.
        """
        with self._report_failure():
            yield
        self._exchange_or_raise(None, None)

    @contextmanager
    def _report_failure(self) -> Generator[None]:
        """Sends an exception of the body to the other ranks, which wait in their next exchange, and re-raises it."""
        try:
            yield
        except ProcessError:
            raise
        except Exception as error:
            if _SENT_NOTE not in getattr(error, "__notes__", ()):
                error.add_note(_SENT_NOTE)
                message = summarize_error(error)
                if isinstance(error, FedprivError):
                    message = str(error)
                    error.reported_elsewhere = self.rank != 0
                self._send_failure((self.rank, message))
            raise

    def _send_failure(self, failure: Failure) -> None:
        with self._lost_peer_as_error():
            dist.all_gather_object([None] * self.world_size, (failure, None), self._handle)

    def _exchange_or_raise(self, failure: Failure | None, value: object) -> Sequence[Any]:
        """Returns the values of all ranks, or raises the first rank's failure."""
        received: list[Any] = [None] * self.world_size
        with self._lost_peer_as_error():
            dist.all_gather_object(received, (failure, value), self._handle)
        failures: list[Failure] = [failure for failure, _ in received if failure is not None]
        if failures:
            rank, message = failures[0]
            error = ProcessError(message if rank == 0 else f"process {rank}: {message}")
            error.reported_elsewhere = self.rank != 0
            raise error
        return [value for _, value in received]

    @contextmanager
    def _lost_peer_as_error(self) -> Generator[None]:
        """Turns torch's errors about a lost process, which differ between backends, into a ProcessError."""
        try:
            yield
        except (RuntimeError, ValueError) as error:
            lost = f"process {self.rank} of {self.world_size} lost another process, which ended or does not respond"
            fix = "see the error of that process; then resume with: fedpriv resume RUN"
            raise ProcessError(f"{lost} for {self._timeout:g} s ({summarize_error(error)}); {fix}") from error


def _pickled(value: object) -> bytes:
    try:
        return pickle.dumps(value)
    except Exception as error:  # a user's class can raise anything
        fix = (
            "an object cannot be sent to the other processes of the run; define its class or function at the top of "
            "a module"
        )
        raise FedprivError(f"{fix} ({summarize_error(error)})") from error


@cache
def join_processes(timeout: float, parallelism: str) -> ProcessGroup:
    """Joins all processes that torchrun started, or the default group of the caller.

    Args:
        timeout: Seconds after which a process that waits for another one raises an error.
        parallelism: The setting that needs the processes, for errors.

    Raises:
        ConfigError: If torchrun did not start this process.
        ProcessError: If the other processes do not join.
    """
    wait = timedelta(seconds=timeout)
    if torch.cuda.is_available() and dist.is_nccl_available():
        backend = "cpu:gloo,cuda:nccl"
    else:
        backend = "gloo"
    if dist.is_initialized():
        return ProcessGroup(cast("dist.ProcessGroup", dist.new_group(timeout=wait, backend=backend)), timeout)
    if not dist.is_torchelastic_launched():
        fix = (
            "needs processes that torchrun started: use fedpriv train CONFIG --processes 2, or torchrun -m fedpriv "
            "train"
        )
        raise ConfigError("compute.parallelism", parallelism, fix)
    try:
        store, rank, size = next(iter(rendezvous("env://", timeout=wait)))
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=wait)
    except (RuntimeError, ValueError) as error:
        fix = "start all processes, on machines that can reach each other"
        raise ProcessError(f"not all processes of the run connected ({summarize_error(error)}); {fix}") from error
    _STORES.append(store)
    atexit.register(_destroy_group)
    return ProcessGroup(None, timeout)


def _destroy_group() -> None:
    """Stops the group's threads while Python still runs, because a thread that frees a tensor later would abort the
    process.
    """
    if dist.is_initialized():
        dist.destroy_process_group()


def is_first_to_report(*, default: bool) -> bool:
    """True if no other process of the run has reported an error yet; `default` if the processes have not joined."""
    if not _STORES:
        return default
    try:
        return _STORES[0].add("fedpriv/errors told", 1) == 1
    except RuntimeError:  # the launcher of the processes is gone, and the others may be, too
        return True


def local_rank() -> int:
    """Returns this process's number on its machine, as torchrun sets it."""
    return int(os.environ.get("LOCAL_RANK", "0"))
