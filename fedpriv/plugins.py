"""Names in a configuration become objects: a registered name, or `package.module:Name` for the user's own code."""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fedpriv.errors import ConfigError

T = TypeVar("T")


@dataclass(frozen=True)
class Entry(Generic[T]):
    """One row of a registry.

    Args:
        build: Makes the object from keyword options of simple types.
        description: One line for `--help`.
    """

    build: Callable[..., T]
    description: str


def nearest(name: str, names: Iterable[str]) -> str:
    """The end of an error message: `; did you mean 'x'?` if a name is close, else every name there is."""
    known = sorted(names)
    close = difflib.get_close_matches(name[:100], known, n=3)  # a longer one is like no other
    if close:
        return "; did you mean " + " or ".join(repr(match) for match in close) + "?"
    return "; choose one of " + ", ".join(known) if known else ""


def resolve_object(reference: str, *, field: str = "plugin") -> Any:  # noqa: ANN401 - the user's object may be anything
    """The object that `package.module:Name` names.

    Args:
        reference: Importable module, a colon, and an attribute of it.
        field: Dotted path of the setting, for error messages.

    Raises:
        ConfigError: not of that form, module not found or broken, or attribute not found (with the nearest names).
    """
    module_name, colon, attribute = reference.partition(":")
    if not (colon and module_name and attribute):
        raise ConfigError(field, reference, "write it as 'package.module:Name'")
    module = _import(module_name, reference, field)
    if not hasattr(module, attribute):
        hint = nearest(attribute, (name for name in vars(module) if not name.startswith("_")))
        raise ConfigError(field, reference, f"module {module_name!r} has no {attribute!r}{hint}")
    return getattr(module, attribute)


def build(
    reference: str,
    registry: Mapping[str, Entry[T]],
    options: Mapping[str, object],
    *,
    field: str,
    context: Mapping[str, object] | None = None,
) -> T:
    """Build what `reference` names, with options that are checked against its signature.

    Args:
        reference: A name in `registry`, or `package.module:Name`.
        registry: The names that fedpriv knows.
        options: The user's options; every one must be a parameter of the builder.
        field: Dotted path of the setting, for error messages.
        context: Facts known to the caller (such as the number of classes), passed where the builder asks for them.

    Raises:
        ConfigError: unknown name or option, or a missing option.
    """
    builder: Callable[..., T]
    if reference in registry:
        builder = registry[reference].build
    elif ":" in reference:
        builder = resolve_object(reference, field=field)
    else:
        fix = f"unknown name{nearest(reference, registry)} (your own: 'package.module:Name')"
        raise ConfigError(field, reference, fix)
    if not callable(builder):
        raise ConfigError(field, reference, f"is a {type(builder).__name__}, not a class or function")
    return builder(**_arguments(builder, reference, options, context or {}, field))


def _import(module_name: str, reference: str, field: str) -> object:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        if not f"{module_name}.".startswith(f"{missing}."):
            raise ConfigError(field, reference, f"module {module_name!r} imports {missing!r}: install it") from error
        hint = nearest(missing, _siblings(missing)) if _siblings(missing) else ""
        fix = f"no module {missing!r}{hint} (is its folder on PYTHONPATH?)"
        raise ConfigError(field, reference, fix) from error
    except Exception as error:
        fix = f"importing {module_name!r} failed with {type(error).__name__}: {error}"
        raise ConfigError(field, reference, fix) from error


def _siblings(module_name: str) -> list[str]:
    """Importable modules beside `module_name` that have nearly its name."""
    parent, _, _ = module_name.rpartition(".")
    paths = getattr(importlib.import_module(parent), "__path__", []) if parent else None
    names = [f"{parent}.{found.name}" if parent else found.name for found in pkgutil.iter_modules(paths)]
    return difflib.get_close_matches(module_name, names, n=3)


def _arguments(
    builder: Callable[..., object],
    reference: str,
    options: Mapping[str, object],
    context: Mapping[str, object],
    field: str,
) -> dict[str, object]:
    try:
        parameters = inspect.signature(builder).parameters
    except ValueError:  # a few builtins have no signature
        return dict(options)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return {**context, **options}
    for name, value in options.items():
        if name not in parameters:
            fix = f"{reference} has no such option{nearest(name, parameters) or '; it has none'}"
            raise ConfigError(f"{field}.{name}", value, fix)
    arguments = {**{name: context[name] for name in parameters if name in context}, **options}
    for name, parameter in parameters.items():
        required = parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL
        if required and name not in arguments:
            raise ConfigError(f"{field}.{name}", None, f"{reference} needs this option")
    return arguments
