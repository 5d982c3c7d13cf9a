"""Which code is the user's, which names it reads, and which modules it imports."""

from __future__ import annotations

import dis
import sys
import sysconfig
from collections.abc import Iterator
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec, resolve_name
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

from fedpriv.storage.identity import module_of

_NOT_OF_USER = {"fedpriv", "torch", "numpy", *sys.stdlib_module_names}  # torch: also built by hand
_FOLDERS_OF_PACKAGES = {"site-packages", "dist-packages"}
_INSTALLED = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib"))
_READS_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME")  # instructions
_WRITES = ("STORE_", "DELETE_")  # how the names of instructions begin
_CODES = 4096  # whose names are kept
_PRINTS_OR_COMPARES = ("__repr__", "__eq__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__")
_SETS_FROZEN = "__dataclass_builtins_object__"  # a name that the methods of a frozen dataclass read


def is_of_user(thing: object) -> bool:
    """Returns whether a class or function was made in a module of the user's."""
    return is_module_of_user(module_of(thing))


@lru_cache(maxsize=1024)
def is_module_of_user(name: str) -> bool:
    """Returns whether a module is neither part of Python or fedpriv, nor an installed package."""
    package = name.partition(".")[0]
    if package == "__main__":  # also in a notebook, whose file is that of an installed kernel
        return True
    if package in _NOT_OF_USER:
        return False
    return _is_file_of_user(getattr(sys.modules.get(name), "__file__", None))


def _is_file_of_user(file: str | None) -> bool:
    """Returns whether a file of code, or code without one, lies outside of the folders of installed packages."""
    if file is None:
        return True
    path = Path(file).resolve()
    if _FOLDERS_OF_PACKAGES & {*path.parts}:  # also of another environment, of the operating system, or of one user
        return False
    return not any(path.is_relative_to(folder) for folder in _INSTALLED)


def prints_or_compares(kind: type, method: FunctionType) -> bool:
    """Returns whether a method prints or compares objects of a dataclass: it names all fields, read or not."""
    return "__dataclass_params__" in vars(kind) and method.__name__ in _PRINTS_OR_COMPARES


@lru_cache(maxsize=_CODES)
def names_in(code: CodeType) -> frozenset[str]:
    """Returns all names that code, and the functions that it defines, may read, of attributes as well.

    A text may be the name of an attribute (`getattr(settings, "scale")`).
    """
    names = set[str]()
    for instruction in _instructions(code):
        is_name = instruction.opcode in dis.hasname and not instruction.opname.startswith(_WRITES)
        if is_name:
            names.add(instruction.argval)
    if _SETS_FROZEN in code.co_freevars:  # its texts are the names of all fields
        return frozenset(names)
    texts = {text for each in _with_inner(code) for text in each.co_consts if isinstance(text, str)}
    return frozenset(names | {text for text in texts if text.isidentifier()})


@lru_cache(maxsize=_CODES)
def global_names_in(code: CodeType) -> tuple[str, ...]:
    """Returns the names that code, and the functions that it defines, may read from its module, sorted."""
    return tuple(sorted({each.argval for each in _instructions(code) if each.opname in _READS_GLOBAL}))


def modules_imported_in(code: CodeType, package: str | None) -> list[ModuleType]:
    """Returns the modules of the user's that code, and the functions that it defines, import, sorted by their names.

    Args:
        code: The code.
        package: The package of its module, from which relative imports start.
    """
    modules = [_module(name, package) for name in _imported_names_in(code)]
    return [module for module in modules if module is not None]


@lru_cache(maxsize=_CODES)
def _imported_names_in(code: CodeType) -> tuple[str, ...]:
    """Returns the names of what code may import, with a dot in front for each level of a relative import, sorted.

    Of `import package.module` these are both, and of `from package import name`, too, since the name may be a module.
    """
    names = set[str]()
    instructions = [each for each in _instructions(code) if each.opname != "EXTENDED_ARG"]
    for level, listed, instruction in zip(instructions, instructions[1:], instructions[2:], strict=False):
        if instruction.opname != "IMPORT_NAME":
            continue
        name = "." * level.argval + instruction.argval
        names.add(name)
        if listed.argval is None:
            names.add(name.partition(".")[0])
        else:
            names |= {f"{name}{each}" if name.endswith(".") else f"{name}.{each}" for each in listed.argval}
    return tuple(sorted(names))


def _module(name: str, package: str | None) -> ModuleType | None:
    """Returns a module of the user's by its name, imported now if it was not yet; None if it is none of theirs."""
    try:
        name = resolve_name(name, package)
        if name not in sys.modules:
            top = name.partition(".")[0]  # of a module inside a package the search would import the package
            spec = find_spec(top)
            if top in _NOT_OF_USER or spec is None or not _is_file_of_user(spec.origin):
                return None
            import_module(name)
    except Exception:  # whatever an import raises, it raises where the code is used
        return None
    if is_module_of_user(name):
        return sys.modules[name]
    return None


def _instructions(code: CodeType) -> Iterator[dis.Instruction]:
    """Yields the instructions of code, and of the functions that it defines."""
    for each in _with_inner(code):
        yield from dis.get_instructions(each)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)
