"""The names that a configuration can use, and the options of each, as printed by `fedpriv list`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from itertools import chain
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo

from fedpriv.config.base import Choice, Plugin, YamlFormat, options_model
from fedpriv.config.network import ActivitySection, CohortChoice, MixingSection, TopologySection
from fedpriv.config.privacy import MATRIX, SAMPLING, SECRETS, TRUST, ScheduleChoice
from fedpriv.config.problem import ConstraintSection, ObjectiveSection
from fedpriv.config.schema import (
    PARTITION_SECTIONS,
    AugmentSection,
    DataSection,
    LossSection,
    ModelSection,
    StrategySection,
)
from fedpriv.config.yaml_formats import YAML_FORMATS, get_choice
from fedpriv.data.partition import PARTITIONS
from fedpriv.errors import ConfigError
from fedpriv.network import MESHES
from fedpriv.oracle import BACKENDS
from fedpriv.privacy import MECHANISMS
from fedpriv.settings import Bound, join_alternatives, suggest_nearest
from fedpriv.strategies import Optimizer, Proximal

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
    "parallelism": ("compute.parallelism", MESHES),
}
# choices that are not plug-ins: one word, or a word with options, `privacy.sampling: {poisson: {rate: 0.01}}`
CHOICES: dict[str, tuple[str, type[Choice]]] = {
    "samplings": ("privacy.sampling", get_choice(SAMPLING)),
    "trusts": ("privacy.trust", get_choice(TRUST)),
    "secrets": ("privacy.trust.pairwise.secrets", get_choice(SECRETS)),
    "noises": ("privacy.noise.correlated", get_choice(MATRIX)),
    "schedules": ("privacy.schedule", ScheduleChoice),
    "cohorts": ("network.cohort", CohortChoice),
    "optimizers": ("strategy.optimizer", get_choice(YAML_FORMATS[Optimizer[Any]])),
    "regularizers": ("strategy.regularizer", get_choice(YAML_FORMATS[Proximal])),
}
_WORDS: dict[type, str] = {
    float: "a number",
    int: "a whole number",
    bool: "true or false",
    str: "text",
    NoneType: "null",
}


def look_up(name: str | None, more: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """Returns all names by kind, the names of one kind, or the options of one name with their values and defaults.

    Args:
        name: A kind, a name, or None for all names.
        more: Further kinds, each with a description for each name.

    Raises:
        ConfigError: If `name` is neither a kind nor a name.
    """
    names_by_kind = {
        kind: {key: row.description for key, row in section.registry.items()} for kind, section in SECTIONS.items()
    }
    for kind, (_, objects) in PLAIN.items():
        names_by_kind[kind] = {key: (item.__doc__ or "").strip().split("\n")[0] for key, item in objects.items()}
    for kind, (_, choice) in CHOICES.items():
        names_by_kind[kind] = {word: _first_sentence(item) for word, item in choice.words.items()}
    names_by_kind |= {kind: dict(rows) for kind, rows in more.items()}
    if name is None:
        return names_by_kind
    if name in names_by_kind:
        return {name: names_by_kind[name]}
    matches = {
        title: {"is": names_by_kind[kind][name], **options}
        for kind in names_by_kind
        if name in names_by_kind[kind]
        for title, options in _forms(kind, name)
    }
    if not matches:
        suggestion = suggest_nearest(name, {*names_by_kind, *chain(*names_by_kind.values())})
        if "did you mean" not in suggestion:
            suggestion = suggest_nearest(name, names_by_kind)
        raise ConfigError("name", name, f"is unknown{suggestion}")
    return matches


def _forms(kind: str, name: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yields, for each way to write this name, the field that contains the name, and the options."""
    if kind in SECTIONS:
        for values, options in SECTIONS[kind].forms(name):
            variant = "".join(f", {key}: {value}" for key, value in values.items() if key != "name")
            yield f"{SECTIONS[kind].field}: {name}{variant}", _options(options)
    elif kind in CHOICES:
        field, choice = CHOICES[kind]
        yield f"{field}: {name}", _options_of_choice(choice, name)
    elif kind == "partitions":
        yield f"data.partition: {name}", _options(PARTITION_SECTIONS[name])
    elif kind in PLAIN:
        yield f"{PLAIN[kind][0]}: {name}", {}
    else:
        yield f"{kind}: {name}", {}


def _first_sentence(kind: type) -> str:
    paragraph = " ".join((kind.__doc__ or "").split("\n\n")[0].split())
    return re.split(r"(?<!et al)\. ", paragraph, maxsplit=1)[0].rstrip(".") + "."


def _options_of_choice(choice: type[Choice], name: str) -> dict[str, str]:
    """Returns the options of one word of a choice; `value` represents the value of a word that accepts one."""
    field = choice.model_fields.get(name)
    if field is None:
        return {}
    annotation = _annotation(field)
    rows: dict[str, str] = {}
    for path, inner in _nested_models(annotation):
        rows |= _options(inner, path)
    if rows or any(inspect.isclass(each) and issubclass(each, BaseModel) for each in _alternatives(annotation)):
        return rows
    words = " or ".join(_word(each) for each in _alternatives(annotation) if each is not NoneType)
    return {"value": f"{words}; required"}


def _options(model: type[BaseModel], prefix: str = "") -> dict[str, str]:
    """Returns a row for each option, followed by the fields of nested objects, with dots as on the command line."""
    rows: dict[str, str] = {}
    for name, field in model.model_fields.items():
        if _tag(field) is None:
            rows[prefix + name] = f"{_describe(_annotation(field))}; {_default(field)}"
            for path, inner in _nested_models(_annotation(field)):
                rows |= _options(inner, f"{prefix}{name}.{path}")
    return rows


def _nested_models(kind: Any) -> Iterator[tuple[str, type[BaseModel]]]:  # noqa: ANN401 - any annotation
    """Yields the objects that are possible values of an option, each with the path to its fields."""
    for alternative in _alternatives(kind):
        if inspect.isclass(alternative) and issubclass(alternative, Choice):
            for word, field in alternative.model_fields.items():
                yield from ((f"{word}.{path}", inner) for path, inner in _nested_models(_annotation(field)))
        elif inspect.isclass(alternative) and issubclass(alternative, BaseModel):
            yield "", alternative


def _annotation(field: FieldInfo) -> Any:  # noqa: ANN401 - any annotation
    """Returns a field's annotation together with its metadata, which pydantic stores separately."""
    if field.metadata:
        return Annotated[field.annotation, *field.metadata]
    return field.annotation


def _tag(field: FieldInfo) -> object:
    """Returns the only value of a field, which distinguishes its mapping from others; None if it can have several."""
    values = get_args(field.annotation)
    if get_origin(field.annotation) is Literal and len(values) == 1:
        return values[0]
    return None


def _default(field: FieldInfo) -> str:
    """Returns the default of a field as text, as written in YAML."""
    if field.is_required():
        return "required"
    value = TypeAdapter(_annotation(field)).dump_python(field.get_default(call_default_factory=True), mode="json")
    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10**9)
    return f"{text.strip().removesuffix('...').strip()} by default"


def _alternatives(kind: Any) -> Iterator[Any]:  # noqa: ANN401 - any annotation
    """Yields the alternatives of a union, in the form in which YAML writes them."""
    origin = get_origin(kind)
    arguments = get_args(kind)
    if origin in (Union, UnionType):
        for argument in arguments:
            yield from _alternatives(argument)
    elif origin is Annotated and not any(isinstance(item, Bound) for item in arguments[1:]):
        form = next((item.form for item in arguments[1:] if isinstance(item, YamlFormat)), arguments[0])
        yield from _alternatives(form)
    elif inspect.isclass(kind) and is_dataclass(kind):
        yield options_model(kind)
    else:
        yield kind


def _describe(kind: Any) -> str:  # noqa: ANN401 - any annotation
    """Returns an annotation as text, `null` first."""
    return " or ".join(map(_word, sorted(_alternatives(kind), key=lambda alternative: alternative is not NoneType)))


def _word(kind: Any) -> str:  # noqa: ANN401 - any annotation
    """Returns one alternative of an annotation as text."""
    origin = get_origin(kind)
    arguments = get_args(kind)
    if origin is Annotated:
        return next(item.words for item in arguments[1:] if isinstance(item, Bound)).removeprefix("must be ")
    if origin is Literal:
        return join_alternatives(arguments)
    if origin is not None and issubclass(origin, Mapping):
        return f"{{{_describe(arguments[0])}: {_describe(arguments[1])}, ...}}"
    if origin is not None and issubclass(origin, Sequence):
        items = [_describe(item) for item in arguments if item is not ...]
        if len(items) <= 1:
            items.append("...")
        return f"[{', '.join(items)}]"
    if not issubclass(kind, BaseModel):
        name: str = kind.__name__
        return _WORDS.get(kind, name)
    tags = {name: _tag(field) for name, field in kind.model_fields.items()}
    fields = ", ".join(name if tag is None else f"{name}: {tag}" for name, tag in sorted(tags.items(), key=_tags_first))
    if issubclass(kind, Choice):
        return f"{kind.neither} or one of {{{fields}}}"
    return f"{{{fields}}}"


def _tags_first(item: tuple[str, object]) -> bool:
    return item[1] is None
