"""Records the queries of a strategy without data, so that the epsilon of any strategy is known before data are read."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedpriv.oracle.oracle import Oracle, QueryEngine, RoundContext
from fedpriv.oracle.query import Query, QueryBuilder
from fedpriv.oracle.releases import Releases
from fedpriv.oracle.synthetic import ZeroEngine
from fedpriv.privacy.release import PlannedRelease
from fedpriv.privacy.release.table import ReleaseTable
from fedpriv.privacy.schedules import Uniform
from fedpriv.privacy.settings import Privacy


class RecordingEngine:
    """Records the releases of queries, and passes the queries to another engine for results.

    If a strategy's queries depend on results, a real run may make queries other than the recorded ones. The accountant
    then raises an error for releases that would exceed the budget.

    Args:
        queries: Builds the queries.
        answers: Computes the query results.

    Attributes:
        evaluations: Expected number of per-example gradients in each round; the true number is as secret as batches.
        names: Names of all queries.
        queries: The queries of each round, by round.
    """

    is_aggregate = False

    def __init__(self, queries: QueryBuilder, answers: QueryEngine) -> None:
        self.evaluations: list[float] = []
        self.names: set[str] = set()
        self.queries: dict[int, list[Query]] = {}
        self._builder = queries
        self._answers = answers
        self._releases = Releases(queries)
        self._kinds: dict[PlannedRelease, int] = {}
        self._numbers, self._rounds = array("l"), array("l")  # for each release: its kind and its round

    @property
    def table(self) -> ReleaseTable:
        """The planned releases, in order."""
        return ReleaseTable.of(tuple(self._kinds), self._numbers, self._rounds)

    def begin_round(self, context: RoundContext) -> tuple[RoundContext, Tensor | None]:
        """See `QueryEngine`; one client represents all clients that a real run draws in secret."""
        self.evaluations += [0.0] * (context.round + 1 - len(self.evaluations))
        if self._builder.privacy.samples_clients_before_compute:
            drawn = torch.arange(1)
        else:
            drawn = None
        return context, drawn

    def gradients(self, query: Query, context: RoundContext, params: Tensor, anchor: Tensor | None) -> Tensor:
        """See `QueryEngine`."""
        self._note(query, context)
        return self._answers.gradients(query, context, params, anchor)

    def constraint_values(self, query: Query, context: RoundContext, params: Tensor) -> Tensor:
        """See `QueryEngine`."""
        self._note(query, context)
        return self._answers.constraint_values(query, context, params)

    def exact(self, query: Query, context: RoundContext, params: Tensor) -> tuple[Tensor, Tensor]:
        """See `QueryEngine`."""
        if context.index == 0:
            self._note(query, context)
        return self._answers.exact(query, context, params)

    def message(self, query: Query, context: RoundContext, message: Tensor) -> Tensor:
        """See `QueryEngine`."""
        self._note(query, context)
        return self._answers.message(query, context, message)

    def equality(self, context: RoundContext) -> Tensor:
        """See `QueryEngine`."""
        return self._answers.equality(context)

    def common_bound(self, bound: float | None) -> float | None:
        """See `QueryEngine`."""
        return self._answers.common_bound(bound)

    def noise_variances(self, context: RoundContext) -> tuple[Sequence[float], Sequence[float]]:
        """See `QueryEngine`."""
        return self._answers.noise_variances(context)

    def _note(self, query: Query, context: RoundContext) -> None:
        self.queries.setdefault(context.round, []).append(query)
        self._add_to_plan(query, context)

    def _add_to_plan(self, query: Query, context: RoundContext) -> None:
        self.names.add(query.name)
        sizes = self._builder.sizes[context.cohort]
        examples = float(self._builder.expected_batch_size(query.sampling, sizes).sum())
        examples *= self._builder.privacy.cohort_rate
        self.evaluations[context.round] += examples * query.gradients_per_example
        if self._builder.is_released(query):
            kind = self._releases.priced(query, context)
            self._append(context.round, self._kinds.setdefault(kind.in_round(0), len(self._kinds)))

    def _append(self, round_index: int, number: int) -> None:
        self._numbers.append(number)
        self._rounds.append(round_index)

    def repeat(self, period: int, rounds: int, cohort_of: Callable[[int], Sequence[int]]) -> None:
        """Adds the releases of the remaining rounds, if they repeat the queries of the first `period` rounds.

        Args:
            period: Number of recorded rounds.
            rounds: Number of rounds of the whole run.
            cohort_of: Returns the sorted numbers of the clients that take part in a round.
        """
        privacy = self._builder.privacy
        # only in this case is the privacy cost of a round independent of its index
        repeats = privacy.schedule == Uniform() and privacy.over_time is None
        plans: dict[tuple[int, tuple[int, ...]], tuple[array[int], float]] = {}
        for round_index in range(period, rounds):
            cohort = cohort_of(round_index)
            key = round_index % period, tuple(cohort)
            if repeats and key in plans:
                numbers, evaluations = plans[key]
                for number in numbers:
                    self._append(round_index, number)
                self.evaluations.append(evaluations)
                continue
            first = len(self._numbers)
            members = torch.as_tensor(cohort, dtype=torch.long)
            context, _ = self.begin_round(RoundContext.of(round_index, members, self._builder.n_clients))
            for index, query in enumerate(self.queries.get(round_index % period, ())):
                self._add_to_plan(query, replace(context, index=index))
            plans[key] = self._numbers[first:], self.evaluations[round_index]


def recording_oracle(
    privacy: Privacy, sizes: Sequence[int], answers: QueryEngine | None = None
) -> Oracle[RecordingEngine]:
    """Returns an oracle without data that records the queries.

    Args:
        privacy: The privacy settings, with a noise multiplier if they are private.
        sizes: Public number of examples of each client.
        answers: Computes the query results; zeros by default.
    """
    queries = QueryBuilder(privacy, sizes)
    return Oracle(queries, RecordingEngine(queries, answers or ZeroEngine()), torch.empty(0))
