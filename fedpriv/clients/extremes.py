"""Selects the real examples that are most likely to trigger a special case of a loss: examples with extreme targets,
and one example of each class.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fedpriv.clients.population import Population
from fedpriv.clients.reading import Pair
from fedpriv.models.nested import Nested, concatenate_trees, list_leaves, map_tree

_CLIENTS = 1024  # clients that are searched for extreme targets
_CLASSES = 12  # different whole numbers of a column, each of which contributes an example
_COLUMNS = 4  # numbers of a target that are inspected

Cell = tuple[float, int, int]
"""A number in a target, with the client and the index of the example."""


def extreme_examples(population: Population) -> Pair:
    """Returns examples with the smallest and largest targets, or of different classes, and in addition the first two
    examples.

    Returns:
        Inputs and targets, `[m, ...]` each.
    """
    clients = population.validated_clients
    clients = clients[:: -(-len(clients) // _CLIENTS)]
    extremes = dict[str, Cell]()
    classes = dict[str, dict[float, Cell]]()
    for client in clients:
        _, targets = population.examples_of(client)
        for name, column in _columns(targets):
            if _is_continuous(column):
                for sign in (1.0, -1.0):
                    index = int((sign * column).argmin())
                    cell = (sign * float(column[index]), client, index)
                    key = f"{name}, {sign}"
                    extremes[key] = min(cell, extremes.get(key, cell))
            else:
                for value, index in _first_of_each(column):
                    classes.setdefault(name, {}).setdefault(value, (value, client, index))
    cells = [*extremes.values()]
    for cells_of_class in classes.values():
        cells += _pick_evenly(sorted(cells_of_class.values()))
    examples = sorted({(client, index) for _, client, index in cells})
    pairs = list[Pair]()
    for client, index in examples:
        pairs.append(map_tree(lambda values, index=index: values[index : index + 1], population.examples_of(client)))
    return concatenate_trees([*pairs, population.first_examples(2)])


def _columns(targets: Nested) -> Iterator[tuple[str, Tensor]]:
    """Yields columns with one number of each target, `[m]`, for the first few entries of each target tensor."""
    for number, leaf in enumerate(list_leaves(targets)):
        flat = leaf.reshape(len(leaf), -1)
        for position in range(min(flat.shape[1], _COLUMNS)):
            yield f"{number}/{position}", flat[:, position]


def _is_continuous(values: Tensor) -> bool:
    return values.is_floating_point() and bool((values != values.round()).any())


def _first_of_each(column: Tensor) -> Iterator[tuple[float, int]]:
    """Yields the different values of a column, each with the index of its first example."""
    values, inverse = column.unique(return_inverse=True)
    positions = torch.arange(len(column), device=column.device)
    first = positions.new_full((len(values),), len(column)).scatter_reduce_(0, inverse, positions, "amin")
    return zip(map(float, values.tolist()), first.tolist(), strict=True)


def _pick_evenly(cells: list[Cell]) -> list[Cell]:
    """Returns a few of the sorted cells: the first, the last, and some that are evenly spaced between them."""
    count = min(len(cells), _CLASSES)
    chosen = {round(step * (len(cells) - 1) / max(count - 1, 1)) for step in range(count)}
    return [cells[position] for position in sorted(chosen)]
