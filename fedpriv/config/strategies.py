"""The strategies that a configuration can name: those that the files of `strategies/` and `published/` name themselves.

A file's `NAMES` are its strategies by name. `VARIANTS` is what a paper adds to a name, `AROUND` are options that hold
those of a function which makes a strategy of a strategy. Options are a factory's parameters, with their bounds and
defaults; of `CONTEXT` it is given what it has parameters for. How YAML writes what is no number, word or dataclass is
in `spelling`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from fedpriv import published, strategies
from fedpriv.config.spelling import wrapped
from fedpriv.plugins import Entry, Registry
from fedpriv.published.recipe import Recipe, Variants
from fedpriv.strategies.base import Strategy

CONTEXT = ("rounds", "epsilon_bar", "active_fraction")


@dataclass(frozen=True)
class StrategyEntry(Entry[Strategy | Recipe]):
    """One row: how the sound form is made from simple options, one line about it, and what a paper adds to it."""

    variants: Variants = field(default_factory=Variants)


def _modules() -> Iterator[dict[str, Any]]:
    for room in (strategies, published):
        for found in iter_modules(room.__path__, f"{room.__name__}."):
            yield vars(import_module(found.name))


def _declared(what: str) -> dict[str, Any]:
    """What the files say under this name, together."""
    return {name: row for module in _modules() for name, row in module.get(what, {}).items()}


def _rows() -> Iterator[tuple[str, StrategyEntry]]:
    variants, around = _declared("VARIANTS"), _declared("AROUND")
    for name, row in _declared("NAMES").items():
        build = wrapped(row.build, **around[name]) if name in around else row.build
        yield name, StrategyEntry(build, row.description, variants.get(name, Variants()))


STRATEGIES = Registry(dict(_rows()), (Strategy, Recipe), "fedpriv.strategies", StrategyEntry)
