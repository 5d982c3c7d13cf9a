"""What a configuration's `log` section says to measure of a run."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace

from torch import nn

from fedpriv.clients.layout import Layout
from fedpriv.clients.public_info import PublicDataInfo
from fedpriv.config.schema import Config, LogSection
from fedpriv.errors import ConfigError
from fedpriv.evaluation.client_tests import known_of
from fedpriv.evaluation.custom_metrics import CustomMetric, MetricSet
from fedpriv.evaluation.evaluator import Evaluator
from fedpriv.evaluation.regression import ERRORS
from fedpriv.settings import plugins


def metrics_of(config: Config, n_classes: int | None, scale: float = 1.0) -> dict[str, CustomMetric]:
    """The user's metrics by name.

    Args:
        config: The configuration.
        n_classes: Of the data; None where targets are numbers.
        scale: How many of the target's own units 1 is.

    Raises:
        ConfigError: a name is of no metric, or of one that the data have not.
    """
    return {name: _metric(name, reference, n_classes, scale) for name, reference in config.log.metrics.items()}


def _metric(name: str, reference: str, n_classes: int | None, scale: float) -> CustomMetric:
    field = f"log.metrics.{name}"
    if reference in ERRORS:
        if n_classes is not None:
            fix = "is for targets that are numbers, and the data have classes: leave it out"
            raise ConfigError(field, reference, fix)
        return ERRORS[reference](scale)
    if ":" not in reference:
        raise ConfigError(field, reference, f"choose {' or '.join(map(repr, ERRORS))}, or write 'package.module:name'")
    return plugins.resolve_object(reference, field=field)


def check_owners(config: Config, *, known: bool) -> None:
    """Refuse `log.client_tests` where it is not `known` whose each test example is.

    Raises:
        ConfigError: names the data set.
    """
    if config.log.client_tests and not known:
        fix = f"{config.data.name} does not say whose each test example is; femnist does, and hf with a column client"
        raise ConfigError("log.client_tests", True, fix)


def check_measured(config: Config, seen: PublicDataInfo, model: nn.Module, loss: nn.Module) -> None:
    """Refuse what a run would, of what is to be measured and of when it is to end, without its data.

    Raises:
        ConfigError: as the run would.
    """
    check_owners(config, known=seen.tests_have_owners)
    with named_in_log():
        own = MetricSet(metrics_of(config, seen.n_classes))
        if config.log.stop is None:
            return
        (example,) = replace(seen, sizes=(1,)).synthetic_datasets()
        names = Evaluator(model, loss, example, own=own).names(Layout.of(model).row_of(model))
        config.log.stop.begin(known_of(names, {0: example} if config.log.client_tests else {}))


@contextmanager
def named_in_log() -> Generator[None]:
    """Errors about arguments of a run that a configuration has under `log` are named so."""
    try:
        yield
    except ConfigError as error:
        if error.field.partition(".")[0] not in LogSection.model_fields:
            raise
        raise ConfigError(f"log.{error.field}", error.value, error.fix) from None
