"""Custom metrics on public test data: functions, or objects with the interface of torchmetrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from fedpriv.errors import ConfigError, summarize_error, truncate
from fedpriv.evaluation import metrics
from fedpriv.models.nested import concatenate_trees, map_tree


@runtime_checkable
class StatefulMetric(Protocol):
    """A metric that is updated batch by batch and then computed, as in torchmetrics."""

    def reset(self) -> None:
        """Forgets all batches."""
        ...

    def update(self, preds: Tensor, target: Tensor, /) -> None:
        """Adds a batch."""
        ...

    def compute(self) -> Tensor | float:
        """Returns the metric of all batches since the last reset."""
        ...


CustomMetric = Callable[[Tensor, Tensor], Tensor | float] | StatefulMetric


@dataclass(frozen=True)
class MetricSet:
    """The user's metrics by name. In files, tables and pictures a metric is called `test_<name>`.

    Args:
        metrics_by_name: By name, a function of the outputs `[n, ...]` and targets `[n, ...]` of all test examples, on
            the CPU, that returns one number; or an object with `update`, `compute` and `reset`, which gets batches.

    Raises:
        ConfigError: If a name is taken or not an identifier, or a metric is neither function nor such an object.
    """

    metrics_by_name: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        for name, metric in self.metrics_by_name.items():
            is_taken = f"test_{name}" in metrics.list_report_names() and f"test_{name}" not in metrics.ERRORS
            if not name.isidentifier() or is_taken:
                if name.isidentifier():
                    fix = "is the name of a built-in metric: use another name"
                else:
                    fix = "must be a plain name of letters, digits and underscores, such as f1"
                raise ConfigError("metrics", name, fix)
            if not (callable(metric) or isinstance(metric, StatefulMetric)):
                fix = "must be a function of outputs and targets, or an object with update, compute and reset"
                raise ConfigError(f"metrics.{name}", metric, fix)

    @property
    def names(self) -> list[str]:
        """The names in files, `test_<name>`."""
        return [f"test_{name}" for name in self.metrics_by_name]

    def compute(self, batches: Sequence[tuple[Any, Any]]) -> dict[str, float]:
        """Returns each metric of the outputs and targets of all batches.

        Raises:
            ConfigError: If a metric fails, or its value is not one number.
        """
        on_cpu = [map_tree(lambda t: t.cpu() if isinstance(t, Tensor) else t, pair) for pair in batches]
        return {
            f"test_{name}": self._compute_one(name, metric, on_cpu) for name, metric in self.metrics_by_name.items()
        }

    def _compute_one(self, name: str, metric: Any, batches: Sequence[tuple[Tensor, Tensor]]) -> float:  # noqa: ANN401
        try:
            value = _call_metric(metric, batches)
            if isinstance(value, Tensor) and value.numel() == 1:
                value = value.item()
        except Exception as error:  # a user's metric can raise anything
            fix = f"raises an error on the test data ({summarize_error(error)}): correct the metric, or leave it out"
            raise ConfigError(f"metrics.{name}", metric, fix) from error
        if not isinstance(value, Real) or math.isinf(value):
            raise ConfigError(
                f"metrics.{name}", truncate(repr(value)), "is not a value of a metric: return one finite number, or NaN"
            )
        return float(value)


def _call_metric(metric: Any, batches: Sequence[tuple[Tensor, Tensor]]) -> object:  # noqa: ANN401 - a user's metric
    if not isinstance(metric, StatefulMetric):
        return metric(*concatenate_trees(batches))
    metric.reset()
    for outputs, targets in batches:
        metric.update(outputs, targets)
    value = metric.compute()
    metric.reset()
    return value
