"""The strategies that a configuration can name, collected from the files of `strategies/` and `papers/`.

A file lists its strategies in `NAMES`, the published variants of a name in `VARIANTS`, and functions that make a
strategy from a strategy in `AROUND`. Options are the parameters of these functions, with their bounds and defaults;
parameters named in `CONTEXT` are filled in. `spelling` says how YAML writes objects.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from fedpriv import papers, strategies
from fedpriv.config.spelling import wrapped
from fedpriv.papers.recipe import Recipe, Variants
from fedpriv.settings.plugins import Registry, RegistryEntry
from fedpriv.strategies.base import Strategy

CONTEXT = ("rounds", "epsilon_bar", "active_fraction")


@dataclass(frozen=True)
class StrategyEntry(RegistryEntry[Strategy | Recipe]):
    """One strategy: its builder, a line about it, and its published variants."""

    variants: Variants = field(default_factory=Variants)


def _modules() -> Iterator[dict[str, Any]]:
    for room in (strategies, papers):
        for found in iter_modules(room.__path__, f"{room.__name__}."):
            yield vars(import_module(found.name))


def _declared(what: str) -> dict[str, Any]:
    """What the files say under this name, together."""
    return {name: row for module in _modules() for name, row in module.get(what, {}).items()}


def _rows() -> Iterator[tuple[str, StrategyEntry]]:
    variants, around = _declared("VARIANTS"), _declared("AROUND")
    for name, row in _declared("NAMES").items():
        if name in around:
            build = wrapped(row.build, **around[name])
        else:
            build = row.build
        yield name, StrategyEntry(build, row.description, variants.get(name, Variants()))


STRATEGIES = Registry(dict(_rows()), (Strategy, Recipe), "fedpriv.strategies", StrategyEntry)
