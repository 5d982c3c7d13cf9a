"""Makes the report of each round with metrics and epsilon, and the reason if the run has to end."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from fedpriv.evaluation.best_model import BestModel
from fedpriv.evaluation.early_stopping import EarlyStopping
from fedpriv.evaluation.finite_check import FiniteCheck
from fedpriv.network.rounds import TrainState
from fedpriv.privacy.accounting.spent import round_up
from fedpriv.privacy.ledger import LedgerPosition
from fedpriv.runs.metric_log import MetricLog
from fedpriv.runs.results import Ended, RoundReport
from fedpriv.runs.run_accountant import RunAccountant
from fedpriv.strategies.base import Strategy


@dataclass
class RunMonitor:
    """Watches a run for values that are not finite and for a metric that no longer improves, and reports its rounds.

    Attributes:
        strategy: The run's algorithm, which may end it.
        rounds: Number of rounds that are planned.
        target: The target epsilon; None without one.
        log: Metrics of the rounds so far.
        accountant: The run's epsilon.
        health: First rounds in which a value was not finite.
        stopping: Number of rounds without improvement of the metric of `stop`.
        best: The models of the round with the best test metric; up to date on the main process only.
        is_over: True if no further round will be computed.
        is_void: True if no bound on epsilon holds because the run's code kept state from earlier examples.
    """

    strategy: Strategy
    rounds: int
    target: float | None
    log: MetricLog
    accountant: RunAccountant
    health: FiniteCheck
    stopping: EarlyStopping
    best: BestModel
    is_over: bool = False
    is_void: bool = False

    @property
    def stops(self) -> bool:
        """True if the run ends after the last round: it has no bound on epsilon (`is_void`), a value is not finite, or
        a metric no longer improves.
        """
        return self.is_void or self.health.stops or self.stopping.stops

    def why_ended(self, state: TrainState) -> Ended:
        """Returns why there are no more rounds after this state, as far as is known; `"left"` if there may be more."""
        if self.is_void:
            return "state"
        if state.round == self.rounds:
            return "rounds"
        if self.strategy.is_done(state.server):
            return "strategy"
        if self.health.stops:
            return "nonfinite"
        if self.stopping.stops:
            return "metric"
        # other code that raises `BudgetExhausted`, such as a strategy, may do so because of a query result
        if self.is_over and self.accountant.is_exhausted:
            return "budget"
        return "left"

    def is_evaluated(self, state: TrainState) -> bool:
        """True if the models of this state are evaluated for its report."""
        return self.log.is_due(state.round, last=False) or self.why_ended(state) != "left"

    def after_round(
        self,
        state: TrainState,
        position: LedgerPosition,
        constraint_metrics: dict[str, float],
        is_checkpoint_due: Callable[[bool], bool],
    ) -> RoundReport:
        """Evaluates the models of a finished round and returns its report.

        Args:
            state: The state after the round, with the models of all clients if they are evaluated.
            position: Ledger position after the round.
            constraint_metrics: Violations of constraints; see `ModelMetrics.of_multipliers`.
            is_checkpoint_due: Returns True if a checkpoint follows this round; its argument is True for the last round.
        """
        before = self.health

        # models first: if they are not finite, this is the last round, which is always evaluated
        self.health = before.after(state.round, {"model": state.models})
        metrics = self.log.metrics(state, last=self.why_ended(state) != "left") | constraint_metrics
        self.health = self.health.after(state.round, metrics)
        self.stopping = self.stopping.after(state.round, metrics)
        self.best = self.best.after(state, metrics)

        ended = self.why_ended(state)
        epsilon = self.accountant.reported(ended, state.round)
        warning = None
        if self.health is not before:
            warning = self.health.warning(before, state.models, _spent_so_far(epsilon, self.target))
        self.log.rows.append({"round": state.round, "epsilon": epsilon, "releases": position.releases, **metrics})
        return RoundReport(
            round=state.round,
            rounds=self.rounds,
            metrics=metrics,
            epsilon=epsilon,
            target=self.target,
            releases=position.releases,
            checkpoint=is_checkpoint_due(ended != "left"),
            head=position.head,
            warning=warning,
        )


def _spent_so_far(epsilon: float, target: float | None) -> str:
    """Formats the epsilon spent so far for a warning; empty string if the run is not private."""
    if not math.isfinite(epsilon):
        return ""
    if target is None:
        return f"epsilon <= {round_up(epsilon)}"
    return f"epsilon <= {round_up(epsilon)} of {target:g}"
