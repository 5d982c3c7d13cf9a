"""Gathers the rows of a run's state on rank 0, for a checkpoint or a report, and gives processes their rows back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from fedpriv.clients.shard import ClientShard
from fedpriv.distributed.mesh import Communicator
from fedpriv.errors import FedprivError
from fedpriv.network.rounds import TrainState
from fedpriv.strategies.state import Leaf, take_rows

Kind = Literal["rows", "shared_row", "single"]
"""A row for each client; one row expanded to all clients; or one value for the whole run."""


def gather_state(progress: TrainState, shard: ClientShard, communicator: Communicator) -> TrainState:
    """Returns the state of all clients on rank 0; on other ranks the state of this process's clients.

    A tensor with as many rows as the process has clients is treated as one row for each client. (This is unambiguous
    because a process has either no clients or at least two.) A row that is the same for all clients in every process is
    not sent.

    Raises:
        FedprivError: If processes keep different state, which is a fault of the strategy.
    """
    leaves = _named_leaves(progress)
    n_local = len(shard.ids)
    kinds = {name: _kind(name, leaf, n_local) for name, leaf in leaves.items()}
    gathered_kinds = communicator.all_gather_object((n_local, kinds))
    expected = gathered_kinds[0][1]
    if any(others != expected for n_clients, others in gathered_kinds if n_clients):
        raise FedprivError(
            "the processes of the run have different kinds of state, which is a fault of the strategy; train in one "
            "process"
        )

    row_names = [name for name in leaves if expected[name] == "rows"]
    gathered_rows: list[dict[str, Tensor]] = []
    if row_names:
        gathered_rows = [
            *communicator.gather_object({name: _rows_to_send(leaves[name], n_local) for name in row_names})
        ]
    if communicator.rank != 0:
        return progress

    gathered: dict[str, Leaf] = dict(leaves)
    for name, leaf in leaves.items():
        if expected[name] == "single":
            continue
        assert isinstance(leaf, Tensor)
        rows = leaf[:1]
        if expected[name] == "rows":
            # a process without clients may not know how wide rows have become
            nonempty = [sent_rows[name] for sent_rows in gathered_rows if len(sent_rows[name])]
            if nonempty:
                rows = torch.cat(nonempty).to(leaf.device)
        gathered[name] = rows.expand(shard.n_clients, *leaf.shape[1:])
    return _with_leaves(progress, gathered)


def gather_rows(rows: Tensor, shard: ClientShard, communicator: Communicator) -> Tensor:
    """Returns the rows of all clients `[n, dim]` on rank 0; on other ranks the rows of this process's clients.

    A row that is the same for all clients is not sent.
    """
    n_local = len(shard.ids)
    if not communicator.broadcast_int(_kind("", rows, n_local) == "rows"):
        return rows
    gathered_rows = communicator.gather_object(_rows_to_send(rows, n_local))
    if communicator.rank != 0:
        return rows
    return torch.cat([sent_rows for sent_rows in gathered_rows if len(sent_rows)]).to(rows.device)


def shard_state(progress: TrainState, shard: ClientShard) -> TrainState:
    """Returns the state of this process's clients, from the state of all clients.

    A process without clients gets the rows of the first client.
    """
    if len(shard.ids):
        ids = shard.ids
    else:
        ids = torch.zeros(1, dtype=torch.long)
    sharded: dict[str, Leaf] = {}
    for name, leaf in _named_leaves(progress).items():
        if isinstance(leaf, Tensor) and _kind(name, leaf, shard.n_clients) != "single":
            sharded[name] = take_rows(leaf, ids)
        else:
            sharded[name] = leaf
    return _with_leaves(progress, sharded)


def _named_leaves(progress: TrainState) -> dict[str, Leaf]:
    """Returns all tensors and numbers of the state by name; nested ones as `outer/inner`."""
    leaves: dict[str, Leaf] = {}
    for name, value in progress.stored().items():
        if isinstance(value, Mapping):
            leaves |= {f"{name}/{inner}": leaf for inner, leaf in value.items()}
        else:
            leaves[name] = value
    return leaves


def _with_leaves(progress: TrainState, leaves: Mapping[str, Leaf]) -> TrainState:
    """Returns the state with these tensors and numbers; inverse of `_named_leaves`."""
    stored: dict[str, Any] = {}
    for name, value in progress.stored().items():
        if isinstance(value, Mapping):
            stored[name] = {inner: leaves[f"{name}/{inner}"] for inner in value}
        else:
            stored[name] = leaves[name]
    return progress.restored(stored)


def _kind(name: str, leaf: Leaf, n_clients: int) -> Kind:
    """Classifies a tensor: one row per client, the same row for all clients, or no rows of clients."""
    # a server's vector may be as long as there are clients: there only matrices can have rows of clients
    is_server_state = name.startswith(("server/", "output/"))
    if is_server_state:
        least_dimensions = 2
    else:
        least_dimensions = 1
    if not isinstance(leaf, Tensor) or leaf.ndim < least_dimensions or len(leaf) != n_clients or n_clients < 2:
        return "single"
    if leaf.stride(0) == 0:
        return "shared_row"
    return "rows"


def _rows_to_send(leaf: Leaf, n_local: int) -> Tensor:
    """Returns the rows of this process's clients on the CPU; no rows for a process without clients, which has a
    placeholder row.
    """
    assert isinstance(leaf, Tensor)
    return leaf[:n_local].detach().cpu()
