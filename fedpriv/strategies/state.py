"""The state that a strategy keeps between rounds: store it, restore it, and take the rows of some clients.

A state is a tensor, a number, None (nothing is kept), or a dataclass, tuple or dict of such parts. In the state of a
local step, a tensor has one row for each client, `[n, ...]`, which starts as a function of the client's row of the
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
    """A tensor `[n, ...]` of a local step's state that is not in memory; an engine puts it where the tensor was."""

    @abstractmethod
    def taken(self, cohort: Tensor | None) -> Tensor:
        """The rows of the clients `cohort [k]`, None for all: `[k, ...]`."""

    @abstractmethod
    def put(self, cohort: Tensor | None, rows: Tensor) -> RowStore:
        """The same with these rows of the clients `cohort [k]`; what was before is readable until the next `put`."""

    @property
    @abstractmethod
    def stored(self) -> Tensor:
        """What a checkpoint holds of it, one row for each client."""

    @abstractmethod
    def restored(self, stored: Tensor) -> RowStore:
        """Rows of the same kind, from what a checkpoint held."""


_LEAVES = (Tensor, RowStore, bool, int, float)


@dataclass(frozen=True)
class Rounds:
    """What a local step keeps that needs to know the round alone.

    Attributes:
        t: Rounds so far.
    """

    t: int


def flatten_with_names(state: object) -> dict[str, Leaf]:
    """The parts of a state by name, e.g. `inner.velocity` for a part of a part, as a checkpoint holds them."""
    return {name: leaf.stored if isinstance(leaf, RowStore) else leaf for name, leaf in _leaves(state).items()}


def unflatten_like(like: S, parts: Mapping[str, Leaf]) -> S:
    """A state of the same kind as `like`, from named parts; the shapes of tensors may differ.

    Raises:
        KeyError: the parts are not those of such a state.
    """
    if different := flatten_with_names(like).keys() ^ parts.keys():
        raise KeyError(", ".join(sorted(different)))

    def restore(name: str, leaf: Leaf | RowStore) -> Leaf | RowStore:
        part = parts[name]
        if isinstance(leaf, RowStore):
            return leaf.restored(torch.as_tensor(part))
        # a number may have been stored as a tensor
        if isinstance(leaf, Tensor):
            return part
        return type(leaf)(part)

    return tree_map_with_name(restore, like)


def has_rows(state: object) -> bool:
    """Whether a local step's state has rows, of each client its own."""
    return len(shared_leaves(state)) < len(flatten_with_names(state))


def shared_leaves(state: object) -> dict[str, Leaf]:
    """The public parts of a local step's state by name: they change also for clients that do not take part."""
    return {
        name: leaf for name, leaf in flatten_with_names(state).items() if not (isinstance(leaf, Tensor) and leaf.ndim)
    }


def replace_shared(state: S, parts: Mapping[str, Leaf]) -> S:
    """The state with these public parts."""
    return tree_map_with_name(lambda name, leaf: parts.get(name, leaf), state)


def take_rows(rows: Tensor, cohort: Tensor | None) -> Tensor:
    """The rows of the clients `cohort [k]`, None for all: `[n, ...] -> [k, ...]`.

    What is one row for all stays one, uncopied.
    """
    if cohort is None:
        return rows
    if rows.stride(0) == 0:
        return rows[:1].expand(len(cohort), *rows.shape[1:])
    return rows[cohort.to(rows.device)]


def select_rows(state: S, cohort: Tensor | None) -> S:
    """The rows of the clients `cohort [k]`, None for all, in memory: every `[n, ...]` becomes `[k, ...]`."""

    def take(_: str, leaf: Leaf | RowStore) -> Leaf:
        if isinstance(leaf, RowStore):
            return leaf.taken(cohort)
        if isinstance(leaf, Tensor) and leaf.ndim:
            return take_rows(leaf, cohort)
        return leaf

    return tree_map_with_name(take, state)


def scatter_rows(state: S, cohort: Tensor | None, rows: S) -> S:
    """The state of n clients with the rows `[k, ...]` of the clients `cohort [k]`, and the public parts, of another.

    With None for a cohort the rows are those of all.
    """
    old = _leaves(state)

    def put(name: str, fresh: Leaf) -> Leaf | RowStore:
        if cohort is None:
            before = old.get(name)
        else:
            before = old[name]
        if isinstance(before, RowStore) and isinstance(fresh, Tensor):
            return before.put(cohort, fresh)
        if isinstance(before, Tensor) and isinstance(fresh, Tensor) and before.ndim and cohort is not None:
            # of nobody, rows may still be as wide as before the first round
            if len(cohort):
                return before.index_copy(0, cohort.to(before.device), fresh)
            return before
        return fresh

    return tree_map_with_name(put, rows)


def _leaves(state: object) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def keep(name: str, leaf: Leaf | RowStore) -> Leaf | RowStore:
        found[name] = leaf
        return leaf

    tree_map_with_name(keep, state)
    return found


def tree_map_with_name(change: Callable[[str, Any], Any], state: Any, name: str = "") -> Any:  # noqa: ANN401 - any state
    """The state with every part changed by its name and value."""
    if state is None:
        return None
    if isinstance(state, _LEAVES):
        return change(name, state)
    parts = _parts(state)
    found = {key: tree_map_with_name(change, part, f"{name}.{key}" if name else key) for key, part in parts.items()}
    if isinstance(state, tuple):
        return tuple(found.values())
    if is_dataclass(state) and not isinstance(state, type):
        return replace(state, **found)
    return found


def _parts(state: Any) -> dict[str, Any]:  # noqa: ANN401 - any state
    if is_dataclass(state):
        return {field.name: getattr(state, field.name) for field in fields(state)}
    if isinstance(state, tuple):
        return {str(place): part for place, part in enumerate(state)}
    if isinstance(state, Mapping):
        return dict(state)
    fix = "keep tensors and numbers, in a dataclass, a tuple or a dict, or None"
    raise ConfigError("strategy", type(state).__name__, fix)
