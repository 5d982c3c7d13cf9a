"""Bounds of parameters, declared in their annotations and checked alike in Python and in YAML configurations.

Examples are `learning_rate: Positive` and `local_steps: Count`. `checked` compares the arguments of a function or a
dataclass with its annotations; configurations read the same annotations and raise the same errors. Types are strict:
True is no number, text is no number, and 1.5 is no whole number.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from math import inf, isfinite
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import torch
from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidatorFunctionWrapHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema
from torch import Tensor

from fedpriv.errors import ConfigError, DataError

T = TypeVar("T", bound=Callable[..., Any])


@dataclass(frozen=True)
class Bound:
    """An interval, as metadata of `Annotated[float, ...]` or `Annotated[int, ...]`. NaN is in none.

    Args:
        words: What an error says, e.g. "must be a positive, finite number".
        low: Lower end.
        high: Upper end.
        ends: Brackets that say which ends are included, e.g. `"(]"`; an open end at infinity excludes infinity.
    """

    words: str
    low: float = -inf
    high: float = inf
    ends: Literal["()", "[)", "(]", "[]"] = "()"

    def complaint(self, kind: object, value: object) -> str | None:
        """`words` unless `value` is a number of this kind (`int` or `float`) in the interval; else None."""
        if complaint(kind, value) or not isinstance(value, Real):
            return self.words
        try:
            number = float(value)
        except OverflowError:
            return self.words
        above = number >= self.low if self.ends[0] == "[" else number > self.low
        below = number <= self.high if self.ends[1] == "]" else number < self.high
        return None if above and below else self.words

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:  # noqa: ANN401
        def look(value: object, inside: ValidatorFunctionWrapHandler) -> object:
            return inside(_refused(self.complaint(source, value), value))

        return core_schema.no_info_wrap_validator_function(look, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        low = "minimum" if self.ends[0] == "[" else "exclusiveMinimum"
        high = "maximum" if self.ends[1] == "]" else "exclusiveMaximum"
        return {
            **handler(schema),
            **{key: end for key, end in {low: self.low, high: self.high}.items() if isfinite(end)},
        }


Finite = Annotated[float, Bound("must be a finite number")]
Positive = Annotated[float, Bound("must be a positive, finite number", 0)]
PositiveOrInfinite = Annotated[float, Bound("must be a positive number, or inf", 0, inf, "(]")]
NonNegative = Annotated[float, Bound("must be a finite number, at least 0", 0, inf, "[)")]
Probability = Annotated[float, Bound("must be a number in (0, 1]", 0, 1, "(]")]
Fraction = Annotated[float, Bound("must be a number in [0, 1)", 0, 1, "[)")]
Ratio = Annotated[float, Bound("must be a number in (0, 1)", 0, 1)]
Count = Annotated[int, Bound("must be a whole number, at least 1", 1, inf, "[)")]
Whole = Annotated[int, Bound("must be a whole number, at least 0", 0, inf, "[)")]

# pydantic's words, which YAML meets; bool is an int in Python, but not here
PLAIN: dict[object, tuple[type, str]] = {
    float: (Real, "must be a valid number"),
    int: (Integral, "must be a valid integer"),
    bool: (bool, "must be a valid boolean"),
    str: (str, "must be a valid string"),
}


def complaint(kind: Any, value: object) -> str | None:  # noqa: ANN401 - any annotation
    """What an error says of a value that does not fit its annotation; None if it fits or cannot be checked."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        bound = next((part for part in parts[1:] if isinstance(part, Bound)), None)
        return complaint(parts[0], value) if bound is None else bound.complaint(parts[0], value)
    if origin in (Union, UnionType):
        return _of_none(parts, value)
    if origin is Literal:
        return None if any(type(value) is type(part) and value == part for part in parts) else f"choose {either(parts)}"
    if kind in PLAIN:
        of, words = PLAIN[kind]
        return None if isinstance(value, of) and isinstance(value, bool) == (kind is bool) else words
    if getattr(origin, "_is_protocol", False):
        return _of_class(origin, value)
    return _of_class(kind, value) if inspect.isclass(kind) and origin is None else None


def either(words: tuple[object, ...]) -> str:
    """`'a', 'b' or 'c'`."""
    *others, last = map(repr, words)
    return f"{', '.join(others)} or {last}" if others else last


def checked(field: str) -> Callable[[T], T]:
    """Decorator that checks the arguments of a function or class, or the fields of a dataclass, against annotations.

    Args:
        field: Prefix of the names in errors: `strategy` makes an error about `strategy.learning_rate`; empty for none.

    Example:
        >>> @checked("strategy")
        ... def descent(learning_rate: Positive) -> None: ...
        >>> descent(-1.0)
        Traceback (most recent call last):
        fedpriv.errors.ConfigError: strategy.learning_rate = -1.0: must be a positive, finite number
    """

    def decorate(thing: T) -> T:
        owner: Any = thing
        is_class = inspect.isclass(thing)
        call: Callable[..., Any] = owner.__init__ if is_class else owner
        signature = inspect.signature(call)
        whole: object = thing
        noted = owner if is_dataclass(whole) else call
        hints = functools.cache(lambda: get_type_hints(noted, include_extras=True))

        @functools.wraps(call)
        def looked_at(*args: object, **options: object) -> object:
            for name, value in signature.bind(*args, **options).arguments.items():
                if fix := complaint(hints().get(name), value):
                    raise ConfigError(f"{field}.{name}" if field else name, value, fix)
            return call(*args, **options)

        if not is_class:
            return looked_at  # pyright: ignore[reportReturnType] - of the same signature
        owner.__init__ = looked_at
        return owner

    return decorate


def check_finite(values: Tensor, what: str) -> None:
    """Refuse values `[n, ...]`, one row for each client, with NaN or infinity.

    Raises:
        DataError: names the client.
    """
    flat = values.reshape(len(values), -1)
    broken = ~torch.isfinite(flat).all(1)
    if bool(broken.any()):
        client = int(broken.nonzero()[0])
        raise DataError(
            f"client {client}: its {what} is {flat[client].detach().tolist()} at the point it received; "
            "repair the function or the data, or start from other parameters"
        )


def _refused(fix: str | None, value: object) -> object:
    if fix is not None:
        raise PydanticCustomError("bound", "{fix}", {"fix": fix})
    return value


def _of_none(parts: tuple[Any, ...], value: object) -> str | None:
    """Of a union: what is wrong where it is none of the parts."""
    if value is None and NoneType in parts:
        return None
    found = [complaint(part, value) for part in parts if part is not NoneType]
    if None in found:
        return None
    classes = [part for part in parts if inspect.isclass(part) and part is not NoneType and part not in PLAIN]
    return f"make it with {_calls(classes)}" if len(classes) > 1 else " or ".join(fix for fix in found if fix)


def _of_class(kind: type, value: object) -> str | None:
    """Of a class: an instance; of a protocol: anything with its methods."""
    if getattr(kind, "_is_protocol", False):
        asked = [name for name, held in vars(kind).items() if inspect.isfunction(held) and not name.startswith("_")]
        if inspect.isclass(value):
            return f"make it with {_calls([value])}"
        lacking = [name for name in asked if not callable(getattr(value, name, None))]
        return f"is no {kind.__name__}: it has no {' and no '.join(lacking)}" if lacking else None
    return None if isinstance(value, kind) else f"make it with {_calls([kind])}"


def _calls(classes: list[Any]) -> str:
    return " or ".join(f"{one.__name__}(...)" for one in classes)
