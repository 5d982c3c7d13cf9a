"""The table of other libraries' words: what it says to write can be written, and every option is in it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx
import pytest
import torch
from answers import CNN, dataset
from torch import nn

import fedpriv
from fedpriv import ConfigError
from fedpriv.config import load_config
from fedpriv.settings import translations
from fedpriv.settings.translations import TERMS

RUN = Path(__file__).parents[1] / "run.yaml"
TRIED: tuple[Any, ...] = (10, 1, 0.5, 0.0, "a", True, "float64", "nonfinite", None, fedpriv.Uniform())


def alternatives(text: str, make: Callable[[str, object], object]) -> list[str]:
    """Why no value makes what a text says to write; empty if one does."""
    failed: list[str] = []
    for value in TRIED:
        try:
            make(text, value)
        except Exception as error:  # whatever is wrong with it
            failed.append(f"{value!r}: {error}")
        else:
            return []
    return failed


@pytest.mark.parametrize("term", TERMS, ids=lambda term: f"{term.name} {term.words.split(' ')[0]}")
def test_python_of_the_table_can_be_evaluated(term: translations.Term):
    """Python's is evaluated; it once named parameters that nothing had."""

    def make(text: str, value: object) -> object:
        code = (
            text.split(", n the number")[0]
            .replace("{value}", repr(value))
            .replace("Privacy(..., ", "Privacy(epsilon=3.0, ")
        )
        names = {"fedpriv": fedpriv, "networkx": networkx, "torch": torch, "n": 100, "n_clients": 100}
        names |= {"labels": torch.arange(200) % 2, "generator": torch.Generator().manual_seed(0)}
        names |= {"load": lambda _: dataset(), "sizes": [200, 200]}
        names |= {"model": CNN, "loss": nn.CrossEntropyLoss(), "datasets": [dataset()], "dataset": dataset()}
        if code.startswith("fedpriv.train(..., "):
            known = inspect.signature(fedpriv.train).parameters
            words = re.findall(r"(\w+)=", re.sub(r"\(.*\)", "", code.removeprefix("fedpriv.train(..., ")))
            assert words and all(word in known for word in words), words
            return None
        return eval(code.partition("=")[2], names)

    if term.call != "leave it out":
        assert not alternatives(term.call.replace("{argument}", term.argument), make)


STRATEGIES = (
    "{name: fedavg, learning_rate: 0.1}",
    "{name: fedprox, learning_rate: 0.1, proximal: 0.1}",
    "{name: dp_gd, learning_rate: 0.1}",
)


@pytest.mark.parametrize("term", TERMS, ids=lambda term: f"{term.name} {term.words.split(' ')[0]}")
def test_yaml_of_the_table_can_be_loaded(term: translations.Term):
    def make(text: str, value: object) -> object:
        path, _, written = text.partition(", R being")[0].partition(": ")
        written = written.replace("{value}", str(value).lower()).replace("rate: R", "rate: 0.1")
        errors: list[ConfigError] = []
        for strategy in STRATEGIES:
            try:
                return load_config(RUN, [f"strategy={strategy}", f"{path}={written}"])
            except ConfigError as error:
                errors.append(error)
        raise errors[0]

    if not term.yaml.startswith("leave it out"):
        assert not alternatives(term.yaml, make)


@pytest.mark.parametrize("name", [term.name for term in TERMS if term.call.startswith(("privacy", "compute"))])
def test_options_of_the_table_are_parameters_of_the_call_that_it_names(name: str):
    homes = {"privacy": fedpriv.Privacy, "compute": fedpriv.Compute}
    term = next(term for term in TERMS if term.name == name)
    home = homes[term.call.split("=")[0]]
    assert name in inspect.signature(home).parameters


def test_options_of_privacy_compute_and_train_are_in_the_table():
    named = {term.name for term in TERMS}
    inside = {"clients", "privacy", "settings", "compute", "compare", "extend", "shared", "secure"}
    for call in (fedpriv.Privacy, fedpriv.Compute, fedpriv.train):
        assert not {*inspect.signature(call).parameters} - named - inside
