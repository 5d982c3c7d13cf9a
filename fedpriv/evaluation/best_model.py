"""Keeps the model of the round with the best metric on public test data.

The choice does not increase epsilon, because models are released values, test data are public, and computations from
both are post-processing (Dwork and Roth, 2014, proposition 2.1). However, the largest of many measured values is too
large on average, so the metric overestimates the quality of the chosen model.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor

from fedpriv.errors import ConfigError
from fedpriv.evaluation import metrics
from fedpriv.evaluation.early_stopping import Stop, sign_of_metric
from fedpriv.evaluation.model_metrics import models_differ
from fedpriv.network.rounds import TrainState

Keep = Literal["last", "best"]


@dataclass(frozen=True)
class BestModel:
    """The models of the round that tested best so far.

    Attributes:
        name: Name of the metric; empty if the last models are kept.
        sign: 1 if higher is better, -1 if lower is.
        round: The round, from 1; 0 before the first evaluation.
        value: The metric of that round, times `sign`.
        tested: Number of rounds that were evaluated.
        models: The models of that round, `[n, dim]` or `[1, dim]`; None before the first evaluation.
    """

    name: str = ""
    sign: float = 1.0
    round: int = 0
    value: float = -math.inf
    tested: int = 0
    models: Tensor | None = None

    @staticmethod
    def begin(keep: Keep, names: Collection[str], stop: Stop | None) -> BestModel:
        """Returns the state before the first evaluation.

        Args:
            keep: Which models are kept.
            names: Names of the metrics that an evaluation gives.
            stop: The stopping condition. The models are chosen by its metric or, if it has none, by the first available
                of accuracy, other metrics and loss.

        Raises:
            ConfigError: If the best models are to be kept, and there are no test data.
        """
        if keep == "last":
            return BestModel()
        if stop is not None:
            name = stop.name_in(names)
            return BestModel(name, sign_of_metric(name, stop.better))
        name = next((row.name for row in metrics.list_headline_metrics() if row.name in names), None)
        if name is None:
            raise ConfigError(
                "keep", keep, "needs public test data to choose the best model: pass test=dataset, or leave keep out"
            )
        return BestModel(name, sign_of_metric(name, None))

    def after(self, progress: TrainState, values: Mapping[str, float]) -> BestModel:
        """Returns the state after a round with these metrics. Without the chosen metric, the state stays the same; a
        NaN is never the best value.
        """
        if self.name not in values:
            return self
        value = self.sign * values[self.name]
        if not value > self.value:
            return replace(self, tested=self.tested + 1)
        if models_differ(progress):
            models = progress.models.clone()
        else:
            models = progress.models[:1].clone()
        return replace(self, round=progress.round, value=value, tested=self.tested + 1, models=models)

    def of(self, progress: TrainState) -> TrainState:
        """Returns the state with the round and the models that are kept."""
        if self.models is None:
            return progress
        return replace(progress, round=self.round, models=self.models)

    def in_words(self) -> dict[str, Any]:
        """Returns the entries of `result.json` about the choice; empty if the last models are kept."""
        if self.models is None:
            return {}
        return {"kept": {"round": self.round, "metric": self.name, "rounds_tested": self.tested}}

    def stored(self) -> dict[str, Any]:
        """Returns the values that a checkpoint holds."""
        if self.models is None:
            return {}
        return {
            "name": self.name,
            "round": self.round,
            "value": self.value,
            "tested": self.tested,
            "models": self.models,
        }

    def restored(self, stored: Mapping[str, Any]) -> BestModel:
        """Returns this state with the values of a checkpoint. If the checkpoint has no such values, or another metric,
        the state stays the same.
        """
        if not self.name or stored.get("name") != self.name:
            return self
        return replace(self, **stored)


def describe_choice(facts: Mapping[str, Any]) -> str:
    """Returns a text with the round from which the model of a result comes, if a metric chose the model; else an empty
    text.

    Args:
        facts: A result, as `result.json` has it.
    """
    kept = facts.get("kept")
    if kept is None:
        return ""
    titles = {row.name: row.title for row in metrics.TESTED}
    title = titles.get(kept["metric"], kept["metric"].replace("_", " "))
    return (
        f"of round {kept['round']}, which has the best {title} of {kept['rounds_tested']} tested rounds; this "
        f"{title} is optimistic, since it chose the round"
    )
