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
from error_texts import CNN, dataset
from torch import nn

import fedpriv
from fedpriv import ConfigError
from fedpriv.config import load_config
from fedpriv.settings.translations import Setting, settings

RUN = Path(__file__).parents[1] / "run.yaml"
WORDS = ("a", "float64", "nonfinite", "gradient", "last", "adam", "laplace")
TRIED: tuple[Any, ...] = (10, 1, 0.5, 0.0, True, None, fedpriv.Uniform(), *WORDS)


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


@pytest.mark.parametrize("setting", settings(), ids=lambda row: f"{row.parameter} {row.words.split(' ')[0]}")
def test_translation_python_code_evaluates(setting: Setting):
    """Python's is evaluated; it once named parameters that nothing had."""

    def make(text: str, value: object) -> object:
        code = text.replace("{value}", repr(value)).replace("Privacy(..., ", "Privacy(epsilon=3.0, ")
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

    if not setting.advice:
        assert not alternatives(setting.in_call(setting.argument("{value}")), make)


STRATEGIES = (
    "{name: fedavg, learning_rate: 0.1}",
    "{name: fedprox, learning_rate: 0.1, proximal_mu: 0.1}",
    "{name: fedopt, learning_rate: 0.1}",
    "{name: private_al}",
    "{name: dp_gd, learning_rate: 0.1}",
)


@pytest.mark.parametrize("setting", settings(), ids=lambda row: f"{row.parameter} {row.words.split(' ')[0]}")
def test_translation_yaml_loads(setting: Setting):
    def make(text: str, value: object) -> object:
        path, _, written = text.replace("{value} / n", "0.1").replace("n / {value}", "10").partition(": ")
        written = written.replace("{value}", str(value).lower())
        errors: list[ConfigError] = []
        for strategy in STRATEGIES:
            try:
                return load_config(RUN, [f"strategy={strategy}", f"{path}={written}"])
            except ConfigError as error:
                errors.append(error)
        raise errors[0]

    written = setting.in_configuration("{value}", "yaml")
    if not (setting.advice or written.startswith("leave it out")):
        assert not alternatives(written, make)


@pytest.mark.parametrize("name", ["privacy", "compute"])
def test_translation_settings_match_class_parameters(name: str):
    known = inspect.signature({"privacy": fedpriv.Privacy, "compute": fedpriv.Compute}[name]).parameters
    names = {row.setting.split(".")[1] for row in settings() if row.setting.startswith(f"{name}.")}
    assert names and names <= {*known}


def test_translation_table_covers_all_options():
    named = {row.parameter for row in settings()}
    inside = {
        "clients",
        "privacy",
        "settings",
        "compute",
        "compare_centralized",
        "extend",
        "after",
        "invariants",
        "secure",
    }
    for call in (fedpriv.Privacy, fedpriv.Compute, fedpriv.train):
        assert not {*inspect.signature(call).parameters} - named - inside
