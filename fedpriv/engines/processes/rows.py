"""The rows of a run's state, of all clients in one process for a checkpoint or a report, and back to their owners."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedpriv.clients.part import Part
from fedpriv.engines.local import Progress
from fedpriv.engines.processes.group import Group
from fedpriv.errors import FedprivError
from fedpriv.strategies.state import Leaf, taken


def leaves_of(progress: Progress) -> dict[str, Leaf]:
    """All tensors and numbers of a progress by name."""
    found: dict[str, Leaf] = {}
    for name, part in progress.stored().items():
        if isinstance(part, Mapping):
            found |= {f"{name}/{inner}": leaf for inner, leaf in part.items()}
        else:
            found[name] = part
    return found


def with_leaves(progress: Progress, leaves: Mapping[str, Leaf]) -> Progress:
    """The progress with these tensors and numbers."""
    stored: dict[str, Any] = {}
    for name, part in progress.stored().items():
        inside = isinstance(part, Mapping)
        stored[name] = {inner: leaves[f"{name}/{inner}"] for inner in part} if inside else leaves[name]
    return progress.restored(stored)


def gathered(progress: Progress, part: Part, group: Group) -> Progress:
    """The progress of all clients in the first process, elsewhere its own.

    A tensor with as many rows as a process has clients, of which there are two or more wherever there are any, has a
    row for each. What is one row for all in every process is not sent.

    Raises:
        FedprivError: processes keep different state, which is a fault of the strategy.
    """
    own = leaves_of(progress)
    held = len(part.ids)
    kinds = [_kind(name, leaf, held) for name, leaf in own.items()]
    told = group.all((held, kinds))
    wanted = told[0][1]
    if any(others != wanted for there, others in told if there):
        raise FedprivError("processes of the run keep different state: a fault of the strategy; train in one process")
    names = [name for name, kind in zip(own, wanted, strict=True) if kind == "rows"]
    parts = group.gathered({name: _sent(own[name], held) for name in names}) if names else []
    if group.rank:
        return progress
    whole: dict[str, Leaf] = dict(own)
    for name, kind in zip(own, wanted, strict=True):
        leaf = own[name]
        if kind == "one":
            continue
        assert isinstance(leaf, Tensor)
        # a process without clients may not know how wide rows have become
        sent = [found[name] for found in parts if kind == "rows" and len(found[name])]
        rows = torch.cat(sent).to(leaf.device) if sent else leaf[:1]
        whole[name] = rows.expand(part.n_clients, *leaf.shape[1:])
    return with_leaves(progress, whole)


def gathered_rows(rows: Tensor, part: Part, group: Group) -> Tensor:
    """Rows of all clients `[n, dim]` in the first process, elsewhere its own; what is one row for all is not sent."""
    if not group.number(_kind("", rows, len(part.ids)) == "rows"):
        return rows
    parts = group.gathered(_sent(rows, len(part.ids)))
    return torch.cat([sent for sent in parts if len(sent)]).to(rows.device) if group.rank == 0 else rows


def _kind(name: str, leaf: Leaf, n_clients: int) -> str:
    """`rows`, one for each of two or more clients, `alike`, the same row for each, or `one` for all."""
    of_server = name.startswith(("server/", "output/"))
    if not isinstance(leaf, Tensor) or leaf.ndim < 1 + of_server or len(leaf) != n_clients or n_clients < 2:
        return "one"
    return "alike" if leaf.stride(0) == 0 else "rows"


def _sent(leaf: Leaf, held: int) -> Tensor:
    assert isinstance(leaf, Tensor)
    return leaf[:held].detach().cpu()


def of_part(progress: Progress, part: Part) -> Progress:
    """The rows of the clients that are here, of a progress of all; where there are none, the first row."""
    ids = part.ids if len(part.ids) else torch.zeros(1, dtype=torch.long)

    def own(name: str, leaf: Leaf) -> Leaf:
        if not isinstance(leaf, Tensor) or _kind(name, leaf, part.n_clients) == "one":
            return leaf
        return taken(leaf, ids)

    return with_leaves(progress, {name: own(name, leaf) for name, leaf in leaves_of(progress).items()})
