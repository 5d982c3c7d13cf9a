"""Metrics of a run's models, round by round; each model is evaluated once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedpriv.evaluation import model_metrics
from fedpriv.evaluation.model_metrics import ModelMetrics
from fedpriv.network.rounds import TrainState


class MetricLog:
    """The metrics for reports, including those of earlier rounds.

    Args:
        model_metrics: Evaluates models.
        every: Rounds between evaluations.
        before: The rows of the rounds before a resume.

    Attributes:
        rows: For each finished round its number, epsilon, number of releases, and metrics.
    """

    def __init__(self, model_metrics: ModelMetrics, every: int, before: Sequence[dict[str, Any]] = ()) -> None:
        self._measures = model_metrics
        self._every = every
        self.rows: list[dict[str, Any]] = list(before)
        # round and number of examples of the latest evaluation, and its metrics
        self._latest: tuple[int, int | None, dict[str, float], dict[str, Any]] | None = None

    def is_due(self, finished: int, *, last: bool) -> bool:
        """True if models are evaluated after `finished` rounds; `last` marks the end of the run."""
        return last or finished % self._every == 0

    def metrics(self, progress: TrainState, *, last: bool) -> dict[str, float]:
        """Returns the metrics for the report of a round, from public or released values.

        The last round is always evaluated.
        """
        values: dict[str, float] = {}
        if self.is_due(progress.round, last=last):
            model_values, further = self._measure(progress, model_metrics.AT_THE_END if last else None)
            values = {**model_values, **model_metrics.flatten_summaries(further), **self._measures.of_run(progress)}
        return values | self._measures.strategy.monitored(progress.server)

    def final_metrics(self, progress: TrainState) -> tuple[dict[str, float], dict[str, Any]]:
        """Returns metrics of the model (the mean over nodes), and metrics of each node's model and of the clients.

        The metrics of the last report are reused.
        """
        model_values, further = self._measure(progress, model_metrics.AT_THE_END)
        return dict(model_values), further

    def _measure(self, progress: TrainState, examples: int | None) -> tuple[dict[str, float], dict[str, Any]]:
        if self._latest is None or self._latest[:2] != (progress.round, examples):
            model_values = self._measures.test_model(progress)
            further = self._measures.of_nodes(progress, examples)
            further |= self._measures.of_clients(progress)
            self._latest = progress.round, examples, model_values, further
        return self._latest[2:]
