"""Replaces an object among a factory's parameters by its fields: `flatten_parameters(inexact_admm, step=Prox)`.

The result has simple options only, as configurations need. Names, annotations, bounds and defaults are read from the
factory and from the objects' classes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any, get_type_hints


def flatten_parameters(factory: Callable[..., Any], **parts: type) -> Callable[..., Any]:
    """Returns the factory with each parameter in `parts` replaced by the fields of a dataclass."""

    def build(**options: object) -> Any:  # noqa: ANN401 - what the factory makes
        for name, kind in parts.items():
            values = {field.name: options.pop(field.name) for field in fields(kind) if field.name in options}
            options[name] = kind(**values)
        return factory(**options)

    parameters: list[inspect.Parameter] = []
    for parameter in read_keyword_parameters(factory):
        kind = parts.get(parameter.name)
        if kind is None:
            parameters.append(parameter)
        else:
            parameters += _field_parameters(kind)
    return with_signature(build, factory, parameters)


def read_keyword_parameters(factory: Callable[..., Any]) -> list[inspect.Parameter]:
    """Returns the parameters of a factory as keyword parameters, with evaluated annotations."""
    hints = get_type_hints(factory, include_extras=True)
    parameters = inspect.signature(factory).parameters.values()
    return [p.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[p.name]) for p in parameters]


def with_signature(
    build: Callable[..., Any], factory: Callable[..., Any], parameters: list[inspect.Parameter]
) -> Callable[..., Any]:
    """Gives `build` these parameters as its signature, and the factory's name and docstring; returns it."""
    build.__name__ = factory.__name__
    build.__doc__ = factory.__doc__
    build.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    build.__dict__["__signature__"] = inspect.Signature(parameters)
    return build


def _field_parameters(kind: type) -> list[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    parameters: list[inspect.Parameter] = []
    for field in fields(kind):
        if field.default_factory is MISSING:
            value = field.default
        else:
            value = field.default_factory()
        if value is MISSING:
            default = inspect.Parameter.empty
        else:
            default = value
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(field.name, keyword, default=default, annotation=hints[field.name]))
    return parameters
