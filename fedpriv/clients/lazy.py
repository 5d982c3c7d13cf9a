"""Clients whose examples are read when they are drawn: as many as one likes, in the memory of a few."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from fedpriv.clients.client import Client, Loss
from fedpriv.clients.examples import Examples, OnRead, accept_all, at_places, check_alike, with_types
from fedpriv.clients.layout import Layout, copy_model
from fedpriv.clients.reading import Pair, Read, Source, Unbatched, length_of, read_all
from fedpriv.data.augmentation import Augmentation
from fedpriv.data.nested import each, first, joined, leaves
from fedpriv.distributed.devices import moved
from fedpriv.errors import ConfigError, DataError, in_short
from fedpriv.models.problem import Problem
from fedpriv.randomness.borrowed import global_generators
from fedpriv.settings.checks import Count, checked

Load = Callable[[int], Dataset[Any]]
Examine = Callable[[int, Dataset[Any]], None]
"""Told a client's number and data set; raises if they cannot be used."""
_AT_ONCE = 16  # clients that a worker reads in a row
_AHEAD = 2**17  # examples that are read before they are asked for
_LOOKED_AT = 16  # clients that are read before a run, to find mistakes


class LazyClients(Sequence[Client]):
    """The clients that `lazy_clients` makes. They share one model; `clients[i]` is made when it is asked for.

    Attributes:
        model: The shared model; a run starts from it and writes what it reports into it.
        loss: Maps (outputs, targets) of a batch to a scalar.
        sizes: Public number of examples of each client.
    """

    sizes_declared = False  # the sizes are the true ones, which neighbouring data sets have in common

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        load: Load,
        sizes: Sequence[int],
        workers: int,
        augmentation: Augmentation | None = None,
    ) -> None:
        self.model, self.loss, self.sizes, self._load, self._workers = model, loss, sizes, load, workers
        self.augmentation = augmentation or Augmentation()
        self._problem = Problem()
        self._outcome_of: str | None = None
        self._examine: Examine = _usable

    def __len__(self) -> int:
        """Number of clients."""
        return len(self.sizes)

    @overload
    def __getitem__(self, index: int) -> Client: ...
    @overload
    def __getitem__(self, index: slice) -> list[Client]: ...
    def __getitem__(self, index: int | slice) -> Client | list[Client]:
        """A client; its examples are read when they are asked for."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        loader = DataLoader(_Later(self, index))
        found = Client(self.model, self.loss, loader, problem=self._problem, augmentation=self.augmentation)
        found.outcome_of = self._outcome_of
        return found

    @property
    def problems(self) -> Sequence[Problem]:
        """The mean loss, for each client."""
        return [self._problem] * len(self)

    def declared(self) -> Iterator[tuple[int, int]]:
        """None: the sizes are the true ones."""
        yield from ()

    @property
    def looked_at(self) -> Sequence[int]:
        """Clients whose data are checked before a run: a few, evenly."""
        return range(0, len(self), -(-len(self) // _LOOKED_AT))

    def dataset(self, client: int) -> Dataset[Any]:
        """The data set of a client, read now.

        Raises:
            DataError: it cannot be loaded, streams, or has not the public size.
        """
        try:
            found = self._load(client)
        except Exception as error:  # whatever a user's function raises
            raise DataError(f"client {client}: load({client}) fails ({in_short(error)})") from error
        if length_of(found) != self.sizes[client]:  # what it is instead is nobody's business
            raise DataError(
                f"client {client}: sizes says {self.sizes[client]} examples, and load({client}) gives another number. "
                "Sums are divided by the sizes and the promise holds for these: correct sizes, or what load gives"
            )
        self._examine(client, found)
        return found

    def examine_with(self, examine: Examine) -> None:
        """Have each client's data set examined when it is read."""
        self._examine = examine

    def read(self, client: int) -> Read:
        """All examples of a client.

        Raises:
            DataError: they cannot be used.
        """
        dataset = self.dataset(client)
        try:
            return read_all(Unbatched(dataset), self.sizes[client])
        except DataError as error:
            raise DataError(f"client {client}: {error}") from error

    def examples(self, device: torch.device, dtype: torch.dtype) -> Examples:
        """Access to all examples, which reads those that are asked for."""
        return ReadWhenDrawn(self, self._workers, device, dtype)

    def rows(self, layout: Layout, device: torch.device, dtype: torch.dtype) -> Tensor:
        """The model's parameters, one row for all, `[n, dim]`."""
        self.model.to(device, dtype)
        row = torch.empty(1, layout.dim, device=device, dtype=dtype)
        layout.bind(row[0], self.model)
        return row.expand(len(self), -1)

    def outcomes(self) -> Iterator[str | None]:
        """What the model has cost so far."""
        yield self._outcome_of

    def adopt(self, rows: Tensor, models: Tensor, price: str) -> None:
        """Write the mean of the reported models `[n, dim]` or `[1, dim]` into the one row of all."""
        alike = len(models) == 1 or models.stride(0) == 0
        rows[0].copy_(models[0] if alike else models.mean(0))
        self._outcome_of = price


@dataclass
class _Later(Dataset[Any]):
    """A client's data set, loaded when an example is asked for."""

    clients: LazyClients
    client: int

    @cached_property
    def _loaded(self) -> Dataset[Any]:
        return self.clients.dataset(self.client)

    def __len__(self) -> int:
        return self.clients.sizes[self.client]

    def __getitem__(self, index: int) -> object:
        return self._loaded[index]


class ReadWhenDrawn:
    """Examples of lazy clients. Worker threads read those of known cohorts, which are held until others are known.

    Args:
        clients: The clients.
        workers: Number of threads.
        device: Where tensors go.
        dtype: Floating-point inputs and targets are converted to it.

    Attributes:
        random: Whether reading client 0's examples draws random numbers.
        on_read: See `Examples`.
    """

    def __init__(self, clients: LazyClients, workers: int, device: torch.device, dtype: torch.dtype) -> None:
        self.counts = torch.tensor(np.asarray(clients.sizes, dtype=np.int64))
        self._clients, self._device, self._dtype = clients, device, dtype
        self._pool = ThreadPoolExecutor(workers, "fedpriv-reader")
        self._first, self.random = clients.read(0)
        self._held: dict[int, Future[dict[int, Pair]]] = {}
        self.on_read: OnRead = accept_all

    def expect(self, *cohorts: Tensor) -> None:
        """Read these clients' examples, in this order, and forget all others."""
        if self.random:  # the global generators are one for all threads
            return
        wanted = torch.cat(cohorts)
        near = wanted[self.counts[wanted].cumsum(0) <= _AHEAD].tolist()
        self._held = {client: held for client in near if (held := self._held.get(client)) is not None}
        missing = [client for client in dict.fromkeys(near) if client not in self._held]
        for start in range(0, len(missing), _AT_ONCE):
            part = missing[start : start + _AT_ONCE]
            self._held |= dict.fromkeys(part, self._pool.submit(self._read, part))

    def source(self, client: int) -> Source | None:
        """See `Examples`; where client 0's examples stay the same, so do all."""
        if self.random:
            return Unbatched(self._clients.dataset(client))
        return None

    def take(self, clients: Tensor, places: Tensor, at: Tensor | None = None) -> Pair:
        """See `Examples.take`.

        Raises:
            DataError: a client's data cannot be used; it is named.
        """
        found = [self._of(client) for client in clients.tolist()]
        ends = torch.tensor([len(first(targets)) for _, targets in found]).cumsum(0)
        starts = torch.cat([torch.zeros(1, dtype=torch.long), ends[:-1]])
        both = at_places(*joined(found), places + starts.unsqueeze(1))
        there = iter(moved(self._device, *leaves(both)))
        return each(lambda _: next(there), both)

    def _of(self, client: int) -> Pair:
        held = self._held.get(client)
        return (self._read([client]) if held is None else held.result())[client]

    def _read(self, clients: Sequence[int]) -> dict[int, Pair]:
        found: dict[int, Pair] = {}
        for client in clients:
            if self.random:
                # views are read anew from numbers of their own; what is read here is only compared
                with global_generators() as seed:
                    seed(0)
                    found[client] = self._clients.read(client).pair
            else:
                found[client] = self._clients.read(client).pair
        for client, pair in found.items():
            check_alike(client, pair, self._first)
            self.on_read(client, pair)
        return {client: with_types(*pair, self._dtype) for client, pair in found.items()}


def _usable(_: int, __: Dataset[Any]) -> None:
    """Nothing more is checked."""


@checked("lazy_clients")
def lazy_clients(
    model: nn.Module,
    loss: Loss,
    load: Load,
    sizes: Sequence[int] | Tensor,
    *,
    workers: Count = 2,
    augmentation: Augmentation | None = None,
) -> LazyClients:
    """Clients whose examples are read when they are drawn, for populations that do not fit into memory.

    Args:
        model: Maps inputs `[b, ...]` to outputs `[b, ...]`, see `Client`. All clients start from a copy of it.
        loss: Maps (outputs, targets) of a batch to a scalar.
        load: `load(i)` gives client i's map-style data set of (input, target) pairs, the same each time. It is called
            from several threads at once. Whoever sees its reads learns who takes part: where cohorts are secret, the
            store belongs to the trusted server.
        sizes: Number of examples of each client, `[n_clients]`, at least 1 each: public, and the true ones;
            `count_examples(load, n_clients)` counts them once.
        workers: Threads that read the next cohort while a round is computed.
        augmentation: Random views of the examples, new ones in each answer; by default there are none.

    Returns:
        A sequence of clients, for `train` and `Training`. Runs are those of `make_clients` with the same data, bit for
        bit, but only 16 clients are read before a run to find mistakes. Examples at two clients, or in the test data,
        are found among these alone: that no person's data are at two clients is for `load` to make sure of.

    Raises:
        ConfigError: there is no client, or a size is below 1.
    """
    numbers = [int(size) for size in (sizes.tolist() if isinstance(sizes, Tensor) else sizes)]
    if not numbers or min(numbers) < 1:
        raise ConfigError("lazy_clients.sizes", min(numbers, default=[]), "give each client's size, at least 1")
    return LazyClients(copy_model(model), loss, load, numbers, workers, augmentation)
