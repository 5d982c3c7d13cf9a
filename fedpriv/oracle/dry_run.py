"""What a strategy asks, noted without data: the epsilon of any strategy is known before data are read."""

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
    """Notes what would be released, and leaves the answers to another answerer.

    In a real run a strategy may ask other queries if they depend on the answers; the accountant then refuses what
    would pass the limit.

    Args:
        queries: Builds the queries.
        answers: Gives the answers.

    Attributes:
        records: What would be released, in order.
        evaluations: Expected number of per-example gradients in each round; the true number is as secret as batches.
        names: Names of the queries that were asked.
        queries: Those of each round.
    """

    one_answer_for_all = False

    def __init__(self, queries: QueryBuilder, answers: Answerer) -> None:
        self.records: list[Record] = []
        self.evaluations: list[float] = []
        self.names: set[str] = set()
        self.queries: dict[int, list[Query]] = {}
        self._builder, self._answers = queries, answers

    def begin_round(self, context: RoundContext) -> tuple[RoundContext, Tensor | None]:
        """See `Answerer`; one client stands for those that will be drawn in secret."""
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
        self._list(query, context)

    def _list(self, query: Query, context: RoundContext) -> None:
        self.names.add(query.name)
        sizes = self._builder.sizes[context.cohort]
        examples = float(self._builder.expected_batch_size(query.sampling, sizes).sum())
        examples *= self._builder.privacy.cohort_rate
        self.evaluations[context.round] += examples * query.gradients_per_example
        if self._builder.is_released(query):
            self.records.append(self._record(query, context))

    def _record(self, query: Query, context: RoundContext) -> Record:
        privacy, scheme, answer = self._builder.privacy, self._builder.scheme, context.answer(query)
        if not privacy.private:
            return scheme.unprotected(answer)
        factors = [1.0] * len(context.clients)
        if privacy.unit == "sample" and not query.name.startswith("statistic:"):
            factors = self._builder.factors(query, context.cohort)
        return scheme.price(answer, factors).record

    def repeat(self, period: int, rounds: int, cohort_of: Callable[[int], Sequence[int]]) -> None:
        """List what further rounds would release, if they ask what the first ones did, again and again.

        Args:
            period: Number of rounds that have been asked.
            rounds: Number of rounds of the whole run.
            cohort_of: Who takes part in a round, sorted.
        """
        known: dict[tuple[int, tuple[int, ...]], tuple[list[Record], float]] = {}
        privacy = self._builder.privacy
        for round_index in range(period, rounds):
            cohort = cohort_of(round_index)
            key = round_index % period, tuple(cohort)
            if key in known:
                records, evaluations = known[key]
                self.records += [replace(record, round=round_index) for record in records]
                self.evaluations.append(evaluations)
                continue
            first = len(self.records)
            numbers = torch.as_tensor(cohort, dtype=torch.long)
            context, _ = self.begin_round(RoundContext.of(round_index, numbers, self._builder.n_clients))
            for index, query in enumerate(self.queries.get(round_index % period, ())):
                self._list(query, replace(context, index=index))
            if privacy.schedule == Uniform() and privacy.over_time is None:
                known[key] = self.records[first:], self.evaluations[round_index]


def recording_oracle(
    privacy: Privacy, sizes: Sequence[int], answers: Answerer | None = None
) -> Oracle[RecordingAnswerer]:
    """Returns an oracle without data, whose answerer notes the queries that it is asked.

    Args:
        privacy: The privacy settings, with a noise multiplier where they are private.
        sizes: Public number of examples of each client.
        answers: Gives the answers; zeros by default.
    """
    queries = QueryBuilder(privacy, sizes)
    return Oracle(queries, RecordingAnswerer(queries, answers or ZeroAnswerer()), torch.empty(0))
