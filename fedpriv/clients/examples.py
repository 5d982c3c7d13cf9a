"""Access to the clients' examples by client and position, so that they need not all lie in one tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from fedpriv.clients.client import Client
from fedpriv.clients.reading import Pair, Read, Source, read_all
from fedpriv.data.nested import Nested, each, first, joined, leaves, structure
from fedpriv.errors import DataError

OnRead = Callable[[int, Pair], None]


class Examples(Protocol):
    """All clients' examples as they were read first. They have one shape and type.

    Attributes:
        on_read: Called with each client and its examples whenever they are read later; it raises to refuse them.
    """

    on_read: OnRead

    @property
    def counts(self) -> Tensor:
        """Number of examples of each client, `[n_clients]`."""
        ...

    def take(self, clients: Tensor, places: Tensor, at: Tensor | None = None) -> Pair:
        """Some examples of some clients.

        Args:
            clients: Indices of the clients, `[k]`.
            places: Positions in the data of each, from 0 to its count less one, `[k, b]`; one may occur more than once.
            at: The same positions among all clients' examples, if they are on the run's device already.

        Returns:
            Inputs `[k, b, ...]` and targets `[k, b, ...]`, on the run's device and in its types; read only.
        """
        ...

    @property
    def random(self) -> bool:
        """Whether some are other ones whenever they are read, as random transforms make them."""
        ...

    def source(self, client: int) -> Source | None:
        """Where to read a client's examples anew whenever they are drawn; None if they stay the same."""
        ...

    def expect(self, *cohorts: Tensor) -> None:
        """Told of the clients `[k]` of this round and, where they are known, of the next."""
        ...


def accept_all(_: int, __: Pair) -> None:
    """Refuses no examples."""


class InMemory:
    """All examples in one tensor of inputs and one of targets, or in dicts and tuples of such tensors.

    Args:
        clients: The clients; each one's loader is read once.
        device: Where the tensors go.
        dtype: Floating-point inputs and targets are converted to it.
        numbers: Of the clients, for errors; from 0 on by default.

    Attributes:
        inputs: All clients' inputs, one client after another, `[n_examples, ...]`.
        targets: Their targets, `[n_examples, ...]`.

    Raises:
        DataError: the data of a client cannot be used; names the client.
    """

    def __init__(
        self,
        clients: Sequence[Client],
        device: torch.device,
        dtype: torch.dtype,
        numbers: Sequence[int] | None = None,
    ) -> None:
        self.on_read: OnRead = accept_all  # nothing is read later
        if numbers is None:
            numbers = range(len(clients))
        else:
            numbers = numbers
        found = [_read(number, client) for number, client in zip(numbers, clients, strict=True)]
        data = [read.pair for read in found]
        self._random = {row: client.loader for row, client in enumerate(clients) if found[row].random}
        for number, pair in zip(numbers, data, strict=True):
            check_alike(number, pair, data[0], numbers[0])
        self.counts = torch.tensor([len(first(targets)) for _, targets in data])
        self._starts = torch.cat([torch.zeros(1, dtype=torch.long), self.counts.cumsum(0)])[:-1]
        both = each(lambda values: values.to(device), joined(data))
        self.inputs, self.targets = with_types(*both, dtype)

    def take(self, clients: Tensor, places: Tensor, at: Tensor | None = None) -> Pair:
        """See `Examples.take`; consecutive examples are returned as a view, without copying."""
        return at_places(self.inputs, self.targets, places + self._starts[clients].unsqueeze(1), at)

    @property
    def random(self) -> bool:
        """See `Examples`."""
        return bool(self._random)

    def source(self, client: int) -> Source | None:
        """See `Examples`."""
        return self._random.get(client)

    def expect(self, *cohorts: Tensor) -> None:
        """Nothing to do: all is there."""


class NoExamples:
    """The examples of no client."""

    def __init__(self) -> None:
        self.on_read: OnRead = accept_all
        self.counts = torch.zeros(0, dtype=torch.long)

    def take(self, clients: Tensor, places: Tensor, at: Tensor | None = None) -> Pair:
        """There is nothing to take.

        Raises:
            DataError: always.
        """
        raise DataError("there are no clients here, and so no examples")

    @property
    def random(self) -> bool:
        """None is."""
        return False

    def source(self, client: int) -> Source | None:
        """There is none."""

    def expect(self, *cohorts: Tensor) -> None:
        """Nothing to do."""


def at_places(inputs: Nested, targets: Nested, at: Tensor, there: Tensor | None = None) -> Pair:
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
        return each(lambda rows: rows[span].unflatten(0, at.shape), (inputs, targets))
    if there is None:
        found = index.to(first(inputs).device)
    else:
        found = there.flatten()
    # twice as fast as rows[found]
    return each(lambda rows: rows.index_select(0, found).unflatten(0, at.shape), (inputs, targets))


def with_types(inputs: Nested, targets: Nested, dtype: torch.dtype) -> Pair:
    """Inputs and targets in the types of a run: floating-point ones in `dtype`, class numbers as torch takes them."""

    def of_input(values: Tensor) -> Tensor:
        if values.is_floating_point():
            return values.to(dtype)
        return values

    def of_target(values: Tensor) -> Tensor:
        if values.is_floating_point() or values.dtype == torch.bool:
            return of_input(values)
        return values.long()

    return each(of_input, inputs), each(of_target, targets)


def _read(index: int, client: Client) -> Read:
    try:
        return read_all(client.loader, len(client))
    except DataError as error:
        raise DataError(f"client {index}: {error}") from error


def kind_of(pair: Pair) -> str:
    """How a client's inputs and targets are nested, and the shape of an example."""
    return repr([(str(structure(part)), [_fact(tensor) for tensor in leaves(part)]) for part in pair])


def _fact(tensor: Tensor) -> tuple[tuple[int, ...], bool]:
    return tuple(tensor.shape[1:]), tensor.is_floating_point()


def check_kinds(kinds: Sequence[str | None]) -> None:
    """Refuse clients of several processes whose examples are not nested and shaped alike.

    Args:
        kinds: What `kind_of` says of each process's first client; None where there is none.

    Raises:
        DataError: they are not.
    """
    for process, kind in enumerate(kinds):
        if kind not in (None, kinds[0]):
            told = f"examples in process {process} are of another kind than in process 0 ({kind}, and {kinds[0]})"
            raise DataError(f"{told}: bring all to one shape and type")


def check_alike(client: int, pair: Pair, of_first: Pair, first_client: int = 0) -> None:
    """Refuse a client whose inputs or targets are of another shape or kind than the first client's.

    Raises:
        DataError: they are; names the client.
    """
    for what, own, other in zip(("inputs", "targets"), pair, of_first, strict=True):
        if structure(own) != structure(other):
            told = f"{what} of client {client} are not nested as client {first_client}'s"
            raise DataError(f"{told}: give each example the same names and places")
        for mine, first_ones in zip(leaves(own), leaves(other), strict=True):
            facts = [_fact(mine), _fact(first_ones)]
            if facts[0] != facts[1]:
                told = f"{what} of shape {facts[0][0]} and type {mine.dtype}"
                told = f"client {client} has {told}, and client {first_client} has {facts[1][0]} and {first_ones.dtype}"
                raise DataError(f"{told}: bring all to one shape and type")
