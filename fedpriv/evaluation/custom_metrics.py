"""Metrics of the user's own, on public test data: functions, or objects such as those of torchmetrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from fedpriv.data.nested import each, joined
from fedpriv.errors import ConfigError, cut, in_short
from fedpriv.evaluation import metrics


@runtime_checkable
class StatefulMetric(Protocol):
    """An object that sees batches and then gives a number, as those of torchmetrics do."""

    def reset(self) -> None:
        """Forget what was seen."""
        ...

    def update(self, preds: Tensor, target: Tensor, /) -> None:
        """See a batch."""
        ...

    def compute(self) -> Tensor | float:
        """The metric of all batches since the last reset."""
        ...


CustomMetric = Callable[[Tensor, Tensor], Tensor | float] | StatefulMetric


@dataclass(frozen=True)
class MetricSet:
    """The user's metrics by name; in files, tables and pictures they are called `test_<name>`.

    Args:
        given: By name, a function of the outputs `[n, ...]` and targets `[n, ...]` of all test examples, on the
            processor, that gives one number; or an object with `update`, `compute` and `reset`, which gets batches.

    Raises:
        ConfigError: a name is taken or no name, or what it names is neither.
    """

    given: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        for name, metric in self.given.items():
            taken = f"test_{name}" in metrics.numbers() and f"test_{name}" not in metrics.ERRORS
            if not name.isidentifier() or taken:
                if name.isidentifier():
                    fix = "is a metric of fedpriv's: take another name"
                else:
                    fix = "must be a plain name"
                raise ConfigError("metrics", name, fix)
            if not (callable(metric) or isinstance(metric, StatefulMetric)):
                fix = "give a function of outputs and targets, or an object with update, compute and reset"
                raise ConfigError(f"metrics.{name}", metric, fix)

    @property
    def names(self) -> list[str]:
        """As files have them."""
        return [f"test_{name}" for name in self.given]

    def of(self, answered: Sequence[tuple[Any, Any]]) -> dict[str, float]:
        """Each metric of the outputs and targets of all batches.

        Raises:
            ConfigError: a metric fails, or gives no number.
        """
        here = [each(lambda t: t.cpu() if isinstance(t, Tensor) else t, pair) for pair in answered]
        return {f"test_{name}": self._measured(name, metric, here) for name, metric in self.given.items()}

    def _measured(self, name: str, metric: Any, answered: Sequence[tuple[Tensor, Tensor]]) -> float:  # noqa: ANN401
        try:
            value = _computed(metric, answered)
            if isinstance(value, Tensor) and value.numel() == 1:
                value = value.item()
            else:
                value = value
        except Exception as error:  # whatever a user's metric raises
            fix = f"fails on the test data ({in_short(error)})"
            raise ConfigError(f"metrics.{name}", metric, fix) from error
        if not isinstance(value, Real) or math.isinf(value):
            raise ConfigError(f"metrics.{name}", cut(repr(value)), "must be one finite number, or NaN")
        return float(value)


def _computed(metric: Any, answered: Sequence[tuple[Tensor, Tensor]]) -> object:  # noqa: ANN401 - a user's metric
    if not isinstance(metric, StatefulMetric):
        return metric(*joined(answered))
    metric.reset()
    for outputs, targets in answered:
        metric.update(outputs, targets)
    value = metric.compute()
    metric.reset()
    return value
