"""The oracle of a strategy: it builds queries, and a query engine computes their results.

Query engines are interchangeable: `DataQueryEngine` (data_query_engine.py) computes results from data, with noise and a
ledger; engines in synthetic.py return zeros, random numbers or unit impulses, and read no data; `RecordingEngine`
(dry_run.py) records the queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from fedpriv.errors import ConfigError
from fedpriv.oracle.query import Query, QueryBuilder
from fedpriv.privacy.release import Answer
from fedpriv.privacy.settings import Privacy


@dataclass(frozen=True)
class RoundContext:
    """The participants of a round, and the number of query results of the round so far.

    Attributes:
        round: Index of the round, from 0.
        cohort: Numbers of the participants, in all processes, sorted, `[m]`.
        clients: The same numbers as `cohort`.
        positions: Positions in `cohort` of the clients to which rows of queries belong, `[k]`: the participants in this
            process or, if some were drawn in secret, the drawn ones.
        received: Values received by the participants in this process, `[k, dim]`; None if unknown.
        index: Number of queries of the round so far.
    """

    round: int
    cohort: Tensor
    clients: Sequence[int]
    positions: Tensor
    received: Tensor | None = None
    index: int = 0

    @staticmethod
    def of(round_index: int, cohort: Tensor, n_clients: int, received: Tensor | None = None) -> RoundContext:
        """Returns the context of a round with all participants in this process.

        Raises:
            ConfigError: If the cohort is not sorted or contains a client twice, so rows would be mixed up.
        """
        numbers = cohort.numpy()  # for few numbers numpy is several times as fast as torch
        if not (numbers[1:] > numbers[:-1]).all():
            raise ConfigError(
                "network cohort", cohort.tolist(), "must list each client at most once, in ascending order"
            )
        clients: Sequence[int] = range(n_clients)
        if len(numbers) < n_clients or numbers[0] != 0 or numbers[-1] != n_clients - 1:
            clients = tuple(cohort.tolist())
        return RoundContext(round_index, cohort, clients, torch.arange(len(numbers)), received)

    @property
    def queried(self) -> Tensor:
        """Numbers of the clients to which the rows of queries belong, `[k]`."""
        return self.cohort[self.positions]

    def after_answer(self) -> RoundContext:
        """Returns the context after one more query has been answered."""
        # a new object, which is faster than `dataclasses.replace`
        return RoundContext(self.round, self.cohort, self.clients, self.positions, self.received, self.index + 1)

    def answer(self, query: Query, excluded: frozenset[int] = frozenset()) -> Answer:
        """Returns the identity of the next query result (round, index, clients), which fixes its cost and noise."""
        clip = query.clip
        share = query.budget_share
        return Answer(self.round, self.index, query.name, self.clients, clip, share, excluded)


class QueryEngine(Protocol):
    """Computes the results of a strategy's queries. Row i of a tensor belongs to client i of `context.positions`."""

    @property
    def is_aggregate(self) -> bool:
        """True if only a sum over all participants is released, so that all of them get the same row."""
        ...

    def begin_round(self, context: RoundContext) -> tuple[RoundContext, Tensor | None]:
        """Starts a round.

        Returns:
            The context, with the positions of this process's participants; and the positions, among these participants,
            of the clients that were drawn in secret, `[j]`, or None if no clients are drawn in secret before the
            computation. See `Oracle.begin_round`.
        """
        ...

    def gradients(self, query: Query, context: RoundContext, params: Tensor, anchor: Tensor | None) -> Tensor:
        """Returns gradients, or differences of gradients at `params` and `anchor`: `[k, dim] -> [k, dim]`."""
        ...

    def constraint_values(self, query: Query, context: RoundContext, params: Tensor) -> Tensor:
        """Returns the values of the constraints: `[k, dim] -> [k, c]`."""
        ...

    def exact(self, query: Query, context: RoundContext, params: Tensor) -> tuple[Tensor, Tensor]:
        """Returns objectives and values of the constraints: `[k, dim] -> [k], [k, c]`."""
        ...

    def message(self, query: Query, context: RoundContext, message: Tensor) -> Tensor:
        """Returns messages as they leave the clients, clipped and noised: `[k, dim] -> [k, dim]`."""
        ...

    def equality(self, context: RoundContext) -> Tensor:
        """Returns True for constraint values that must be zero, `[k, c]`; the others must not be positive."""
        ...

    def common_bound(self, bound: float | None) -> float | None:
        """Returns the clip bound for a difference of gradients, which is the largest bound of all processes; None for
        the default.
        """
        ...

    def noise_variances(self, context: RoundContext) -> tuple[Sequence[float], Sequence[float]]:
        """Returns the newest gradient's noise variance in each row, and each row's share in the mean's variance."""
        ...


A_co = TypeVar("A_co", bound=QueryEngine, covariant=True)


class Oracle(Generic[A_co]):
    """Computes the results of a strategy's queries on the clients' data; implements `fedpriv.strategies.base.Oracle`.

    Args:
        queries: Builds the queries.
        engine: Computes the results.
        like: A tensor with the type and device that weights should have.

    Attributes:
        queries: Builds the queries.
        engine: Computes the results of the queries.
        privacy: The privacy settings.
        n_clients: Number of clients of the run (public).
    """

    def __init__(self, queries: QueryBuilder, engine: A_co, like: Tensor) -> None:
        self.queries = queries
        self.engine = engine
        self._like = like
        self.privacy: Privacy = queries.privacy
        self.n_clients = queries.n_clients
        self.begin_round(0, torch.arange(self.n_clients))

    def begin_round(self, round_index: int, cohort: Tensor, received: Tensor | None = None) -> Tensor | None:
        """Starts a round: rows of queries now belong to the clients of `cohort` that are in this process.

        Args:
            round_index: The round, from 0.
            cohort: Numbers of the clients that take part, in all processes, sorted; records and privacy costs cover all
                of them.
            received: Values received by the participants in this process, `[k, dim]`.

        Returns:
            If some clients were drawn in secret to send a message, the positions of the drawn clients among this
            process's participants, `[j]`; rows of queries and messages then belong to the drawn clients. None if rows
            belong to all participants in this process.

        Raises:
            ConfigError: If the cohort is not sorted or contains a client twice.
        """
        context = RoundContext.of(round_index, cohort, self.n_clients, received)
        self._context, drawn = self.engine.begin_round(context)
        return drawn

    @property
    def is_aggregate(self) -> bool:
        """True if the oracle releases one sum over all participants instead of one row for each client."""
        return self.engine.is_aggregate

    @property
    def numbers(self) -> Tensor:
        """Number of each client of the round among all clients, `[k]`; as secret as the draw of the round's clients."""
        return self._context.queried

    @property
    def weights(self) -> Tensor:
        """Weight of each client of the round, `n m_i / sum(m)` over all n clients, `[k]` (public)."""
        return self.queries.weights(self._context.queried).to(self._like)

    @property
    def equality(self) -> Tensor:
        """True for constraint values that must be zero, `[k, c]` (public)."""
        return self.engine.equality(self._context)

    @property
    def noise_variance(self) -> Tensor:
        """Variance of the noise in each entry of the newest gradient's rows, `[k, 1]` (public).

        Raises:
            ConfigError: If messages are noised and not gradients.
        """
        self._check_gradients_are_noised()
        row_variances, _ = self.engine.noise_variances(self._context)
        return self._like.new_tensor(row_variances).unsqueeze(1)

    @property
    def noise_in_mean(self) -> Tensor:
        """Share of each row in the noise variance of the mean of all rows, `[k, 1]` (public).

        The mean of these shares is the variance of the noise in the mean.

        Raises:
            ConfigError: If messages are noised and not gradients.
        """
        self._check_gradients_are_noised()
        _, variance_shares = self.engine.noise_variances(self._context)
        return self._like.new_tensor(variance_shares).unsqueeze(1)

    def _check_gradients_are_noised(self) -> None:
        if self.privacy.private and self.privacy.noise_on == "message":
            fix = "works only with noise on gradients: leave noise_floor out, or set privacy.noise_on to 'gradient'"
            raise ConfigError("strategy.optimizer", "noise_floor", fix)

    def gradient(self, params: Tensor) -> Tensor:
        """Returns the gradient of each client's objective, on a fresh batch: `[k, dim] -> [k, dim]`."""
        return self._gradients(self.queries.gradient(), params)

    def client_gradient(self, params: Tensor) -> Tensor:
        """Returns the gradient of each client's unweighted mean loss, on a fresh batch: `[k, dim] -> [k, dim]`."""
        return self._gradients(self.queries.client_gradient(), params)

    def full_gradient(self, params: Tensor) -> Tensor:
        """Returns the gradient of each client's objective on all its examples: `[k, dim] -> [k, dim]`."""
        return self._gradients(self.queries.full_gradient(), params)

    def gradient_difference(self, params: Tensor, anchor: Tensor, bound: float | None = None) -> Tensor:
        """Returns the difference of the gradients at two points, on a fresh batch: `[k, dim] -> [k, dim]`.

        Args:
            params: First point, `[k, dim]`.
            anchor: The other point, `[k, dim]`.
            bound: Norm to which each privacy unit's difference is clipped, public or computed from released values. By
                default, and at most, twice the clip bound of a gradient.
        """
        query = self.queries.gradient_difference(self.engine.common_bound(bound))
        return self._gradients(query, params, anchor)

    def lagrangian_gradient(self, params: Tensor, multipliers: Tensor) -> Tensor:
        """Returns the gradient of each client's `f_i + <multipliers_i, c_i>`: `[n, dim], [n, c] -> [n, dim]`.

        Each example's gradient is clipped after it is multiplied by the coefficients of objective and constraints.

        Args:
            params: One point for each client.
            multipliers: Public, or computed from values released before.
        """
        return self._gradients(self.queries.lagrangian_gradient(multipliers), params)

    def _gradients(self, query: Query, params: Tensor, anchor: Tensor | None = None) -> Tensor:
        answer = self.engine.gradients(query, self._context, params, anchor)
        self._count_answer()
        return answer

    def statistic(self, params: Tensor, name: str) -> Tensor:
        """Returns a statistic of each client at its row; `"constraints"`: its constraint values, `[n, dim] -> [n, c]`.

        Each example contributes its loss, clipped to `[0, bound]` and centred, times public coefficients. This is a
        vector of norm at most 1, before the row is multiplied by a public factor.

        Raises:
            ConfigError: If there is no statistic with this name.
        """
        if name != "constraints":
            raise ConfigError("statistic", name, "is unknown: use 'constraints'")
        self._check_everyone()
        values = self.engine.constraint_values(self.queries.constraint_values(), self._context, params)
        self._count_answer()
        return values

    def exact(self, params: Tensor) -> tuple[Tensor, Tensor]:
        """Returns each client's share of the objective and its constraint values: `[n, dim] -> [n], [n, c]`.

        The values have no noise and are differentiable, so that clients can solve subproblems. The first result in a
        round is recorded as not private. Later results of the round are not recorded, because epsilon is already
        infinite.

        Raises:
            ConfigError: If the run is private.
            DataError: If a value is not finite at the point received.
        """
        query = self.queries.exact()
        self._check_everyone()
        values = self.engine.exact(query, self._context, params)
        if self._context.index == 0:
            self._count_answer()
        return values

    def release_message(self, message: Tensor) -> Tensor:
        """Returns messages `[k, dim]` clipped, noised and recorded with `noise_on: message`; otherwise unchanged.

        Raises:
            BudgetExhausted: If the release would exceed the target epsilon.
        """
        if self.privacy.boundary != "message":
            return message
        released = self.engine.message(self.queries.message(), self._context, message)
        self._count_answer()
        return released

    def _count_answer(self) -> None:
        self._context = self._context.after_answer()

    def _check_everyone(self) -> None:
        if len(self._context.cohort) < self.n_clients:
            count = len(self._context.cohort)
            raise ConfigError(
                "network.cohort", count, "constraints need every client in every round: leave network.cohort out"
            )
