"""Metrics of a run's models, round by round; each model is evaluated once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedpriv.evaluation import model_metrics
from fedpriv.evaluation.model_metrics import ModelMetrics
from fedpriv.network.rounds import TrainState


class MetricLog:
    """Metrics for reports.

    Args:
        measures: Evaluates models.
        every: Rounds between evaluations.
        before: Rows of the rounds before a resume.

    Attributes:
        rows: For each finished round its number, epsilon, number of releases, and metrics.
    """

    def __init__(self, model_metrics: ModelMetrics, every: int, before: Sequence[dict[str, Any]] = ()) -> None:
        self._measures, self._every = model_metrics, every
        self.rows: list[dict[str, Any]] = list(before)
        self._seen: tuple[int, int | None, dict[str, float], dict[str, Any]] | None = None

    def is_due(self, finished: int, *, last: bool) -> bool:
        """Whether models are evaluated after `finished` rounds; `last` is the end of the run."""
        return last or finished % self._every == 0

    def metrics(self, progress: TrainState, *, last: bool) -> dict[str, float]:
        """Metrics for the report of a round, from public or released values; the last round is always evaluated."""
        found: dict[str, float] = {}
        if self.is_due(progress.round, last=last):
            one, nodes = self._measure(progress, model_metrics.AT_THE_END if last else None)
            found = {**one, **model_metrics.flat(nodes), **self._measures.of_run(progress)}
        return found | self._measures.strategy.monitored(progress.server)

    def at_the_end(self, progress: TrainState) -> tuple[dict[str, float], dict[str, Any]]:
        """Metrics of the model (the mean over nodes), of nodes' own models and of clients; reuses the last report's."""
        one, nodes = self._measure(progress, model_metrics.AT_THE_END)
        return dict(one), nodes

    def _measure(self, progress: TrainState, examples: int | None) -> tuple[dict[str, float], dict[str, Any]]:
        if self._seen is None or self._seen[:2] != (progress.round, examples):
            one, nodes = self._measures.of_the_one(progress), self._measures.of_nodes(progress, examples)
            nodes |= self._measures.of_clients(progress)
            self._seen = progress.round, examples, one, nodes
        return self._seen[2:]
