"""Ends a run when a metric on public test data no longer improves.

The metric is computed from released models and public data, so it costs no epsilon. However, the round in which a run
stops depends on earlier query results, and so would an epsilon that counted only the rounds until then. Therefore the
epsilon of such a run counts all planned rounds.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from fedpriv.errors import ConfigError
from fedpriv.evaluation import metrics
from fedpriv.settings.checks import Count, NonNegative, Whole, validate_arguments

Better = Literal["higher", "lower"]


@validate_arguments("stop")
@dataclass(frozen=True)
class Stop:
    """Ends a run when a metric has not improved for `patience` evaluations. It saves time, not epsilon.

    The first models of a private run are mostly noise. One of them can have a good test result by chance, and later
    rounds then seem to be no improvement. Therefore evaluations before `min_rounds` are ignored.

    Args:
        metric: Name of a metric on public test data, e.g. `accuracy` (default) or `test_accuracy`, or the name of a
            custom metric.
        patience: Number of evaluations without improvement after which the run ends; 5 by default.
        min_delta: Smallest difference to the best value that counts as an improvement; 0 by default.
        better: Better direction, `"higher"` or `"lower"`; required for custom metrics.
        min_rounds: Evaluations before this round are ignored, so the run cannot end before it. By default it is half of
            the run's rounds in a private run, and 0 in any other run.

    Examples:
        >>> import fedpriv
        >>> fedpriv.Stop("accuracy", patience=3).name_in(["test_accuracy", "test_loss"])
        'test_accuracy'
    """

    metric: str = "accuracy"
    patience: Count = 5
    min_delta: NonNegative = 0.0
    better: Better | None = None
    min_rounds: Whole | None = None

    def begin(self, names: Collection[str], rounds: int = 0, *, private: bool = False) -> EarlyStopping:
        """Returns the state before the first evaluation.

        Args:
            names: Names of the metrics of an evaluation.
            rounds: Number of rounds of the run.
            private: True if the run is private.

        Raises:
            ConfigError: If there is no such metric, or its better direction is unknown.
        """
        name = self.name_in(names)
        min_rounds = self.min_rounds
        if min_rounds is None:
            min_rounds = rounds // 2 if private else 0
        return EarlyStopping(
            name, self.patience, self.min_delta, sign_of_metric(name, self.better), min_rounds=min_rounds
        )

    def name_in(self, names: Collection[str]) -> str:
        """Returns the name of the metric in an evaluation.

        Raises:
            ConfigError: If there is no such metric.
        """
        if self.metric in names:
            return self.metric
        name = f"test_{self.metric}"
        if name in names:
            return name
        choice = "there are no test data: pass them with test=..."
        if names:
            choice = f"choose one of {', '.join(names)}"
        raise ConfigError("stop.metric", self.metric, f"is not a metric on public test data; {choice}")


def sign_of_metric(name: str, better: Better | None) -> float:
    """Returns 1 if higher values of a metric are better, and -1 if lower ones are.

    Args:
        name: Name of the metric in a round's file.
        better: Better direction; None for the known direction of the metric.

    Raises:
        ConfigError: If the direction is not known.
    """
    better = better or metrics.get_direction(name)
    if better is None:
        fix = (
            f"is required for {name.removeprefix('test_')}: set 'higher' or 'lower', the direction in which it is "
            "better"
        )
        raise ConfigError("stop.better", None, fix)
    if better == "higher":
        return 1.0
    return -1.0


@dataclass(frozen=True)
class EarlyStopping:
    """The state of early stopping: the best value of a metric, and the number of evaluations since then.

    Attributes:
        name: Name of the metric; empty if no metric ends the run.
        patience: See `Stop`.
        min_delta: See `Stop`.
        sign: 1 if higher is better, -1 if lower is.
        best: The best value so far, times `sign`; None before the first evaluation.
        since: Number of evaluations since the best value.
        min_rounds: See `Stop`.
    """

    name: str = ""
    patience: int = 0
    min_delta: float = 0.0
    sign: float = 1.0
    best: float | None = None
    since: int = 0
    min_rounds: int = 0

    def after(self, finished: int, metrics: Mapping[str, float]) -> EarlyStopping:
        """Returns the state after a round with these metrics.

        Without the watched metric the state stays the same; a NaN counts as no improvement.

        Args:
            finished: Number of finished rounds.
            metrics: The metrics of the last finished round.
        """
        if self.name not in metrics or finished < self.min_rounds:
            return self
        value = self.sign * metrics[self.name]
        if self.best is None:
            improved = value > -math.inf
        else:
            improved = value > self.best + self.min_delta
        if improved:
            return replace(self, best=value, since=0)
        return replace(self, since=self.since + 1)

    @property
    def stops(self) -> bool:
        """True if the run ends after this round."""
        return bool(self.name) and self.since >= self.patience

    def stored(self) -> dict[str, float]:
        """Returns the values that a checkpoint holds."""
        if self.best is None:
            return {"since": self.since}
        return {"since": self.since, "best": self.best}

    def restored(self, stored: Mapping[str, float]) -> EarlyStopping:
        """Returns this state with the values of a checkpoint."""
        return replace(self, best=stored.get("best"), since=int(stored.get("since", 0)))
