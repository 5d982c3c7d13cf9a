"""Generates a JSON schema (draft 2020-12) of configurations, with which editors complete and check YAML files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from fedpriv.cli.catalogue import SECTIONS
from fedpriv.config.base import FUNCTION, Choice, Plugin
from fedpriv.config.schema import Config


def dumps() -> str:
    """Returns the schema as text: the schema of pydantic, with the registered names and the options of each."""
    schema = Config.model_json_schema(schema_generator=_Schema)
    definitions = schema["$defs"]
    for section in SECTIONS.values():
        mapping = definitions[section.__name__]["anyOf"][1]
        mapping["allOf"] = list(_options(section, mapping["properties"], definitions))
    return json.dumps(schema, indent=1) + "\n"


class _Schema(GenerateJsonSchema):
    """The generator of pydantic, extended by the words that may represent a section."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        mapping = super().model_schema(schema)
        section: type = schema["cls"]
        if issubclass(section, Plugin):
            # `package.module:Name` is user code with unknown options
            name = {"anyOf": [{"enum": sorted(section.registry)}, {"type": "string", "pattern": "^[^:]+:[^:]+$"}]}
            mapping["properties"]["name"] = name
            if FUNCTION in section.registry:  # {function: "package.module:name"} needs no name
                mapping["required"] = [key for key in mapping["required"] if key != "name"]
                mapping["anyOf"] = [{"required": ["name"]}, {"required": [FUNCTION]}]
            return {"anyOf": [name, mapping]}
        if issubclass(section, Choice):
            return {"anyOf": [{"enum": [section.neither, *section.model_fields]}, mapping]}
        return mapping

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> JsonSchemaValue:  # noqa: ANN401
        return {}  # a Python class: the schema allows any value


def _options(section: type[Plugin], common: dict[str, Any], definitions: dict[str, Any]) -> Iterator[JsonSchemaValue]:
    """Yields a condition for each name: if it is chosen, only its own options are allowed as further fields.

    Args:
        section: The section.
        common: The properties that all names of the section share.
        definitions: Definitions of the whole schema, to which the definitions of the options are added.
    """
    for name in sorted(section.registry):
        for values, options in section.forms(name):
            prefix = f"{section.field}.{name}.{values.get('variant')}."
            schema = options.model_json_schema(schema_generator=_Schema, ref_template=f"#/$defs/{prefix}{{model}}")
            definitions |= {f"{prefix}{inner}": value for inner, value in schema.pop("$defs", {}).items()}
            schema["properties"] = {**dict.fromkeys(common, True), **schema.get("properties", {})}
            default = {name: field.default for name, field in section.model_fields.items() if name == "variant"}
            is_chosen = {key: {"const": value} for key, value in {**default, **values}.items()}
            yield {"if": {"properties": is_chosen, "required": [*values]}, "then": schema}
