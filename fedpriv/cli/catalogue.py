"""The names that a configuration can use, and the options of each, as `fedpriv list` prints them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from itertools import chain
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo

from fedpriv.config.base import Choice, Plugin, Spelled, options_model
from fedpriv.config.network import ActivitySection, MixingSection, TopologySection
from fedpriv.config.problem import ConstraintSection, ObjectiveSection
from fedpriv.config.schema import (
    PARTITION_SECTIONS,
    AugmentSection,
    DataSection,
    LossSection,
    ModelSection,
    StrategySection,
)
from fedpriv.data.partition import PARTITIONS
from fedpriv.errors import ConfigError
from fedpriv.network.engines import MESHES
from fedpriv.oracle.backends import BACKENDS
from fedpriv.privacy.mechanisms import MECHANISMS
from fedpriv.settings.checks import Bound, either
from fedpriv.settings.translations import nearest

SECTIONS: dict[str, type[Plugin]] = {
    "strategies": StrategySection,
    "models": ModelSection,
    "losses": LossSection,
    "objectives": ObjectiveSection,
    "constraints": ConstraintSection,
    "data": DataSection,
    "augmentations": AugmentSection,
    "topologies": TopologySection,
    "mixings": MixingSection,
    "activities": ActivitySection,
}
PLAIN: dict[str, tuple[str, Mapping[Any, Any]]] = {
    "partitions": ("data.partition", PARTITIONS),
    "mechanisms": ("privacy.mechanism", MECHANISMS),
    "backends": ("compute.backend", BACKENDS),
    "engines": ("compute.engine", MESHES),
}
_WORDS: dict[type, str] = {
    float: "a number",
    int: "a whole number",
    bool: "true or false",
    str: "text",
    NoneType: "null",
}


def look_up(name: str | None, more: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """All names by kind, those of one kind, or the options of one name: what each may be, and its default.

    Args:
        name: A kind, a name, or None.
        more: Further kinds.

    Raises:
        ConfigError: it is neither a kind nor a name.
    """
    known = {kind: {name: row.description for name, row in of.registry.items()} for kind, of in SECTIONS.items()}
    for kind, (_, objects) in PLAIN.items():
        known[kind] = {name: (thing.__doc__ or "").strip().split("\n")[0] for name, thing in objects.items()}
    known |= {kind: dict(rows) for kind, rows in more.items()}
    if name is None:
        return known
    if name in known:
        return {name: known[name]}
    found = {
        title: {"is": known[kind][name], **options}
        for kind in known
        if name in known[kind]
        for title, options in _forms(kind, name)
    }
    if not found:
        close = nearest(name, {*known, *chain(*known.values())})
        raise ConfigError("name", name, f"unknown{close if 'did you mean' in close else nearest(name, known)}")
    return found


def _forms(kind: str, name: str) -> Iterator[tuple[str, dict[str, str]]]:
    """For each way to write this name, where it stands and its options."""
    if kind in SECTIONS:
        for given, options in SECTIONS[kind].forms(name):
            variant = "".join(f", {key}: {value}" for key, value in given.items() if key != "name")
            yield f"{SECTIONS[kind].field}: {name}{variant}", _options(options)
    elif kind == "partitions":
        yield f"data.partition: {name}", _options(PARTITION_SECTIONS[name])
    else:
        yield f"{PLAIN[kind][0] if kind in PLAIN else kind}: {name}", {}


def _options(model: type[BaseModel], prefix: str = "") -> dict[str, str]:
    """A row for each option; those of an object's fields follow it, with dots, as on the command line."""
    rows: dict[str, str] = {}
    for name, field in model.model_fields.items():
        if _tag(field) is None:
            rows[prefix + name] = f"{_said(_kind(field))}; {_default(field)}"
            for path, inner in _inside(_kind(field)):
                rows |= _options(inner, f"{prefix}{name}.{path}")
    return rows


def _inside(kind: Any) -> Iterator[tuple[str, type[BaseModel]]]:  # noqa: ANN401 - any annotation
    """The objects that an option may be, each with the path to its fields."""
    for one in _alternatives(kind):
        if inspect.isclass(one) and issubclass(one, Choice):
            for word, field in one.model_fields.items():
                yield from ((f"{word}.{path}", inner) for path, inner in _inside(_kind(field)))
        elif inspect.isclass(one) and issubclass(one, BaseModel):
            yield "", one


def _kind(field: FieldInfo) -> Any:  # noqa: ANN401 - any annotation
    if field.metadata:
        return Annotated[field.annotation, *field.metadata]
    return field.annotation


def _tag(field: FieldInfo) -> object:
    """The one value that a field can have, by which a mapping is told from others; None if there are more."""
    parts = get_args(field.annotation)
    if get_origin(field.annotation) is Literal and len(parts) == 1:
        return parts[0]
    return None


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    plain = TypeAdapter(_kind(field)).dump_python(field.get_default(call_default_factory=True), mode="json")
    written: str = yaml.safe_dump(plain, default_flow_style=True, sort_keys=False, width=10**9)
    return f"{written.strip().removesuffix('...').strip()} by default"


def _alternatives(kind: Any) -> Iterator[Any]:  # noqa: ANN401 - any annotation
    """The parts of a union, as YAML writes them."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        for part in parts:
            yield from _alternatives(part)
    elif origin is Annotated and not any(isinstance(part, Bound) for part in parts[1:]):
        yield from _alternatives(next((part.form for part in parts[1:] if isinstance(part, Spelled)), parts[0]))
    else:
        yield options_model(kind) if inspect.isclass(kind) and is_dataclass(kind) else kind


def _said(kind: Any) -> str:  # noqa: ANN401 - any annotation
    """An annotation in words."""
    return " or ".join(map(_word, sorted(_alternatives(kind), key=lambda one: one is not NoneType)))


def _word(kind: Any) -> str:  # noqa: ANN401 - any annotation
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return next(part.words for part in parts[1:] if isinstance(part, Bound)).removeprefix("must be ")
    if origin is Literal:
        return either(parts)
    if origin is not None and issubclass(origin, Mapping):
        return f"{{{_said(parts[0])}: {_said(parts[1])}, ...}}"
    if origin is not None and issubclass(origin, Sequence):
        each = [_said(part) for part in parts if part is not ...]
        return f"[{', '.join(each if len(each) > 1 else [*each, '...'])}]"
    if not issubclass(kind, BaseModel):
        name: str = kind.__name__
        return _WORDS.get(kind, name)
    names = {name: _tag(field) for name, field in kind.model_fields.items()}
    said = ", ".join(name if tag is None else f"{name}: {tag}" for name, tag in sorted(names.items(), key=_tags_first))
    if issubclass(kind, Choice):
        return f"{kind.neither} or one of {{{said}}}"
    return f"{{{said}}}"


def _tags_first(item: tuple[str, object]) -> bool:
    return item[1] is None
