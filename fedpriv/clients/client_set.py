"""The data owners of a run: what is public of them, and the way to their examples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import Dataset

from fedpriv.clients.client import Client
from fedpriv.clients.examples import Examples, InMemory
from fedpriv.clients.layout import Layout, constants, share
from fedpriv.clients.lazy import Examine, LazyClients
from fedpriv.data.augmentation import Augmentation
from fedpriv.errors import ConfigError
from fedpriv.models.problem import Problem
from fedpriv.privacy.settings import FixedSize, Privacy


class ClientSet(Protocol):
    """What a run needs of its clients, without asking each."""

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
        """Number of examples of each client that others are told."""
        ...

    @property
    def sizes_declared(self) -> bool:
        """Whether these do not depend on the true numbers, of any client."""
        ...

    def declared(self) -> Iterator[tuple[int, int]]:
        """Clients that declared a size, with it: their true sizes may be others."""
        ...

    @property
    def looked_at(self) -> Sequence[int]:
        """Clients whose data are checked before a run."""
        ...

    def dataset(self, client: int) -> Dataset[Any]:
        """The data set of a client."""
        ...

    def examine_with(self, examine: Examine) -> None:
        """Have each client's data set examined when it is read, if that is later."""
        ...

    def examples(self, device: torch.device, dtype: torch.dtype) -> Examples:
        """Access to all examples."""
        ...

    def rows(self, layout: Layout, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Parameters of each client's model, `[n, dim]`; the models' own are views of them."""
        ...

    def outcomes(self) -> Iterator[str | None]:
        """What each model has cost so far; None if it is no run's result."""
        ...

    def adopt(self, rows: Tensor, models: Tensor, price: str) -> None:
        """Write reported models `[n, dim]` or `[1, dim]` into `rows`, which `rows()` gave, with what they cost."""
        ...


@dataclass(frozen=True)
class EagerClientSet:
    """Clients that are there, each with a model and data of its own, and their numbers in the run."""

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
            ConfigError: clients have different ones.
        """
        found = self.clients[0].augmentation
        for index, client in enumerate(self.clients):
            if client.augmentation != found:
                raise ConfigError(f"clients[{index}].augmentation", client.augmentation, "give all clients the same")
        return found

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
    def looked_at(self) -> Sequence[int]:
        """All."""
        return range(len(self.clients))

    def dataset(self, client: int) -> Dataset[Any]:
        """See `ClientSet`."""
        return self.clients[client].loader.dataset

    def examine_with(self, examine: Examine) -> None:
        """Nothing is read later."""

    def examples(self, device: torch.device, dtype: torch.dtype) -> Examples:
        """All examples, in memory."""
        return InMemory(self.clients, device, dtype, self.numbers)

    def rows(self, layout: Layout, device: torch.device, dtype: torch.dtype) -> Tensor:
        """See `ClientSet`. What is frozen, and buffers, are one for all from here on.

        Raises:
            ConfigError: models differ.
        """
        rows = torch.empty(len(self.clients), layout.dim, device=device, dtype=dtype)
        shared = constants(self.clients[0].model.to(device, dtype))
        for index, number, client in zip(range(len(self.clients)), self.numbers, self.clients, strict=True):
            if Layout.of(client.model) != layout:
                fix = "all models must be alike: the same parameters, the same of them frozen"
                raise ConfigError(f"clients[{number}].model", type(client.model).__name__, fix)
            client.model.to(device, dtype)
            _check_same(number, constants(client.model), shared)
            share(client.model, shared)
            layout.bind(rows[index], client.model)
        return rows

    def outcomes(self) -> Iterator[str | None]:
        """See `ClientSet`."""
        return (client.outcome_of for client in self.clients)

    def adopt(self, rows: Tensor, models: Tensor, price: str) -> None:
        """See `ClientSet`."""
        rows.copy_(models.expand_as(rows))
        for client in self.clients:
            client.outcome_of = price


def as_client_set(clients: Sequence[Client], numbers: Sequence[int] | None = None) -> ClientSet:
    """What a run needs of these clients, whose numbers in the run are from 0 on unless they are given."""
    if isinstance(clients, LazyClients):
        return clients
    return EagerClientSet(clients, range(len(clients)) if numbers is None else numbers)


def public_sizes(clients: Sequence[Client], privacy: Privacy) -> list[int]:
    """Number of examples of each client that others are told.

    Raises:
        ConfigError: with batches of fixed size, a client's `public_size` is not its true size.
    """
    roster = as_client_set(clients)
    for index, size in roster.declared() if isinstance(privacy.sampling, FixedSize) else ():
        if size != (true := len(clients[index])):
            fix = f"batches of fixed size need the true size, {true}; use Poisson batches"
            raise ConfigError(f"clients[{index}].public_size", size, fix)
    return list(roster.sizes)


def _check_same(client: int, own: dict[str, Tensor], shared: dict[str, Tensor]) -> None:
    """One model serves all clients, so what is frozen must be the same in each."""
    for name in {**shared, **own}:
        if name not in own or name not in shared or not _equal(own[name], shared[name]):
            fix = "is frozen (or a buffer) and not the same as client 0's; copy it from one model, or let it be trained"
            raise ConfigError(f"clients[{client}].model", name, fix)


def _equal(own: Tensor, shared: Tensor) -> bool:
    if own.data_ptr() == shared.data_ptr() and own.stride() == shared.stride() and own.shape == shared.shape:
        return True  # a hundred comparisons of a large body take as long as a round
    return torch.equal(own, shared)
