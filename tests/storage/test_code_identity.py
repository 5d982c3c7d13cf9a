"""Code that computes other things has another digest, wherever the numbers that it reads stand."""

from __future__ import annotations

import importlib
import shutil
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedpriv.storage.code_identity import code_digest

TEXT = """
import dataclasses, functools
{before}
class Net(nn.Module):
    {inside}
    def forward(self, x{argument}):
        return {body}
"""

READS = {
    "a default": {"argument": ", s={}", "body": "x * s"},
    "a default by name": {"argument": ", *, s={}", "body": "x * s"},
    "a tensor of the class": {"inside": "w = torch.tensor({})", "body": "x * self.w"},
    "a list of the class": {"inside": "w = [{}]", "body": "x * self.w[0]"},
    "a class inside": {"inside": "class Inner:\n        k = {}", "body": "x * self.Inner.k"},
    "a cached property": {
        "inside": "@functools.cached_property\n    def w(self): return {}",
        "body": "x * self.w",
    },
    "a static method": {"inside": "@staticmethod\n    def w(): return {}", "body": "x * self.w()"},
    "a number of the module": {"before": "W = {}", "body": "x * W"},
    "a tuple of the module": {"before": "W = (1.0, {})", "body": "x * W[1]"},
    "a mapping of the module": {"before": "W = dict(a=[{}])", "body": "x * W['a'][0]"},
    "a partial function": {"before": "W = functools.partial(torch.mul, other={})", "body": "W(x)"},
    "a layer": {"before": "W = nn.LeakyReLU({})", "body": "W(x)"},
    "a loss": {"before": "W = nn.CrossEntropyLoss(weight=torch.tensor([{}]))", "body": "W(x)"},
    "a dataclass": {
        "before": "@dataclasses.dataclass\nclass C:\n    s: float\nW = C({})",
        "body": "x * W.s",
    },
    "an argument of the command line": {
        "before": "import argparse\nW = argparse.Namespace(lam={}, resume=0)",
        "body": "x * W.lam",
    },
    "an object": {
        "before": "class C:\n    def __init__(self): self.s = {}\nW = C()",
        "body": "x * W.s",
    },
    "what a method reads": {
        "before": "class C:\n    def __init__(self): self.s = {}\n    def of(self, x): return x * self.s\nW = C()",
        "body": "W.of(x)",
    },
    "a name": {
        "before": "import enum\nclass C(enum.Enum):\n    A = 1.0\n    B = 0.5\nW = C({})",
        "body": "x if W is C.A else 2 * x",
    },
    "a cached function": {"before": "@functools.lru_cache\ndef f(): return {}", "body": "x * f()"},
    "a number of numpy": {"before": "import numpy\nW = numpy.float32({})", "body": "x * float(W)"},
    "a fraction": {"before": "import fractions\nW = fractions.Fraction({})", "body": "x * float(W)"},
    "a queue": {"before": "import collections\nW = collections.deque([{}])", "body": "x * W[0]"},
    "a mapping by layers": {"before": "W = {nn.Linear: {}}", "body": "x * W[nn.Linear]"},
    "a mapping by pairs": {"before": "W = {(0, 1): {}}", "body": "x * W[0, 1]"},
    "a set of pairs": {"before": "W = {(0, {})}", "body": "x * sum(w for _, w in W)"},
    "an object in slots": {
        "before": "class C:\n    __slots__ = ('s',)\n    def __init__(self, s): self.s = s\nW = C({})",
        "body": "x * W.s",
    },
    "an object that says what its attributes are": {
        "before": "class C:\n    def __init__(self): self.a = {}\n    def __getattr__(self, _): return self.a\nW = C()",
        "body": "x * W.s",
    },
    "a list with attributes": {
        "before": "class C(list): pass\nW = C()\nW.s = {}",
        "body": "x * W.s",
    },
    "a method of an object": {
        "before": "class C:\n    def __init__(self): self.s = {}\n    def of(self, x): return x * self.s\nW = C().of",
        "body": "W(x)",
    },
    "what a second function reads": {
        "before": "class W: pass\nW = W()\nW.a, W.b = 1, {}\ndef f(x): return x * W.a\ndef g(x): return x * W.b",
        "body": "f(x) + g(x)",
    },
    "an object that is handed on": {
        "before": "import types\nW = types.SimpleNamespace(b={})\ndef f(x, w): return x * w.b",
        "body": "f(x, W)",
    },
    "an attribute by a text": {
        "before": "import types\nW = types.SimpleNamespace(b={})",
        "body": "x * getattr(W, 'b')",
    },
    "an attribute of a function": {"before": "def f(x): return x * f.s\nf.s = {}", "body": "f(x)"},
    "a function for each type": {
        "before": ("@functools.singledispatch\ndef f(x): return x\n@f.register(torch.Tensor)\ndef _(x): return x * {}"),
        "body": "f(x)",
    },
    "a method for each type": {
        "inside": "@functools.singledispatchmethod\n    def f(self, x): return x\n"
        "    @f.register(torch.Tensor)\n    def _(self, x): return x * {}\n"
        "    @f.register(int)\n    def _(self, x): return x",
        "body": "self.f(x)",
    },
    "a method of a dictionary": {"before": "W = dict(s={}).get", "body": "x * W('s')"},
    "a class of a class": {
        "before": ("class M(type):\n    @property\n    def s(cls): return {}\nclass C(metaclass=M): pass"),
        "body": "x * C.s",
    },
    "a dictionary of a layer": {
        "before": "W = nn.Linear(1, 1)\nW.settings = dict(s={})",
        "body": "x * W.settings['s']",
    },
    "a tensor of a layer": {"before": "W = nn.Linear(1, 1)\nW.s = torch.tensor({})", "body": "x * W.s"},
    "an object of a layer": {
        "before": "import types\nW = nn.Linear(1, 1)\nW.s = types.SimpleNamespace(b={})",
        "body": "x * W.s.b",
    },
    "a parameter that is not trained": {
        "before": "W = nn.Linear(1, 1, bias=False)\nW.requires_grad_(False).weight.fill_({})",
        "body": "W(x)",
    },
    "a mapping with attributes as items": {
        "before": "class C(dict): __getattr__ = dict.__getitem__\nW = C(s={})",
        "body": "x * W.s",
    },
    "a field of a frozen dataclass": {
        "before": "@dataclasses.dataclass(frozen=True, slots=True)\nclass C:\n    s: float\nW = C({})",
        "body": "x * W.s",
    },
    "an object with an operator": {
        "before": "class C:\n    def __init__(self): self.s = {}\n    def __rmul__(self, x): return self.s\nW = C()",
        "body": "x * W",
    },
    "an object that is handed to a class": {
        "before": "import types\nW = types.SimpleNamespace(b={})\n"
        "class C:\n    def __init__(self, w): self.k = w.b\n    def of(self, x): return x * self.k",
        "body": "C(W).of(x)",
    },
    "a number with a method": {
        "before": "class C(float):\n    def of(self, x): return x * {}\nW = C(1.0)",
        "body": "W.of(x)",
    },
    "a number with an attribute": {"before": "class C(float): pass\nW = C(1.0)\nW.s = {}", "body": "x * W.s"},
    "a buffer of bytes": {"before": "W = bytearray([int(2 * {})])", "body": "x * W[0]"},
    "an array": {"before": "import array\nW = array.array('f', [{}])", "body": "x * W[0]"},
    "a decorated function": {"before": "@torch.no_grad()\ndef f(): return {}", "body": "x * f()"},
}


def made(number: str, **parts: str) -> nn.Module:
    """A network of a class as in a notebook, with this number in the text."""
    text = {"before": "", "inside": "a = 1", "argument": "", "body": "x", **parts}
    names: dict[str, Any] = {"nn": nn, "torch": torch, "__name__": "__main__"}
    exec(TEXT.format(**{name: part.replace("{}", number) for name, part in text.items()}), names)
    net: nn.Module = names["Net"]()
    return net


@pytest.mark.parametrize("name", READS)
def test_numbers_that_code_reads_are_in_its_digest(name: str) -> None:
    parts = READS[name]
    assert code_digest(made("1.0", **parts)) == code_digest(made("1.0", **parts))
    assert code_digest(made("1.0", **parts)) != code_digest(made("0.5", **parts))


@pytest.mark.parametrize("function", ["torch.tanh", "nn.Tanh()", "nn.functional.gelu"])
def test_so_are_functions_of_other_packages_by_their_names(function: str) -> None:
    relu = code_digest(made("torch.relu", before="W = {}", body="W(x)"))
    assert relu != code_digest(made(function, before="W = {}", body="W(x)"))


def test_so_is_code_of_another_module_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    digests = set[str]()
    for body in ("x", "x * 0.5"):
        library = types.ModuleType("a_library_of_mine")
        exec(f"def f(x): return {body}\ndef g(x): return x", vars(library))
        monkeypatch.setitem(sys.modules, library.__name__, library)
        digests.add(code_digest(made("", before="import a_library_of_mine", body="a_library_of_mine.f(x)")))
        digests.add(code_digest(made("", before="import a_library_of_mine", body="a_library_of_mine.g(x)")))
    assert len(digests) == 3  # g is the same in both


@pytest.mark.parametrize(
    "text",
    [
        "import {0}\ndef g(x): return x * {0}.A\ndef h(x): return x * {0}.B\ndef f(x): return g(x) + h(x)",
        "def f(x):\n    from {0} import B\n    return x * B",
        "def f(x):\n    import {0} as settings\n    return x * settings.B",
        "def f(x):\n    import {0}\n    return g(x, {0})\ndef g(x, settings): return x * settings.B",
        "def f(x):\n    from package_of_mine import {0} as settings\n    return x * settings.B",
    ],
    ids=[
        "two functions",
        "a number that a function imports",
        "a module that a function imports",
        "a module that is handed on",
        "a module of a package",
    ],
)
@pytest.mark.parametrize("is_imported", [True, False])
def test_so_are_numbers_of_another_module(
    text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, is_imported: bool
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    is_in_package = "package_of_mine" in text
    folder = tmp_path / "package_of_mine" if is_in_package else tmp_path
    name = "package_of_mine.settings_of_mine" if is_in_package else "settings_of_mine"
    folder.mkdir(exist_ok=True)
    digests = set[str]()
    for number in range(2):
        for each in (name, "package_of_mine"):
            monkeypatch.delitem(sys.modules, each, raising=False)
        (folder / "settings_of_mine.py").write_text(f"A = 1.0\nB = {number}.5\n")
        (folder / "__init__.py").touch()
        shutil.rmtree(folder / "__pycache__", ignore_errors=True)
        importlib.invalidate_caches()
        if is_imported:
            importlib.import_module(name)
        names: dict[str, Any] = {"__name__": "__main__"}
        exec(text.format("settings_of_mine"), names)
        digests.add(code_digest(names["f"]))
        assert code_digest(names["f"]) in digests
    assert len(digests) == 2


def test_so_is_a_cached_function_itself() -> None:
    digests = set[str]()
    for body in ("x", "x * 0.5"):
        names: dict[str, Any] = {"__name__": "__main__"}
        exec(f"import functools\n@functools.lru_cache\ndef f(x): return {body}", names)
        digests.add(code_digest(names["f"]))
    assert len(digests) == 2


def test_what_code_does_not_read_is_not() -> None:
    """A network has the same code whatever it was initialised with, and whatever else its module holds."""
    attribute = {"body": "self.model(x) if hasattr(self, 'model') else x"}
    first = code_digest(made("", before="model = nn.Linear(2, 2)", **attribute))
    assert first == code_digest(made("", before="model = nn.Linear(3, 3)", **attribute))
    resumed = [f"import argparse\nW = argparse.Namespace(lam=1, resume={flag})" for flag in (0, 1)]
    assert len({code_digest(made("", before=text, body="x * W.lam")) for text in resumed}) == 1
    for options in ("", "(frozen=True)"):
        dataclass = f"@dataclasses.dataclass{options}\nclass C:\n    lam: float\n    resume: int"
        resumed = [f"{dataclass}\nW = C(1, {flag})" for flag in (0, 1)]
        assert len({code_digest(made("", before=text, body="x * W.lam")) for text in resumed}) == 1
    trained = {"before": "other = nn.Linear(2, 2)", "body": "x + other.weight.sum()"}
    assert code_digest(made("", **trained)) == code_digest(made("", **trained))
    stored = {"before": "other = nn.Linear(2, 2)\nother.of = [other.weight, other.weight.sum()]", "body": "other(x)"}
    assert code_digest(made("", **stored)) == code_digest(made("", **stored))


def test_a_large_table_is_read_without_a_search() -> None:
    """The time grows with the number of values that are met twice, not with its square."""
    table = [[float(number)] for number in range(20_000)]
    names: dict[str, Any] = {"__name__": "__main__", "FIRST": table, "SECOND": table[::-1]}
    exec("def f(x): return x * FIRST[0][0] * SECOND[0][0]", names)
    start = time.perf_counter()
    code_digest(names["f"])
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages", "code"])
def test_a_package_in_a_folder_of_packages_is_installed_wherever_that_is(
    folder: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Such as torch in another environment on the path: its own state changes while a process runs."""
    digests = set[str]()
    for body in ("x", "x * 0.5"):
        library = types.ModuleType(f"a_library_in_{folder.replace('-', '_')}")
        library.__file__ = str(tmp_path / folder / "library.py")
        exec(f"def f(x): return {body}", vars(library))
        monkeypatch.setitem(sys.modules, library.__name__, library)
        text = f"from {library.__name__} import f"
        digests.add(code_digest(made("", before=text, body="f(x)")))
    assert len(digests) == (2 if folder == "code" else 1)
