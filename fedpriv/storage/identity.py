"""Digests of settings: equal settings have equal digests in every process, different settings different ones."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from functools import singledispatch
from pickle import PicklingError
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import networkx as nx
import numpy as np
from numpy.typing import NDArray
from torch import Tensor, uint8

from fedpriv.storage import strict_json


def digest(*settings: object) -> str:
    """A digest of settings, 32 hexadecimal digits.

    It depends on the contents of values, containers, tensors and functions (code, defaults and closure), and on the
    class and state of any other object.
    """
    found = hashlib.blake2b(digest_size=16)
    for number, value in enumerate(settings):
        found.update(b", " if number else b"[")
        for text in _described(value, ()):
            found.update(text.encode())
    found.update(b"]" if settings else b"[]")
    return found.hexdigest()


_AT_ONCE = 4096  # parts of a value that are described in one piece of text
SPEED = frozenset({"backend", "device", "chunk", "threads", "engine", "state", "timeout"})


ASIDE: Mapping[str, bool] = {"aside": True}
"""Metadata of a dataclass's field that says nothing of what is computed, such as where a file lies: in no digest."""


def of_config(config: Mapping[str, Any]) -> str:
    """SHA-256 of a configuration without what a resume may change: logging, speed, where the budget is."""
    compute = {name: value for name, value in (config.get("compute") or {}).items() if name not in SPEED}
    kept = {str(name): value for name, value in config.items() if name != "log"} | {"compute": compute}
    if isinstance(privacy := kept.get("privacy"), Mapping):
        kept["privacy"] = {name: value for name, value in privacy.items() if name != "budget"}
    return hashlib.sha256(json.dumps(strict_json.plain(kept), sort_keys=True).encode()).hexdigest()


def _described(value: object, above: tuple[int, ...]) -> Iterator[str]:
    """The name of the value's class and its parts, in pieces of text; `above` are the objects that it lies in."""
    if id(value) in above:
        yield repr(["inside itself", str(above[::-1].index(id(value)))])
        return
    inside, held, known = (*above, id(value)), parts(value), dict[int, str]()
    # the same for a million clients, as their problem is: described once
    again = {place for place, count in Counter(map(id, held)).items() if count > 1}

    def text_of(part: object) -> str:
        if isinstance(part, str):
            return repr(part)
        if type(part) is int:
            found = f"['builtins.int', {repr(part)!r}]"
        else:
            found = "".join(_described(part, inside))
        if id(part) in again:
            known[id(part)] = found
        return found

    yield f"[{_name(type(value))!r}"
    for start in range(0, len(held), _AT_ONCE):
        yield ", " + ", ".join([known.get(id(part)) or text_of(part) for part in held[start : start + _AT_ONCE]])
    yield "]"


def _name(thing: Any) -> str:  # noqa: ANN401 - classes, functions and modules
    """The stable name of a class, function or module, which digests are made of.

    Of fedpriv's own it is `fedpriv.` and the name inside its module: a class keeps its identity when it moves to
    another file. No two of fedpriv's settings may therefore have one name, which a test makes sure of.
    """
    module, name = getattr(thing, "__module__", ""), getattr(thing, "__qualname__", "")
    if module.split(".")[0] == "fedpriv":
        return f"fedpriv.{name}"
    return f"{module}.{name}"


@singledispatch
def parts(value: object) -> tuple[object, ...]:
    """The contents of a value, as text or further values. Register types that hold more state than settings."""
    if is_dataclass(value):
        held = [(field, getattr(value, field.name)) for field in fields(value)]
        return tuple(part for field, part in held if "aside" not in field.metadata)
    try:
        made = value.__reduce_ex__(4)
    except (TypeError, PicklingError):  # a lock or an open file: a resource, not a setting
        return ()
    except RuntimeError:  # torch's parametrised modules refuse to be pickled: they are what they hold
        return (vars(value),)
    if isinstance(made, str):
        return (made,)
    return (*made[:3], *(list(rest) for rest in made[3:5] if rest is not None))


@parts.register(type(None))
@parts.register(type(Ellipsis))
@parts.register(bool)
@parts.register(int)
@parts.register(float)
@parts.register(complex)
@parts.register(bytes)
def _literal(value: object) -> tuple[object, ...]:
    return (repr(value),)


@parts.register(str)
@parts.register(tuple)
@parts.register(list)
def _sequence(value: Sequence[object]) -> tuple[object, ...]:
    if isinstance(value, str):
        return (value,)
    return tuple(value)


@parts.register(Mapping)
def _mapping(value: Mapping[object, object]) -> tuple[object, ...]:
    return tuple(item for pair in value.items() for item in pair)


@parts.register(AbstractSet)
def _set(value: AbstractSet[object]) -> tuple[object, ...]:
    return tuple(sorted(digest(item) for item in value))


@parts.register(Tensor)
def _tensor(value: Tensor) -> tuple[object, ...]:
    whole = value.detach().to_dense().cpu().contiguous()
    return (
        str(whole.dtype),
        value.requires_grad,
        *whole.shape,
        _of_bytes(whole.reshape(-1).view(uint8).numpy().tobytes()),
    )


@parts.register(np.ndarray)
def _array(value: NDArray[Any]) -> tuple[object, ...]:
    if value.dtype.hasobject:
        held = value.tolist()
    else:
        held = _of_bytes(value.tobytes())
    return str(value.dtype), *value.shape, held


@parts.register(nx.Graph)
def _graph(value: nx.Graph[Any]) -> tuple[object, ...]:
    return list(value.nodes(data=True)), list(value.edges(data=True))


@parts.register(type)
@parts.register(ModuleType)
@parts.register(BuiltinFunctionType)
def _by_name(value: Any) -> tuple[object, ...]:  # noqa: ANN401
    return (f"{_name(value)} {value.__name__}",)


@parts.register(FunctionType)
def _function(value: FunctionType) -> tuple[object, ...]:
    enclosed = [cell.cell_contents for cell in value.__closure__ or ()]
    name = _name(value)
    if name.startswith("fedpriv.") and "<lambda>" not in name:
        code = None  # a function of fedpriv is known by its name, so that its body may be rewritten
    else:
        code = value.__code__
    return name, code, value.__defaults__, value.__kwdefaults__, enclosed


@parts.register(MethodType)
def _method(value: MethodType) -> tuple[object, ...]:
    return value.__self__, value.__func__


@parts.register(CodeType)
def _code(value: CodeType) -> tuple[object, ...]:
    return value.co_code, value.co_consts, value.co_names, value.co_varnames


def _of_bytes(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
