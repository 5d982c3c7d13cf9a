"""Replace an object among a factory's parameters by that object's own fields: `spread(inexact_admm, step=Prox)`.

The result has simple options only, as configurations need. Names, annotations, bounds and defaults are read from the
factory and from the objects' classes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any, get_type_hints


def spread(factory: Callable[..., Any], **parts: type) -> Callable[..., Any]:
    """The factory, with each parameter in `parts` replaced by the fields of the given dataclass."""

    def build(**options: object) -> Any:  # noqa: ANN401 - what the factory makes
        for name, kind in parts.items():
            own = {field.name: options.pop(field.name) for field in fields(kind) if field.name in options}
            options[name] = kind(**own)
        return factory(**options)

    found: list[inspect.Parameter] = []
    for parameter in keywords(factory):
        kind = parts.get(parameter.name)
        found += [parameter] if kind is None else _fields_of(kind)
    return signed(build, factory, found)


def keywords(factory: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of a factory as keyword parameters, with their annotations evaluated."""
    hints, given = get_type_hints(factory, include_extras=True), inspect.signature(factory).parameters.values()
    return [p.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[p.name]) for p in given]


def signed(
    build: Callable[..., Any], factory: Callable[..., Any], parameters: list[inspect.Parameter]
) -> Callable[..., Any]:
    """`build` with these parameters as its signature, and the factory's name and docstring."""
    build.__name__, build.__doc__ = factory.__name__, factory.__doc__
    build.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    build.__dict__["__signature__"] = inspect.Signature(parameters)
    return build


def _fields_of(kind: type) -> list[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    found: list[inspect.Parameter] = []
    for field in fields(kind):
        if field.default_factory is MISSING:
            made = field.default
        else:
            made = field.default_factory()
        if made is MISSING:
            default = inspect.Parameter.empty
        else:
            default = made
        keyword = inspect.Parameter.KEYWORD_ONLY
        found.append(inspect.Parameter(field.name, keyword, default=default, annotation=hints[field.name]))
    return found
