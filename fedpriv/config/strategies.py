"""The strategies that a configuration can name, collected from the files of `strategies/`, `algorithms/` and `papers/`.

A file lists its strategies in `NAMES`, the published variants of a name in `VARIANTS`, and functions from strategy to
strategy in `AROUND`. Options are the parameters of these functions, with their bounds and defaults; parameters named in
`CONTEXT` are filled in. The YAML formats of objects are defined in `yaml_formats`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from fedpriv import algorithms, papers, strategies
from fedpriv.config.yaml_formats import with_wrapper_options
from fedpriv.papers.recipe import Recipe, Variants
from fedpriv.settings import Registry, RegistryEntry
from fedpriv.strategies import Strategy

CONTEXT = ("rounds", "epsilon_bar", "active_fraction")


@dataclass(frozen=True)
class StrategyEntry(RegistryEntry[Strategy | Recipe]):
    """One strategy: its builder, a line about it, and its published variants."""

    variants: Variants = field(default_factory=Variants)


def _modules() -> Iterator[dict[str, Any]]:
    """Yields the contents of each file of the three packages."""
    for package in (strategies, algorithms, papers):
        for module in iter_modules(package.__path__, f"{package.__name__}."):
            yield vars(import_module(module.name))


def _declared(table: str) -> dict[str, Any]:
    """Merges the tables of this name of all files."""
    return {name: row for module in _modules() for name, row in module.get(table, {}).items()}


def _rows() -> Iterator[tuple[str, StrategyEntry]]:
    variants = _declared("VARIANTS")
    around = _declared("AROUND")
    for name, row in _declared("NAMES").items():
        build = row.build
        if name in around:
            build = with_wrapper_options(row.build, **around[name])
        yield name, StrategyEntry(build, row.description, variants.get(name, Variants()))


STRATEGIES = Registry(dict(_rows()), (Strategy, Recipe), "fedpriv.strategies", StrategyEntry)
