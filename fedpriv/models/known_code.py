"""Detects custom code in a run. Code of fedpriv and torch reveals nothing while rounds run.

Custom code may print or send its inputs. This is allowed, because released values are public, but their ledger lines
must be on the disk before the code receives them.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from functools import partial
from typing import TypeGuard

from torch import Tensor
from torch.jit import ScriptFunction, ScriptModule
from torch.nn.modules import module

from fedpriv.storage.identity import get_module_name

_KNOWN = frozenset({"fedpriv", "torch", "builtins", "collections", "functools"})
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, type)
_PLAIN = (type(None), bool, int, float, complex, str, bytes, range)


def is_torch_script(value: object) -> TypeGuard[ScriptFunction[..., object] | ScriptModule]:
    """Returns True if a value is a function or network that TorchScript has compiled, traced or loaded."""
    return isinstance(value, ScriptFunction | ScriptModule)


def is_known(thing: object) -> bool:
    """Returns True if an object, and all that it holds, has code of fedpriv, torch or Python itself only.

    Functions that a user has hung on a known object, such as a hook of a module or of a parameter, are found as well.
    Objects that cannot be inspected are not known.

    Args:
        thing: A strategy, a model, a loss, a network, or another object that computes with released values.
    """
    if module._has_any_global_hook():  # noqa: SLF001 - hooks on all modules are on no object, and torch has no other way
        return False
    return _is_known(thing, set())


def _is_known(thing: object, seen: set[int]) -> bool:
    if isinstance(thing, _PLAIN) or id(thing) in seen:
        return True
    seen.add(id(thing))
    if is_torch_script(thing):  # torch's class, but a user's code, which may print
        return False
    if isinstance(thing, _FUNCTIONS):
        owner = thing
    else:
        owner = type(thing)
    if not _is_from_known_module(owner):
        return False
    if isinstance(thing, type):
        return True
    if isinstance(thing, Tensor):
        return not getattr(thing, "_backward_hooks", None)
    return all(_is_known(value, seen) for value in _references_of(thing) if not isinstance(value, _PLAIN))


def _references_of(thing: object) -> list[object]:
    """Returns the references of an object: attributes, items, and the bound object and closure of a function."""
    references = list[object](getattr(thing, "__dict__", {}).values())
    if isinstance(thing, types.FunctionType):
        references += [cell.cell_contents for cell in thing.__closure__ or () if cell != types.CellType()]
        references += [*(thing.__defaults__ or ())]
    elif isinstance(thing, types.MethodType):
        references += [thing.__self__, thing.__func__]
    elif isinstance(thing, partial):
        references += [thing.func, *thing.args, *thing.keywords.values()]
    elif isinstance(thing, Mapping):
        references += [*thing.values()]
    elif isinstance(thing, tuple | list | set | frozenset):
        references += [*thing]
    return references


def _is_from_known_module(thing: object) -> bool:
    # print, open, exec: a built-in function may show its arguments, as a hook for example
    if isinstance(thing, types.BuiltinFunctionType) and get_module_name(thing) == "builtins":
        return False
    return get_module_name(thing).partition(".")[0] in _KNOWN
