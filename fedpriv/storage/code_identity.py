"""A digest of the code of a user's classes and functions: two settings of one name may compute other things.

Runs with the same secret seed share noise if their settings have the same digest (`fedpriv.storage.identity`), and then
the difference of their answers has none. That digest has an object's state and the name of its class. In a notebook,
or in a script that is edited between two runs, the name stays while the code changes. So the code counts too.

What is read:

* the code of all functions, methods and classes of the user in what a run is given (its strategy, model, loss, ...),
  also where it lies inside of other objects, with defaults, closures, and attributes of classes and functions;
* what this code reads by name: from its module, from other modules of the user's, also those that a function imports
  itself, and from objects. These are numbers, texts, tensors, containers, objects and networks of these
  (`fedpriv.storage.code_contents`), and further code. What is read from a module or an object is what any of the code
  reads by such a name, since it may have been handed on, and a text in a function is a name, too (`getattr`);
* on a resume the settings of the model's layers: their attributes, and what these hold.

What is not read:

* installed packages, Python and fedpriv, of which the name counts: their versions change seldom, and not between two
  runs that somebody compares;
* the values that a run is given, apart from their code and layers: their state is in the digest of settings;
* trained parameters, and what was computed from some: they change while code is run;
* what no code reads by name, since a notebook holds much that has nothing to do with a run. So an attribute that code
  reads only by `vars`, `asdict` or `**`, or by a text that it makes or has in a list, does not count;
* files, and objects of other kinds than `code_contents` names: they may differ from process to process.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType

import numpy as np
from torch import Tensor, nn

from fedpriv.storage.code_contents import (
    CALLED,
    LITERALS,
    NUMBERS,
    attributes_of_function,
    attributes_of_layer,
    contents_of,
    wrapped_in,
)
from fedpriv.storage.identity import digest, module_of, parts
from fedpriv.storage.user_code import (
    global_names_in,
    is_of_user,
    modules_imported_in,
    names_in,
    prints_or_compares,
)

_WITHOUT_CODE = (*LITERALS, Tensor, np.ndarray, ModuleType, BuiltinFunctionType, CodeType)
_DESCRIBED_WHOLE = (*LITERALS, *CALLED, *NUMBERS, Tensor, np.ndarray)  # by the digest itself


_SHORT = 8  # hexadecimal digits of the digest of one part


def code_digest(*values: object, layers: nn.Module | None = None) -> str:
    """Returns a digest of the code of the user's classes and functions in these values; empty if there are none.

    Args:
        values: Where the code lies.
        layers: A model whose layers' settings count as well. Its parameters and buffers do not.
    """
    code = _user_code(values, layers)
    if not code.described:
        return ""
    return digest(*code.described)


def code_in_parts(*values: object, layers: nn.Module | None = None) -> dict[str, str]:
    """Returns a short digest of each function of the user in these values, and of each value that one reads.

    They are by name, so that an error can say which differ. Where several read a value, the first one is named.

    Args:
        values: Where the code lies.
        layers: A model whose layers' settings are parts as well.
    """
    code = _user_code(values, layers)
    return {name: digest(*described)[:_SHORT] for name, described in code.parts.items()}


def _user_code(values: Sequence[object], layers: nn.Module | None) -> _UserCode:
    """Collects the user's code, again until all names that it reads are known.

    An object that was met early may be handed on to a function that is met late.
    """
    read = frozenset[str]()
    while True:
        code = _UserCode(values, layers, read)
        if code.names <= read:
            return code
        read |= code.names


class _UserCode:
    """Collects the user's code, and the values that it reads.

    Args:
        values: Where the code lies.
        layers: A model whose layers' settings are collected as well.
        read: Names that some code reads; of a module or an object these are its attributes that count.

    Attributes:
        described: Names, code and values, in the order in which they were met.
        parts: The same by the function, the attribute of a class, or the setting of a layer to which they belong.
        names: All names that the code may read.
    """

    def __init__(self, values: Sequence[object], layers: nn.Module | None, read: Collection[str]) -> None:
        self.described: list[object] = []
        self.parts: dict[str, list[object]] = {}
        self.names = set[str]()
        self._read_names = read
        self._part: list[object] = []  # the one that grows
        self._numbers: dict[int, int] = {}  # of the values that were met, by their identity
        self._met: list[object] = []  # references keep identities apart
        self._with_contents = set[int]()  # identities of the values whose contents were added, not their code alone
        self._trained = set[int]()  # identities of parameters
        for value in values:
            if isinstance(value, nn.Module):
                self._note_trained(value)
        for value in values:
            self.add_code_in(value)
        if layers is not None:
            self._add_settings(layers)

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
        self.add_code_in(wrapped_in(value))

    def _add_class(self, kind: type) -> None:
        self.add_code_in(type(kind))
        for base in kind.__mro__:
            if is_of_user(base):
                self._add_members(base)

    def _add_members(self, kind: type) -> None:
        """Adds the methods of a class, and the values of its attributes."""
        for name, member in vars(kind).items():
            is_special = name.startswith("__")  # such as __doc__ and __module__
            if isinstance(member, property):
                self.add_code_in(member.fget)
            elif isinstance(member, FunctionType) and prints_or_compares(kind, member):
                self._add_code_alone(member)
            elif isinstance(member, FunctionType):
                self.add_code_in(member)
            elif not is_special or isinstance(member, staticmethod | classmethod):
                with self._in_part(f"{kind.__qualname__}.{name}"):
                    self._add_read(name, member)

    def _add_function(self, function: FunctionType) -> None:
        """Adds a function of the user's, with all that it reads."""
        if not is_of_user(function):
            return
        self._add_code_alone(function)
        self.names |= names_in(function.__code__)
        own_name = function.__qualname__
        with self._in_part(f"defaults of {own_name}"):
            self._add_read("(defaults)", [function.__defaults__, function.__kwdefaults__])
        for name, item in attributes_of_function(function, self._read_names):
            with self._in_part(f"{own_name}.{name}"):
                self._add_read(name, item)
        for name, item in _enclosed_in(function):
            with self._in_part(f"{name}, which {own_name} reads"):
                self._add_read("(closure)", item)
        for name in global_names_in(function.__code__):
            if name in function.__globals__:
                with self._in_part(f"{name}, which {own_name} reads"):
                    self._add_read(name, function.__globals__[name])
        for module in modules_imported_in(function.__code__, function.__globals__.get("__package__")):
            with self._in_part(f"{module.__name__}, which {own_name} imports"):
                self._add_read(module.__name__, module)

    def _add_code_alone(self, function: FunctionType) -> None:
        with self._in_part(f"the code of {function.__qualname__}"):
            self._describe(function.__qualname__)
            self._describe(function.__code__)

    def _add_settings(self, model: nn.Module) -> None:
        """Adds the attributes of all layers of a model, apart from parameters and buffers."""
        self._note_trained(model)
        for layer in model.modules():
            for name, item in attributes_of_layer(layer):
                with self._in_part(f"{name} of a {type(layer).__qualname__} layer"):
                    self._add_read(name, item)

    def _add_read(self, name: str, value: object) -> None:
        """Adds a value that code reads: numbers, tensors and what holds some, and the code of all that it may call.

        Args:
            name: Its name.
            value: The value.
        """
        self._describe(name)
        if isinstance(value, Tensor) and self._is_computed(value):
            self._describe(tuple(value.shape))
            return
        if isinstance(value, _DESCRIBED_WHOLE):
            self._describe(value)
            if not is_of_user(type(value)):
                return
        if _is_known_by_name(value):
            self._describe(f"{module_of(value)}.{getattr(value, '__qualname__', '')}")
            return
        if self._was_met(value):
            self._describe_again(value)
        if isinstance(value, type | FunctionType):
            self.add_code_in(value)
        else:
            self._add_contents(value)

    def _add_contents(self, value: object) -> None:
        if id(value) in self._with_contents:
            return
        if isinstance(value, nn.Module):
            self._note_trained(value)
        if not isinstance(value, ModuleType):
            self.add_code_in(type(value))
        self._meet(value)
        if self._was_met(value):
            self._with_contents.add(id(value))
        for name, content in contents_of(value, self._read_names):
            self._add_read(name, content)

    def _note_trained(self, network: nn.Module) -> None:
        self._trained |= {id(parameter) for parameter in network.parameters() if parameter.requires_grad}

    def _is_computed(self, tensor: Tensor) -> bool:
        """Returns whether a tensor is a parameter that is trained, or was computed from some."""
        return id(tensor) in self._trained or tensor.grad_fn is not None

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
        if type(value) is not tuple and not self._was_met(value):
            self._numbers[id(value)] = len(self._met)
            self._met.append(value)


def _enclosed_in(function: FunctionType) -> list[tuple[str, object]]:
    """Returns the variables of outer functions that a function reads, without those that have no value yet."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return [(name, cell.cell_contents) for name, cell in cells if cell != CellType()]


def _is_known_by_name(value: object) -> bool:
    """Returns whether a value is a class or function of an installed package, whose name says what it is."""
    if isinstance(value, BuiltinFunctionType):  # or a method of an object, such as that of a dictionary
        return isinstance(value.__self__, ModuleType | type | None)
    return isinstance(value, type | FunctionType) and not is_of_user(value)
