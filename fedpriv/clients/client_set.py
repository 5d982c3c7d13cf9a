"""The data owners of a run: public facts about them, and access to their examples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import Dataset

from fedpriv.clients.augmentation import Augmentation
from fedpriv.clients.client import Client
from fedpriv.clients.examples import Examples, InMemory
from fedpriv.clients.layout import Layout, collect_constants, share_constants
from fedpriv.clients.lazy import Examine, LazyClients
from fedpriv.clients.released_models import find_privacy_cost, record_result
from fedpriv.errors import ConfigError
from fedpriv.models.problem import Problem
from fedpriv.privacy.settings import FixedSize, Privacy


class ClientSet(Protocol):
    """All clients of a run as one object, with the facts that a run needs without a loop over clients."""

    @property
    def problems(self) -> Sequence[Problem]:
        """Objective and constraints of each client."""
        ...

    @property
    def augmentation(self) -> Augmentation:
        """Random views of all clients' examples."""
        ...

    @property
    def sizes(self) -> Sequence[int]:
        """Public number of examples of each client."""
        ...

    @property
    def sizes_declared(self) -> bool:
        """True if all clients declared their sizes, so that the public sizes do not depend on the true numbers of
        examples.
        """
        ...

    def declared(self) -> Iterator[tuple[int, int]]:
        """Yields each client that declared a size, with this size, which may differ from the true number."""
        ...

    @property
    def validated_clients(self) -> Sequence[int]:
        """Indices of the clients with data that are validated before training. Other clients are validated when they
        are first drawn.
        """
        ...

    def dataset(self, client: int) -> Dataset[Any]:
        """Returns the data set of a client."""
        ...

    def examine_with(self, examine: Examine) -> None:
        """Sets a function that checks a client's data set when it is read after the start of the run."""
        ...

    def examples(self, device: torch.device, dtype: torch.dtype) -> Examples:
        """Returns access to all examples."""
        ...

    def rows(self, layout: Layout, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Returns parameters of each client's model, `[n, dim]`; the models' parameters become views of them."""
        ...

    def released_costs(self) -> Iterator[str | None]:
        """Yields the privacy cost of each model; None if the model is not the result of a run."""
        ...

    def adopt(self, rows: Tensor, models: Tensor, cost: str) -> None:
        """Writes reported models `[n, dim]` or `[1, dim]` into `rows`, the result of `rows()`, and notes their privacy
        cost.
        """
        ...


@dataclass(frozen=True)
class EagerClientSet:
    """Clients in memory, each with its own model and data, and their numbers in the run."""

    clients: Sequence[Client]
    numbers: Sequence[int]

    @property
    def problems(self) -> Sequence[Problem]:
        """See `ClientSet`."""
        return [client.problem for client in self.clients]

    @property
    def augmentation(self) -> Augmentation:
        """See `ClientSet`.

        Raises:
            ConfigError: If the clients have different augmentations.
        """
        augmentation = self.clients[0].augmentation
        for index, client in enumerate(self.clients):
            if client.augmentation != augmentation:
                raise ConfigError(
                    f"clients[{index}].augmentation",
                    client.augmentation,
                    "must be the same for all clients: pass the same augmentation to each",
                )
        return augmentation

    @property
    def sizes(self) -> Sequence[int]:
        """See `ClientSet`."""
        return [client.public_size for client in self.clients]

    @property
    def sizes_declared(self) -> bool:
        """See `ClientSet`."""
        return all(client.size_declared for client in self.clients)

    def declared(self) -> Iterator[tuple[int, int]]:
        """See `ClientSet`."""
        return ((index, client.public_size) for index, client in enumerate(self.clients) if client.size_declared)

    @property
    def validated_clients(self) -> Sequence[int]:
        """See `ClientSet`: all clients."""
        return range(len(self.clients))

    def dataset(self, client: int) -> Dataset[Any]:
        """See `ClientSet`."""
        return self.clients[client].loader.dataset

    def examine_with(self, examine: Examine) -> None:
        """Does nothing, because no data are read later."""

    def examples(self, device: torch.device, dtype: torch.dtype) -> Examples:
        """Reads all examples into memory."""
        return InMemory(self.clients, device, dtype, self.numbers)

    def rows(self, layout: Layout, device: torch.device, dtype: torch.dtype) -> Tensor:
        """See `ClientSet`. All models share frozen parameters and buffers afterwards.

        Raises:
            ConfigError: If models differ.
        """
        rows = torch.empty(len(self.clients), layout.dim, device=device, dtype=dtype)
        shared = collect_constants(self.clients[0].model.to(device, dtype))
        for index, number, client in zip(range(len(self.clients)), self.numbers, self.clients, strict=True):
            if Layout.of(client.model) != layout:
                fix = (
                    "differs from the model of the first client: the models of all clients must have the same "
                    "parameters, and the same parameters frozen"
                )
                raise ConfigError(f"clients[{number}].model", type(client.model).__name__, fix)
            client.model.to(device, dtype)
            _check_same(number, collect_constants(client.model), shared)
            share_constants(client.model, shared)
            layout.bind(rows[index], client.model)
        return rows

    def released_costs(self) -> Iterator[str | None]:
        """See `ClientSet`."""
        return (client.released_cost or find_privacy_cost(client.model) for client in self.clients)

    def adopt(self, rows: Tensor, models: Tensor, cost: str) -> None:
        """See `ClientSet`."""
        rows.copy_(models.expand_as(rows))
        for client in self.clients:
            client.released_cost = cost
            record_result(client.model, cost)


def as_client_set(clients: Sequence[Client], numbers: Sequence[int] | None = None) -> ClientSet:
    """Wraps clients; by default their `numbers` in the run count from 0."""
    if isinstance(clients, LazyClients):
        return clients
    if numbers is None:
        numbers = range(len(clients))
    return EagerClientSet(clients, numbers)


def public_sizes(clients: Sequence[Client], privacy: Privacy) -> list[int]:
    """Returns the public number of examples of each client.

    Raises:
        ConfigError: If batches have a fixed size, and a client's `public_size` is not its true size.
    """
    roster = as_client_set(clients)
    if isinstance(privacy.sampling, FixedSize):
        for index, size in roster.declared():
            true_size = len(clients[index])
            if size != true_size:
                fix = (
                    f"differs from the true number of examples, {true_size}, which batches of a fixed size need: "
                    "declare the true number, or use Poisson batches"
                )
                raise ConfigError(f"clients[{index}].public_size", size, fix)
    return list(roster.sizes)


def _check_same(client: int, local: dict[str, Tensor], shared: dict[str, Tensor]) -> None:
    """Raises an error if a model's frozen parameters and buffers differ from the first client's, because one model
    computes for all clients.
    """
    for name in {**shared, **local}:
        if name not in local or name not in shared or not _equal(local[name], shared[name]):
            fix = (
                "is a frozen parameter or a buffer whose value differs from that in the first client's model: copy it "
                "from one model to all, or make the parameter trainable"
            )
            raise ConfigError(f"clients[{client}].model", name, fix)


def _equal(local: Tensor, shared: Tensor) -> bool:
    if local.data_ptr() == shared.data_ptr() and local.stride() == shared.stride() and local.shape == shared.shape:
        # the same memory: to compare a large model's parameters for each of many clients takes as long as a round
        return True
    return torch.equal(local, shared)
