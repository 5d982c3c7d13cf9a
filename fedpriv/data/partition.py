"""Divides train examples among clients. Every example goes to exactly one client."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from fedpriv.errors import ConfigError
from fedpriv.settings import Count, Positive, plugins, suggest_nearest, validate_arguments

Kind = Literal["iid", "in_order", "by_label", "dirichlet", "stratified", "by_writer"]
# one changed label moves other examples to other clients
LABEL_DEPENDENT = ("by_label", "dirichlet", "stratified")
_TRIES = 100


@validate_arguments("partition")
def partition(
    kind: Kind,
    labels: Tensor,
    n_clients: Count | None,
    generator: torch.Generator,
    *,
    writers: Tensor | None = None,
    **options: object,
) -> list[Tensor]:
    """Divides the examples among the clients.

    Args:
        kind: The name of one of the functions below.
        labels: int64 `[n_examples]`, or `[n_examples, length]`; float if targets are numbers.
        n_clients: Number of clients; each gets at least one example. None, for `by_writer`, makes each writer a client.
        generator: Source of randomness; unused by `in_order`.
        writers: int64 `[n_examples]`, for `by_writer`: the owner of each example.
        **options: Options of the function, such as `alpha` for `dirichlet`.

    Returns:
        For each client the ascending indices of its examples, int64.

    Raises:
        ConfigError: If such a division does not exist, e.g. if there are fewer examples than clients.
    """
    if kind not in PARTITIONS:
        raise ConfigError("partition.kind", kind, f"is unknown{suggest_nearest(str(kind), get_args(Kind))}")
    if labels.is_floating_point() and kind in LABEL_DEPENDENT:
        fix = "divides by class, but the targets are numbers and not classes: use iid, in_order or by_writer"
        raise ConfigError("partition.kind", kind, fix)
    if labels.dim() > 1 and kind in LABEL_DEPENDENT:
        fix = "divides by class, but an example has a sequence of classes: use iid, in_order or by_writer"
        raise ConfigError("partition.kind", kind, fix)
    if kind == "by_writer" and (writers is None or len(writers) != len(labels)):
        n_writers = None if writers is None else len(writers)
        who = "name their column as data.client (csv, hf), or use femnist"
        fix = f"must name the owner of each of the {len(labels)} examples, which by_writer needs: {who}"
        raise ConfigError("partition.writers", n_writers, fix)
    facts = {"n_examples": len(labels), "labels": labels, "writers": writers}
    context = {**facts, "n_clients": n_clients, "generator": generator}
    return plugins.call(PARTITIONS[kind], kind, options, field="partition", context=context)


def known_sizes(kind: Kind, n_examples: int, n_clients: int | None) -> tuple[int, ...] | None:
    """Returns the sizes of the clients' shards if they depend on the number of examples only; else None."""
    if kind not in ("iid", "in_order") or n_clients is None or n_clients > n_examples:
        return None
    smallest, n_larger = divmod(n_examples, n_clients)
    return tuple(smallest + (i < n_larger) for i in range(n_clients))


def collect_warnings(kind: Kind) -> list[str]:
    """Returns warnings about dividing private data in this way."""
    if kind not in LABEL_DEPENDENT:
        return []
    return [
        f"data.partition.kind = {kind} divides the examples by their labels: changing one label would move other "
        "examples to other clients, and epsilon does not cover this. Use this partition only to simulate owners who "
        "already hold their data"
    ]


@validate_arguments("partition")
def iid(n_examples: int, n_clients: Count, generator: torch.Generator) -> list[Tensor]:
    """Divides uniformly at random; sizes differ by at most one."""
    _check_clients(n_clients, n_examples, "examples")
    order = torch.randperm(n_examples, generator=generator)
    return [shard.sort().values for shard in order.tensor_split(n_clients)]


@validate_arguments("partition")
def stratified(labels: Tensor, n_clients: Count, generator: torch.Generator) -> list[Tensor]:
    """Divides at random such that clients' numbers of examples of each class differ by at most one."""
    classes = labels.unique()
    fewest = min(int((labels == label).sum()) for label in classes)
    if n_clients > fewest:
        fix = (
            f"must be between 1 and {fewest}, the number of examples of the rarest class, because each client gets at "
            "least one example of every class"
        )
        raise ConfigError("partition.n_clients", n_clients, fix)
    shards: list[list[Tensor]] = [[] for _ in range(n_clients)]
    for index, label in enumerate(classes):
        pieces = list(_shuffled((labels == label).nonzero()[:, 0], generator).tensor_split(n_clients))
        # the larger pieces come first, in reverse for every other class, so that sizes stay similar
        if index % 2 == 1:
            pieces.reverse()
        for shard, piece in zip(shards, pieces, strict=True):
            shard.append(piece)
    return [torch.cat(shard).sort().values for shard in shards]


@validate_arguments("partition")
def in_order(n_examples: int, n_clients: Count) -> list[Tensor]:
    """Divides into consecutive pieces in file order; sizes differ by at most one."""
    _check_clients(n_clients, n_examples, "examples")
    return list(torch.arange(n_examples).tensor_split(n_clients))


@validate_arguments("partition")
def by_label(
    labels: Tensor, n_clients: Count, generator: torch.Generator, *, labels_per_client: Count = 2
) -> list[Tensor]:
    """Cuts each label into shards of about equal size and deals `labels_per_client` shards to each client.

    A client therefore has at most that many labels.

    Source: McMahan et al. (2017), section 3, except that here no shard straddles two labels.
    """
    _check_clients(n_clients, len(labels), "examples")
    n_shards = n_clients * labels_per_client
    classes, counts = labels.unique(return_counts=True)
    if not len(classes) <= n_shards <= len(labels):
        smallest = math.ceil(len(classes) / n_clients)
        largest = len(labels) // n_clients
        limits = f"from {smallest} to {largest} for {n_clients} clients"
        fix = f"must be {limits}, so that every label is assigned and no shard is empty"
        raise ConfigError("partition.labels_per_client", labels_per_client, fix)
    shards_of = torch.ones_like(counts)
    for _ in range(n_shards - len(classes)):
        shards_of[(counts / shards_of).argmax()] += 1  # the label with the largest shards gets one more
    shards: list[Tensor] = []
    for label, n in zip(classes, shards_of.tolist(), strict=True):
        shards.extend(_shuffled((labels == label).nonzero()[:, 0], generator).tensor_split(n))
    hands = torch.randperm(n_shards, generator=generator).reshape(n_clients, labels_per_client).tolist()
    return [torch.cat([shards[index] for index in hand]).sort().values for hand in hands]


@validate_arguments("partition")
def dirichlet(
    labels: Tensor, n_clients: Count, generator: torch.Generator, *, alpha: Positive = 0.5, min_examples: Count = 1
) -> list[Tensor]:
    """Divides each label among clients in proportions drawn from Dirichlet(alpha, ..., alpha).

    With small alpha few clients hold most examples of a label; with large alpha clients are similar. Draws in which a
    client has fewer than `min_examples` are repeated.

    Source: Yurochkin et al. (2019), section 4; Hsu et al. (2019) draw the proportions per client instead.
    """
    _check_clients(n_clients, len(labels), "examples")
    if not min_examples <= len(labels) // n_clients:
        fix = (
            f"must be between 1 and {len(labels) // n_clients}, since {n_clients} clients share {len(labels)} examples"
        )
        raise ConfigError("partition.min_examples", min_examples, fix)
    numpy_generator = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
    classes = [(labels == label).nonzero()[:, 0] for label in labels.unique()]
    for _ in range(_TRIES):
        owner = torch.empty(len(labels), dtype=torch.int64)
        for examples in classes:
            shares = numpy_generator.dirichlet(np.full(n_clients, alpha))
            edges = np.round(np.cumsum(shares) * len(examples)).astype(np.int64)
            edges[-1] = len(examples)  # the rounded sum of the shares may be off by one
            sizes = torch.from_numpy(np.diff(edges, prepend=0))
            owner[_shuffled(examples, generator)] = torch.arange(n_clients).repeat_interleave(sizes)
        if int(owner.bincount(minlength=n_clients).min()) >= min_examples:
            return _groups(owner, n_clients)
    fix = (
        f"in each of {_TRIES} draws, one of the {n_clients} clients had fewer than {min_examples} examples: raise alpha"
    )
    raise ConfigError("partition.alpha", alpha, f"{fix}, or lower n_clients or min_examples")


@validate_arguments("partition")
def by_writer(writers: Tensor, n_clients: Count | None = None, *, generator: torch.Generator) -> list[Tensor]:
    """Assigns all examples of a writer to one client; without `n_clients` each writer is a client.

    With as many clients as writers, client i is writer i in the order of numbers. With fewer, the writers are
    distributed at random, in numbers that differ by at most one.
    """
    ids, position = writers.unique(return_inverse=True)
    n_clients = n_clients or len(ids)
    _check_clients(n_clients, len(ids), "writers")
    if n_clients == len(ids):
        return _groups(position, n_clients)
    client_of = torch.randperm(len(ids), generator=generator) % n_clients
    return _groups(client_of[position], n_clients)


PARTITIONS: dict[Kind, Callable[..., list[Tensor]]] = {
    "iid": iid,
    "in_order": in_order,
    "by_label": by_label,
    "dirichlet": dirichlet,
    "stratified": stratified,
    "by_writer": by_writer,
}


def _check_clients(n_clients: int, available: int, unit: str) -> None:
    if n_clients > available:
        fix = f"must be between 1 and {available}, the number of {unit}, because no client may be empty"
        raise ConfigError("partition.n_clients", n_clients, fix)


def _shuffled(rows: Tensor, generator: torch.Generator) -> Tensor:
    return rows[torch.randperm(len(rows), generator=generator)]


def _groups(owner: Tensor, n_clients: int) -> list[Tensor]:
    """Returns the ascending indices of each owner's examples, from owners `[n_examples]` in `[0, n_clients)`."""
    order = owner.argsort(stable=True)
    return list(order.split(owner.bincount(minlength=n_clients).tolist()))
