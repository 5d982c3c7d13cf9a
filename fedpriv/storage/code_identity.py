"""A digest of the code of a user's classes and functions: two settings of one name may compute other things.

Runs with the same secret seed share noise if their settings have the same digest (`fedpriv.storage.identity`), and then
the difference of their answers has none. That digest has an object's state and the name of its class. In a notebook,
or in a script that is edited between two runs, the name stays while the code changes. So the code of classes and
functions of the user counts too, with the numbers, texts and tensors that it reads: from its module, from other modules
of the user's, as class attributes and as defaults, also inside containers, dataclasses and networks. Installed packages
do not count: their versions change seldom, and not between two runs that somebody compares.
"""

from __future__ import annotations

import dis
import sys
import sysconfig
from argparse import Namespace
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cached_property, lru_cache, partial
from pathlib import Path
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace

import numpy as np
import torch
from torch import Tensor, nn

from fedpriv.storage.identity import digest, module_of, parts

_LITERALS = (type(None), bool, int, float, complex, str, bytes)
_NAMED = (torch.dtype, torch.device, type(Ellipsis), range)  # other values that are what they are called
_FOLDERS_OF_PACKAGES = {"site-packages", "dist-packages"}
_INSTALLED = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib"))


def code_digest(*values: object) -> str:
    """Returns a digest of the code of all classes and functions of the user in these values; empty if there are none.

    It does not see what code reads from files, or from objects of other kinds than the module names.
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
        self._remember(value)
        if isinstance(value, type):
            self._visit_class(value)
        elif isinstance(value, FunctionType):
            self._visit_function(value)
        elif isinstance(value, MethodType):
            self.visit(value.__self__)
            self.visit(value.__func__)
        else:
            self.visit(type(value))
            for content in (*parts(value), getattr(value, "__wrapped__", None)):  # that of a cached function
                self.visit(content)

    def _remember(self, value: object) -> None:
        """Remembers what was visited, but for tuples: whether two equal ones are the same one is up to Python."""
        if not isinstance(value, tuple):
            self._visited[id(value)] = value

    def _visit_class(self, value: type) -> None:
        for base in value.__mro__:
            if not _is_of_user(module_of(base)):
                continue
            for name, member in vars(base).items():
                if isinstance(member, property):
                    self.visit(member.fget)
                elif isinstance(member, FunctionType):
                    self.visit(member)
                elif not name.startswith("__") or isinstance(member, staticmethod | classmethod):
                    self._read(name, member)

    def _visit_function(self, function: FunctionType) -> None:
        if not _is_of_user(module_of(function)):
            return
        code = function.__code__
        self.texts += [function.__qualname__, code]
        self._read("(defaults)", [function.__defaults__, function.__kwdefaults__])
        for cell in function.__closure__ or ():
            if cell != CellType():  # an empty one has no content
                self._read("(closure)", cell.cell_contents, _names(code))
        for name in sorted(_global_names(code)):
            if name in function.__globals__:
                self._read(name, function.__globals__[name], _names(code))

    def _read(self, name: str, value: object, attributes: Collection[str] = ()) -> None:
        """Collects a value that code reads: numbers, tensors and what holds some, and the code of all that it may call.

        Args:
            name: Its name.
            value: The value.
            attributes: Names of attributes that are read, where it may be a module.
        """
        self.texts.append(name)
        if isinstance(value, (*_LITERALS, *_NAMED, Tensor, np.ndarray)):
            self.texts.append(value)
            return
        is_outside = isinstance(value, type | FunctionType) and not _is_of_user(module_of(value))
        if is_outside or isinstance(value, BuiltinFunctionType):
            self.texts.append(f"{module_of(value)}.{getattr(value, '__qualname__', '')}")
            return
        if isinstance(value, type | FunctionType | MethodType):
            if id(value) in self._visited:
                self.texts.append(list(self._visited).index(id(value)))
            self.visit(value)
            return
        if id(value) in self._visited:
            self.texts.append(list(self._visited).index(id(value)))  # which one it is
            return
        contents = _contents(value, attributes)
        if not isinstance(value, ModuleType):
            self.visit(type(value))
        self._remember(value)
        for key, content in contents:
            self._read(key, content, attributes)


def _contents(value: object, attributes: Collection[str]) -> list[tuple[str, object]]:
    """Returns what code may read from a value, by name.

    Of a module and of an object of the user's these are the attributes that are read, of a network its settings and
    constants. Objects of other classes, such as a log, have none: they may differ from process to process.
    """
    if isinstance(value, ModuleType):
        if not _is_of_user(value.__name__):
            return []
        return [(name, vars(value)[name]) for name in sorted(attributes) if name in vars(value)]
    if isinstance(value, Mapping):
        return [(repr(key), item) for key, item in value.items() if isinstance(key, _LITERALS)]
    if isinstance(value, set | frozenset):
        return [("item", item) for item in sorted((item for item in value if isinstance(item, _LITERALS)), key=repr)]
    if isinstance(value, list | tuple):
        return [("item", item) for item in value]
    if isinstance(value, partial):
        return [("function", value.func), ("positions", value.args), ("names", value.keywords)]
    if isinstance(value, staticmethod | classmethod):
        return [("function", value.__func__)]
    if isinstance(value, cached_property):
        return [("function", value.func)]
    if isinstance(value, nn.Module):
        return [(name, item) for module in value.modules() for name, item in settings_of(module)]
    if isinstance(value, Enum):
        return [("name", value.name)]
    if isinstance(value, SimpleNamespace | Namespace) or _is_of_user(module_of(type(value))):
        # settings that nobody reads, such as whether to resume, may change
        read = {*attributes, *_names_in_methods(type(value))}
        return [(name, getattr(value, name)) for name in sorted(read & _stored(value))]
    wrapped = getattr(value, "__wrapped__", None)  # of a cached function
    if isinstance(wrapped, FunctionType):
        return [("function", wrapped)]
    return []


def _stored(value: object) -> set[str]:
    """Returns the names of an object's attributes that are its own."""
    names = {*getattr(value, "__dict__", {})}
    if is_dataclass(value):
        names |= {field.name for field in fields(value) if hasattr(value, field.name)}
    return names


def _names_in_methods(kind: type) -> set[str]:
    """Returns all names that the methods of a class of the user's read; those that Python calls itself but one."""
    functions = [
        member.fget if isinstance(member, property) else member
        for base in kind.__mro__
        if _is_of_user(module_of(base))
        for name, member in vars(base).items()
        if name == "__call__" or not name.startswith("__")
    ]
    return {name for each in functions if isinstance(each, FunctionType) for name in _names(each.__code__)}


def settings_of(module: nn.Module) -> list[tuple[str, object]]:
    """Returns what determines the function of one layer beside its trained parameters and the layers inside it.

    These are its numbers, such as a rate of dropout, texts and functions, and its buffers and frozen parameters.
    """
    plain = [(name, item) for name, item in sorted(vars(module).items()) if _is_plain(item)]
    frozen = [(name, item) for name, item in module.named_parameters(recurse=False) if not item.requires_grad]
    return [*plain, *module.named_buffers(recurse=False), *frozen]


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple | list):
        return all(_is_plain(item) for item in value)
    return isinstance(value, (*_LITERALS, *_NAMED, FunctionType, BuiltinFunctionType))


def _names(code: CodeType) -> set[str]:
    """Returns all names that code, and the functions that it defines, may read, of attributes as well."""
    return {name for each in _with_inner(code) for name in each.co_names}


def _global_names(code: CodeType) -> set[str]:
    """Returns the names that code, and the functions that it defines, may read from its module."""
    instructions = (instruction for each in _with_inner(code) for instruction in dis.get_instructions(each))
    return {instruction.argval for instruction in instructions if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME")}


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)


@lru_cache(maxsize=1024)
def _is_of_user(module: str) -> bool:
    """Whether a module is neither part of Python or fedpriv, nor an installed package."""
    package = module.partition(".")[0]
    if package == "__main__":  # also in a notebook, whose file is that of an installed kernel
        return True
    if package in ("fedpriv", "torch", "numpy") or package in sys.stdlib_module_names:  # torch: also built by hand
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        return True
    path = Path(file).resolve()
    if _FOLDERS_OF_PACKAGES & {*path.parts}:  # also of another environment, of the operating system, or of one user
        return False
    return not any(path.is_relative_to(folder) for folder in _INSTALLED)
