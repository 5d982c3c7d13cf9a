"""What code may read from a value: its items, its attributes, or the function inside it.

A table says it for each kind of value. Items of containers are read, with the keys of mappings. Of an object of a class
of the user's, and of a module, those attributes are read whose names some code has: it may have been handed the object.
Where a class decides itself what a name means (`__getattr__`), all attributes are. Of a network it is what determines
its function beside trained parameters, which change while code is run.

Objects of other kinds, such as a log or an open file, have no contents here: they may differ from process to process,
and nobody computes with them.
"""

from __future__ import annotations

from argparse import Namespace
from array import array
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from enum import Enum
from functools import cached_property, partial, singledispatchmethod
from numbers import Number
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, MethodType, ModuleType, SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np
import torch
from torch import nn
from torch.jit import ScriptFunction, ScriptModule

from fedpriv.storage.identity import digest
from fedpriv.storage.torch_script import computed_by
from fedpriv.storage.user_code import is_module_of_user, is_of_user

LITERALS = (type(None), bool, int, float, complex, str, bytes)
"""Classes of numbers and texts."""
CALLED = (torch.dtype, torch.device, type(Ellipsis), range, slice)
"""Classes of other values that are what they are called."""
NUMBERS = (Number, np.generic, bytearray, array)
"""Classes of other numbers, such as fractions, decimal numbers and those of numpy, and of arrays of them."""

Contents = list[tuple[str, object]]
"""Values by name, in the order in which they are read."""

_OF_EVERY_LAYER = {*vars(nn.Module())} - {"training"}  # attributes for its parameters, its layers and its hooks


def contents_of(value: object, names: Collection[str]) -> Contents:
    """Returns what code may read from a value.

    Args:
        value: Neither a tensor, a class nor a function.
        names: All names that any code reads; of a module or an object it is only these.
    """
    for kinds, contents in _OF_KIND:
        if isinstance(value, kinds):
            return contents(value, names)
    contents = [*_items_of(value), *_attributes_of(value, names)]
    function = wrapped_in(value)
    if function is not None:
        contents.append(("function", function))
    return contents


def wrapped_in(value: object) -> FunctionType | None:
    """Returns the function inside a cached function, without a call of an object's own code."""
    try:
        wrapped = object.__getattribute__(value, "__wrapped__")
    except AttributeError:
        return None
    if isinstance(wrapped, FunctionType):
        return wrapped
    return None


def attributes_of_function(function: FunctionType, names: Collection[str]) -> Contents:
    """Returns what code may read from a function as from an object.

    One that `functools.singledispatch` has made reads from its registry which function each type of argument has.
    """
    return [(name, item) for name, item in sorted(vars(function).items()) if name in {*names, "registry"}]


def attributes_of_layer(layer: nn.Module) -> Contents:
    """Returns a layer's attributes, such as a rate of dropout, without its parameters, buffers, layers and hooks."""
    return [(name, item) for name, item in sorted(vars(layer).items()) if name not in _OF_EVERY_LAYER]


def _items_of(value: object) -> Contents:
    """Returns the items of a container; of a cache, whose items come and go, and of other values it has none."""
    if isinstance(value, WeakKeyDictionary | WeakValueDictionary):
        return []
    if isinstance(value, Mapping):
        return [pair for key, item in value.items() for pair in (("key", key), ("item", item))]
    if isinstance(value, set | frozenset):
        return [("item", item) for item in sorted(value, key=_place_in_set)]
    if isinstance(value, list | tuple | deque):
        return [("item", item) for item in value]
    return []


def _place_in_set(item: object) -> str:
    if isinstance(item, LITERALS):
        return repr(item)
    return digest(item)


def _attributes_of(value: object, names: Collection[str]) -> Contents:
    """Returns the attributes of an object of the user's that code reads.

    A setting that nobody reads may change, such as whether to resume.
    """
    kind = type(value)
    if not (is_of_user(kind) or isinstance(value, SimpleNamespace | Namespace)):
        return []
    stored = _stored_in(value)
    if not _decides_itself(kind):
        stored = {name: item for name, item in stored.items() if name in names}
    return sorted(stored.items())


def _stored_in(value: object) -> dict[str, object]:
    """Returns an object's own attributes, by name, without a call of its code."""
    stored = dict[str, object]()
    for base in type(value).__mro__:
        for name, member in vars(base).items():
            if isinstance(member, MemberDescriptorType):  # of a slot
                with suppress(AttributeError):  # it is empty
                    stored[name] = member.__get__(value)
    with suppress(AttributeError):  # it has slots alone
        stored |= object.__getattribute__(value, "__dict__")
    return stored


def _decides_itself(kind: type) -> bool:
    """Returns whether a class has code that says what an attribute is."""
    members = [vars(base).get(name) for base in kind.__mro__ for name in ("__getattr__", "__getattribute__")]
    return any(isinstance(member, FunctionType) for member in members)


def _contents_of_module(module: ModuleType, names: Collection[str]) -> Contents:
    if not is_module_of_user(module.__name__):
        return []
    return [(name, item) for name, item in sorted(vars(module).items()) if name in names]


def _contents_of_partial(function: partial[Any], _: Collection[str]) -> Contents:
    return [("function", function.func), ("positions", function.args), ("names", function.keywords)]


def _contents_of_bound_method(method: MethodType, _: Collection[str]) -> Contents:
    return [("object", method.__self__), ("function", method.__func__)]


def _contents_of_builtin_method(method: BuiltinFunctionType, _: Collection[str]) -> Contents:
    return [("object", method.__self__), ("name", method.__name__)]


def _contents_of_method_by_type(method: singledispatchmethod[Any], _: Collection[str]) -> Contents:
    return [("function", method.dispatcher)]


def _contents_of_method(method: staticmethod[..., Any] | classmethod[Any, ..., Any], _: Collection[str]) -> Contents:
    return [("function", method.__func__)]


def _contents_of_cached_property(attribute: cached_property[Any], _: Collection[str]) -> Contents:
    return [("function", attribute.func)]


def _contents_of_network(network: nn.Module, _: Collection[str]) -> Contents:
    """Returns the settings and constants of all layers, without trained parameters."""
    return [setting for layer in network.modules() for setting in _settings_of(layer)]


def _settings_of(layer: nn.Module) -> Contents:
    frozen = [(name, item) for name, item in layer.named_parameters(recurse=False) if not item.requires_grad]
    return [*attributes_of_layer(layer), *layer.named_buffers(recurse=False), *frozen]


def _contents_of_torch_script(value: ScriptFunction[..., Any] | ScriptModule, _: Collection[str]) -> Contents:
    return computed_by(value)


def _contents_of_enum(value: Enum, _: Collection[str]) -> Contents:
    return [("name", value.name)]


# the first kind that fits decides: a network of TorchScript is also one of Python
_OF_KIND: tuple[tuple[tuple[type, ...], Callable[[Any, Collection[str]], Contents]], ...] = (
    ((ModuleType,), _contents_of_module),
    ((partial,), _contents_of_partial),
    ((MethodType,), _contents_of_bound_method),
    ((BuiltinFunctionType,), _contents_of_builtin_method),
    ((staticmethod, classmethod), _contents_of_method),
    ((singledispatchmethod,), _contents_of_method_by_type),
    ((cached_property,), _contents_of_cached_property),
    ((ScriptFunction, ScriptModule), _contents_of_torch_script),
    ((nn.Module,), _contents_of_network),
    ((Enum,), _contents_of_enum),
)
