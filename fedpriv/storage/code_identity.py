"""A digest of the code of a user's classes and functions: two settings of one name may compute other things.

Runs with the same secret seed share noise if their settings have the same digest (`fedpriv.storage.identity`), and then
the difference of their answers has none. That digest has an object's state and the name of its class. In a notebook,
or in a script that is edited between two runs, the name stays while the code changes. So the code counts too.

What is read:

* the code of all functions, methods and classes of the user in what a run is given (its strategy, model, loss, ...),
  also where it lies inside of other objects, with defaults, closures and class attributes;
* what this code reads by name: from its module and from other modules of the user's. These are numbers, texts, tensors,
  containers, objects and networks of these (`fedpriv.storage.code_contents`), and further code.

What is not read:

* installed packages, Python and fedpriv, of which the name counts: their versions change seldom, and not between two
  runs that somebody compares;
* the values that a run is given, apart from their code: their state is in the digest of settings;
* what no code reads by name, since a notebook holds much that has nothing to do with a run;
* files, and objects of other kinds than `code_contents` names: they may differ from process to process.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType

import numpy as np
from torch import Tensor

from fedpriv.storage.code_contents import CALLED, LITERALS, contents_of
from fedpriv.storage.identity import digest, module_of, parts
from fedpriv.storage.user_code import global_names_in, is_of_user, names_in

_WITHOUT_CODE = (*LITERALS, Tensor, np.ndarray, ModuleType, BuiltinFunctionType, CodeType)
_DESCRIBED_WHOLE = (*LITERALS, *CALLED, Tensor, np.ndarray)  # by the digest itself
_CODE = (type, FunctionType, MethodType)


_SHORT = 8  # hexadecimal digits of the digest of one part


def code_digest(*values: object) -> str:
    """Returns a digest of the code of the user's classes and functions in these values; empty if there are none."""
    code = _UserCode(values)
    if not code.described:
        return ""
    return digest(*code.described)


def code_in_parts(*values: object) -> dict[str, str]:
    """Returns a short digest of each function of the user in these values, and of each value that one reads.

    They are by name, so that an error can say which differ. Where several read a value, the first one is named.
    """
    return {name: digest(*described)[:_SHORT] for name, described in _UserCode(values).parts.items()}


class _UserCode:
    """Collects the user's code, and the values that it reads.

    Args:
        values: Where the code lies.

    Attributes:
        described: Names, code and values, in the order in which they were met.
        parts: The same by the function or class attribute to which they belong.
    """

    def __init__(self, values: Sequence[object]) -> None:
        self.described: list[object] = []
        self.parts: dict[str, list[object]] = {}
        self._part: list[object] = []  # the one that grows
        self._numbers: dict[int, int] = {}  # of the values that were met, by their identity
        self._met: list[object] = []  # references keep identities apart
        for value in values:
            self.add_code_in(value)

    def add_code_in(self, value: object) -> None:
        """Adds the code of a value and of all that it holds, but not the value itself."""
        if isinstance(value, _WITHOUT_CODE) or self._was_met(value):
            return
        self._meet(value)
        if isinstance(value, type):
            self._add_class(value)
        elif isinstance(value, FunctionType):
            self._add_function(value)
        elif isinstance(value, MethodType):
            self.add_code_in(value.__self__)
            self.add_code_in(value.__func__)
        else:
            self._add_code_in_object(value)

    def _add_code_in_object(self, value: object) -> None:
        self.add_code_in(type(value))
        for part in parts(value):
            self.add_code_in(part)
        self.add_code_in(getattr(value, "__wrapped__", None))  # that of a cached function

    def _add_class(self, kind: type) -> None:
        for base in kind.__mro__:
            if is_of_user(base):
                self._add_members(base)

    def _add_members(self, kind: type) -> None:
        """Adds the methods of a class, and the values of its attributes."""
        for name, member in vars(kind).items():
            is_special = name.startswith("__")  # such as __doc__ and __module__
            if isinstance(member, property):
                self.add_code_in(member.fget)
            elif isinstance(member, FunctionType):
                self.add_code_in(member)
            elif not is_special or isinstance(member, staticmethod | classmethod):
                with self._in_part(f"{kind.__qualname__}.{name}"):
                    self._add_read(name, member, ())

    def _add_function(self, function: FunctionType) -> None:
        """Adds a function of the user's, with the values of its defaults, its closure and its module that it reads."""
        if not is_of_user(function):
            return
        code = function.__code__
        names = names_in(code)
        own_name = function.__qualname__
        with self._in_part(f"the code of {own_name}"):
            self._describe(own_name)
            self._describe(code)
        with self._in_part(f"defaults of {own_name}"):
            self._add_read("(defaults)", [function.__defaults__, function.__kwdefaults__], ())
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            if cell != CellType():  # an empty one has no content
                with self._in_part(f"{name}, which {own_name} reads"):
                    self._add_read("(closure)", cell.cell_contents, names)
        for name in global_names_in(code):
            if name in function.__globals__:
                with self._in_part(f"{name}, which {own_name} reads"):
                    self._add_read(name, function.__globals__[name], names)

    def _add_read(self, name: str, value: object, names: Collection[str]) -> None:
        """Adds a value that code reads: numbers, tensors and what holds some, and the code of all that it may call.

        Args:
            name: Its name.
            value: The value.
            names: All names that the code reads; of a module or an object these are its attributes that count.
        """
        self._describe(name)
        if isinstance(value, _DESCRIBED_WHOLE):
            self._describe(value)
        elif _is_known_by_name(value):
            self._describe(f"{module_of(value)}.{getattr(value, '__qualname__', '')}")
        elif self._was_met(value):
            self._describe_again(value)
        elif isinstance(value, _CODE):
            self.add_code_in(value)
        else:
            self._add_contents(value, names)

    def _add_contents(self, value: object, names: Collection[str]) -> None:
        if not isinstance(value, ModuleType):
            self.add_code_in(type(value))
        self._meet(value)
        for name, content in contents_of(value, names):
            self._add_read(name, content, names)

    def _describe(self, value: object) -> None:
        self.described.append(value)
        self._part.append(value)

    def _describe_again(self, value: object) -> None:
        """Describes a value that was met by its number; in parts by its kind, since numbers depend on other parts."""
        self.described.append(self._numbers[id(value)])
        self._part.append(getattr(value, "__qualname__", type(value).__qualname__))

    @contextmanager
    def _in_part(self, name: str) -> Generator[None]:
        """What is described inside belongs to this part, but for what belongs to a part inside it."""
        outer = self._part
        self._part = self.parts.setdefault(name, [])
        yield
        self._part = outer

    def _was_met(self, value: object) -> bool:
        return id(value) in self._numbers

    def _meet(self, value: object) -> None:
        """Remembers a value, but for tuples: whether two equal ones are the same one is up to Python."""
        if not isinstance(value, tuple) and not self._was_met(value):
            self._numbers[id(value)] = len(self._met)
            self._met.append(value)


def _is_known_by_name(value: object) -> bool:
    """Returns whether a value is a class or function of an installed package, whose name says what it is."""
    if isinstance(value, BuiltinFunctionType):
        return True
    return isinstance(value, type | FunctionType) and not is_of_user(value)
