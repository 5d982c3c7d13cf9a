"""Resolves and checks the metrics and test sets in the `log` section of a configuration."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace

from torch import nn

from fedpriv.clients import Layout, PublicDataInfo
from fedpriv.config.schema import Config, LogSection
from fedpriv.errors import ConfigError
from fedpriv.evaluation import BINARY, ERRORS, CustomMetric, Evaluator, MetricSet, list_reported_names
from fedpriv.settings import plugins


def load_metrics(config: Config, n_classes: int | None, scale: float = 1.0) -> dict[str, CustomMetric]:
    """Returns the user's metrics by name.

    Args:
        config: The configuration.
        n_classes: Number of classes of the data; None if targets are numbers.
        scale: Size of 1 in units of the original target.

    Raises:
        ConfigError: If a metric does not exist, or does not fit this kind of targets.
    """
    return {name: _metric(name, reference, n_classes, scale) for name, reference in config.log.metrics.items()}


def _metric(name: str, reference: str, n_classes: int | None, scale: float) -> CustomMetric:
    field = f"log.metrics.{name}"
    if reference in ERRORS:
        if n_classes is not None:
            fix = "needs targets that are numbers, but the data have classes: leave this metric out"
            raise ConfigError(field, reference, fix)
        return ERRORS[reference](scale)
    if reference in BINARY:
        if n_classes != 2:
            fix = "is for data with two classes, and these data have others: leave this metric out"
            raise ConfigError(field, reference, fix)
        return BINARY[reference]()
    if ":" not in reference:
        names = ", ".join((*ERRORS, *BINARY))
        raise ConfigError(field, reference, f"must be one of {names}, or 'package.module:name'")
    return plugins.resolve_object(reference, field=field)


def check_owners(config: Config, *, are_known: bool) -> None:
    """Raises an error for `log.client_tests` with a data set that does not name the owner of each test example.

    Args:
        config: The configuration.
        are_known: True if the owners are known.

    Raises:
        ConfigError: If the owners are needed and unknown.
    """
    if config.log.client_tests and not are_known:
        fix = (
            f"needs the client of each test example, which {config.data.name} does not give: leave it out, or use "
            "femnist, or hf with the option data.client"
        )
        raise ConfigError("log.client_tests", True, fix)


def check_measured(config: Config, public_info: PublicDataInfo, model: nn.Module, loss: nn.Module) -> None:
    """Raises the errors that the run would raise for metrics and early stopping, without its data.

    Raises:
        ConfigError: The same error that the run would raise.
    """
    check_owners(config, are_known=public_info.tests_have_owners)
    with prefix_log_errors():
        metric_set = MetricSet(load_metrics(config, public_info.n_classes))
        if config.log.stop is None:
            return
        (example,) = replace(public_info, sizes=(1,)).synthetic_datasets()
        names = Evaluator(model, loss, example, custom=metric_set).names(Layout.of(model).row_of(model))
        config.log.stop.begin(list_reported_names(names, {0: example} if config.log.client_tests else {}))


@contextmanager
def prefix_log_errors() -> Generator[None]:
    """Context manager that adds `log.` to errors about arguments that are in that section of a configuration."""
    try:
        yield
    except ConfigError as error:
        if error.field.partition(".")[0] not in LogSection.model_fields:
            raise
        raise ConfigError(f"log.{error.field}", error.value, error.fix) from None
