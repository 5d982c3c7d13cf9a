"""A digest of the code of a user's classes and functions: two settings of one name may compute other things.

Runs with the same secret seed share noise if their settings have the same digest (`fedpriv.storage.identity`), and then
the difference of their answers has none. That digest has an object's state and the name of its class. In a notebook,
or in a script that is edited between two runs, the name stays while the code changes. So the code of classes and
functions of the user counts too, with the numbers, texts and tensors that functions read from their module. Installed
packages do not count: their versions change seldom, and not between two runs that somebody compares.
"""

from __future__ import annotations

import sys
import sysconfig
from functools import lru_cache
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType

import numpy as np
from torch import Tensor

from fedpriv.storage.identity import digest, module_of, parts

_LITERALS = (type(None), bool, int, float, complex, str, bytes)
_INSTALLED = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib"))


def code_digest(*values: object) -> str:
    """Returns a digest of the code of all classes and functions of the user in these values; empty if there are none.

    It does not see what code reads from files, or from objects other than numbers, texts, tensors and functions.
    """
    code = _Code()
    for value in values:
        code.visit(value)
    if not code.texts:
        return ""
    return digest(*code.texts)


class _Code:
    """Collects descriptions of code.

    Attributes:
        texts: The descriptions.
    """

    def __init__(self) -> None:
        self.texts: list[object] = []
        self._visited: dict[int, object] = {}  # by identity; the reference keeps identities apart

    def visit(self, value: object) -> None:
        """Collects the code of a value, and of all that it holds."""
        if isinstance(value, (*_LITERALS, Tensor, np.ndarray, ModuleType, BuiltinFunctionType, CodeType)):
            return
        if id(value) in self._visited:
            return
        self._visited[id(value)] = value
        if isinstance(value, type):
            self._visit_class(value)
        elif isinstance(value, FunctionType):
            self._visit_function(value)
        elif isinstance(value, MethodType):
            self.visit(value.__self__)
            self.visit(value.__func__)
        else:
            self.visit(type(value))
            for content in parts(value):
                self.visit(content)

    def _visit_class(self, value: type) -> None:
        for base in value.__mro__:
            if not _is_of_user(module_of(base)):
                continue
            for name, member in vars(base).items():
                if isinstance(member, staticmethod | classmethod):
                    self.visit(member.__func__)
                elif isinstance(member, property):
                    self.visit(member.fget)
                elif isinstance(member, FunctionType):
                    self.visit(member)
                elif isinstance(member, _LITERALS) and not name.startswith("__"):
                    self.texts += [name, member]

    def _visit_function(self, function: FunctionType) -> None:
        if not _is_of_user(module_of(function)):
            return
        self.texts += [function.__qualname__, function.__code__]
        for cell in function.__closure__ or ():
            self._read("(closure)", cell.cell_contents)
        for name in sorted(_names(function.__code__)):
            if name in function.__globals__:
                self._read(name, function.__globals__[name])

    def _read(self, name: str, value: object) -> None:
        """Collects a value that a function reads: itself if it is a number, text or tensor, else its code."""
        if isinstance(value, (*_LITERALS, Tensor, np.ndarray)):
            self.texts += [name, value]
        elif isinstance(value, type | FunctionType):
            self.visit(value)


def _names(code: CodeType) -> set[str]:
    """Returns the names that code, and the functions that it defines, may read from its module."""
    names = {*code.co_names}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names(constant)
    return names


@lru_cache(maxsize=1024)
def _is_of_user(module: str) -> bool:
    """Whether a module is neither part of Python or fedpriv, nor an installed package."""
    package = module.partition(".")[0]
    if package == "__main__":  # also in a notebook, whose file is that of an installed kernel
        return True
    if package == "fedpriv" or package in sys.stdlib_module_names:
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        return True
    return not any(Path(file).resolve().is_relative_to(folder) for folder in _INSTALLED)
