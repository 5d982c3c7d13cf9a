"""Trees of tensors, which examples and model outputs may be: a tensor, or dicts, tuples and lists of tensors.

The structure is the same as in `torch.func.vmap`, which can therefore batch such trees.
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


def map_tree(function: Callable[..., Tensor], tree: T, *others: T) -> T:
    """Applies a function to each tensor of a tree, or to the corresponding tensors of several trees."""
    if isinstance(tree, Tensor):
        return cast("T", function(tree, *others))
    if type(tree) is tuple and not others:  # without a walk through the tree, which takes as long as a small operation
        return cast("T", tuple(map_tree(function, branch) for branch in cast("tuple[Nested, ...]", tree)))
    return cast("T", tree_map(function, tree, *others))


def list_leaves(tree: Nested) -> list[Tensor]:
    """Returns the tensors of a tree, in order."""
    if isinstance(tree, Tensor):
        return [tree]
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def first_leaf(tree: Nested) -> Tensor:
    """Returns the first tensor; all tensors have its dimensions of clients and examples."""
    if isinstance(tree, Tensor):
        return tree
    return list_leaves(tree)[0]


def format_structure(tree: Nested) -> str:
    """Formats the structure of a tree without its tensors, for comparisons."""
    return str(tree_flatten(tree)[1])


def concatenate_trees(trees: Sequence[T]) -> T:
    """Concatenates the rows of several trees of one structure."""
    return map_tree(lambda *tensors: torch.cat(tensors), *trees)


def call_arguments(inputs: Nested) -> tuple[tuple[Nested, ...], dict[str, Nested]]:
    """Returns the arguments of a model's call: inputs in a dict by name, in a tuple or list by position."""
    if isinstance(inputs, dict):
        return (), inputs
    if isinstance(inputs, Tensor):
        return (inputs,), {}
    return tuple(inputs), {}


def to_plain_tree(value: object) -> Nested | None:
    """Converts mappings and sequences of tensors to dicts and tuples; returns None if anything else is in them."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, Mapping):
        named = {str(key): to_plain_tree(item) for key, item in cast("Mapping[object, object]", value).items()}
        if _is_whole(named.values()):
            return cast("Nested", named)
        return None
    if isinstance(value, tuple | list):
        items = tuple(to_plain_tree(item) for item in cast("Sequence[object]", value))
        if _is_whole(items):
            return cast("Nested", items)
        return None
    return None


class Rows(Dataset[Any]):
    """Pairs of inputs and targets as a data set: one for each row."""

    def __init__(self, inputs: Nested, targets: Nested) -> None:
        self._pair = inputs, targets

    def __len__(self) -> int:
        """Number of rows."""
        return len(first_leaf(self._pair))

    def __getitem__(self, index: int) -> tuple[Nested, Nested]:
        """Returns the pair of a row."""
        return map_tree(lambda rows: rows[index], self._pair)


def _is_whole(items: Collection[object]) -> bool:
    return bool(items) and all(item is not None for item in items)
