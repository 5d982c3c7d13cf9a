"""End a run when a metric on public test data no longer improves.

The metric is computed from released models and public data, so looking at it costs nothing. But when it stops depends
on the answers so far, and so would an epsilon that counted only those: such a run is charged for its whole plan.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from fedpriv.errors import ConfigError
from fedpriv.evaluation import metrics
from fedpriv.settings.checks import Count, NonNegative, checked

Better = Literal["higher", "lower"]


@checked("stop")
@dataclass(frozen=True)
class Stop:
    """Ends a run when a metric has not improved in this many evaluations. It saves time, not epsilon.

    Args:
        metric: Name of a metric on public test data, e.g. `accuracy` or `test_accuracy`; also of the user's own.
        patience: Evaluations without improvement after which the run ends.
        least: By how much the metric must be better than the best so far to count as improved.
        better: Which way is better; needed for the user's own metrics.
    """

    metric: str = "accuracy"
    patience: Count = 5
    least: NonNegative = 0.0
    better: Better | None = None

    def begin(self, names: Collection[str]) -> EarlyStopping:
        """Returns the state before the first evaluation.

        Args:
            names: Names of the metrics that an evaluation gives.

        Raises:
            ConfigError: there is no such metric, or it is unknown which way is better.
        """
        if self.metric in names:
            name = self.metric
        else:
            name = f"test_{self.metric}"
        if name not in names:
            choice = "there are no test data: give some"
            if names:
                choice = f"there are: {', '.join(names)}"
            raise ConfigError("stop.metric", self.metric, f"is no metric on public test data; {choice}")
        better = self.better or metrics.direction(name)
        if better is None:
            raise ConfigError("stop.better", None, f"say which way {self.metric} is better: higher or lower")
        return EarlyStopping(name, self.patience, self.least, 1.0 if better == "higher" else -1.0)


@dataclass(frozen=True)
class EarlyStopping:
    """The state of early stopping: the best value of a metric, and for how long it has not improved.

    Attributes:
        name: Name of the metric; empty if no metric ends the run.
        patience: See `Stop`.
        least: See `Stop`.
        sign: 1 if higher is better, -1 if lower is.
        best: The best value so far, times `sign`; None before the first.
        since: Evaluations since then.
    """

    name: str = ""
    patience: int = 0
    least: float = 0.0
    sign: float = 1.0
    best: float | None = None
    since: int = 0

    def after(self, metrics: Mapping[str, float]) -> EarlyStopping:
        """Returns the state after a round with these metrics, which may lack the metric; a NaN is no improvement."""
        if self.name not in metrics:
            return self
        value = self.sign * metrics[self.name]
        if self.best is None:
            improved = value > -math.inf
        else:
            improved = value > self.best + self.least
        if improved:
            return replace(self, best=value, since=0)
        return replace(self, since=self.since + 1)

    @property
    def stops(self) -> bool:
        """Whether the run ends after this round."""
        return bool(self.name) and self.since >= self.patience

    def stored(self) -> dict[str, float]:
        """Returns the values that a checkpoint holds."""
        if self.best is None:
            return {"since": self.since}
        return {"since": self.since, "best": self.best}

    def restored(self, stored: Mapping[str, float]) -> EarlyStopping:
        """Returns this state with the values of a checkpoint."""
        return replace(self, best=stored.get("best"), since=int(stored.get("since", 0)))
