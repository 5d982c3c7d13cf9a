"""Converts names in a configuration to objects: registered names, or `package.module:Name`.

Registered names belong to fedpriv and to installed packages. `package.module:Name` imports and runs arbitrary code, so
the user must allow it outside the configuration: `--allow-plugins`, `FEDPRIV_ALLOW_PLUGINS=1` or `allow_plugins()`.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import pkgutil
import types
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar, Union, get_args, get_origin, get_type_hints

from fedpriv.errors import ConfigError, FedprivError, summarize_error
from fedpriv.settings import checks
from fedpriv.settings.translations import suggest_fix, suggest_nearest

__all__ = [
    "Registry",
    "allow_plugins",
    "are_allowed",
    "build",
    "call",
    "find",
    "resolve_object",
    "resolve_round_function",
]

T = TypeVar("T")
OPT_IN = "FEDPRIV_ALLOW_PLUGINS"

_allowed: ContextVar[bool | None] = ContextVar("allowed", default=None)


@checks.validate_arguments("")
@contextmanager
def allow_plugins() -> Generator[None]:
    """Returns a context in which configurations may name `package.module:Name`, which imports and runs that code.

    Allow this for trusted configurations only.

    Examples:
        >>> import fedpriv
        >>> from fedpriv.settings.plugins import are_allowed
        >>> with fedpriv.allow_plugins():
        ...     are_allowed()
        True
    """
    token = _allowed.set(True)
    try:
        yield
    finally:
        _allowed.reset(token)


@contextmanager
def refuse_plugins() -> Generator[None]:
    """Returns a context in which no configuration may name `package.module:Name`, even if the user allowed it.

    Use it for untrusted configurations that were not reviewed.
    """
    token = _allowed.set(False)
    try:
        yield
    finally:
        _allowed.reset(token)


def are_allowed() -> bool:
    """True if `package.module:Name` may be imported: inside `allow_plugins()`, or where FEDPRIV_ALLOW_PLUGINS is 1.

    It is False inside `refuse_plugins()`.
    """
    allowed_here = _allowed.get()
    if allowed_here is None:
        return os.environ.get(OPT_IN) == "1"
    return allowed_here


@dataclass(frozen=True)
class RegistryEntry(Generic[T]):
    """One row of a registry.

    Args:
        build: Creates the object from keyword options of simple types.
        description: One line for `--help`.
    """

    build: Callable[..., T]
    description: str


R = TypeVar("R", bound=RegistryEntry[Any])


class Registry(Mapping[str, R]):
    """The names that a section of a configuration may use: fedpriv's names, then names of installed packages.

    Args:
        rows: fedpriv's names.
        makes: Types of the objects, or a function that returns these types if they are slow to import. A builder must
            be one of these classes (or a subclass), or a function annotated to return one; this is checked before the
            builder is called.
        group: Group of entry points in which installed packages register builders; None allows no other packages.
        row: Creates an entry from a builder and its description.
    """

    def __init__(
        self,
        rows: Mapping[str, R],
        makes: tuple[type, ...] | Callable[[], tuple[type, ...]],
        group: str | None = None,
        row: Callable[[Callable[..., Any], str], R] = RegistryEntry,
    ) -> None:
        self._makes = makes
        self._rows = rows  # not copied: a row may import what it builds when it is looked up
        self._group = group
        self._row = row

    @property
    def makes(self) -> tuple[type, ...]:
        """Types of the objects."""
        if isinstance(self._makes, tuple):
            return self._makes
        return self._makes()

    def __getitem__(self, name: str) -> R:
        if name in self._rows:
            return self._rows[name]
        return self._load(self._installed()[name])

    def __contains__(self, name: object) -> bool:
        return name in self._rows or name in self._installed()

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self._rows, *self._installed())))

    def __len__(self) -> int:
        return len({*self._rows, *self._installed()})

    def _installed(self) -> dict[str, EntryPoint]:
        if self._group is None:
            return {}
        return {point.name: point for point in entry_points(group=self._group)}

    def _load(self, point: EntryPoint) -> R:
        if point.dist:
            package = point.dist.name
        else:
            package = "an installed package"
        try:
            loaded = point.load()
        except Exception as error:  # whatever the package raises
            fix = f"from {package} cannot be loaded ({summarize_error(error)}): repair or uninstall that package"
            raise ConfigError(f"entry point {self._group}", point.name, fix) from error
        builder = check_class(loaded, self.makes, point.value, f"entry point {self._group}")
        first_line = (inspect.getdoc(builder) or "").split("\n")[0]
        return self._row(builder, f"{first_line or 'no description'} (of {package})")


def resolve_object(reference: str, *, field: str = "plugin") -> Any:  # noqa: ANN401 - the user's object may be anything
    """Returns the object that `package.module:Name` names, for the setting `field`.

    Raises:
        ConfigError: If plug-ins are not allowed, the reference has another form, the module is missing or broken, or
            the module has no such attribute (the message contains the most similar names).
    """
    module_name, colon, attribute = reference.partition(":")
    if not (colon and module_name and attribute):
        raise ConfigError(field, reference, "must have the form 'package.module:Name'")
    if not are_allowed():
        fix = (
            "is code outside fedpriv, which would be executed; if you trust it, add --allow-plugins (or set "
            f"{OPT_IN}=1; in Python: with fedpriv.allow_plugins())"
        )
        raise ConfigError(field, reference, fix)
    module = _import(module_name, reference, field)
    if not hasattr(module, attribute):
        hint = suggest_nearest(attribute, (name for name in vars(module) if not name.startswith("_")))
        raise ConfigError(field, reference, f"module {module_name!r} has no {attribute!r}{hint}")
    return getattr(module, attribute)


def check_class(candidate: object, makes: tuple[type, ...], reference: str, field: str) -> Callable[..., Any]:
    """Returns `candidate` if it is one of the classes `makes`, or a function annotated to return one; never calls it.

    Raises:
        ConfigError: If the candidate is neither.
    """
    expected = " or ".join(kind.__name__ for kind in makes)
    if inspect.isclass(candidate):
        if _makes_one_of(candidate, makes):
            return candidate
        raise ConfigError(
            field,
            reference,
            f"is a class, but not a {expected}: name a class of this kind, or a function that returns one",
        )
    if not inspect.isfunction(candidate):
        raise ConfigError(field, reference, f"is a {type(candidate).__name__}: name a class or a function")
    gives = _returns(candidate)
    if gives and all(_makes_one_of(kind, makes) for kind in gives):
        return candidate
    returned = " or ".join(kind.__name__ for kind in gives)
    problem = f"has the return annotation {returned}" if returned else "has no return annotation that can be read"
    fix = f"{problem}: declare it as def {candidate.__name__}(...) -> {expected}"
    raise ConfigError(field, reference, fix)


def find(reference: str, registry: Registry[R], field: str) -> Callable[..., Any]:
    """Returns the builder for `reference`: a name in `registry`, or `package.module:Name`.

    Raises:
        ConfigError: If it is neither registered nor importable, or builds another type than the registry's.
    """
    if reference in registry:
        return registry[reference].build
    if ":" not in reference:
        fix = f"is unknown{suggest_nearest(reference, registry)} (name your own code as 'package.module:Name')"
        raise ConfigError(field, reference, fix)
    try:
        return check_class(resolve_object(reference, field=field), registry.makes, reference, field)
    except ConfigError as error:
        if "function" in registry and "declare it as def" in error.fix:
            shape = f"{error.fix}; for a function that computes the values itself, write {{function: {reference!r}}}"
            raise ConfigError(field, reference, shape) from None
        raise


def resolve_round_function(reference: str, gives: type, field: str) -> Callable[[int], Any]:
    """Returns the function of the round number that `package.module:name` names, annotated to return the type `gives`.

    Raises:
        ConfigError: See `resolve_object` and `validate_arguments`; also if it cannot be called with one number.
    """
    return resolve_function(reference, gives, field, ("the number of the round, which counts from 0",))


def resolve_function(reference: str, gives: type, field: str, arguments: Sequence[str]) -> Callable[..., Any]:
    """Returns the function that `package.module:name` names, annotated to return the type `gives`.

    Args:
        reference: The name.
        gives: The type.
        field: Dotted path of the setting, for error messages.
        arguments: Descriptions of its arguments.

    Raises:
        ConfigError: See `resolve_object` and `check_class`; also if it cannot be called with these arguments.
    """
    function = check_class(resolve_object(reference, field=field), (gives,), reference, field)
    try:
        inspect.signature(function).bind(*arguments)
    except (TypeError, ValueError):
        count = "one argument" if len(arguments) == 1 else f"{len(arguments)} arguments"
        fix = f"must be a function of {count}, {', '.join(arguments)}"
        if not arguments:
            fix = "must be a function without required arguments"
        raise ConfigError(field, reference, fix) from None
    return function


def build(
    reference: str,
    registry: Registry[R],
    options: Mapping[str, object],
    *,
    field: str,
    context: Mapping[str, object] | None = None,
) -> Any:  # noqa: ANN401 - what the registry makes
    """Builds the object that `reference` names, from options that must fit its signature; see `find` and `call`."""
    return call(find(reference, registry, field), reference, options, field=field, context=context)


def call(
    builder: Callable[..., T],
    reference: str,
    options: Mapping[str, object],
    *,
    field: str,
    context: Mapping[str, object] | None = None,
) -> T:
    """Calls a builder with the user's options.

    Args:
        builder: A class or function.
        reference: Its name in error messages.
        options: The user's options; each must be a parameter of the builder.
        field: Dotted path of the setting, for error messages.
        context: Further values (such as the number of classes), passed if the builder has parameters of these names.

    Raises:
        ConfigError: If an option is unknown or missing, or the builder fails.
    """
    arguments = _arguments(builder, reference, options, context or {}, field)
    try:
        return builder(**arguments)
    except FedprivError:
        raise
    except Exception as error:  # whatever a user's builder raises, or torch if an option is absurd
        fix = f"cannot be created with these options ({summarize_error(error)}): change the options"
        raise ConfigError(field, reference, fix) from error


def _makes_one_of(candidate: type, makes: tuple[type, ...]) -> bool:
    return any(checks.is_class_of(candidate, kind) for kind in makes)


def _returns(function: types.FunctionType) -> list[type]:
    """Returns the classes of the return annotation; none if it has none, or one that cannot be read."""
    try:
        annotation = get_type_hints(function).get("return")
    except Exception:  # annotations may hold any expression
        return []
    if get_origin(annotation) in (Union, types.UnionType):
        members = get_args(annotation)
    else:
        members = (annotation,)
    kinds = [get_origin(member) or member for member in members]
    classes = [kind for kind in kinds if inspect.isclass(kind)]
    if len(classes) == len(kinds):
        return classes
    return []


def _import(module_name: str, reference: str, field: str) -> object:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        if not f"{module_name}.".startswith(f"{missing}."):
            raise ConfigError(
                field, reference, f"needs the module {missing!r}, which is not installed: install it"
            ) from error
        fix = (
            f"module {missing!r} was not found{suggest_nearest(missing, _siblings(missing))} (is its folder on "
            "PYTHONPATH?)"
        )
        raise ConfigError(field, reference, fix) from error
    except Exception as error:
        fix = f"importing {module_name!r} failed ({summarize_error(error)}): correct the module"
        raise ConfigError(field, reference, fix) from error


def _siblings(module_name: str) -> list[str]:
    """Returns importable modules next to `module_name` with a similar name."""
    parent, _, _ = module_name.rpartition(".")
    if parent:
        paths = getattr(importlib.import_module(parent), "__path__", [])
    else:
        paths = None
    names = [f"{parent}.{module.name}" if parent else module.name for module in pkgutil.iter_modules(paths)]
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
            allowed = [allowed for allowed in parameters if allowed not in (context or {})]
            raise ConfigError(f"{field}.{name}", value, suggest_fix(name, value, allowed, "python", field))
    arguments = {**{name: context[name] for name in parameters if name in context}, **options}
    for name, parameter in parameters.items():
        required = parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL
        if required and name not in arguments:
            raise ConfigError(f"{field}.{name}", None, f"is required by {reference}: set this option")
    return arguments
