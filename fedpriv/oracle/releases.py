"""Finds the release that an answer is: in the plan of its run, or by its price where there is no plan."""

from __future__ import annotations

from fedpriv.oracle.oracle import RoundContext
from fedpriv.oracle.query import Query, QueryBuilder
from fedpriv.privacy.accounting.plan_filter import UnplannedRelease
from fedpriv.privacy.release import PlannedRelease
from fedpriv.privacy.release.table import ReleaseTable


class Releases:
    """The releases that an oracle may make.

    Args:
        queries: Builds the queries; has the scheme that prices answers.
        table: The planned releases. None for an oracle without a plan, which prices each answer when it is asked for;
            so does a run without privacy, since queries may depend on exact answers.
    """

    def __init__(self, queries: QueryBuilder, table: ReleaseTable | None = None) -> None:
        self._queries = queries
        self._table = None
        if queries.privacy.private:
            self._table = table

    def release(self, query: Query, context: RoundContext, excluded: frozenset[int] = frozenset()) -> PlannedRelease:
        """Returns the release that the next answer of a round is. A lookup, which admits nothing: the ledger does.

        Args:
            query: The query.
            context: The round, before the answer.
            excluded: Participants that do not answer; then the noise of the others is priced again.

        Raises:
            UnplannedRelease: the plan has no such answer of these clients, or only one with a smaller clip bound.
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
        """Returns the release that the next answer of a round is, with its price."""
        answer = context.answer(query, excluded)
        if not self._queries.privacy.private:
            return self._queries.scheme.unprotected(answer)
        return self._queries.scheme.price(answer, self._queries.planned_factors(query, context.cohort))
