"""What an example, or a model's output, may be: a tensor, or dicts, tuples and lists of tensors.

The structure is that of `torch.func.vmap`, so that what is nested here is batched there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar, cast

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map
from torch.utils.data import Dataset

Nested: TypeAlias = "Tensor | dict[str, Nested] | tuple[Nested, ...] | list[Nested]"
T = TypeVar("T", bound=Nested)


def each(function: Callable[..., Tensor], tree: T, *others: T) -> T:
    """Apply a function to each tensor, or to those at one place of several trees of one structure."""
    if isinstance(tree, Tensor):
        return cast("T", function(tree, *others))
    return cast("T", tree_map(function, tree, *others))


def leaves(tree: Nested) -> list[Tensor]:
    """The tensors, in order."""
    if isinstance(tree, Tensor):
        return [tree]
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def first(tree: Nested) -> Tensor:
    """The first tensor: all have the same dimensions of clients and examples."""
    if isinstance(tree, Tensor):
        return tree
    return leaves(tree)[0]


def structure(tree: Nested) -> str:
    """What is nested in what, to be compared."""
    return str(tree_flatten(tree)[1])


def joined(trees: Sequence[T]) -> T:
    """Rows of several trees of one structure, one after another."""
    return each(lambda *parts: torch.cat(parts), *trees)


def arguments(inputs: Nested) -> tuple[tuple[Nested, ...], dict[str, Nested]]:
    """How a model is called with inputs: those of a dict by name, of a tuple or list by position, else the tensor."""
    if isinstance(inputs, dict):
        return (), inputs
    return ((inputs,) if isinstance(inputs, Tensor) else tuple(inputs)), {}


def plain(value: object) -> Nested | None:
    """Dicts and tuples of tensors from whatever mappings and sequences; None where there is something else in it."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, Mapping):
        named = {str(key): plain(part) for key, part in cast("Mapping[object, object]", value).items()}
        if _is_whole(named.values()):
            return cast("Nested", named)
        return None
    if isinstance(value, tuple | list):
        parts = tuple(plain(part) for part in cast("Sequence[object]", value))
        if _is_whole(parts):
            return cast("Nested", parts)
        return None
    return None


class Rows(Dataset[Any]):
    """Pairs of inputs and targets as a data set: one for each row."""

    def __init__(self, inputs: Nested, targets: Nested) -> None:
        self._both = inputs, targets

    def __len__(self) -> int:
        """Number of rows."""
        return len(first(self._both))

    def __getitem__(self, index: int) -> tuple[Nested, Nested]:
        """The pair of a row."""
        return each(lambda rows: rows[index], self._both)


def _is_whole(parts: Collection[object]) -> bool:
    return bool(parts) and all(part is not None for part in parts)
