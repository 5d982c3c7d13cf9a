"""Builds the subject of an audit from a configuration, a run's folder, or a user-defined strategy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedpriv.audit.other_runs import named_data
from fedpriv.audit.target import AuditTarget
from fedpriv.config import Config, load_config
from fedpriv.config.base import check
from fedpriv.config.building import load_data, make_population, measurement_arguments
from fedpriv.config.files import override
from fedpriv.runs import find_config_file
from fedpriv.settings import plugins
from fedpriv.strategies import Strategy

_DEFAULTS: dict[str, Any] = {
    "data": {"name": "digits", "partition": {"kind": "iid", "n_clients": 6}},
    "model": "softmax",
    "privacy": {"epsilon": 3, "delta": 1e-5},
    "rounds": 20,
}
"""The configuration with which a strategy is audited, unless settings change it."""
_PLACEHOLDER: dict[str, Any] = {"name": "iadmm_prox", "rho": {"scale": 1.0}}
"""Placeholder in the configuration for a strategy object, which replaces it later."""


def target_from_config(config: Config, name: str, folder: Path | None = None) -> AuditTarget:
    """Returns the run that a configuration describes.

    Args:
        config: The configuration.
        name: Name of the run, as printed.
        folder: The files of that run; None if it does not exist yet.
    """
    split = load_data(config)
    clients = make_population(config, split)
    n_clients = len(clients)
    options = measurement_arguments(config, split, n_clients)
    compute = options.pop("compute")
    test = options.pop("test")
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


def target_from_folder(folder: Path) -> AuditTarget:
    """Returns the run in a folder, together with its files.

    Raises:
        FedprivError: If the folder has no configuration.
    """
    return target_from_config(load_config(find_config_file(folder)), str(folder), folder)


def target_from_strategy(reference: str, settings: Sequence[str]) -> AuditTarget:
    """Returns a run of a strategy on handwritten digits, or on the data in the settings.

    Args:
        reference: `package.module:Name` of a `Strategy`, or of a function or class that creates one.
        settings: `section.field=value` each.

    Raises:
        ConfigError: If plugins are not allowed, or there is no such object.
    """
    loaded = plugins.resolve_object(reference, field="strategy")
    if isinstance(loaded, Strategy):
        raw = {**_DEFAULTS, "strategy": _PLACEHOLDER}
    else:
        raw = {**_DEFAULTS, "strategy": {"name": reference}}
    for setting in settings:
        raw = override(raw, setting)
    subject = target_from_config(check(Config, raw), reference)
    if isinstance(loaded, Strategy):
        return replace(subject, strategy=loaded)
    return subject
