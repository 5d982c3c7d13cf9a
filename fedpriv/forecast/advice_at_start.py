"""Warnings of a run that begins."""

from __future__ import annotations

from fedpriv.planning.advice import graph_of
from fedpriv.runs.training import Training
from fedpriv.strategies.advice import ConstraintNoise, Outlook


def warnings_at_start(training: Training) -> list[str]:
    """Returns the warnings for a run that begins, without those that only matter while it is being planned."""
    plan = training.plan
    noise = None
    if plan.privacy.private and "statistic:constraints" in plan.queries:
        noise = ConstraintNoise(float(training.oracle.answerer.statistic_deviation(0).max()))
    outlook = Outlook(training.rounds, graph_of(training.network), noise)
    return [*training.warnings, *training.strategy.advice(outlook)]
