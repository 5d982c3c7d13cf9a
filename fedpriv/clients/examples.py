"""Access to the clients' examples by client and position, so that they need not all lie in one tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from fedpriv.clients.client import Client
from fedpriv.errors import DataError


class Examples(Protocol):
    """All clients' examples. They have one shape and type, and never change."""

    @property
    def counts(self) -> Tensor:
        """Number of examples of each client, `[n_clients]`."""
        ...

    def take(self, clients: Tensor, places: Tensor, at: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Some examples of some clients.

        Args:
            clients: Indices of the clients, `[k]`.
            places: Positions in the data of each, from 0 to its count less one, `[k, b]`; one may occur more than once.
            at: The same positions among all clients' examples, if they are on the run's device already.

        Returns:
            Inputs `[k, b, ...]` and targets `[k, b, ...]`, on the run's device and in its types; read only.
        """
        ...

    def expect(self, *cohorts: Tensor) -> None:
        """Told of the clients `[k]` of this round and, where they are known, of the next."""
        ...


class InMemory:
    """All examples in one tensor of inputs and one of targets.

    Args:
        clients: The clients; each one's loader is read once.
        device: Where the tensors go.
        dtype: Floating-point inputs and targets are converted to it.

    Attributes:
        inputs: All clients' inputs, one client after another, `[n_examples, ...]`.
        targets: Their targets, `[n_examples, ...]`.

    Raises:
        DataError: the data of a client cannot be used; names the client.
    """

    def __init__(self, clients: Sequence[Client], device: torch.device, dtype: torch.dtype) -> None:
        data = [_read(index, client) for index, client in enumerate(clients)]
        for index, pair in enumerate(data):
            check_alike(index, pair, data[0])
        self.counts = torch.tensor([len(targets) for _, targets in data])
        self._starts = torch.cat([torch.zeros(1, dtype=torch.long), self.counts.cumsum(0)])[:-1]
        inputs = torch.cat([inputs for inputs, _ in data]).to(device)
        targets = torch.cat([targets for _, targets in data]).to(device)
        self.inputs, self.targets = with_types(inputs, targets, dtype)

    def take(self, clients: Tensor, places: Tensor, at: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """See `Examples.take`; consecutive examples are returned as a view, without copying."""
        return joined(self.inputs, self.targets, places + self._starts[clients].unsqueeze(1), at)

    def expect(self, *cohorts: Tensor) -> None:
        """Nothing to do: all is there."""


def joined(inputs: Tensor, targets: Tensor, at: Tensor, there: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The examples at these positions `[k, b]`: `[k, b, ...]` each; a view, where they lie in a row.

    Args:
        inputs: All inputs.
        targets: All targets.
        at: The positions, on the processor.
        there: The same on the device of the examples; copied unless given.
    """
    index = at.flatten()
    span = slice(int(index[0]), int(index[-1]) + 1)
    if span.stop - span.start == len(index) and torch.equal(index, torch.arange(span.start, span.stop)):
        return inputs[span].unflatten(0, at.shape), targets[span].unflatten(0, at.shape)
    index = index.to(inputs.device) if there is None else there.flatten()
    # twice as fast as inputs[index]
    inputs, targets = inputs.index_select(0, index), targets.index_select(0, index)
    return inputs.unflatten(0, at.shape), targets.unflatten(0, at.shape)


def with_types(inputs: Tensor, targets: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Inputs and targets in the types of a run: floating-point ones in `dtype`, class numbers as torch takes them."""
    inputs = inputs.to(dtype) if inputs.is_floating_point() else inputs
    if targets.is_floating_point():
        return inputs, targets.to(dtype)
    return inputs, targets if targets.dtype == torch.bool else targets.long()


def _read(index: int, client: Client) -> tuple[Tensor, Tensor]:
    try:
        return client.examples()
    except DataError as error:
        raise DataError(f"client {index}: {error}") from error


def check_alike(client: int, pair: tuple[Tensor, Tensor], of_first: tuple[Tensor, Tensor]) -> None:
    """Refuse a client whose inputs or targets are of another shape or kind than client 0's.

    Raises:
        DataError: they are; names the client.
    """
    for what, own, first in zip(("inputs", "targets"), pair, of_first, strict=True):
        facts = [(tuple(t.shape[1:]), t.is_floating_point()) for t in (own, first)]
        if facts[0] != facts[1]:
            told = f"{what} of shape {tuple(own.shape[1:])} and type {own.dtype}"
            other = f"{tuple(first.shape[1:])} and {first.dtype}"
            raise DataError(f"client {client} has {told}, and client 0 has {other}: bring all to one shape and type")
