"""Which code is the user's, and which names it reads."""

from __future__ import annotations

import dis
import sys
import sysconfig
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from types import CodeType, FunctionType

from fedpriv.storage.identity import module_of

_FOLDERS_OF_PACKAGES = {"site-packages", "dist-packages"}
_INSTALLED = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib"))
_READS_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME")  # instructions


def is_of_user(thing: object) -> bool:
    """Returns whether a class or function was made in a module of the user's."""
    return is_module_of_user(module_of(thing))


@lru_cache(maxsize=1024)
def is_module_of_user(name: str) -> bool:
    """Returns whether a module is neither part of Python or fedpriv, nor an installed package."""
    package = name.partition(".")[0]
    if package == "__main__":  # also in a notebook, whose file is that of an installed kernel
        return True
    if package in ("fedpriv", "torch", "numpy") or package in sys.stdlib_module_names:  # torch: also built by hand
        return False
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None:
        return True
    path = Path(file).resolve()
    if _FOLDERS_OF_PACKAGES & {*path.parts}:  # also of another environment, of the operating system, or of one user
        return False
    return not any(path.is_relative_to(folder) for folder in _INSTALLED)


def names_in(code: CodeType) -> set[str]:
    """Returns all names that code, and the functions that it defines, may read, of attributes as well."""
    return {name for each in _with_inner(code) for name in each.co_names}


def global_names_in(code: CodeType) -> list[str]:
    """Returns the names that code, and the functions that it defines, may read from its module, sorted."""
    instructions = (instruction for each in _with_inner(code) for instruction in dis.get_instructions(each))
    return sorted({instruction.argval for instruction in instructions if instruction.opname in _READS_GLOBAL})


def names_in_methods(kind: type) -> set[str]:
    """Returns all names that the user's methods of a class may read.

    Of the methods that Python calls by itself, such as `__init__`, it is `__call__` alone.
    """
    names = set[str]()
    for base in kind.__mro__:
        if not is_of_user(base):
            continue
        for name, member in vars(base).items():
            if isinstance(member, property):
                function = member.fget
            else:
                function = member
            is_special = name.startswith("__") and name != "__call__"
            if isinstance(function, FunctionType) and not is_special:
                names |= names_in(function.__code__)
    return names


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)
