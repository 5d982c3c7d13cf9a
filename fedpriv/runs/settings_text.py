"""A run's settings by name, so that the error for a resume with other settings can list the differences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass

from torch import Tensor, nn

from fedpriv.errors import truncate
from fedpriv.storage.identity import is_graph

_LONGEST = 60  # characters of a value
_MOST = 5  # settings that an error names


def format_settings(**settings: object) -> dict[str, str]:
    """Returns settings as text by name: `privacy.clip.bound` is `"1.0"`.

    Args:
        settings: Objects by name; each field of a dataclass is a setting.
    """
    return {name: text for setting, value in settings.items() for name, text in _flat(setting, value)}


def _flat(name: str, value: object) -> Iterator[tuple[str, str]]:
    if is_dataclass(value):
        yield name, type(value).__name__
        for field in fields(value):
            if "aside" not in field.metadata:
                yield from _flat(f"{name}.{field.name}", getattr(value, field.name))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flat(f"{name}.{key}", item)
    else:
        yield name, format_setting(value)


def format_setting(value: object) -> str:
    """Returns a setting as a short text; for a module or a function, its name."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if is_graph(value):
        return f"{value.number_of_nodes()} nodes, {value.number_of_edges()} links"
    if isinstance(value, nn.Module):
        return type(value).__name__
    if callable(value):
        return str(getattr(value, "__qualname__", type(value).__name__))
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value) > 10:
        return f"{len(value)} values, {truncate(repr(value), _LONGEST)}"
    text = repr(value)
    if " at 0x" in text:
        return type(value).__name__
    return truncate(text, _LONGEST)


def format_difference(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Returns the settings that differ, with both values; empty if all are equal.

    Args:
        before: The settings with which a run began.
        after: The settings with which it is resumed.
    """
    names = list[str]()
    for name in {**before, **after}:
        # if the class of a setting changes, all its fields differ; only the setting is named
        inside_another = any(name.startswith(f"{other}.") for other in names)
        if before.get(name) != after.get(name) and not inside_another:
            names.append(name)
    texts = [f"{name}: {before.get(name, 'not set')} then, {after.get(name, 'not set')} now" for name in names]
    if len(texts) > _MOST:
        more = f"; and {len(texts) - _MOST} more"
    else:
        more = ""
    return "; ".join(texts[:_MOST]) + more
