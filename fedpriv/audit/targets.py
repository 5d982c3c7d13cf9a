"""The subject that a command names: a configuration, a run's folder, or a strategy of the user's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedpriv.audit.other_runs import named_data
from fedpriv.audit.target import AuditTarget
from fedpriv.config import Config, load_config
from fedpriv.config.base import check
from fedpriv.config.building import load_data, make_population, measured
from fedpriv.config.files import override
from fedpriv.settings import plugins
from fedpriv.strategies.base import Strategy

_SMALL: dict[str, Any] = {
    "data": {"name": "digits", "partition": {"kind": "iid", "n_clients": 6}},
    "model": "softmax",
    "privacy": {"epsilon": 3, "delta": 1e-5},
    "rounds": 20,
}
"""What a strategy is audited on, unless settings say otherwise."""
_PLACE: dict[str, Any] = {"name": "iadmm_prox", "rho": {"scale": 1.0}}
"""Held for a strategy that was made already."""


def of_config(config: Config, name: str, folder: Path | None = None) -> AuditTarget:
    """The run that a configuration describes."""
    split = load_data(config)
    clients = make_population(config, split)
    n_clients, options = len(clients), measured(config, split, len(clients))
    compute, test = options.pop("compute"), options.pop("test")
    return AuditTarget.of(
        clients,
        config.recipe(n_clients).strategy,
        config.promise(n_clients),
        rounds=config.rounds,
        network=config.network.build(n_clients),
        name=name,
        compute=compute,
        test=test,
        options=options,
        folder=folder,
        data_name=named_data(config.model_dump(mode="json")),
    )


def of_run(folder: Path) -> AuditTarget:
    """The run in a folder, whose files are looked at too."""
    return of_config(load_config(folder / "config.yaml"), str(folder), folder)


def of_strategy(reference: str, settings: Sequence[str]) -> AuditTarget:
    """A strategy on handwritten digits, or on what the settings say.

    Args:
        reference: `package.module:Name` of a `Strategy`, or of a function or class that makes one.
        settings: `section.field=value` each.

    Raises:
        ConfigError: plugins are not allowed, or there is no such object.
    """
    found = plugins.resolve_object(reference, field="strategy")
    made = isinstance(found, Strategy)
    given = {**_SMALL, "strategy": _PLACE if made else {"name": reference}}
    for setting in settings:
        given = override(given, setting)
    subject = of_config(check(Config, given), reference)
    if made:
        return replace(subject, strategy=found)
    return subject
