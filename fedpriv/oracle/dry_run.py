"""Records the queries of a strategy in a run without data, so that its epsilon is known before data are read."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor

from fedpriv.oracle.oracle import Oracle, QueryEngine, RoundContext
from fedpriv.oracle.query import Query, QueryBuilder
from fedpriv.oracle.releases import Releases
from fedpriv.oracle.synthetic import ZeroEngine
from fedpriv.privacy.record import Record
from fedpriv.privacy.record_table import RecordTable
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
        evaluations: Expected number of per-example gradients in each round, in float64. (If batches are secret, the
            true number is secret too.)
        names: Names of all queries.
        queries: The queries of each round, by round.
    """

    is_aggregate = False

    def __init__(self, queries: QueryBuilder, answers: QueryEngine) -> None:
        self.evaluations = array("d")
        self.names: set[str] = set()
        self.queries: dict[int, list[Query]] = {}
        self._builder = queries
        self._answers = answers
        self._releases = Releases(queries)
        self._kinds: dict[PlannedRelease, int] = {}
        self._columns = RecordTable()

    @property
    def table(self) -> ReleaseTable:
        """The planned releases, in order."""
        return ReleaseTable.of(tuple(self._kinds), self._columns)

    def begin_round(self, context: RoundContext) -> tuple[RoundContext, Tensor | None]:
        """See `QueryEngine`; one client represents all clients that a real run draws in secret."""
        self.evaluations.extend([0.0] * (context.round + 1 - len(self.evaluations)))
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
        expected = self._builder.expected_batch_size(query.sampling, sizes)
        if len(sizes) == self._builder.n_clients:
            examples = float(expected.sum())
        else:
            examples = math.fsum(expected.tolist())  # so that their order does not matter
        self._count_examples(query, context.round, examples)
        if self._builder.is_released(query):
            release = self._releases.priced(query, context)
            kind = release.in_round(0).without_clients()
            number = self._kinds.setdefault(kind, len(self._kinds))
            self._columns.append(number, context.round, kind.record, release.record.clients)

    def _count_examples(self, query: Query, round_index: int, examples: float) -> None:
        examples *= self._builder.privacy.cohort_rate
        self.evaluations[round_index] += examples * query.gradients_per_example

    def repeat(self, period: int, rounds: int, cohort_of: Callable[[int], Sequence[int]]) -> None:
        """Adds the releases of the remaining rounds, if they repeat the queries of the first `period` rounds.

        Args:
            period: Number of recorded rounds.
            rounds: Number of rounds of the whole run.
            cohort_of: Returns the sorted numbers of the clients that take part in a round.
        """
        n_clients = self._builder.n_clients
        privacy = self._builder.privacy
        # only in this case is the privacy cost of a round independent of its index
        repeats = privacy.schedule == Uniform() and privacy.over_time is None
        expected = {
            query.sampling: self._builder.expected_batch_size(query.sampling, self._builder.sizes)
            for query in chain.from_iterable(self.queries.values())
        }
        batch_sizes = {sampling: (sizes.tolist(), float(sizes.sum())) for sampling, sizes in expected.items()}
        examples_of = [
            [(query, *batch_sizes[query.sampling]) for query in self.queries.get(position, ())]
            for position in range(period)
        ]
        # the kinds of a round's releases, by position in the period and, where costs depend on it, by cohort
        known: dict[tuple[int, bool | tuple[int, ...]], list[tuple[int, Record]]] = {}
        for round_index in range(period, rounds):
            position = round_index % period
            cohort = tuple(cohort_of(round_index))
            everyone = len(cohort) == n_clients
            kinds = known.get((position, everyone))
            if kinds is None:
                kinds = known.get((position, cohort))
            if kinds is None:
                priced = self._priced_round(round_index, position, cohort)
                if repeats:
                    known[position, self._cohort_key(priced, position, cohort)] = priced
                continue
            self.evaluations.append(0.0)
            for query, sizes, total in examples_of[position]:
                examples = total if everyone else math.fsum(map(sizes.__getitem__, cohort))
                self._count_examples(query, round_index, examples)
            for number, kind in kinds:
                self._columns.append(number, round_index, kind, cohort)

    def _priced_round(self, round_index: int, position: int, cohort: tuple[int, ...]) -> list[tuple[int, Record]]:
        """Adds a round with the queries of an earlier round. Returns the numbers and the records of the kinds of
        release in the round.
        """
        members = torch.as_tensor(cohort, dtype=torch.long)
        context, _ = self.begin_round(RoundContext.of(round_index, members, self._builder.n_clients))
        first = len(self._columns)
        for index, query in enumerate(self.queries.get(position, ())):
            self._add_to_plan(query, replace(context, index=index))
        kinds = list(self._kinds)
        return [(number, kinds[number].record) for number in self._columns.numbers[first:]]

    def _cohort_key(
        self, kinds: Sequence[tuple[int, Record]], position: int, cohort: tuple[int, ...]
    ) -> bool | tuple[int, ...]:
        """Returns a key. Rounds with the same key have the same kinds of release. The key is True for all clients,
        False for any other cohort, or the cohort itself.
        """
        if len(cohort) == self._builder.n_clients:
            return True
        queries = self.queries.get(position, ())
        depends = any(self._builder.scheme.depends_on_clients(query.name) for query in queries)
        if depends or any(kind.clients != () for _, kind in kinds):
            return cohort
        return False


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
