"""Answers of rounds that a stopped run has released and then lost: zeros, without a look at the data.

What a run releases after its last checkpoint is on record, and charged, but its values died with the process. To ask
again would be a second release. So the resumed run makes these rounds with zeros for answers: the state of its strategy
counts them, and the next new release is the next one of the plan.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from fedpriv.clients.population import Population
from fedpriv.oracle.oracle import RoundContext
from fedpriv.oracle.query import Query
from fedpriv.oracle.synthetic import ZeroAnswerer


class LostAnswerer(ZeroAnswerer):
    """Answers zeros to the clients of this process, in rounds that a stopped run has released and then lost.

    Messages stay as they are: where a message is released, it depends on what was received and on the answers, which
    are zeros here, and on nothing of the data.

    Args:
        population: The clients of this process.
        is_aggregate: See `Answerer`.
    """

    def __init__(self, population: Population, *, is_aggregate: bool) -> None:
        super().__init__(population.equality.shape[1])
        self.is_aggregate = is_aggregate
        self._population = population

    def begin_round(self, context: RoundContext) -> tuple[RoundContext, Tensor | None]:
        """See `Answerer`."""
        shard = self._population.shard
        if not shard.is_whole:
            context = replace(context, positions=shard.positions(context.cohort))
        return context, None

    def message(self, query: Query, context: RoundContext, message: Tensor) -> Tensor:
        """See `Answerer`."""
        return message

    def equality(self, context: RoundContext) -> Tensor:
        """See `Answerer`."""
        return self._population.equality[self._population.shard.rows(context.cohort)]
