"""The names that a configuration can use, and the options of each, as `fedpriv list` prints them."""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Mapping
from dataclasses import fields, is_dataclass
from itertools import chain
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from fedpriv.checks import Bound, either
from fedpriv.config.base import Choice, Plugin, hints_of
from fedpriv.config.network import ActivitySection, MixingSection, TopologySection
from fedpriv.config.problem import ConstraintSection, ObjectiveSection
from fedpriv.config.schema import DataSection, LossSection, ModelSection, StrategySection
from fedpriv.data.partition import PARTITIONS
from fedpriv.errors import ConfigError
from fedpriv.oracle.backends import BACKENDS
from fedpriv.plugins import nearest
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
PLAIN = {"partitions": PARTITIONS, "mechanisms": MECHANISMS, "backends": BACKENDS}


def look_up(name: str | None, more: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """All names by kind, those of one kind, or the options of one name.

    Args:
        name: A kind, a name, or None.
        more: Further kinds.

    Raises:
        ConfigError: it is neither a kind nor a name.
    """
    known = {kind: {name: row.description for name, row in of.registry.items()} for kind, of in SECTIONS.items()}
    for kind, objects in PLAIN.items():
        known[kind] = {name: (thing.__doc__ or "").strip().split("\n")[0] for name, thing in objects.items()}
    known |= {kind: dict(rows) for kind, rows in more.items()}
    if name is None:
        return known
    if name in known:
        return {name: known[name]}
    options = {
        f"{of.field}: {name}": {"is": known[kind][name], **_options(of, name)}
        for kind, of in SECTIONS.items()
        if name in of.registry
    }
    plain = {f"{kind}: {name}": {"is": known[kind][name]} for kind in (*PLAIN, *more) if name in known[kind]}
    if not options and not plain:
        raise ConfigError("name", name, f"unknown{nearest(name, {*known, *chain(*known.values())})}")
    return {**plain, **options}


def _options(section: type[Plugin], name: str) -> Mapping[str, str]:
    """From the builder's signature: what each option may be, and its default."""
    builder, options = section.registry[name].build, dict[str, str]()
    hints = hints_of(builder)
    for option, parameter in inspect.signature(builder).parameters.items():
        if option not in section.context and parameter.kind is not parameter.VAR_KEYWORD:
            kind = _said(hints.get(option, parameter.annotation), section.spellings)
            default = "required" if parameter.default is parameter.empty else f"{parameter.default!r} by default"
            options[option] = f"{kind}; {default}"
    return options


def _said(kind: Any, spellings: Mapping[Any, Any]) -> str:  # noqa: ANN401 - any annotation
    """An annotation in words."""
    if isinstance(kind, Hashable) and kind in spellings:
        return _said(spellings[kind], {})
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        bounds = [part.words.removeprefix("must be ") for part in parts[1:] if isinstance(part, Bound)]
        return bounds[0] if bounds else _said(parts[0], spellings)
    if origin in (Union, UnionType):
        return " or ".join("null" if part is NoneType else _said(part, spellings) for part in parts)
    if origin is Literal:
        return either(parts)
    if inspect.isclass(kind) and issubclass(kind, Choice):
        return f"{kind.neither} or one of {{{', '.join(kind.model_fields)}}}"
    if inspect.isclass(kind) and issubclass(kind, BaseModel):
        return f"{{{', '.join(kind.model_fields)}}}"
    if is_dataclass(kind):
        return f"{{{', '.join(field.name for field in fields(kind))}}}"
    return kind if isinstance(kind, str) else inspect.formatannotation(kind)
