"""Splits a run over processes: the clients and state of each process, and one ledger for all processes.

Functions take the values of all clients and return this process's shard, or gather the shards on rank 0. In a run
with one process they return their argument unchanged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from fedpriv.clients.shard import ClientShard
from fedpriv.distributed.mesh import Communicator, Mesh
from fedpriv.distributed.process_group import ProcessGroup, join_processes, local_rank
from fedpriv.errors import BudgetExhausted, ConfigError, FedprivError, PrivacyError, ProcessError
from fedpriv.network import gathering
from fedpriv.network.graph import Graph
from fedpriv.network.local import Star
from fedpriv.network.rounds import RoundNetwork, TrainState
from fedpriv.network.sharded_graph import ShardedGraph
from fedpriv.network.sharded_star import ShardedStar
from fedpriv.privacy.ledger import FollowerLedger, Ledger
from fedpriv.privacy.record import Record

_WRITTEN = 0
_EXHAUSTED = 1
_FAILED = 2


def single_process(timeout: float) -> Mesh:
    """Returns the processes of a run with a single process, which has all clients."""
    return Mesh()


def split_clients(timeout: float, group: ProcessGroup | None = None) -> Mesh:
    """Returns processes among which the clients are divided.

    Args:
        timeout: Seconds after which a process that waits for another one raises.
        group: The processes; by default all that torchrun started.
    """
    group = group or join_processes(timeout, "clients")
    return Mesh(world=group, clients=group)


def split_examples(timeout: float, group: ProcessGroup | None = None) -> Mesh:
    """Returns processes that each have all clients and divide the examples of each batch among them, for few clients
    with large batches.

    Batches, noise, rows and the server's state are bit-identical in all processes. The data that the processes have
    read must be identical, too, because otherwise two processes could use the same example. See `split_clients` for the
    arguments.
    """
    group = group or join_processes(timeout, "examples")
    return Mesh(world=group, examples=group)


def local_device(device: torch.device, mesh: Mesh) -> torch.device:
    """Returns this process's device. If the setting is `cuda` without a number, each process gets a separate GPU."""
    if str(device) != "cuda" or mesh.world.world_size == 1:
        return device
    gpu = torch.device("cuda", local_rank() % torch.cuda.device_count())
    torch.cuda.set_device(gpu)
    return gpu


def split_evenly(n_clients: int, world_size: int) -> list[range]:
    """Returns the clients of each process: consecutive, and at least two for each process that has any.

    >>> split_evenly(7, 3), split_evenly(5, 3)
    ([range(0, 3), range(3, 5), range(5, 7)], [range(0, 3), range(3, 5), range(5, 5)])
    """
    working = max(min(world_size, n_clients // 2), 1)
    each, remainder = divmod(n_clients, working)
    ends = [min(rank, working) * each + min(rank, remainder) for rank in range(world_size + 1)]
    return [range(start, stop) for start, stop in pairwise(ends)]


def shard_clients(whole: ClientShard, mesh: Mesh) -> ClientShard:
    """Returns this process's clients; see `split_evenly`."""
    numbers = split_evenly(whole.n_clients, mesh.clients.world_size)[mesh.clients.rank]
    return replace(whole, numbers=numbers)


def shard_network(whole: RoundNetwork, shard: ClientShard, mesh: Mesh) -> RoundNetwork:
    """Returns the network with the rows of this process's clients.

    Raises:
        ConfigError: If the network is neither a star nor a graph.
    """
    if mesh.clients.world_size == 1:
        return whole
    if isinstance(whole, Star):
        return ShardedStar(whole, shard, mesh.clients)
    if isinstance(whole, Graph):
        return ShardedGraph(whole, shard, split_evenly(whole.n_clients, mesh.clients.world_size), mesh.clients)
    fix = "only a star or a graph can be divided among processes: train in one process"
    raise ConfigError("network", type(whole).__name__, fix)


def shard_state(progress: TrainState, shard: ClientShard, mesh: Mesh) -> TrainState:
    """Returns the state of this process's clients, from the state of all clients."""
    if mesh.clients.world_size == 1:
        return progress
    return gathering.shard_state(progress, shard)


def shard_rows(rows: Tensor, shard: ClientShard, mesh: Mesh) -> Tensor:
    """Returns the rows of this process's clients, from the rows of all clients or one row for all."""
    if mesh.clients.world_size == 1 or len(rows) == 1:
        return rows
    return rows[shard.ids if len(shard.ids) else torch.zeros(1, dtype=torch.long)]


def gather_rows(rows: Tensor, shard: ClientShard, mesh: Mesh) -> Tensor:
    """Returns the rows of all clients on rank 0, `[n, dim]` or one row for all; elsewhere this process's rows."""
    if mesh.clients.world_size == 1:
        return rows
    return gathering.gather_rows(rows, shard, mesh.clients)


def gather_state(progress: TrainState, shard: ClientShard, mesh: Mesh) -> TrainState:
    """Returns the state of all clients on rank 0; elsewhere the state of this process's clients."""
    if mesh.clients.world_size == 1:
        return progress
    return gathering.gather_state(progress, shard, mesh.clients)


def check_replicated(data: Callable[[], Sequence[Sequence[bytes]]], mesh: Mesh) -> None:
    """Checks that all processes that share the examples of a batch have read the same examples in the same order.

    Args:
        data: Returns fingerprints of every client's examples; called only if examples are shared.
        mesh: The processes.

    Raises:
        ConfigError: If the examples differ.
    """
    if mesh.examples.world_size == 1:
        return
    digest = hashlib.blake2b(repr(data()).encode(), digest_size=32).digest()
    if len({*mesh.examples.all_gather_bytes(digest)}) > 1:
        fix = "every process must read the same examples in the same order: leave out shuffling"
        raise ConfigError("compute.parallelism", "examples", f"{fix}, or use clients")


def open_ledger(make: Callable[[], Ledger], mesh: Mesh) -> Ledger | FollowerLedger:
    """Returns the object that opens releases: the ledger on rank 0, on other ranks a follower that waits for it.

    Args:
        make: Opens the ledger; called on rank 0 only.
        mesh: The processes.
    """
    if mesh.world.world_size == 1:
        return make()
    shared = SharedLedger(mesh.world)
    if not mesh.is_main:
        return FollowerLedger(shared)
    ledger = make()
    ledger.together = shared
    return ledger


@dataclass(frozen=True)
class SharedLedger:
    """Lets rank 0 record every release before any process returns the released value.

    Args:
        communicator: The processes.
    """

    communicator: Communicator

    def enter(self, record: Record, write: Callable[[Record], None]) -> None:
        """Compares the releases of all processes, then lets rank 0 write the record.

        See `fedpriv.privacy.ledger.LedgerSync`.

        Raises:
            BudgetExhausted: If the release would exceed the limit.
            PrivacyError: If the processes do not release the same query at the same cost.
            ProcessError: If rank 0 failed.
        """
        facts = hashlib.blake2b(repr(record).encode(), digest_size=8).digest()
        if len({*self.communicator.all_gather_bytes(facts)}) > 1:
            fix = (
                "the processes make different queries or account for them differently, which is a fault of the strategy"
            )
            raise PrivacyError(f"round {record.round}, {record.query}: {fix}; train in one process")
        if self.communicator.rank == 0:
            self._write(record, write)
        else:
            self._wait_for_writer(record)

    def _write(self, record: Record, write: Callable[[Record], None]) -> None:
        try:
            write(record)
        except BudgetExhausted:
            self.communicator.broadcast_int(_EXHAUSTED)
            raise
        except FedprivError:
            self.communicator.broadcast_int(_FAILED)
            raise
        self.communicator.broadcast_int(_WRITTEN)

    def _wait_for_writer(self, record: Record) -> None:
        outcome = self.communicator.broadcast_int(_WRITTEN)  # rank 0's value arrives
        if outcome == _EXHAUSTED:
            raise BudgetExhausted(f"round {record.round} would exceed the target epsilon, so it was not released")
        if outcome == _FAILED:
            error = ProcessError(f"process 0 did not release round {record.round}, {record.query}; see its error")
            error.reported_elsewhere = True
            raise error
