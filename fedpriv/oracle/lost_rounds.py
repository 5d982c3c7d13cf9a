"""Results for rounds that a stopped run has released and then lost: zeros, computed without access to the data.

Releases after a run's last checkpoint are recorded and charged, but their values are lost with the process. A repeated
query would be a second release with its own privacy cost. The resumed run therefore computes these rounds with zeros as
query results, so the strategy counts the rounds, and the next release is the next one of the plan.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from fedpriv.clients.population import Population
from fedpriv.oracle.oracle import RoundContext
from fedpriv.oracle.query import Query
from fedpriv.oracle.synthetic import ZeroEngine


class LostRoundsEngine(ZeroEngine):
    """Returns zeros to the clients of this process, in rounds that a stopped run has released and then lost.

    Messages are unchanged: a released message depends on what was received and on the query results, which are zeros
    here, and does not depend on the data.

    Args:
        population: The clients of this process.
        is_aggregate: See `QueryEngine`.
    """

    def __init__(self, population: Population, *, is_aggregate: bool) -> None:
        super().__init__(population.equality.shape[1])
        self.is_aggregate = is_aggregate
        self._population = population

    def begin_round(self, context: RoundContext) -> tuple[RoundContext, Tensor | None]:
        """See `QueryEngine`."""
        shard = self._population.shard
        if not shard.is_whole:
            context = replace(context, positions=shard.positions(context.cohort))
        return context, None

    def message(self, query: Query, context: RoundContext, message: Tensor) -> Tensor:
        """See `QueryEngine`."""
        return message

    def equality(self, context: RoundContext) -> Tensor:
        """See `QueryEngine`."""
        return self._population.equality[self._population.shard.rows(context.cohort)]
