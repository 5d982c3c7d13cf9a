"""Records the queries of a strategy without data, so that the epsilon of any strategy is known before data are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedpriv.oracle.oracle import Answerer, Oracle, RoundContext
from fedpriv.oracle.query import Query, QueryBuilder
from fedpriv.oracle.synthetic import ZeroAnswerer
from fedpriv.privacy.record import Record
from fedpriv.privacy.schedules import Uniform
from fedpriv.privacy.settings import Privacy


class RecordingAnswerer:
    """Records what would be released, and lets another answerer answer.

    If a strategy's queries depend on answers, a real run may ask others than were recorded; the accountant then refuses
    what would pass the budget.

    Args:
        queries: Builds the queries.
        answers: Answers the queries.

    Attributes:
        records: What would be released, in order.
        evaluations: Expected number of per-example gradients in each round; the true number is as secret as batches.
        names: Names of all queries.
        queries: The queries of each round, by round.
    """

    is_aggregate = False

    def __init__(self, queries: QueryBuilder, answers: Answerer) -> None:
        self.records: list[Record] = []
        self.evaluations: list[float] = []
        self.names: set[str] = set()
        self.queries: dict[int, list[Query]] = {}
        self._builder = queries
        self._answers = answers

    def begin_round(self, context: RoundContext) -> tuple[RoundContext, Tensor | None]:
        """See `Answerer`; one client stands for all that a real run draws in secret."""
        self.evaluations += [0.0] * (context.round + 1 - len(self.evaluations))
        if self._builder.privacy.samples_clients_before_compute:
            drawn = torch.arange(1)
        else:
            drawn = None
        return context, drawn

    def gradients(self, query: Query, context: RoundContext, params: Tensor, anchor: Tensor | None) -> Tensor:
        """See `Answerer`."""
        self._note(query, context)
        return self._answers.gradients(query, context, params, anchor)

    def constraint_values(self, query: Query, context: RoundContext, params: Tensor) -> Tensor:
        """See `Answerer`."""
        self._note(query, context)
        return self._answers.constraint_values(query, context, params)

    def exact(self, query: Query, context: RoundContext, params: Tensor) -> tuple[Tensor, Tensor]:
        """See `Answerer`."""
        if context.index == 0:
            self._note(query, context)
        return self._answers.exact(query, context, params)

    def message(self, query: Query, context: RoundContext, message: Tensor) -> Tensor:
        """See `Answerer`."""
        self._note(query, context)
        return self._answers.message(query, context, message)

    def equality(self, context: RoundContext) -> Tensor:
        """See `Answerer`."""
        return self._answers.equality(context)

    def common_bound(self, bound: float | None) -> float | None:
        """See `Answerer`."""
        return self._answers.common_bound(bound)

    def noise_variances(self, context: RoundContext) -> tuple[Sequence[float], Sequence[float]]:
        """See `Answerer`."""
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
            self.records.append(self._record(query, context))

    def _record(self, query: Query, context: RoundContext) -> Record:
        privacy = self._builder.privacy
        scheme = self._builder.scheme
        answer = context.answer(query)
        if not privacy.private:
            return scheme.unprotected(answer)
        factors = [1.0] * len(context.clients)
        if privacy.unit == "sample" and not query.name.startswith("statistic:"):
            factors = self._builder.factors(query, context.cohort)
        return scheme.price(answer, factors).record

    def repeat(self, period: int, rounds: int, cohort_of: Callable[[int], Sequence[int]]) -> None:
        """Adds what the remaining rounds would release, if they repeat the queries of the first `period` rounds.

        Args:
            period: Number of rounds whose queries are recorded.
            rounds: Number of rounds of the whole run.
            cohort_of: Returns the sorted numbers of the clients that take part in a round.
        """
        plans: dict[tuple[int, tuple[int, ...]], tuple[list[Record], float]] = {}
        privacy = self._builder.privacy
        for round_index in range(period, rounds):
            cohort = cohort_of(round_index)
            key = round_index % period, tuple(cohort)
            if key in plans:
                records, evaluations = plans[key]
                self.records += [replace(record, round=round_index) for record in records]
                self.evaluations.append(evaluations)
                continue
            first = len(self.records)
            numbers = torch.as_tensor(cohort, dtype=torch.long)
            context, _ = self.begin_round(RoundContext.of(round_index, numbers, self._builder.n_clients))
            for index, query in enumerate(self.queries.get(round_index % period, ())):
                self._add_to_plan(query, replace(context, index=index))
            # only then does a round's price not depend on its index
            if privacy.schedule == Uniform() and privacy.over_time is None:
                plans[key] = self.records[first:], self.evaluations[round_index]


def recording_oracle(
    privacy: Privacy, sizes: Sequence[int], answers: Answerer | None = None
) -> Oracle[RecordingAnswerer]:
    """Returns an oracle without data, whose answerer records the queries.

    Args:
        privacy: The privacy settings, with a noise multiplier where they are private.
        sizes: Public number of examples of each client.
        answers: Answers the queries; zeros by default.
    """
    queries = QueryBuilder(privacy, sizes)
    return Oracle(queries, RecordingAnswerer(queries, answers or ZeroAnswerer()), torch.empty(0))
