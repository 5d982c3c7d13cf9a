"""Building blocks of configurations: checked sections, choices and plug-ins, with errors that name the setting."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Self, TypeVar, cast, get_args, get_origin, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    create_model,
    model_serializer,
    model_validator,
)
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError

from fedpriv.errors import ConfigError
from fedpriv.settings import get_example, plugins, suggest_fix, suggest_nearest, suggest_similar

M = TypeVar("M", bound=BaseModel)


def _make_scalars_strict(schema: Any, handler: GetCoreSchemaHandler) -> None:  # noqa: ANN401 - a core schema
    """Makes types in a core schema strict, in place.

    Lists are still accepted for tuples, and mappings for dataclasses, since YAML has neither.
    """
    if isinstance(schema, dict):
        if schema.get("type") == "definition-ref":
            schema = handler.resolve_ref_schema(cast("CoreSchema", schema))
        if schema.get("type") in ("int", "float", "bool", "str"):
            schema["strict"] = True
        for inner in schema.values():
            _make_scalars_strict(inner, handler)
    elif isinstance(schema, list):
        for inner in schema:
            _make_scalars_strict(inner, handler)


class Section(BaseModel):
    """A mapping of the configuration; an unknown name is an error that suggests the nearest known one.

    Types are strict: `true` is not 1, `1.0` is not an integer, and `"1"` is text.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True, ser_json_inf_nan="constants")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type[BaseModel], handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        _make_scalars_strict(schema, handler)
        return schema

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, raw: object) -> object:
        if cls.model_config.get("extra") == "allow":
            return raw
        return _only(raw, cls.model_fields)


GENERATED = "was changed after fedpriv wrote it: restore the original file"
"""Suggested fix for text that was not typed by the user."""


def pattern_validator(pattern: str, fix: str) -> AfterValidator:
    """Returns a validator for text that must match a regular expression; its error shows words, not the expression.

    Args:
        pattern: Regular expression for the whole text.
        fix: Text to write instead, for the error.
    """

    def check_text(text: str) -> str:
        if re.fullmatch(pattern, text) is None:
            raise ValueError(fix)
        return text

    return AfterValidator(check_text)


@dataclasses.dataclass(frozen=True)
class YamlFormat:
    """Metadata of `Annotated[kind, YamlFormat(form)]`: YAML has the fields of the form for the object."""

    form: Any

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return handler.generate_schema(self.form)


class Choice(Section):
    """At most one of the fields: `{poisson: {rate: 0.1}}`. A bare word is a field without options, or none of them."""

    neither: ClassVar[str]
    # the Python object of each word
    words: ClassVar[dict[str, type]]

    @model_validator(mode="before")
    @classmethod
    def _from_word(cls, raw: object) -> object:
        if not isinstance(raw, str):
            return raw
        if ":" in raw and FUNCTION in cls.model_fields:
            raise PydanticCustomError("choice", "{fix}", {"fix": suggest_function_shape(raw)})
        if raw != cls.neither and raw not in cls.model_fields:
            raise PydanticCustomError("choice", "{fix}", {"fix": _unknown(raw, [cls.neither, *cls.model_fields])})
        if raw == cls.neither:
            return {}
        return {raw: {}}

    @model_validator(mode="after")
    def _at_most_one(self) -> Self:
        if len(self.model_fields_set - {name for name, value in self if value is None}) > 1:
            raise PydanticCustomError(
                "choice", "must set only one of {names}", {"names": ", ".join(type(self).model_fields)}
            )
        return self

    def value(self, nothing: object = None) -> Any:  # noqa: ANN401 - of the field that was chosen
        """Returns the value of the field that is set; `nothing` if none is set."""
        return next((value for _, value in self if value is not None), nothing)

    @model_serializer(mode="wrap")
    def _to_word(self, handler: SerializerFunctionWrapHandler) -> object:
        return {name: value for name, value in handler(self).items() if value is not None} or self.neither


FUNCTION = "function"
"""The name of a user's own function in registries that have one: `{function: "package.module:name"}` in YAML."""


def suggest_function_shape(reference: str) -> str:
    """Returns the fix for a function that is named without its key."""
    return f"is the name of a function: write {{function: {reference!r}}}"


class Plugin(Section):
    """A registered name or `package.module:Name`, and its options; a bare word is a name without options."""

    model_config = ConfigDict(extra="allow")
    field: ClassVar[str]
    registry: ClassVar[plugins.Registry[Any]]
    # parameters of builders that the caller fills in, which are not options
    context: ClassVar[tuple[str, ...]] = ()
    # YAML format for values of these annotations
    yaml_formats: ClassVar[Mapping[Any, Any]] = {}

    name: str

    @model_validator(mode="before")
    @classmethod
    def _check_options(cls, raw: object, info: ValidationInfo) -> object:
        if isinstance(raw, str):
            section = {"name": raw}
        else:
            section = raw
        # a function of the user's own needs no name: {function: "package.module:name"}
        if isinstance(section, dict) and "function" in section and FUNCTION in cls.registry:
            section = {"name": FUNCTION, **section}
        # a registered name as the key of its options
        if isinstance(section, dict) and "name" not in section and len(section) == 1 and {*section} <= {*cls.registry}:
            fix = f"needs the key name: write {{name: {next(iter(section))}, ...}}, and list its options next to name"
            raise PydanticCustomError("nested", "{fix}", {"fix": fix})
        if not isinstance(section, dict) or not isinstance(section.get("name"), str):
            return section
        section_fields = {name: value for name, value in section.items() if name in cls.model_fields}
        options = {name: value for name, value in section.items() if name not in cls.model_fields}
        checked_options = check(cls.options_of(section_fields), options, cls.field, info.context or ())
        if section["name"] == FUNCTION and FUNCTION in cls.registry:  # like a builder, it is found at once
            plugins.resolve_object(options[FUNCTION], field=f"{cls.field}.{FUNCTION}")
        return {**section_fields, **checked_options.model_dump(mode="json")}

    @model_serializer(mode="wrap")
    def _without_name_of_function(self, handler: SerializerFunctionWrapHandler) -> object:
        fields = handler(self)
        if self.name == FUNCTION and FUNCTION in self.registry:
            del fields["name"]
        return fields

    @classmethod
    def builder(cls, section_fields: Mapping[str, Any]) -> Callable[..., Any]:
        """Returns the function or class that the section names."""
        return plugins.find(section_fields["name"], cls.registry, cls.field)

    @classmethod
    def options_of(cls, section_fields: Mapping[str, Any]) -> type[BaseModel]:
        """Returns a model of the options of the builder that the section names, from its signature."""
        return _options_of_builder(cls, cls.builder(section_fields))

    @classmethod
    def forms(cls, name: str) -> Iterator[tuple[dict[str, str], type[BaseModel]]]:
        """Yields each way to choose this name, `{name: ...}` and its variants, with the options of each."""
        for variant in cls.variants(name):
            yield {"name": name, **variant}, cls.options_of({"name": name, **variant})

    @classmethod
    def variants(cls, name: str) -> tuple[dict[str, str], ...]:
        """Returns the fields, besides this name, that select other options."""
        return ({},)

    @property
    def options(self) -> dict[str, Any]:
        """The options as keyword arguments of the builder."""
        typed = check(self.options_of(dict(self)), self.model_extra or {}, self.field)
        return dict(typed)

    def build(self, **context: object) -> Any:  # noqa: ANN401 - what the registry makes
        """Builds what the section names, from its options and the caller's `context`."""
        return plugins.call(self.builder(dict(self)), self.name, self.options, field=self.field, context=context)


@lru_cache(maxsize=256)
def _options_of_builder(section: type[Plugin], builder: Callable[..., Any]) -> type[BaseModel]:
    """Returns a model of a builder's options. It is cached, since a configuration uses each several times."""
    return options_model(builder, {*section.context, *section.model_fields}, section.yaml_formats)


def options_model(
    builder: Callable[..., Any],
    skip: Collection[str] = (),
    yaml_formats: Mapping[Any, Any] | None = None,
) -> type[BaseModel]:
    """Creates a section with the parameters of `builder`, which validates its options.

    Args:
        builder: A class or function.
        skip: Parameters that are not options.
        yaml_formats: YAML format for values of some annotations.
    """
    parameters = inspect.signature(builder).parameters.values()
    option_parameters = [
        p for p in parameters if p.name not in skip and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    hints = read_hints(builder)
    known_formats = yaml_formats or {}
    fields: dict[str, Any] = {}
    for p in option_parameters:
        hint = hints.get(p.name, Any)
        if isinstance(hint, Hashable) and hint in known_formats:
            kind = known_formats[hint]
        else:
            kind = with_field_errors(hint)
        fields[p.name] = (kind, _default(builder, p))
    if takes_any:
        base: type[Section] = _OpenSection
    else:
        base = Section
    return create_model(getattr(builder, "__name__", "options"), __base__=base, **fields)


def options_section(options: type, names: Collection[str], yaml_formats: Mapping[Any, Any] | None = None) -> Any:  # noqa: ANN401 - a base class
    """Creates the base of a section from fields of the dataclass that declares the options of Python.

    An option therefore has one name, type, bound and default in Python, YAML and the JSON schema.

    Args:
        options: The dataclass, e.g. `TrainingOptions`.
        names: The names of the fields that the section has.
        yaml_formats: YAML format for values of some annotations.
    """
    model = options_model(options, {field.name for field in dataclasses.fields(options)} - {*names}, yaml_formats)
    unknown = {*names} - {*model.model_fields}
    if unknown:
        raise TypeError(f"{options.__name__} has no {', '.join(sorted(unknown))}")
    return model


def check(model: type[M], raw: object, path: str = "", overrides: Collection[str] = ()) -> M:
    """Validates a section.

    Args:
        model: The section.
        raw: The YAML value.
        path: Its dotted name in the configuration, for errors.
        overrides: Dotted names of settings from the command line; their errors show the fix in that form.

    Raises:
        ConfigError: If the section is not valid; the message names the first error.
    """
    try:
        return model.model_validate(raw, context=overrides)
    except ValidationError as error:
        raise _translate(error.errors()[0], raw, path, overrides) from None


def _default(builder: Callable[..., Any], parameter: inspect.Parameter) -> Any:  # noqa: ANN401 - what pydantic takes for a default
    """Returns the default of a builder's parameter: a value, a field with a factory, or `...` for none."""
    declared: Mapping[str, Any] = getattr(builder, "__dataclass_fields__", {})
    if parameter.name in declared and declared[parameter.name].default_factory is not dataclasses.MISSING:
        return Field(default_factory=declared[parameter.name].default_factory)
    if parameter.default is parameter.empty:
        return ...
    return parameter.default


class _OpenSection(Section):
    model_config = ConfigDict(extra="allow")


def read_hints(builder: Callable[..., Any]) -> dict[str, Any]:
    """Returns the annotations of a builder's parameters, with their bounds.

    Raises:
        ConfigError: If an annotation cannot be read, so that the options could not be checked.
    """
    if inspect.isclass(builder):
        call = builder.__init__
    else:
        call = builder
    try:
        return get_type_hints(call, include_extras=True)
    except NameError as error:
        fix = f"has an annotation that cannot be read ({error}): import its names outside of `if TYPE_CHECKING`"
        raise ConfigError("plugin", f"{call.__module__}:{call.__qualname__}", fix) from error


def with_field_errors(annotation: Any) -> Any:  # noqa: ANN401 - any annotation
    """Returns an annotation of a dataclass with errors for unknown names that list the known ones."""
    dataclass_types = [
        candidate for candidate in (annotation, *get_args(annotation)) if dataclasses.is_dataclass(candidate)
    ]
    if len(dataclass_types) != 1 or get_origin(annotation) is Annotated:
        return annotation
    names = [field.name for field in dataclasses.fields(dataclass_types[0])]
    return Annotated[annotation, BeforeValidator(lambda raw: _only(raw, names))]


def _only(raw: object, names: Collection[str]) -> object:
    mapping = raw if isinstance(raw, dict) else {}
    for name, value in mapping.items():
        if name not in names:
            context = {"name": str(name), "value": value, "known": [*names]}
            raise PydanticCustomError("unknown_field", "unknown", context)
    return raw


def _unknown(choice: str, choices: Collection[str]) -> str:
    """Returns the error for a word that is not one of the choices."""
    close = suggest_nearest(choice, choices)
    if "did you mean" in close:
        everything = f" (all names: {', '.join(sorted(choices))})"
    else:
        everything = ""
    return f"is unknown{close}{everything}"


def _translate(error: ErrorDetails, raw: Any, path: str, overrides: Collection[str]) -> ConfigError:  # noqa: ANN401 - of YAML
    """Converts an error of pydantic to a ConfigError that names the setting, its value and the fix."""
    context = error.get("ctx", {})
    cause = context.get("error")
    keys = [path] if path else []
    value = raw
    # for these errors the name of the setting is in the context, not in the location
    tag_key = {
        "unknown_field": "name",
        "union_tag_not_found": "discriminator",
        "union_tag_invalid": "discriminator",
    }.get(error["type"])
    location = [*error["loc"]]
    if tag_key is not None:
        location.append(context[tag_key].strip("'"))
    for key in location:
        if str(key).startswith("@"):
            continue  # the tag of a union that distinguishes its forms by their type
        if isinstance(value, dict) and key not in value and key in value.values():
            continue  # the tag of a union that distinguishes its forms by a field
        try:
            value = value[key]
        except (LookupError, TypeError):
            if error["type"] not in ("missing", "union_tag_not_found"):
                continue  # the tag of a union, which the user did not write
            value = cast("Any", None)
        keys.append(str(key))
    if isinstance(cause, ConfigError):  # a schedule's error does not contain the option's name
        before, schedule_name, field = cause.field.rpartition(_SCHEDULE)
        if before or not schedule_name:
            return cause
        return ConfigError(".".join(keys) + field, cause.value, cause.fix)
    field = ".".join(keys) or "configuration"
    if error["type"] == "unknown_field":  # the meaning of the name depends on its location
        place = field.rpartition(".")[0]
        language = "command line" if field in overrides else "yaml"
        fix = suggest_fix(context["name"], context["value"], context["known"], language, place)
        return ConfigError(field, value, fix)
    if field in EXAMPLES and error["type"] in _ABSENT:
        return ConfigError(field, value, f"is required, e.g. {EXAMPLES[field]}")
    return ConfigError(field, value, _fix(error, context))


_SCHEDULE = "strategy.schedule"


EXAMPLES = {
    "data": "data: {name: digits, partition: {kind: iid, n_clients: 10}}",
    "data.partition": "partition: {kind: iid, n_clients: 1} if one owner has all examples",
    "data.partition.kind": "kind: iid",
    "data.label": "label: outcome, the name of its column",
    "data.test": "test: test.csv, public rows with the same columns",
    "model": "model: logistic_regression",
    "strategy": "strategy: {name: fedavg, learning_rate: 0.1}",
    "privacy": "privacy: {epsilon: 1}",
}
"""Suggested values for missing settings that every configuration has."""
_ABSENT = ("missing", "union_tag_not_found")
_FIXES = {
    **dict.fromkeys(_ABSENT, "is required"),
    **dict.fromkeys(
        ("model_type", "model_attributes_type", "dataclass_type", "dict_type"), "must be a mapping, e.g. {name: value}"
    ),
    **dict.fromkeys(("list_type", "tuple_type", "sequence_str"), "must be a list, e.g. [value]"),
}


def _required(name: str) -> str:
    """Returns the error for a missing setting, with an example if it is a number: others are Python code."""
    usual = get_example(name)
    is_plain = usual.replace(".", "").replace("-", "").replace("e", "").isdigit()
    if is_plain:
        return f"is required, e.g. {name}: {usual}"
    return "is required"


def _fix(error: ErrorDetails, context: dict[str, Any]) -> str:
    if error["type"] == "literal_error":
        names = re.findall("'([^']*)'", context["expected"])
        return f"is unknown; choose {context['expected']}{suggest_similar(error['input'], names)}"
    if error["type"] == "union_tag_invalid":
        return _unknown(str(context["tag"]), [tag.strip(" '") for tag in context["expected_tags"].split(",")])
    if error["type"] == "missing":
        return _required(str(error["loc"][-1]))
    if error["type"] in _FIXES:
        return _FIXES[error["type"]]
    return error["msg"].replace("Input should", "must").replace("Value error, ", "")
