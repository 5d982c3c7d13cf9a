"""Code that computes other things has another digest, wherever the numbers that it reads stand."""

from __future__ import annotations

import sys
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
    trained = {"before": "other = nn.Linear(2, 2)", "body": "x + other.weight.sum()"}
    assert code_digest(made("", **trained)) == code_digest(made("", **trained))


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
