"""What code may read from a value: its items, its attributes, or the function inside it.

A table says it for each kind of value. Objects of other kinds, such as a log or an open file, have no contents here:
they may differ from process to process, and nobody computes with them.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Collection, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cached_property, partial
from types import BuiltinFunctionType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.jit import ScriptFunction, ScriptModule

from fedpriv.storage.torch_script import computed_by
from fedpriv.storage.user_code import is_module_of_user, is_of_user, names_in_methods

LITERALS = (type(None), bool, int, float, complex, str, bytes)
"""Classes of numbers and texts."""
CALLED = (torch.dtype, torch.device, type(Ellipsis), range)
"""Classes of other values that are what they are called."""

Contents = list[tuple[str, object]]
"""Values by name, in the order in which they are read."""


def contents_of(value: object, names: Collection[str]) -> Contents:
    """Returns what code may read from a value.

    Args:
        value: Neither a literal nor a tensor, a class or a function.
        names: All names that the code reads; of a module or an object it is only these.
    """
    for kinds, contents in _CONTENTS:
        if isinstance(value, kinds):
            return contents(value, names)
    if is_of_user(type(value)):
        return _of_object(value, names)
    wrapped = getattr(value, "__wrapped__", None)
    if isinstance(wrapped, FunctionType):  # of a cached function
        return [("function", wrapped)]
    return []


def settings_of(module: nn.Module) -> Contents:
    """Returns what determines the function of one layer beside its trained parameters and the layers inside it.

    These are its numbers, such as a rate of dropout, texts and functions, and its buffers and frozen parameters.
    """
    plain = [(name, item) for name, item in sorted(vars(module).items()) if _is_plain(item)]
    frozen = [(name, item) for name, item in module.named_parameters(recurse=False) if not item.requires_grad]
    return [*plain, *module.named_buffers(recurse=False), *frozen]


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple | list):
        return all(_is_plain(item) for item in value)
    return isinstance(value, (*LITERALS, *CALLED, FunctionType, BuiltinFunctionType))


def _of_module(module: ModuleType, names: Collection[str]) -> Contents:
    if not is_module_of_user(module.__name__):
        return []
    return [(name, vars(module)[name]) for name in sorted(names) if name in vars(module)]


def _of_mapping(mapping: Mapping[Any, object], _: Collection[str]) -> Contents:
    return [(repr(key), item) for key, item in mapping.items() if isinstance(key, LITERALS)]


def _of_set(values: AbstractSet[object], _: Collection[str]) -> Contents:
    literals = [item for item in values if isinstance(item, LITERALS)]
    return [("item", item) for item in sorted(literals, key=repr)]


def _of_sequence(values: Collection[object], _: Collection[str]) -> Contents:
    return [("item", item) for item in values]


def _of_partial(function: partial[Any], _: Collection[str]) -> Contents:
    return [("function", function.func), ("positions", function.args), ("names", function.keywords)]


def _of_method(method: staticmethod[..., Any] | classmethod[Any, ..., Any], _: Collection[str]) -> Contents:
    return [("function", method.__func__)]


def _of_cached_property(attribute: cached_property[Any], _: Collection[str]) -> Contents:
    return [("function", attribute.func)]


def _of_network(network: nn.Module, _: Collection[str]) -> Contents:
    """Returns the settings and constants of all layers: trained parameters change while code is run."""
    return [setting for module in network.modules() for setting in settings_of(module)]


def _of_torch_script(value: ScriptFunction[..., Any] | ScriptModule, _: Collection[str]) -> Contents:
    return computed_by(value)


def _of_enum(value: Enum, _: Collection[str]) -> Contents:
    return [("name", value.name)]


def _of_object(value: object, names: Collection[str]) -> Contents:
    """Returns the attributes that the code or the object's own methods read.

    A setting that nobody reads may change, such as whether to resume.
    """
    stored = {*getattr(value, "__dict__", {})}
    if is_dataclass(value):
        stored |= {field.name for field in fields(value) if hasattr(value, field.name)}
    read = {*names, *names_in_methods(type(value))}
    return [(name, getattr(value, name)) for name in sorted(read & stored)]


# the first kind that fits decides: an enumeration of the user's is an Enum before it is an object of the user's
_CONTENTS: tuple[tuple[tuple[type, ...], Callable[[Any, Collection[str]], Contents]], ...] = (
    ((ModuleType,), _of_module),
    ((Mapping,), _of_mapping),
    ((set, frozenset), _of_set),
    ((list, tuple), _of_sequence),
    ((partial,), _of_partial),
    ((staticmethod, classmethod), _of_method),
    ((cached_property,), _of_cached_property),
    ((ScriptFunction, ScriptModule), _of_torch_script),
    ((nn.Module,), _of_network),
    ((Enum,), _of_enum),
    ((SimpleNamespace, Namespace), _of_object),
)
