"""Stores and restores the state that a strategy keeps between rounds, and selects the rows of some clients.

A state is a tensor, a number, None (no state), or a dataclass, tuple or dict of states. In the state of a
client update, a tensor has one row for each client, `[n, ...]`, which starts as a function of the client's row of the
parameters; numbers and tensors of shape `[]` are public and the same for all clients.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedpriv.errors import ConfigError

S = TypeVar("S")
Leaf = Tensor | bool | int | float


class RowStore(ABC):
    """A tensor `[n, ...]` of a client update's state that is stored elsewhere; it replaces the tensor in the state."""

    @abstractmethod
    def select(self, cohort: Tensor | None) -> Tensor:
        """Returns the rows of the clients `cohort [k]`, `[k, ...]`; None selects all clients."""

    @abstractmethod
    def with_rows(self, cohort: Tensor | None, rows: Tensor) -> RowStore:
        """Returns the store with new rows of the clients `cohort [k]`; the old one is readable until the next call."""

    @property
    @abstractmethod
    def stored(self) -> Tensor:
        """The tensor that a checkpoint stores, with one row for each client."""

    @abstractmethod
    def restored(self, stored: Tensor) -> RowStore:
        """Returns a store of the same kind with the rows of a checkpoint."""


_LEAVES = (Tensor, RowStore, bool, int, float)


@dataclass(frozen=True)
class Rounds:
    """State of a client update that depends only on the number of rounds.

    Attributes:
        t: Rounds so far.
    """

    t: int


def flatten_with_names(state: object) -> dict[str, Leaf]:
    """Returns the leaves of a state by name, as a checkpoint stores them; a nested one is e.g. `inner.velocity`."""
    return {name: leaf.stored if isinstance(leaf, RowStore) else leaf for name, leaf in _leaves(state).items()}


def unflatten_like(like: S, leaves: Mapping[str, Leaf]) -> S:
    """Returns a state with the structure of `like`, from named leaves; the shapes of tensors may differ.

    Raises:
        KeyError: If the names do not belong to such a state.
    """
    different = flatten_with_names(like).keys() ^ leaves.keys()
    if different:
        raise KeyError(", ".join(sorted(different)))

    def restore(name: str, leaf: Leaf | RowStore) -> Leaf | RowStore:
        value = leaves[name]
        if isinstance(leaf, RowStore):
            return leaf.restored(torch.as_tensor(value))
        # a number may have been stored as a tensor
        if isinstance(leaf, Tensor):
            return value
        return type(leaf)(value)

    return tree_map_with_name(restore, like)


def has_rows(state: object) -> bool:
    """Returns True if a client update's state has a row for each client."""
    return len(shared_leaves(state)) < len(flatten_with_names(state))


def shared_leaves(state: object) -> dict[str, Leaf]:
    """Returns the public leaves of a client update's state by name. They change even if a client does not take part."""
    if state is None:
        return {}
    return {
        name: leaf for name, leaf in flatten_with_names(state).items() if not (isinstance(leaf, Tensor) and leaf.ndim)
    }


def replace_shared(state: S, leaves: Mapping[str, Leaf]) -> S:
    """Returns the state with other public leaves, by name."""
    return tree_map_with_name(lambda name, leaf: leaves.get(name, leaf), state)


def take_rows(rows: Tensor, cohort: Tensor | None) -> Tensor:
    """Returns the rows of the clients `cohort [k]`, None for all: `[n, ...] -> [k, ...]`.

    If all rows are one expanded row, the result is also one expanded row, without a copy.
    """
    if cohort is None:
        return rows
    if rows.stride(0) == 0:
        return rows[:1].expand(len(cohort), *rows.shape[1:])
    return rows[cohort.to(rows.device)]


def select_rows(state: S, cohort: Tensor | None) -> S:
    """Returns the state of the clients `cohort [k]`, None for all, in memory: every `[n, ...]` becomes `[k, ...]`."""

    def take(_: str, leaf: Leaf | RowStore) -> Leaf:
        if isinstance(leaf, RowStore):
            return leaf.select(cohort)
        if isinstance(leaf, Tensor) and leaf.ndim:
            return take_rows(leaf, cohort)
        return leaf

    return tree_map_with_name(take, state)


def scatter_rows(state: S, cohort: Tensor | None, rows: S) -> S:
    """Returns the state of n clients in which the rows of `cohort [k]` and the public leaves come from `rows`.

    Args:
        state: The state of all clients, `[n, ...]`.
        cohort: The clients of the replaced rows, `[k]`; None replaces all.
        rows: The state of these clients, `[k, ...]`.
    """
    if state is None and rows is None:
        return rows
    old_leaves = _leaves(state)

    def merge(name: str, new_leaf: Leaf) -> Leaf | RowStore:
        if cohort is None:
            old_leaf = old_leaves.get(name)
        else:
            old_leaf = old_leaves[name]
        if isinstance(old_leaf, RowStore) and isinstance(new_leaf, Tensor):
            return old_leaf.with_rows(cohort, new_leaf)
        if isinstance(old_leaf, Tensor) and isinstance(new_leaf, Tensor) and old_leaf.ndim and cohort is not None:
            # rows of an empty cohort may still be as wide as before the first round
            if len(cohort):
                return old_leaf.index_copy(0, cohort.to(old_leaf.device), new_leaf)
            return old_leaf
        return new_leaf

    return tree_map_with_name(merge, rows)


def _leaves(state: object) -> dict[str, Any]:
    leaves: dict[str, Any] = {}

    def keep(name: str, leaf: Leaf | RowStore) -> Leaf | RowStore:
        leaves[name] = leaf
        return leaf

    tree_map_with_name(keep, state)
    return leaves


def tree_map_with_name(change: Callable[[str, Any], Any], state: Any, name: str = "") -> Any:  # noqa: ANN401 - any state
    """Returns the state with every leaf replaced by `change(name, leaf)`."""
    if state is None:
        return None
    if isinstance(state, _LEAVES):
        return change(name, state)
    children = _fields(state)
    changed = {
        key: tree_map_with_name(change, child, f"{name}.{key}" if name else key) for key, child in children.items()
    }
    if isinstance(state, tuple):
        return tuple(changed.values())
    if is_dataclass(state) and not isinstance(state, type):
        return replace(state, **changed)
    return changed


def _fields(state: Any) -> dict[str, Any]:  # noqa: ANN401 - any state
    if is_dataclass(state):
        return {field.name: getattr(state, field.name) for field in fields(state)}
    if isinstance(state, tuple):
        return {str(index): value for index, value in enumerate(state)}
    if isinstance(state, Mapping):
        return dict(state)
    fix = "must be None, or tensors and numbers in a dataclass, a tuple or a dict"
    raise ConfigError("strategy", type(state).__name__, fix)
