"""Gives access to the clients' examples by client and position, so that the examples need not all be in one tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from fedpriv.clients.client import Client
from fedpriv.clients.reading import Pair, Read, Source, read_all
from fedpriv.errors import DataError
from fedpriv.models.nested import Nested, concatenate_trees, first_leaf, format_structure, list_leaves, map_tree

OnRead = Callable[[int, Pair], None]


class Examples(Protocol):
    """All clients' examples, as they were first read. All have the same shape and type.

    Attributes:
        on_read: Called with a client and its examples whenever they are read later; it raises to reject them.
    """

    on_read: OnRead

    @property
    def counts(self) -> Tensor:
        """Number of examples of each client, `[n_clients]`."""
        ...

    def take(self, clients: Tensor, positions: Tensor, device_positions: Tensor | None = None) -> Pair:
        """Returns some examples of some clients.

        Args:
            clients: Indices of the clients, `[k]`.
            positions: Positions in each client's data, from 0 to the client's number of examples minus one, `[k, b]`;
                positions may repeat.
            device_positions: The same positions, counted among all clients' examples, if they are already on the run's
                device.

        Returns:
            Inputs `[k, b, ...]` and targets `[k, b, ...]`, on the run's device and in its types; read only.
        """
        ...

    @property
    def random(self) -> bool:
        """True if some examples differ each time they are read, as with random transforms."""
        ...

    def source(self, client: int) -> Source | None:
        """Returns the source of a client's examples that must be read at each draw; None if they never change."""
        ...

    def expect(self, *cohorts: Tensor) -> None:
        """Announces the clients `[k]` of this round and, if they are known, of the next round, so that their examples
        can be read in advance.
        """
        ...


def accept_all(_: int, __: Pair) -> None:
    """Accepts any examples."""


class InMemory:
    """All examples in one tensor of inputs and one of targets, or in dicts and tuples of such tensors.

    Args:
        clients: The clients; each loader is read once.
        device: The device of the tensors.
        dtype: Type to which floating-point inputs and targets are converted.
        numbers: The clients' numbers, for error messages; by default from 0 on.

    Attributes:
        inputs: All clients' inputs, one client after another, `[n_examples, ...]`.
        targets: Their targets, `[n_examples, ...]`.

    Raises:
        DataError: If the data of a client cannot be used; the message names the client.
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
        reads = [_read(number, client) for number, client in zip(numbers, clients, strict=True)]
        data = [read.pair for read in reads]
        self._random = {row: client.loader for row, client in enumerate(clients) if reads[row].random}
        for number, pair in zip(numbers, data, strict=True):
            check_same_kind(number, pair, data[0], numbers[0])
        self.counts = torch.tensor([len(first_leaf(targets)) for _, targets in data])
        self._starts = torch.cat([torch.zeros(1, dtype=torch.long), self.counts.cumsum(0)])[:-1]
        inputs, targets = map_tree(lambda values: values.to(device), concatenate_trees(data))
        self.inputs, self.targets = with_types(inputs, targets, dtype)

    def take(self, clients: Tensor, positions: Tensor, device_positions: Tensor | None = None) -> Pair:
        """See `Examples.take`; consecutive examples are returned as a view, without copying."""
        if device_positions is not None and device_positions.device.type == "cpu":
            all_positions = device_positions
        else:
            all_positions = positions + self._starts[clients].unsqueeze(1)
        return gather_examples(self.inputs, self.targets, all_positions, device_positions)

    @property
    def random(self) -> bool:
        """See `Examples`."""
        return bool(self._random)

    def source(self, client: int) -> Source | None:
        """See `Examples`."""
        return self._random.get(client)

    def expect(self, *cohorts: Tensor) -> None:
        """Does nothing, because all examples are in memory."""


class NoExamples:
    """The examples of no client."""

    def __init__(self) -> None:
        self.on_read: OnRead = accept_all
        self.counts = torch.zeros(0, dtype=torch.long)

    def take(self, clients: Tensor, positions: Tensor, device_positions: Tensor | None = None) -> Pair:
        """Raises, since there are no examples.

        Raises:
            DataError: Always.
        """
        raise DataError("this process has no clients, and therefore no examples")

    @property
    def random(self) -> bool:
        """See `Examples`."""
        return False

    def source(self, client: int) -> Source | None:
        """See `Examples`."""

    def expect(self, *cohorts: Tensor) -> None:
        """Does nothing."""


def gather_examples(inputs: Nested, targets: Nested, positions: Tensor, device_positions: Tensor | None = None) -> Pair:
    """Returns the examples at `positions [k, b]`, `[k, b, ...]` each; a view if the positions are consecutive.

    Args:
        inputs: All inputs.
        targets: All targets.
        positions: The positions, on the CPU.
        device_positions: The same positions on the device of the examples; if they are not given, `positions` is copied
            to this device.
    """
    index = positions.flatten()
    numbers = index.numpy()
    span = slice(int(numbers[0]), int(numbers[-1]) + 1)
    if span.stop - span.start == len(numbers) and torch.equal(index, torch.arange(span.start, span.stop)):
        return map_tree(lambda rows: rows[span].unflatten(0, positions.shape), (inputs, targets))
    if device_positions is None:
        device_index = index.to(first_leaf(inputs).device)
    elif device_positions is positions:
        device_index = index
    else:
        device_index = device_positions.flatten()

    def gather(rows: Tensor) -> Tensor:
        # `index_select` is twice as fast as rows[found]
        return rows.index_select(0, device_index).view(*positions.shape, *rows.shape[1:])

    return map_tree(gather, inputs), map_tree(gather, targets)


def with_types(inputs: Nested, targets: Nested, dtype: torch.dtype) -> Pair:
    """Converts inputs and targets to the types of a run: floating-point ones to `dtype`, class numbers to int64."""

    def convert_input(values: Tensor) -> Tensor:
        if values.is_floating_point():
            return values.to(dtype)
        return values

    def convert_target(values: Tensor) -> Tensor:
        if values.is_floating_point() or values.dtype == torch.bool:
            return convert_input(values)
        return values.long()

    return map_tree(convert_input, inputs), map_tree(convert_target, targets)


def _read(index: int, client: Client) -> Read:
    try:
        return read_all(client.loader, len(client))
    except DataError as error:
        raise DataError(f"client {index}: {error}") from error


def describe_kind(pair: Pair) -> str:
    """Returns a text with the nesting of inputs and targets and the shapes of an example."""
    return repr([(str(format_structure(tree)), [_fact(tensor) for tensor in list_leaves(tree)]) for tree in pair])


def _fact(tensor: Tensor) -> tuple[tuple[int, ...], bool]:
    return tuple(tensor.shape[1:]), tensor.is_floating_point()


def check_kinds(kinds: Sequence[str | None]) -> None:
    """Raises an error if the examples of several processes' clients have different nesting or shapes.

    Args:
        kinds: The result of `describe_kind` for the first client of each process; None for a process without clients.

    Raises:
        DataError: If the kinds differ.
    """
    for process, kind in enumerate(kinds):
        if kind not in (None, kinds[0]):
            problem = (
                f"the examples of process {process} ({kind}) have a different structure from those of process 0 "
                f"({kinds[0]})"
            )
            raise DataError(f"{problem}: give the examples of all clients the same shape and type")


def check_same_kind(client: int, pair: Pair, first_pair: Pair, first_client: int = 0) -> None:
    """Raises an error if a client's inputs or targets have another nesting, shape or type than the first client's.

    Raises:
        DataError: If they differ; the message names the client.
    """
    for name, tree, first_tree in zip(("inputs", "targets"), pair, first_pair, strict=True):
        if format_structure(tree) != format_structure(first_tree):
            problem = f"the {name} of client {client} are nested differently from the {name} of client {first_client}"
            raise DataError(f"{problem}: use the same dict keys and tuple positions in each example")
        for tensor, first_tensor in zip(list_leaves(tree), list_leaves(first_tree), strict=True):
            facts = [_fact(tensor), _fact(first_tensor)]
            if facts[0] != facts[1]:
                problem = (
                    f"client {client} has {name} of shape {facts[0][0]} and type {tensor.dtype}, but client "
                    f"{first_client} has {name} of shape {facts[1][0]} and type {first_tensor.dtype}"
                )
                raise DataError(f"{problem}: give the examples of all clients the same shape and type")
