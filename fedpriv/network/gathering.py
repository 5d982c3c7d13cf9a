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


def gather_state(progress: TrainState, part: ClientShard, communicator: Communicator) -> TrainState:
    """Returns the state of all clients on rank 0; elsewhere this process's own.

    A tensor has a row for each client if it has as many rows as the process has clients, of which there are at least
    two wherever there are any. A row that is the same for all clients in every process is not sent.

    Raises:
        FedprivError: processes keep different state, which is a fault of the strategy.
    """
    leaves = _leaves_of(progress)
    n_local = len(part.ids)
    kinds = {name: _kind(name, leaf, n_local) for name, leaf in leaves.items()}
    gathered_kinds = communicator.all_gather_object((n_local, kinds))
    expected = gathered_kinds[0][1]
    if any(others != expected for n_clients, others in gathered_kinds if n_clients):
        raise FedprivError("processes of the run keep different state: a fault of the strategy; train in one process")

    row_names = [name for name in leaves if expected[name] == "rows"]
    shards: list[dict[str, Tensor]] = []
    if row_names:
        shards = [*communicator.gather_object({name: _rows_to_send(leaves[name], n_local) for name in row_names})]
    if communicator.rank != 0:
        return progress

    whole: dict[str, Leaf] = dict(leaves)
    for name, leaf in leaves.items():
        if expected[name] == "single":
            continue
        assert isinstance(leaf, Tensor)
        rows = leaf[:1]
        if expected[name] == "rows":
            # a process without clients may not know how wide rows have become
            sent = [shard[name] for shard in shards if len(shard[name])]
            if sent:
                rows = torch.cat(sent).to(leaf.device)
        whole[name] = rows.expand(part.n_clients, *leaf.shape[1:])
    return _with_leaves(progress, whole)


def gather_rows(rows: Tensor, part: ClientShard, communicator: Communicator) -> Tensor:
    """Returns the rows of all clients `[n, dim]` on rank 0; elsewhere this process's own.

    A row that is the same for all clients is not sent.
    """
    n_local = len(part.ids)
    if not communicator.broadcast_int(_kind("", rows, n_local) == "rows"):
        return rows
    shards = communicator.gather_object(_rows_to_send(rows, n_local))
    if communicator.rank != 0:
        return rows
    return torch.cat([shard for shard in shards if len(shard)]).to(rows.device)


def shard_state(progress: TrainState, part: ClientShard) -> TrainState:
    """Returns the state of this process's clients, from that of all; with the first client's rows if it has none."""
    if len(part.ids):
        ids = part.ids
    else:
        ids = torch.zeros(1, dtype=torch.long)
    sharded: dict[str, Leaf] = {}
    for name, leaf in _leaves_of(progress).items():
        if isinstance(leaf, Tensor) and _kind(name, leaf, part.n_clients) != "single":
            sharded[name] = take_rows(leaf, ids)
        else:
            sharded[name] = leaf
    return _with_leaves(progress, sharded)


def _leaves_of(progress: TrainState) -> dict[str, Leaf]:
    """Returns all tensors and numbers of the state by name; nested ones as `outer/inner`."""
    leaves: dict[str, Leaf] = {}
    for name, value in progress.stored().items():
        if isinstance(value, Mapping):
            leaves |= {f"{name}/{inner}": leaf for inner, leaf in value.items()}
        else:
            leaves[name] = value
    return leaves


def _with_leaves(progress: TrainState, leaves: Mapping[str, Leaf]) -> TrainState:
    """Returns the state with these tensors and numbers; inverse of `_leaves_of`."""
    stored: dict[str, Any] = {}
    for name, value in progress.stored().items():
        if isinstance(value, Mapping):
            stored[name] = {inner: leaves[f"{name}/{inner}"] for inner in value}
        else:
            stored[name] = leaves[name]
    return progress.restored(stored)


def _kind(name: str, leaf: Leaf, n_clients: int) -> Kind:
    # a server's vector may be as long as there are clients: there only matrices can have rows of clients
    is_server_state = name.startswith(("server/", "output/"))
    least_dimensions = 2 if is_server_state else 1
    if not isinstance(leaf, Tensor) or leaf.ndim < least_dimensions or len(leaf) != n_clients or n_clients < 2:
        return "single"
    if leaf.stride(0) == 0:
        return "shared_row"
    return "rows"


def _rows_to_send(leaf: Leaf, n_local: int) -> Tensor:
    assert isinstance(leaf, Tensor)
    return leaf[:n_local].detach().cpu()
