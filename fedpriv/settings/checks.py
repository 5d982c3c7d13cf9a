"""Bounds of parameters, declared in their annotations and checked in the same way in Python and in YAML.

Examples are `learning_rate: Positive` and `local_steps: Count`. `validate_arguments` compares the arguments of a
function or a dataclass with its annotations; configurations read the same annotations and raise the same errors. Types
are strict: True is not a number, text is not a number, and 1.5 is not an integer. A call with an unknown or missing
argument also raises a `ConfigError`, which contains the fix.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, is_dataclass
from math import inf, isfinite
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import torch
from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema
from torch import Tensor

from fedpriv.errors import ConfigError, DataError
from fedpriv.settings.translations import (
    find_function_advice,
    find_meant_object,
    find_usual_expression,
    get_example,
    read_entries,
    suggest_fix,
    suggest_nearest,
)

T = TypeVar("T", bound=Callable[..., Any])
Explain = Callable[[str, object, Mapping[str, object]], str | None]
"""Returns the fix for an unknown argument, from its name, its value and the other arguments; None for the default fix.
"""


@dataclass(frozen=True)
class Bound:
    """An interval, as metadata of `Annotated[float, ...]` or `Annotated[int, ...]`. No interval contains NaN.

    Args:
        words: Text of an error, e.g. "must be a positive, finite number".
        low: Lower end.
        high: Upper end.
        ends: Brackets for included and excluded ends, e.g. `"(]"`; an open end at infinity excludes infinity.
    """

    words: str
    low: float = -inf
    high: float = inf
    ends: Literal["()", "[)", "(]", "[]"] = "()"

    def describe_error(self, kind: object, value: object) -> str | None:
        """Returns `words` unless `value` is a number of this kind (`int` or `float`) in the interval; else None."""
        if isinstance(value, str) and _is_number(value):
            return f"is text: write the number {value.strip()}, without quotes"
        if isinstance(value, torch.optim.lr_scheduler.LRScheduler):
            return (
                "is a learning-rate schedule of torch, which fedpriv cannot use: write fedpriv.Cosine(peak=0.1, "
                "rounds=100), or a function of the round"
            )
        if describe_error(kind, value) or not isinstance(value, Real):
            return self.words
        try:
            number = float(value)
        except OverflowError:
            return self.words
        is_end = (number == self.low and self.ends[0] == "[") or (number == self.high and self.ends[1] == "]")
        if self.low < number < self.high or is_end:
            return None
        return self.words

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:  # noqa: ANN401
        def check_bound(value: object) -> object:
            fix = self.describe_error(source, value)
            if fix is not None:
                raise PydanticCustomError("bound", "{fix}", {"fix": fix})
            return value

        return core_schema.no_info_before_validator_function(check_bound, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        if self.ends[0] == "[":
            low = "minimum"
        else:
            low = "exclusiveMinimum"
        if self.ends[1] == "]":
            high = "maximum"
        else:
            high = "exclusiveMaximum"
        return {
            **handler(schema),
            **{key: end for key, end in {low: self.low, high: self.high}.items() if isfinite(end)},
        }


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


Finite = Annotated[float, Bound("must be a finite number")]
Positive = Annotated[float, Bound("must be a positive, finite number", 0)]
PositiveOrInfinite = Annotated[float, Bound("must be a positive number, or inf", 0, inf, "(]")]
NonNegative = Annotated[float, Bound("must be a finite number, at least 0", 0, inf, "[)")]
Probability = Annotated[float, Bound("must be a number in (0, 1]", 0, 1, "(]")]
Fraction = Annotated[float, Bound("must be a number in [0, 1)", 0, 1, "[)")]
Ratio = Annotated[float, Bound("must be a number in (0, 1)", 0, 1)]
Count = Annotated[int, Bound("must be a whole number, at least 1", 1, inf, "[)")]
RoundCount = Annotated[int, Bound("must be a whole number from 1 to 1 000 000", 1, 1_000_000, "[]")]
"""Number of rounds of a run. It is limited, because every round is planned with its privacy cost before the first
round.
"""
Whole = Annotated[int, Bound("must be a whole number, at least 0", 0, inf, "[)")]

# pydantic's messages for YAML; bool is an int in Python, but not here
PLAIN: dict[object, tuple[type, str]] = {
    float: (Real, "must be a valid number"),
    int: (Integral, "must be a valid integer"),
    bool: (bool, "must be a valid boolean"),
    str: (str, "must be a valid string"),
}


def _describe_plain_error(kind: type, value: object) -> str | None:
    """Returns the error for a value that must be a number, a boolean or a text."""
    type_, words = PLAIN[kind]
    if kind is str and isinstance(value, torch.device | torch.dtype):
        return f"must be text: write {str(value).removeprefix('torch.')!r}"
    if isinstance(value, type_) and isinstance(value, bool) == (kind is bool):
        return None
    return words


def describe_error(kind: Any, value: object) -> str | None:  # noqa: ANN401 - any annotation
    """Returns the error for a value that does not fit its annotation; None if it fits or cannot be checked."""
    if kind is Any or type(value) is kind or (type(kind) is UnionType and type(value) in kind.__args__):
        return None
    if type(kind) is type and kind in PLAIN:
        return _describe_plain_error(kind, value)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        bound = next((argument for argument in arguments[1:] if isinstance(argument, Bound)), None)
        if bound is None:
            return describe_error(arguments[0], value)
        return bound.describe_error(arguments[0], value)
    if origin in (Union, UnionType):
        return _describe_union_error(arguments, value)
    if origin is Literal:
        if any(type(value) is type(argument) and value == argument for argument in arguments):
            return None
        return f"is unknown; choose {join_alternatives(arguments)}{suggest_similar(value, map(str, arguments))}"
    if isinstance(origin, type) and getattr(origin, "_is_protocol", False):
        return _describe_class_error(origin, value)
    if inspect.isclass(kind) and origin is None:
        return _describe_class_error(kind, value)
    return None


def suggest_similar(value: object, names: Iterable[str]) -> str:
    """Returns `; did you mean 'x'?` if the value means or resembles one of these names; else an empty string."""
    if not isinstance(value, str):
        return ""
    known = list(names)
    meant = read_entries("choices").get(value)
    if meant in known:
        return f"; {value!r} in other libraries is {meant!r} here"
    close = suggest_nearest(value, known)
    if "did you mean" in close:
        return close
    return ""


def join_alternatives(words: tuple[object, ...]) -> str:
    """Joins words to `'a', 'b' or 'c'`."""
    *others, last = map(repr, words)
    if others:
        return f"{', '.join(others)} or {last}"
    return last


def validate_arguments(field: str, explain: Explain | None = None, *, values: bool = True) -> Callable[[T], T]:
    """Decorator: checks the arguments of a function or class, or the fields of a dataclass, against annotations.

    Args:
        field: Prefix of the names in errors: `strategy` makes an error about `strategy.learning_rate`; empty for none.
        explain: Returns the fix for an unknown argument, if that depends on the other arguments.
        values: True to compare values with annotations too; scikit-learn expects constructors that accept any values.

    Raises:
        ConfigError: If, on a call, an argument is unknown, missing, given twice, or does not fit its annotation.

    Examples:
        >>> @validate_arguments("strategy")
        ... def descent(learning_rate: Positive) -> None: ...
        >>> descent(-1.0)
        Traceback (most recent call last):
        fedpriv.errors.ConfigError: strategy.learning_rate = -1.0: must be a positive, finite number
    """

    def decorate(thing: T) -> T:
        owner: Any = thing
        is_class = inspect.isclass(thing)
        if is_class:
            call: Callable[..., Any] = owner.__init__
        else:
            call = owner
        parameters = inspect.signature(call).parameters.values()
        names = [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]
        positional = [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
        required = {parameter.name for parameter in parameters if _is_required(parameter)}
        takes_any = len(names) < len(parameters)
        whole: object = thing
        noted = owner if is_dataclass(whole) else call
        hints = functools.cache(lambda: get_type_hints(noted, include_extras=True))

        @functools.wraps(call)
        def check_and_call(*args: object, **options: object) -> object:
            given = {**dict(zip(positional, args, strict=False)), **options}
            is_each_given_once = len(given) == len(args) + len(options)  # and is at a valid position
            if not (is_each_given_once and required <= given.keys() and (takes_any or given.keys() <= {*names})):
                raise _call_error(thing, field, args[1:] if is_class else args, options, explain)
            for name in names if values else ():
                if name in given and (fix := describe_error(hints().get(name), given[name])):
                    raise ConfigError(f"{field}.{name}" if field else name, given[name], fix)
            return call(*args, **options)

        if not is_class:
            return check_and_call  # pyright: ignore[reportReturnType] - of the same signature
        owner.__init__ = check_and_call
        return owner

    return decorate


class _NotGiven:
    """The value of a missing argument in an error."""

    def __repr__(self) -> str:
        return "(not given)"


def _call_error(
    thing: Callable[..., Any],
    field: str,
    args: tuple[object, ...],
    options: Mapping[str, object],
    explain: Explain | None,
) -> ConfigError:
    """Returns the error for a call with arguments that do not fit the parameters."""
    parameters = list(inspect.signature(thing).parameters.values())
    positional = [
        parameter.name
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    names = [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_POSITIONAL]
    arguments = {
        **dict(zip(positional, args, strict=False)),
        **{name: options[name] for name in options if name in names},
    }

    def error(name: str, value: object, fix: str) -> ConfigError:
        return ConfigError(f"{field}.{name}" if field else name, value, fix)

    for word, value in options.items():
        if word not in names:
            fix = find_function_advice(thing.__name__, word, value)
            if explain and fix is None:
                fix = explain(word, value, arguments)
            return error(word, value, fix or suggest_fix(word, value, names, "python", field))
    for name in positional[: len(args)]:
        if name in options:
            return error(name, options[name], "is given twice, by position and by name: leave one out")
    if len(args) > len(positional):
        named = [name for name in names if name not in positional and name not in options]
        value = args[len(positional)]
        if not named:
            return error(
                "arguments",
                value,
                f"is one argument too many: leave it out; {_public_name(thing)} accepts "
                f"{', '.join(positional) or 'no arguments'}, e.g. {example_call(thing)}",
            )
        fix = f"must be given by name, e.g. {named[0]}=...; only {', '.join(positional)} can be given by position"
        return error("arguments", value, fix)
    missing = next(
        parameter.name for parameter in parameters if _is_required(parameter) and parameter.name not in arguments
    )
    meaning = _meaning(thing, missing)
    return error(missing, _NotGiven(), f"is required{f': {meaning}' if meaning else ''}; e.g. {example_call(thing)}")


def _is_required(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty and parameter.kind not in (
        parameter.VAR_POSITIONAL,
        parameter.VAR_KEYWORD,
    )


def _meaning(thing: Callable[..., Any], name: str) -> str:
    """Returns the meaning of an argument from the docstring: the first sentence under its name, or of the docstring."""
    text = inspect.getdoc(thing) or ""
    if text.startswith(f"{thing.__name__}("):  # the docstring of a dataclass without one is its signature
        return ""
    described = re.search(rf"^ +{name}: (.*?)(?=\n\s*\n|\n {{,4}}\S|\Z)", text, re.DOTALL | re.MULTILINE)
    if described is None and ("Args:" in text or "Arguments:" in text):
        return ""
    sentence = described[1] if described else text
    return " ".join(re.split(r"(?<=[a-z0-9)\]`])(?<!e\.g)\.(?:\s|$)", sentence, maxsplit=1)[0].split())


def example_call(thing: Callable[..., Any], value: object = None) -> str:
    """Returns the text of a call with good values of all required arguments.

    If the first argument accepts `value`, the text contains it.
    """
    name = _public_name(thing)
    try:
        parameters = list(inspect.signature(thing).parameters.values())
    except (TypeError, ValueError):  # some builtins have no signature
        return f"{name}(...)"
    arguments = {
        parameter.name: get_example(parameter.name, thing.__name__)
        for parameter in parameters
        if _is_required(parameter)
    }
    takes_numbers = parameters and (_is_required(parameters[0]) or parameters[0].name == "epsilon")
    if isinstance(value, Real) and takes_numbers and _takes(thing, parameters[0].name, value):
        arguments[parameters[0].name] = repr(value)
    return f"{name}({', '.join(f'{name}={text}' for name, text in arguments.items())})"


def _takes(thing: Callable[..., Any], name: str, value: object) -> bool:
    """True if a parameter is a number and accepts this value."""
    whole: object = thing
    if is_dataclass(whole):
        noted = thing
    elif inspect.isclass(thing):
        noted = getattr(thing, "__init__", thing)
    else:
        noted = thing
    hint = get_type_hints(noted, include_extras=True).get(name)
    return hint is not None and describe_error(hint, value) is None and describe_error(hint, "") is not None


def _public_name(thing: Callable[..., Any]) -> str:
    """Returns the public name of a class or function."""
    name, module = thing.__name__, thing.__module__
    if getattr(_public(name), "__module__", None) == module:
        return f"fedpriv.{name}"
    if module.startswith("fedpriv."):
        return f"{module}.{name}"
    return name


def _public(name: str) -> Any:  # noqa: ANN401 - whatever fedpriv exports
    """Returns the object that fedpriv exports under a name; None if there is none."""
    package = sys.modules["fedpriv"]
    if name in package.__all__:
        return getattr(package, name)
    return None


def check_finite(values: Tensor, quantity: str) -> None:
    """Raises an error if values `[n, ...]`, one row for each client, contain NaN or infinity.

    Raises:
        DataError: If a value is not finite; the message names the client.
    """
    flat = values.reshape(len(values), -1)
    broken = ~torch.isfinite(flat).all(1)
    if bool(broken.any()):
        client = int(broken.nonzero()[0])
        raise DataError(
            f"client {client}: the {quantity} is {flat[client].detach().tolist()}, which is not finite, at the "
            "parameters that the client received; correct the function or the data, or use other initial parameters"
        )


def _describe_union_error(kinds: tuple[Any, ...], value: object) -> str | None:
    """Returns the error for a value that fits no member of a union."""
    if value is None and NoneType in kinds:
        return None
    complaints = [_describe_member_error(kind, value) for kind in kinds if kind is not NoneType]
    if None in complaints:
        return None
    classes = [kind for kind in kinds if inspect.isclass(kind) and kind is not NoneType and kind not in PLAIN]
    if len(classes) > 1:
        return _make_it(classes, value)
    return " or ".join(fix for fix in complaints if fix)


def _describe_member_error(kind: Any, value: object) -> str | None:  # noqa: ANN401 - any annotation
    """Returns the error for a value that does not fit a member of a union, with a special case for functions."""
    if get_origin(kind) is Callable and not callable(value):
        return "must be a function"
    return describe_error(kind, value)


def _describe_class_error(kind: type, value: object) -> str | None:
    """Returns the error for a value that is not an instance of a class, or lacks methods of a protocol."""
    if not getattr(kind, "_is_protocol", False):
        if isinstance(value, kind):
            return None
        return _make_it([kind], value)
    if kind.__name__ in ("LocalStep", "Aggregator"):
        return None  # `Strategy` lists all missing methods and attributes
    if inspect.isclass(value) and _torch_optimizer_class(value) is None:
        return f"is a class: create an object with {example_call(value)}"
    methods = _methods_of(kind)
    lacking = [name for name in methods if not callable(getattr(value, name, None))]
    if not lacking:
        return None
    if _torch_optimizer_class(value) is not None:
        return _make_it([kind], value)
    is_other = inspect.isfunction(value) or not (callable(value) or any(hasattr(value, name) for name in methods))
    if is_other and find_usual_expression(kind) is not None:
        return _make_it([kind], value)
    lines = " and ".join(f"def {name}{inspect.signature(methods[name])}".replace("'", "") for name in lacking)
    return f"is not a {kind.__name__}: it has no {' and no '.join(lacking)}; add {lines}"


def _make_it(kinds: list[Any], value: object) -> str:
    """Returns the expression to write instead of a value of another kind."""
    optimizer_class = _torch_optimizer_class(value)
    if kinds == [torch.optim.Optimizer]:
        name = "SGD" if optimizer_class is None else optimizer_class.__name__
        return f"must be an optimiser of torch, e.g. torch.optim.{name}(model.parameters(), lr=0.1)"
    if optimizer_class is not None:
        return _for_torch_optimizer(kinds, optimizer_class, value)
    if inspect.isclass(value) and issubclass(value, tuple(kinds)):
        return f"is a class: create an object with {example_call(value)}"
    if inspect.isfunction(value) and _public(value.__name__) is value:
        return f"is a function: call it, e.g. {example_call(value)}"
    if isinstance(value, str) and (named := _named(kinds, value)):
        return f"must be created with {named}"
    calls = [find_usual_expression(kind) or example_call(kind, value) for kind in kinds]
    if len(kinds) == 1 and kinds[0].__name__ == "Privacy" and isinstance(value, Real):
        calls = [example_call(kinds[0], value)]
    return f"must be created with {' or '.join(calls)}"


def _named(kinds: list[Any], word: str) -> str | None:
    """Returns the call for a word that names an object of one of the kinds: `"fixed_size"` for `FixedSize`."""
    plain = re.sub(r"[^a-z0-9]", "", word.lower())
    for kind in kinds:
        if (meant := find_meant_object(kind, plain)) is not None:
            return meant
        if kind.__name__.lower() == plain:
            return example_call(kind)
    for name in sys.modules["fedpriv"].__all__:
        if re.sub(r"[^a-z0-9]", "", name.lower()) == plain:
            exported = _public(name)
            if any(_makes(exported, kind) for kind in kinds):
                return example_call(exported)
    return None


def _makes(exported: Any, kind: Any) -> bool:  # noqa: ANN401 - whatever fedpriv exports
    """True if a public class or function returns an object of a kind."""
    if inspect.isfunction(exported):
        return get_type_hints(exported).get("return") is kind
    return inspect.isclass(exported) and is_class_of(exported, kind)


def is_class_of(candidate: type, kind: type) -> bool:
    """True if a class creates objects of a kind: it is that class, a subclass, or has all methods of a protocol.

    Attributes of a protocol are not checked, since an object may set them when it is created.
    """
    if getattr(kind, "_is_protocol", False):
        return all(callable(getattr(candidate, name, None)) for name in _methods_of(kind))
    return issubclass(candidate, kind)


def _methods_of(protocol: type) -> dict[str, Callable[..., Any]]:
    members = vars(protocol).items()
    return {name: member for name, member in members if inspect.isfunction(member) and not name.startswith("_")}


def _torch_optimizer_class(value: object) -> type | None:
    """Returns the class of an optimiser of torch, or the class itself; None for anything else."""
    if isinstance(value, torch.optim.Optimizer):
        return type(value)
    if inspect.isclass(value) and issubclass(value, torch.optim.Optimizer):
        return value
    return None


def _for_torch_optimizer(kinds: list[Any], optimizer_class: type, value: object) -> str:
    """Returns the replacement of a torch optimiser, which would update one model in place, without noise.

    Args:
        kinds: The accepted kinds of objects.
        optimizer_class: The class of the optimiser.
        value: An optimiser with its options, or the class itself.
    """
    ours = {"SGD": "Sgd", "Adam": "Adam", "AdamW": "AdamW"}.get(optimizer_class.__name__)
    if ours is None:
        return (
            f"is an optimiser of torch, and {optimizer_class.__name__} has no counterpart in fedpriv: write "
            f"{read_entries('kinds')['Optimizer']}, or your own subclass of fedpriv.strategies.optimizers.Optimizer"
        )
    options: dict[str, Any] = {}
    if isinstance(value, torch.optim.Optimizer):
        options = value.defaults
    text = _optimizer_call(ours, options)
    if any(kind.__name__ == "Strategy" for kind in kinds):
        text = f"fedpriv.fedavg(learning_rate={options.get('lr', 0.1)}, optimizer={text})"
    return f"is an optimiser of torch, which updates one model in place: write {text}"


def _optimizer_call(name: str, options: Mapping[str, Any]) -> str:
    """Returns the call of fedpriv's optimiser with the options of torch's that are not the default."""
    decay = float(options.get("weight_decay", 0.0))
    arguments: list[str] = []
    if name == "Sgd" and options.get("momentum"):
        name = "Momentum"
        arguments.append(repr(options["momentum"]))
        if options.get("nesterov"):
            arguments.append("nesterov=True")
    if name in ("Adam", "AdamW"):
        beta1, beta2 = options.get("betas", (0.9, 0.999))
        given = {"beta1": (beta1, 0.9), "beta2": (beta2, 0.999), "eps": (options.get("eps", 1e-8), 1e-8)}
        arguments += [f"{word}={value!r}" for word, (value, default) in given.items() if value != default]
    if name == "AdamW" and options and decay != 0.01:
        arguments.append(f"weight_decay={decay!r}")
    call = f"fedpriv.{name}({', '.join(arguments)})"
    if decay and name != "AdamW":
        return f"fedpriv.strategies.optimizers.WeightDecay({decay!r}, {call})"
    return call
