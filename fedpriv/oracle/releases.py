"""Finds the release of a query result in the plan of its run, or computes its privacy cost if there is no plan."""

from __future__ import annotations

from fedpriv.oracle.oracle import RoundContext
from fedpriv.oracle.query import Query, QueryBuilder
from fedpriv.privacy.accounting.plan_filter import UnplannedRelease
from fedpriv.privacy.release import PlannedRelease
from fedpriv.privacy.release.table import ReleaseTable


class Releases:
    """The releases that an oracle may make.

    Args:
        queries: Builds the queries; its `scheme` computes privacy costs.
        table: The planned releases. None for an oracle without a plan, which computes the privacy cost of each query
            when it is made. A run without privacy also has no plan, since its queries may depend on exact results.
    """

    def __init__(self, queries: QueryBuilder, table: ReleaseTable | None = None) -> None:
        self._queries = queries
        self._table = None
        if queries.privacy.private:
            self._table = table

    def release(self, query: Query, context: RoundContext, excluded: frozenset[int] = frozenset()) -> PlannedRelease:
        """Returns the release of the next query result of a round. This only looks it up; the ledger admits it.

        Args:
            query: The query.
            context: The round, before the query.
            excluded: Participants that do not reply; the privacy cost of the other participants' noise is then
                recomputed.

        Raises:
            UnplannedRelease: If the plan has no such release for these clients, or only one with a smaller clip bound.
        """
        if self._table is None or excluded:
            return self.priced(query, context, excluded)
        planned = self._table.find(context.round, query.name, context.index)
        bound = query.clip.bound
        if planned is None or planned.clients != context.clients or planned.clip.bound < bound:
            raise UnplannedRelease(
                f"round {context.round}, {query.name}: the plan has no such query with this privacy cost, so "
                "nothing was released. A strategy's queries must not depend on query results"
            )
        if bound < planned.clip.bound:
            return planned.within(query.clip)
        return planned

    def priced(self, query: Query, context: RoundContext, excluded: frozenset[int] = frozenset()) -> PlannedRelease:
        """Returns the release of the next query result of a round, with its privacy cost."""
        answer = context.answer(query, excluded)
        if not self._queries.privacy.private:
            return self._queries.scheme.unprotected(answer)
        return self._queries.scheme.price(answer, self._queries.planned_factors(query, context.cohort))
