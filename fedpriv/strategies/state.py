"""The state that a strategy keeps between rounds: store it, restore it, and take the rows of some clients.

A state is a tensor, a number, None (nothing is kept), or a dataclass, tuple or dict of such parts. In the state of a
local step, a tensor has one row for each client, `[n, ...]`; numbers and tensors of shape `[]` are public and the same
for all clients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

from torch import Tensor

from fedpriv.errors import ConfigError

S = TypeVar("S")
Leaf = Tensor | bool | int | float
_LEAVES = (Tensor, bool, int, float)


@dataclass(frozen=True)
class Rounds:
    """What a local step keeps that needs to know the round alone.

    Attributes:
        t: Rounds so far.
    """

    t: int


def named(state: object) -> dict[str, Leaf]:
    """The parts of a state by name, e.g. `inner.velocity` for a part of a part, as a checkpoint holds them."""
    found: dict[str, Leaf] = {}

    def keep(name: str, leaf: Leaf) -> Leaf:
        found[name] = leaf
        return leaf

    _changed(keep, state)
    return found


def restored(like: S, parts: Mapping[str, Leaf]) -> S:
    """A state of the same kind as `like`, from named parts; the shapes of tensors may differ.

    Raises:
        KeyError: the parts are not those of such a state.
    """
    if different := named(like).keys() ^ parts.keys():
        raise KeyError(", ".join(sorted(different)))
    # a number may have been stored as a tensor
    return _changed(lambda name, leaf: parts[name] if isinstance(leaf, Tensor) else type(leaf)(parts[name]), like)


def in_common(state: object) -> dict[str, Leaf]:
    """The public parts of a local step's state by name: they change also for clients that do not take part."""
    return {name: leaf for name, leaf in named(state).items() if not (isinstance(leaf, Tensor) and leaf.ndim)}


def with_common(state: S, parts: Mapping[str, Leaf]) -> S:
    """The state with these public parts."""
    return _changed(lambda name, leaf: parts.get(name, leaf), state)


def taken(rows: Tensor, cohort: Tensor) -> Tensor:
    """The rows of the clients `cohort [k]`: `[n, ...] -> [k, ...]`; what is one row for all stays one, uncopied."""
    if rows.stride(0) == 0:
        return rows[:1].expand(len(cohort), *rows.shape[1:])
    return rows[cohort.to(rows.device)]


def rows_of(state: S, cohort: Tensor) -> S:
    """The rows of the clients `cohort [k]`: every `[n, ...]` becomes `[k, ...]`."""

    def take(_: str, leaf: Leaf) -> Leaf:
        return taken(leaf, cohort) if isinstance(leaf, Tensor) and leaf.ndim else leaf

    return _changed(take, state)


def with_rows(state: S, cohort: Tensor, rows: S) -> S:
    """The state of n clients with the rows `[k, ...]` of the clients `cohort [k]`, and the public parts, of another."""
    new = named(rows)

    def put(name: str, leaf: Leaf) -> Leaf:
        fresh = new[name]
        if isinstance(leaf, Tensor) and isinstance(fresh, Tensor) and leaf.ndim:
            return leaf.index_copy(0, cohort.to(leaf.device), fresh)
        return fresh

    return _changed(put, state)


def _changed(change: Callable[[str, Any], Any], state: Any, name: str = "") -> Any:  # noqa: ANN401 - any state
    """The state with every part changed by its name and value."""
    if state is None:
        return None
    if isinstance(state, _LEAVES):
        return change(name, state)
    parts = _parts(state)
    changed = {key: _changed(change, part, f"{name}.{key}" if name else key) for key, part in parts.items()}
    if isinstance(state, tuple):
        return tuple(changed.values())
    return replace(state, **changed) if is_dataclass(state) and not isinstance(state, type) else changed


def _parts(state: Any) -> dict[str, Any]:  # noqa: ANN401 - any state
    if is_dataclass(state):
        return {field.name: getattr(state, field.name) for field in fields(state)}
    if isinstance(state, tuple):
        return {str(place): part for place, part in enumerate(state)}
    if isinstance(state, Mapping):
        return dict(state)
    fix = "keep tensors and numbers, in a dataclass, a tuple or a dict, or None"
    raise ConfigError("strategy", type(state).__name__, fix)
