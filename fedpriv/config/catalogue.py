"""What a configuration can name, and the options of each name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from fedpriv.config.base import Plugin
from fedpriv.config.network import ActivitySection, MixingSection, TopologySection
from fedpriv.config.problem import ConstraintSection, ObjectiveSection
from fedpriv.config.schema import DataSection, LossSection, ModelSection, StrategySection
from fedpriv.errors import ConfigError
from fedpriv.plugins import Entry, nearest

SECTIONS: dict[str, type[Plugin]] = {
    "strategies": StrategySection,
    "models": ModelSection,
    "losses": LossSection,
    "objectives": ObjectiveSection,
    "constraints": ConstraintSection,
    "data sets": DataSection,
    "topologies": TopologySection,
    "mixing matrices": MixingSection,
    "activities": ActivitySection,
}


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
