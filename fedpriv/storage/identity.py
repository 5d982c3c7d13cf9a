"""Computes digests of settings. Equal settings have equal digests in every process; different settings have different
digests.
"""

from __future__ import annotations

import builtins
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from functools import singledispatch
from pickle import PicklingError
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, uint8
from torch.jit import ScriptFunction, ScriptModule

from fedpriv.storage import strict_json

if TYPE_CHECKING:
    import networkx as nx


def digest(*settings: object) -> str:
    """Returns a digest of settings, 32 hexadecimal digits.

    It depends on the contents of values, containers and tensors, on the names of functions and classes, and on the
    class and state of any other object. It does not depend on code.
    """
    hasher = hashlib.blake2b(digest_size=16)
    for number, value in enumerate(settings):
        hasher.update(b", " if number else b"[")
        for text in _described(value, ()):
            hasher.update(text.encode())
    hasher.update(b"]" if settings else b"[]")
    return hasher.hexdigest()


_HEAP_TYPE = 1 << 9  # flag of classes that are created while a program runs, and are not compiled into Python
_CHUNK = 4096  # items of a value that are described in one piece of text
SPEED = frozenset(
    "backend device max_physical_batch_size threads parallelism client_state timeout pad_seconds pad_batches".split()  # noqa: SIM905
)


ASIDE: Mapping[str, bool] = {"aside": True}
"""Metadata of a dataclass field that does not affect results, such as the path of a file: left out of digests."""


def digest_config(config: Mapping[str, Any]) -> str:
    """Returns the SHA-256 of a configuration, without options that a resume may change.

    The options that a resume may change are logging, options that only affect speed (`SPEED`), and the path of the
    budget.
    """
    compute = {name: value for name, value in (config.get("compute") or {}).items() if name not in SPEED}
    hashed = {str(name): value for name, value in config.items() if name != "log"} | {"compute": compute}
    privacy = hashed.get("privacy")
    if isinstance(privacy, Mapping):
        hashed["privacy"] = {name: value for name, value in privacy.items() if name != "budget"}
    return hashlib.sha256(json.dumps(strict_json.to_plain(hashed), sort_keys=True).encode()).hexdigest()


def _described(value: object, ancestors: tuple[int, ...]) -> Iterator[str]:
    """Yields the name of the value's class and its contents, in pieces of text.

    Args:
        value: Any object.
        ancestors: The `id` of each object that contains the value, from the outermost to the innermost.
    """
    if id(value) in ancestors:
        yield repr(["inside itself", str(ancestors[::-1].index(id(value)))])
        return
    inside = (*ancestors, id(value))
    contents = list_digest_parts(value)
    # an object that occurs several times, such as the problem of a million clients, is described once
    described = dict[int, str]()
    repeated = {identity for identity, count in Counter(map(id, contents)).items() if count > 1}

    def describe(item: object) -> str:
        if isinstance(item, str):
            return repr(item)
        if type(item) is int:
            text = f"['builtins.int', {repr(item)!r}]"
        else:
            text = "".join(_described(item, inside))
        if id(item) in repeated:
            described[id(item)] = text
        return text

    yield f"[{_name(type(value))!r}"
    for start in range(0, len(contents), _CHUNK):
        yield ", " + ", ".join([described.get(id(item)) or describe(item) for item in contents[start : start + _CHUNK]])
    yield "]"


def get_module_name(thing: object) -> str:
    """Returns the name of the module in which a class or function was created; empty if there is none.

    Code that ran without a `__name__`, as in `exec(text, {})`, counts as `__main__`. (In this case Python sets the
    module of functions to None, and the module of classes to `builtins`.)
    """
    module = getattr(thing, "__module__", "")
    if module is None:
        return "__main__"
    is_made_at_run_time = isinstance(thing, type) and thing.__flags__ & _HEAP_TYPE
    if module == "builtins" and is_made_at_run_time and thing not in vars(builtins).values():
        return "__main__"
    return str(module)


def _name(thing: Any) -> str:  # noqa: ANN401 - classes, functions and modules
    """Returns the stable name of a class, function or module for digests.

    For objects of fedpriv it is `fedpriv.` and the name inside its module, so that a class keeps its identity when it
    moves to another file. Therefore no two settings of fedpriv may have the same name, which a test checks.
    """
    module = get_module_name(thing)
    name = getattr(thing, "__qualname__", "")
    if module.split(".")[0] == "fedpriv":
        return f"fedpriv.{name}"
    return f"{module}.{name}"


def is_graph(value: object) -> TypeGuard[nx.Graph[Any]]:
    """Returns True if a value is a networkx graph, without importing networkx (if such a value exists, networkx is
    imported already).
    """
    module = sys.modules.get("networkx.classes.graph")
    return module is not None and isinstance(value, module.Graph)


@singledispatch
def list_digest_parts(value: object) -> tuple[object, ...]:
    """Returns the contents of a value, as text or further values, from which its digest is computed.

    For a type that has more state than its settings, register a function here that selects the settings.
    """
    if is_graph(value):
        return list(value.nodes(data=True)), list(value.edges(data=True))
    if is_dataclass(value):
        return tuple(getattr(value, field.name) for field in fields(value) if "aside" not in field.metadata)
    try:
        reduced = value.__reduce_ex__(4)
    except (TypeError, PicklingError):  # a lock or an open file: a resource, not a setting
        return ()
    except RuntimeError:  # torch's parametrised modules cannot be pickled: use their attributes
        return (vars(value),)
    if isinstance(reduced, str):
        return (reduced,)
    return (*reduced[:3], *(list(items) for items in reduced[3:5] if items is not None))


@list_digest_parts.register(type(None))
@list_digest_parts.register(type(Ellipsis))
@list_digest_parts.register(bool)
@list_digest_parts.register(int)
@list_digest_parts.register(float)
@list_digest_parts.register(complex)
@list_digest_parts.register(bytes)
def _literal(value: object) -> tuple[object, ...]:
    return (repr(value),)


@list_digest_parts.register(str)
@list_digest_parts.register(tuple)
@list_digest_parts.register(list)
def _sequence(value: Sequence[object]) -> tuple[object, ...]:
    if isinstance(value, str):
        return (value,)
    return tuple(value)


@list_digest_parts.register(Mapping)
def _mapping(value: Mapping[object, object]) -> tuple[object, ...]:
    return tuple(item for pair in value.items() for item in pair)


@list_digest_parts.register(AbstractSet)
def _set(value: AbstractSet[object]) -> tuple[object, ...]:
    return tuple(sorted(digest(item) for item in value))


@list_digest_parts.register(Tensor)
def _tensor(value: Tensor) -> tuple[object, ...]:
    dense = value.detach().to_dense().cpu().contiguous()
    return (
        str(dense.dtype),
        value.requires_grad,
        *dense.shape,
        _digest_bytes(dense.reshape(-1).view(uint8).numpy().tobytes()),
    )


@list_digest_parts.register(np.ndarray)
def _array(value: NDArray[Any]) -> tuple[object, ...]:
    if value.dtype.hasobject:
        content = value.tolist()
    else:
        content = _digest_bytes(value.tobytes())
    return str(value.dtype), *value.shape, content


@list_digest_parts.register(type)
@list_digest_parts.register(ModuleType)
@list_digest_parts.register(BuiltinFunctionType)
def _by_name(value: Any) -> tuple[object, ...]:  # noqa: ANN401
    return (f"{_name(value)} {value.__name__}",)


@list_digest_parts.register(FunctionType)
def _function(value: FunctionType) -> tuple[object, ...]:
    return (_name(value), [cell.cell_contents for cell in value.__closure__ or ()], value.__defaults__)


@list_digest_parts.register(ScriptFunction)
@list_digest_parts.register(ScriptModule)
def _torch_script(value: ScriptFunction[..., object] | ScriptModule) -> tuple[object, ...]:
    return (str(getattr(value, "name", type(value).__name__)),)


@list_digest_parts.register(MethodType)
def _method(value: MethodType) -> tuple[object, ...]:
    return value.__self__, value.__func__


def _digest_bytes(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
