"""A JSON schema (draft 2020-12) of configurations, by which editors complete and check YAML files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from fedpriv.cli.catalogue import SECTIONS
from fedpriv.config.base import Choice, Plugin
from fedpriv.config.schema import Config


def dumps() -> str:
    """The schema as text: pydantic's, with the registered names and the options of each."""
    schema = Config.model_json_schema(schema_generator=_Schema)
    definitions = schema["$defs"]
    for section in SECTIONS.values():
        mapping = definitions[section.__name__]["anyOf"][1]
        mapping["allOf"] = list(_options(section, mapping["properties"], definitions))
    return json.dumps(schema, indent=1) + "\n"


class _Schema(GenerateJsonSchema):
    """pydantic's, with the words that may stand for a section."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        mapping = super().model_schema(schema)
        section: type = schema["cls"]
        if issubclass(section, Plugin):
            # `package.module:Name` is code of the user's, of whose options nothing is known here
            name = {"anyOf": [{"enum": sorted(section.registry)}, {"type": "string", "pattern": "^[^:]+:[^:]+$"}]}
            mapping["properties"]["name"] = name
            return {"anyOf": [name, mapping]}
        if issubclass(section, Choice):
            return {"anyOf": [{"enum": [section.neither, *section.model_fields]}, mapping]}
        return mapping

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> JsonSchemaValue:  # noqa: ANN401
        return {}  # a class of Python's: any value, as far as a schema can tell


def _options(section: type[Plugin], own: dict[str, Any], definitions: dict[str, Any]) -> Iterator[JsonSchemaValue]:
    """For each name: where it is chosen, its options and no others stand beside it."""
    for name in sorted(section.registry):
        for given, options in section.forms(name):
            place = f"{section.field}.{name}.{given.get('variant')}."
            found = options.model_json_schema(schema_generator=_Schema, ref_template=f"#/$defs/{place}{{model}}")
            definitions |= {f"{place}{inner}": value for inner, value in found.pop("$defs", {}).items()}
            found["properties"] = {**dict.fromkeys(own, True), **found.get("properties", {})}
            default = {name: field.default for name, field in section.model_fields.items() if name == "variant"}
            is_it = {key: {"const": value} for key, value in {**default, **given}.items()}
            yield {"if": {"properties": is_it, "required": [*given]}, "then": found}
