"""What a configuration can name, and the options of each name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from itertools import chain
from typing import Any

from fedpriv.config.base import Plugin
from fedpriv.config.network import ActivitySection, MixingSection, TopologySection
from fedpriv.config.problem import ConstraintSection, ObjectiveSection
from fedpriv.config.schema import DataSection, LossSection, ModelSection, StrategySection
from fedpriv.data.partition import PARTITIONS
from fedpriv.errors import ConfigError
from fedpriv.oracle.backends import BACKENDS
from fedpriv.plugins import Entry, nearest
from fedpriv.privacy.mechanisms import MECHANISMS

SECTIONS: dict[str, type[Plugin]] = {
    "strategies": StrategySection,
    "models": ModelSection,
    "losses": LossSection,
    "objectives": ObjectiveSection,
    "constraints": ConstraintSection,
    "data": DataSection,
    "topologies": TopologySection,
    "mixings": MixingSection,
    "activities": ActivitySection,
}


def kinds() -> dict[str, dict[str, str]]:
    """All names by kind, each with one line about it; kinds are words, so that one can be asked for."""
    found = {kind: {name: row.description for name, row in of.registry.items()} for kind, of in SECTIONS.items()}
    for kind, objects in {"partitions": PARTITIONS, "mechanisms": MECHANISMS, "backends": BACKENDS}.items():
        found[kind] = {name: (thing.__doc__ or "").strip().split("\n")[0] for name, thing in objects.items()}
    return found


def look_up(name: str | None, more: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """All names by kind, those of one kind, or the options of one name.

    Args:
        name: A kind, a name, or None.
        more: Further kinds.

    Raises:
        ConfigError: it is neither.
    """
    known = {**kinds(), **{kind: dict(rows) for kind, rows in more.items()}}
    if name is None:
        return known
    if name in known:
        return {name: known[name]}
    for kind in ("partitions", "mechanisms", "backends", *more):
        if name in known[kind]:
            return {f"{kind}: {name}": {"is": known[kind][name]}}
    try:
        return {f"{field}: {name}": dict(options) for field, options in describe(name).items()}
    except ConfigError:
        raise ConfigError("name", name, f"unknown{nearest(name, {*known, *chain(*known.values())})}") from None


def describe(name: str) -> dict[str, dict[str, str]]:
    """Every registered thing of this name: where it belongs, what it is, and its options with type and default.

    Raises:
        ConfigError: nothing has this name.
    """
    found = {
        section.field: {"is": section.registry[name].description, **_options(section.registry[name], section.context)}
        for section in SECTIONS.values()
        if name in section.registry
    }
    if not found:
        known = {known for section in SECTIONS.values() for known in section.registry}
        raise ConfigError("name", name, f"unknown{nearest(name, known)}")
    return found


def _options(entry: Entry[Any], context: tuple[str, ...]) -> Mapping[str, str]:
    options: dict[str, str] = {}
    for name, parameter in inspect.signature(entry.build).parameters.items():
        if name not in context and parameter.kind is not parameter.VAR_KEYWORD:
            kind = parameter.annotation
            kind = kind if isinstance(kind, str) else inspect.formatannotation(kind)
            default = "required" if parameter.default is parameter.empty else f"{parameter.default!r} by default"
            options[name] = f"{kind}; {default}"
    return options
