"""Clients that read their examples when they are drawn, so that only a few examples are in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from fedpriv.clients.augmentation import Augmentation
from fedpriv.clients.client import Client, Loss
from fedpriv.clients.examples import Examples, OnRead, accept_all, check_same_kind, gather_examples, with_types
from fedpriv.clients.layout import Layout, copy_model
from fedpriv.clients.reading import Pair, Read, Source, Unbatched, count_examples_of, read_all
from fedpriv.clients.released_models import check_untrained, record_result
from fedpriv.distributed.devices import move_to_device
from fedpriv.errors import ConfigError, DataError, summarize_error
from fedpriv.models.nested import concatenate_trees, first_leaf, list_leaves, map_tree
from fedpriv.models.problem import Problem
from fedpriv.randomness.global_rng import global_generators
from fedpriv.settings.checks import Count, validate_arguments

Load = Callable[[int], Dataset[Any]]
Examine = Callable[[int, Dataset[Any]], None]
"""Function of a client's number and data set that raises an error if the data set cannot be used."""
_CLIENTS_PER_TASK = 16  # clients that a worker reads in a row
_MAX_READ_AHEAD = 2**17  # examples that are read ahead
_VALIDATED = 16  # clients that are read before a run, to find mistakes


class LazyClients(Sequence[Client]):
    """The clients of `lazy_clients`. They share one model; `clients[i]` is created on access.

    Attributes:
        model: The shared model; a run starts from it and writes its result into it.
        loss: Maps (outputs, targets) of a batch to a scalar.
        sizes: Public number of examples of each client.
    """

    sizes_declared = False  # the sizes are the true ones, and neighbouring data sets have them in common

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        load: Load,
        sizes: Sequence[int],
        num_workers: int,
        augmentation: Augmentation | None = None,
    ) -> None:
        self.model = model
        self.loss = loss
        self.sizes = sizes
        self._load = load
        self._workers = num_workers
        self.augmentation = augmentation or Augmentation()
        self._problem = Problem()
        self._released_cost: str | None = None
        self._examine: Examine = _accept_all

    def __len__(self) -> int:
        """Number of clients."""
        return len(self.sizes)

    @overload
    def __getitem__(self, index: int) -> Client: ...
    @overload
    def __getitem__(self, index: slice) -> list[Client]: ...
    def __getitem__(self, index: int | slice) -> Client | list[Client]:
        """Returns a client that reads its examples on access."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        loader = DataLoader(_DeferredDataset(self, index))
        client = Client(self.model, self.loss, loader, problem=self._problem, augmentation=self.augmentation)
        client.released_cost = self._released_cost
        return client

    @property
    def problems(self) -> Sequence[Problem]:
        """The problem of each client, the mean loss."""
        return [self._problem] * len(self)

    def declared(self) -> Iterator[tuple[int, int]]:
        """Yields nothing, because the sizes are the true numbers of examples."""
        yield from ()

    @property
    def validated_clients(self) -> Sequence[int]:
        """See `ClientSet`: a few clients, evenly spaced."""
        return range(0, len(self), -(-len(self) // _VALIDATED))

    def dataset(self, client: int) -> Dataset[Any]:
        """Loads the data set of a client.

        Raises:
            DataError: If it cannot be loaded, streams, or does not have the public size.
        """
        try:
            dataset = self._load(client)
        except Exception as error:  # a user's function can raise anything
            raise DataError(f"client {client}: load({client}) raises {summarize_error(error)}") from error
        try:
            length = count_examples_of(dataset)
        except DataError as error:
            raise DataError(f"client {client}: {error}") from error
        if length != self.sizes[client]:
            # the true size is private, so the message does not contain it
            raise DataError(
                f"client {client}: load({client}) must return the {self.sizes[client]} examples declared in "
                "sizes, since sums are divided by this number and the privacy guarantee depends on it: correct "
                "sizes, or correct load"
            )
        self._examine(client, dataset)
        return dataset

    def examine_with(self, examine: Examine) -> None:
        """Sets the function that checks each client's data set when it is read."""
        self._examine = examine

    def read(self, client: int) -> Read:
        """Reads all examples of a client.

        Raises:
            DataError: If they cannot be used.
        """
        dataset = self.dataset(client)
        try:
            return read_all(Unbatched(dataset), self.sizes[client])
        except DataError as error:
            raise DataError(f"client {client}: {error}") from error

    def examples(self, device: torch.device, dtype: torch.dtype) -> Examples:
        """Returns access to all examples, which reads them when they are drawn."""
        return ReadWhenDrawn(self, self._workers, device, dtype)

    def rows(self, layout: Layout, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Returns the model's parameters, one row expanded for all clients, `[n, dim]`."""
        self.model.to(device, dtype)
        row = torch.empty(1, layout.dim, device=device, dtype=dtype)
        layout.bind(row[0], self.model)
        return row.expand(len(self), -1)

    def released_costs(self) -> Iterator[str | None]:
        """Yields the privacy cost of the model if it is the result of a run."""
        yield self._released_cost

    def adopt(self, rows: Tensor, models: Tensor, cost: str) -> None:
        """Writes the mean of the reported models `[n, dim]` or `[1, dim]` into the one row of all clients."""
        is_one_row = len(models) == 1 or models.stride(0) == 0
        if is_one_row:
            rows[0].copy_(models[0])
        else:
            rows[0].copy_(models.mean(0))
        self._released_cost = cost
        record_result(self.model, cost)


@dataclass
class _DeferredDataset(Dataset[Any]):
    """A client's data set, loaded at the first access to an example."""

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
    """Examples of lazy clients. Worker threads read the examples of announced cohorts and keep them until the next
    announcement.

    Args:
        clients: The clients.
        num_workers: Number of threads.
        device: The device of the tensors.
        dtype: Type to which floating-point inputs and targets are converted.

    Attributes:
        random: True if reading client 0's examples draws random numbers.
        on_read: See `Examples`.
    """

    def __init__(self, clients: LazyClients, num_workers: int, device: torch.device, dtype: torch.dtype) -> None:
        self.counts = torch.tensor(np.asarray(clients.sizes, dtype=np.int64))
        self._clients = clients
        self._device = device
        self._dtype = dtype
        self._pool = ThreadPoolExecutor(num_workers, "fedpriv-reader")
        self._first, self.random = clients.read(0)
        self._futures: dict[int, Future[dict[int, Pair]]] = {}
        self.on_read: OnRead = accept_all

    def expect(self, *cohorts: Tensor) -> None:
        """Starts to read these clients' examples, in this order, and removes all others from memory."""
        if self.random:
            # threads share the global generators, so draws would depend on the order of threads
            return
        clients = torch.cat(cohorts)
        near = clients[self.counts[clients].cumsum(0) <= _MAX_READ_AHEAD].tolist()
        self._futures = {client: self._futures[client] for client in near if client in self._futures}
        missing = [client for client in dict.fromkeys(near) if client not in self._futures]
        for start in range(0, len(missing), _CLIENTS_PER_TASK):
            task = missing[start : start + _CLIENTS_PER_TASK]
            self._futures |= dict.fromkeys(task, self._pool.submit(self._read, task))

    def source(self, client: int) -> Source | None:
        """See `Examples`. If client 0's examples never change, all clients' examples are assumed not to change."""
        if self.random:
            return Unbatched(self._clients.dataset(client))
        return None

    def take(self, clients: Tensor, positions: Tensor, device_positions: Tensor | None = None) -> Pair:
        """See `Examples.take`.

        Raises:
            DataError: If a client's data cannot be used; the message names the client.
        """
        pairs = [self._pair_of(client) for client in clients.tolist()]
        ends = torch.tensor([len(first_leaf(targets)) for _, targets in pairs]).cumsum(0)
        starts = torch.cat([torch.zeros(1, dtype=torch.long), ends[:-1]])
        pair = gather_examples(*concatenate_trees(pairs), positions + starts.unsqueeze(1))
        # all tensors are moved together, then put back into the same nesting
        device_leaves = iter(move_to_device(self._device, *list_leaves(pair)))
        return map_tree(lambda _: next(device_leaves), pair)

    def _pair_of(self, client: int) -> Pair:
        """Returns a client's examples; reads them now unless a worker thread has read them."""
        future = self._futures.get(client)
        if future is None:
            return self._read([client])[client]
        return future.result()[client]

    def _read(self, clients: Sequence[int]) -> dict[int, Pair]:
        """Reads and checks the examples of some clients, by client."""
        pairs: dict[int, Pair] = {}
        for client in clients:
            if self.random:
                # each view is read again, from its random numbers; the examples read here are only checked
                with global_generators() as seed:
                    seed(0)
                    pairs[client] = self._clients.read(client).pair
            else:
                pairs[client] = self._clients.read(client).pair
        for client, pair in pairs.items():
            check_same_kind(client, pair, self._first)
            self.on_read(client, pair)
        return {client: with_types(x, y, self._dtype) for client, (x, y) in pairs.items()}


def _accept_all(_: int, __: Dataset[Any]) -> None:
    """Accepts any data set."""


@validate_arguments("lazy_clients")
def lazy_clients(
    model: nn.Module,
    loss: Loss,
    load: Load,
    sizes: Sequence[int] | Tensor,
    *,
    num_workers: Count = 2,
    augmentation: Augmentation | None = None,
) -> LazyClients:
    """Creates clients that read their examples when they are drawn, for populations that do not fit into memory.

    Args:
        model: Maps inputs `[b, ...]` to outputs `[b, ...]`, see `Client`. All clients start from a copy of it.
        loss: Maps (outputs, targets) of a batch to a scalar.
        load: `load(i)` returns client i's map-style data set of (input, target) pairs, the same each time. It is called
            from several threads at once. An observer of its reads can learn which clients take part, so with secret
            cohorts the storage must belong to the trusted server.
        sizes: True number of examples of each client, `[n_clients]`, at least 1 each; it is public.
            `count_examples(load, n_clients)` counts them once.
        num_workers: Number of threads that read the next cohort while a round is computed; 2 by default.
        augmentation: Random views of the examples, redrawn in each query; none by default.

    Returns:
        A sequence of clients, for `train` and `Training`. A run equals the run with `make_clients` and the same data,
        bit for bit. However, only 16 clients are read before the run to find mistakes. The search for examples that
        belong to two clients, or are also in the test data, covers these 16 clients only. Therefore `load` must ensure
        that no person's data are at two clients.

    Raises:
        ConfigError: If there is no client, a size is below 1, or the model holds the result of a run.

    Examples:
        >>> import fedpriv, torch
        >>> from torch import nn
        >>> labels = torch.zeros(5, dtype=torch.long)
        >>> load = lambda i: torch.utils.data.TensorDataset(torch.full((5, 1), float(i)), labels)
        >>> clients = fedpriv.lazy_clients(nn.Linear(1, 2), nn.CrossEntropyLoss(), load, sizes=[5] * 1000)
        >>> len(clients), len(clients[999])
        (1000, 5)
    """
    check_untrained("lazy_clients.model", model)
    if isinstance(sizes, Tensor):
        sizes = sizes.tolist()
    if isinstance(sizes, Mapping):
        raise ConfigError(
            "lazy_clients.sizes", sizes, "must be a list; entry i is the number of examples that load(i) returns"
        )
    if not isinstance(sizes, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        fix = "must be a list with the number of examples of each client, e.g. fedpriv.count_examples(load, n_clients)"
        raise ConfigError("lazy_clients.sizes", sizes, fix)
    numbers = [int(size) for size in sizes]
    if not numbers or min(numbers) < 1:
        raise ConfigError(
            "lazy_clients.sizes",
            min(numbers, default=[]),
            "must list at least one client, each with at least 1 example: leave out clients without examples",
        )
    return LazyClients(copy_model(model), loss, load, numbers, num_workers, augmentation)
