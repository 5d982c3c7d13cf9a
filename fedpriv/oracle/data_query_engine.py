"""The only code that computes query results from data: bounded query -> planned release -> noise -> ledger -> tensor.

The computation depends on which values leave a client (gradients or messages), as the setting `noise_on` defines.
`data_oracle` chooses one of these classes:

1. `GradientRowsEngine` (`noise_on: gradient`): the sum of clipped examples, or the clipped gradient, of each client is
   released.
2. `GradientSumEngine` (`noise_on: gradient`): the same, but only the sum over clients is released.
3. `MessageEngine` (`noise_on: message`): gradients stay with the client; its message is clipped and released.
4. `UnprotectedEngine` (`noise_on: none`, or noise as published in a paper): results are recorded as not private.

Each query result is matched to its planned release (fedpriv/oracle/releases.py), clipped by that release's clip, and
noised. The release scheme (fedpriv/privacy/release) adds the noise to each row (for pairwise noise, with terms that
cancel between pairs of clients), or to one sum.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedpriv.clients.population import Population
from fedpriv.errors import ConfigError, PrivacyError
from fedpriv.oracle.clipped_sums import ClippedSums, check_depth, row_slices, scale_rows
from fedpriv.oracle.constraints import ConstraintSums
from fedpriv.oracle.exact import ProblemValues
from fedpriv.oracle.oracle import Oracle, RoundContext
from fedpriv.oracle.query import Query, QueryBuilder
from fedpriv.oracle.releases import Releases
from fedpriv.oracle.sampler import BatchSampler
from fedpriv.privacy.clipping import Clip
from fedpriv.privacy.ledger import FollowerLedger, Ledger, Release
from fedpriv.privacy.mechanisms import add_noise
from fedpriv.privacy.noise_history import NoiseHistory
from fedpriv.privacy.pairwise import variance_inflation
from fedpriv.privacy.release import NoiseStreams, PlannedRelease
from fedpriv.privacy.release.table import ReleaseTable
from fedpriv.privacy.settings import Cyclic, Privacy, Sampling
from fedpriv.randomness.streams import PairSecrets, Randomness
from fedpriv.settings.checks import check_finite

_MAX_ENTRIES = 2**23
"""Largest number of entries of clients' rows that are held at once if only their sum is released."""


def sum_rows(rows: Tensor) -> Tensor:
    """Returns the sum of rows, `[k, dim] -> [1, dim]`, if all rows are in this process."""
    return rows.sum(0, keepdim=True)


class DataQueryEngine(ABC):
    """Computes query results from the clients' data: clips, adds noise and writes the ledger.

    Guarantee: every tensor that a method returns is the output of a Gaussian or Laplace mechanism, with the sensitivity
    that results from clipping the contributions to its sum. Exceptions are `noise_on: none` and `published`, which the
    ledger records as not private, and gradients with `noise_on: message`, where only messages are noised.

    Args:
        population: The clients: all, or those in this process.
        sums: Computes sums over individually clipped examples.
        queries: Builds the queries; a private run needs a `noise_multiplier`.
        ledger: Records each release before its value is handed out.
        randomness: The run's random streams.
        sum_clients: Adds up the rows of all processes, `[k, dim] -> [1, dim]`, like `network.total`, for sums over all
            clients and for public facts. By default all rows are in this process.
        max_clients: Returns the largest of the numbers of all processes. It is needed because a process without
            participants cannot compute a bound from the values that its clients received.
        pair_secrets: Secrets that the only client of this process has agreed on with the other clients; None if one
            process draws the noise of all pairs.
        table: The planned releases; without them, the privacy cost of each query is computed when it is made.

    Attributes:
        ledger: Records each release.
        excluded: Participants of the round that have signed that they do not reply. The noise of their pairs is
            omitted, and the privacy cost of the other clients' independent noise is recomputed. Only with
            `pair_secrets`.
    """

    def __init__(
        self,
        population: Population,
        sums: ClippedSums,
        queries: QueryBuilder,
        ledger: Ledger | FollowerLedger,
        randomness: Randomness,
        sum_clients: Callable[[Tensor], Tensor] = sum_rows,
        max_clients: Callable[[float], float] = float,
        pair_secrets: PairSecrets | None = None,
        table: ReleaseTable | None = None,
    ) -> None:
        privacy = queries.privacy
        if pair_secrets is not None and privacy.over_time is not None:
            fix = (
                "noise that pairs of sites share is drawn anew in every round, so it cannot be correlated over "
                "rounds: use independent noise"
            )
            raise ConfigError("privacy.noise", "correlated noise or cyclic batches", fix)
        if privacy.over_time is None:
            history = None
        else:
            history = NoiseHistory(privacy.over_time.factor)
        self.ledger = ledger
        self.excluded: frozenset[int] = frozenset()
        self._population = population
        self._shard = population.shard
        self._sums = sums
        self._sum_clients = sum_clients
        self._max_clients = max_clients
        self._queries = queries
        self._privacy = privacy
        self._scheme = queries.scheme.with_noise_from(NoiseStreams(randomness, history, pair_secrets))
        self._randomness = randomness
        self._sampler = BatchSampler(population, randomness, privacy.cohort_rate, privacy.cohort_rounds)
        self._constraints: ConstraintSums | None = None
        self._releases = Releases(queries, table)
        self._newest: tuple[PlannedRelease, Sequence[float]] | None = None  # newest release, and rows' factors
        check_depth(self._rows_per_client(), population.chunk)

    def _rows_per_client(self) -> list[int]:
        """Returns the number of clipped rows that each client adds to one sum."""
        if self._privacy.unit == "client":
            return [1] * self._shard.n_clients
        if not self._privacy.trust.sums_only:
            return [max(self._population.counts.tolist(), default=0)]
        sizes = torch.tensor(np.asarray(self._shard.all_sizes, dtype=np.int64))
        return sizes.index_copy(0, self._shard.ids, self._population.counts).tolist()

    # --- the round

    def begin_round(self, context: RoundContext) -> tuple[RoundContext, Tensor | None]:
        """See `QueryEngine`; draws the clients that compute in this round, if they are drawn in secret."""
        if not self._shard.is_whole:
            context = replace(context, positions=self._shard.positions(context.cohort))
        self._drawn_positions = self._sampler.begin_round(context.round, context.cohort)
        self._n_rows = context.positions.shape[0]  # of all participants: the number of drawn ones is secret
        return context, None

    @property
    def is_aggregate(self) -> bool:
        """See `QueryEngine`."""
        return False

    def equality(self, context: RoundContext) -> Tensor:
        """See `QueryEngine`."""
        return self._population.equality[self._shard.rows(context.cohort)]

    def common_bound(self, bound: float | None) -> float | None:
        """See `QueryEngine`."""
        if bound is None:
            return None
        return self._max_clients(bound)

    # --- query results

    @abstractmethod
    def gradients(self, query: Query, context: RoundContext, params: Tensor, anchor: Tensor | None) -> Tensor:
        """See `QueryEngine`."""

    def _sum(
        self,
        query: Query,
        context: RoundContext,
        params: Tensor,
        anchor: Tensor | None,
        clip: Clip | None = None,
        which: slice = slice(None),
    ) -> Tensor:
        """Returns sums over the query's examples, each clipped if `clip` is given, for `which` of the drawn clients."""
        batches = self._sampler.views(query.sampling, context.index, which)
        if query.multipliers is None:
            weights = None
        else:
            weights = self.constraints.gradient_factors(query.multipliers)
        return self._sums.gradients(batches, self._sampler.rows[which], params, anchor, clip, weights)

    def constraint_values(self, query: Query, context: RoundContext, params: Tensor) -> Tensor:
        """See `QueryEngine`."""
        self._check_points(context, params, None)
        planned = self._releases.release(query, context, self.excluded)
        sampled = self._sampled_factors(query.sampling, context.cohort)
        bounded = self.constraints.bounded_losses(self._sampler.batches(query.sampling, context.index), params)
        released = self._release_scaled(planned, context, bounded, self.constraints.factors(sampled))
        return self.constraints.values(released)

    def message(self, query: Query, context: RoundContext, message: Tensor) -> Tensor:
        """See `QueryEngine`."""
        raise PrivacyError(
            f"privacy.noise_on is {self._privacy.noise_on!r}, so messages are not released; set it to 'message'"
        )

    def exact(self, query: Query, context: RoundContext, params: Tensor) -> tuple[Tensor, Tensor]:
        """See `QueryEngine`."""
        raise PrivacyError(
            f"privacy.noise_on is {self._privacy.noise_on!r}, but exact query results are not private; set it to 'none'"
        )

    @cached_property
    def problem(self) -> ProblemValues:
        """Exact objectives and constraints, without noise, for runs that are not private."""
        return ProblemValues(self._population)

    def prepare(self, queries: Collection[str]) -> None:
        """Computes what these queries need from all processes, so that each process can later compute results alone."""
        if self._privacy.private and "statistic:constraints" in queries:
            _ = self.constraints

    @property
    def constraints(self) -> ConstraintSums:
        """Sums for queries about constraints, before noise."""
        # not a cached_property: its lock would block other processes' `sum_clients`
        if self._constraints is None:
            self._constraints = ConstraintSums(self._population, self._privacy, self._sum_clients)
        return self._constraints

    def statistic_deviation(self, round_index: int) -> Tensor:
        """Returns a bound on the standard deviation of constraint values due to noise and random batches (public).

        Returns:
            `[n_clients, c]`, for all clients, in a round in which every client takes part.
        """
        n_clients = self._queries.n_clients
        if not self._privacy.private:
            return torch.zeros(n_clients, self._population.equality.shape[1])
        query = self._queries.constraint_values()
        context = RoundContext.of(round_index, torch.arange(n_clients), n_clients)
        sampled = self._sampled_factors(query.sampling, context.cohort)
        factors = self.constraints.factors(sampled)
        planned = self._scheme.price(context.answer(query), factors)
        row_scales = list(self._scheme.noise_scales(planned, factors))
        if self._scheme.sums_only:
            row_scales = row_scales * n_clients
        inflations = variance_inflation(planned.record.pairs, n_clients)
        scales = [scale * inflation for scale, inflation in zip(row_scales, inflations, strict=True)]
        return self.constraints.deviation(scales, sampled)

    def _sampled_factors(self, sampling: Sampling, cohort: Tensor) -> Tensor:
        """Returns each participant's number of examples divided by its expected batch size."""
        sizes = self._queries.sizes[cohort]
        return sizes / self._queries.expected_batch_size(sampling, sizes)

    # --- releases

    def _release_scaled(
        self, planned: PlannedRelease, context: RoundContext, rows: Tensor, factors: Sequence[float]
    ) -> Tensor:
        """Releases each row times its client's public factor; `factors` contains the factors of all participants."""
        rows = scale_rows(rows, [factors[position] for position in context.positions.tolist()])
        return self._release(planned, context, rows, factors)

    def _release(
        self, planned: PlannedRelease, context: RoundContext, rows: Tensor, factors: Sequence[float]
    ) -> Tensor:
        """Releases bounded rows of participants, or their sum.

        Args:
            planned: The planned release.
            context: The round.
            rows: Rows of the participants in this process, `[j, dim]`, with sensitivity `factors` times the clip bound.
            factors: Public factors of all participants; for a sum, the factors of its terms.

        Returns:
            The noised rows; for a sum, the mean over all participants, drawn or not, in every row.
        """
        self._newest = planned, factors
        self._check_turn(planned)
        if not self._scheme.sums_only:
            return self._open(self._scheme.add_noise(planned, rows, factors, context.positions.tolist()))
        total = self._open(self._scheme.add_noise(planned, self._sum_clients(rows), factors, []))
        return (total / len(context.clients)).expand(self._n_rows, -1)

    def _check_turn(self, planned: PlannedRelease) -> None:
        """Raises an error if a batch is from another block of examples than the one for which the cost was computed."""
        time = planned.record.time
        sampling = self._privacy.sampling
        if time is None or self._privacy.unit != "sample" or not isinstance(sampling, Cyclic):
            return
        block = self._sampler.block(sampling)
        if block != time.block:
            raise PrivacyError(
                f"round {planned.record.round} uses the examples of block {block}, but it is the turn of block "
                f"{time.block}"
            )

    def _open(self, release: Release) -> Tensor:
        """Records a release in the ledger and returns its value."""
        return self.ledger.open(release).to(self._population.params.dtype)

    def noise_variances(self, context: RoundContext) -> tuple[Sequence[float], Sequence[float]]:
        """See `QueryEngine`."""
        if self._newest is None:
            exact = [0.0] * len(context.positions)
            return exact, exact
        if self._scheme.sums_only:
            positions = range(self._n_rows)
        else:
            positions = context.positions.tolist()
        return self._scheme.noise_variances(*self._newest, positions)

    def _check_points(self, context: RoundContext, params: Tensor, anchor: Tensor | None) -> None:
        """Raises an error unless points have one row for each participant."""
        expected = context.positions.shape[0], self._population.dim
        if params.shape[0] == 1 and self.is_aggregate:  # one point for all participants
            expected = 1, self._population.dim
        if params.shape != expected or (anchor is not None and anchor.shape != expected):
            raise ConfigError(
                "oracle query",
                tuple(params.shape),
                f"the queried points must have one row for each participant, shape {expected}",
            )


class GradientRowsEngine(DataQueryEngine):
    """Releases each client's gradient (`noise_on: gradient`)."""

    def gradients(self, query: Query, context: RoundContext, params: Tensor, anchor: Tensor | None) -> Tensor:
        """See `QueryEngine`."""
        self._check_points(context, params, anchor)
        planned = self._releases.release(query, context, self.excluded)
        if self._privacy.unit == "sample":
            rows = self._sum(query, context, params, anchor, planned.clip)
            return self._release_scaled(planned, context, rows, self._queries.factors(query, context.cohort))
        rows = self._sum(query, context, params, anchor)
        clipped = planned.clip.rows(scale_rows(rows, self._queries.factors(query, context.queried)))[0]
        return self._release(planned, context, clipped, [1.0] * len(context.clients))


class GradientSumEngine(DataQueryEngine):
    """Releases only the sum of gradients over clients (`noise_on: gradient`). The cohort may be secret."""

    @property
    def is_aggregate(self) -> bool:
        """See `QueryEngine`."""
        return True

    def gradients(self, query: Query, context: RoundContext, params: Tensor, anchor: Tensor | None) -> Tensor:
        """See `QueryEngine`; the sum of the clients' contributions is computed for some clients at a time."""
        self._check_points(context, params, anchor)
        planned = self._releases.release(query, context)
        self._n_rows = len(params)
        rate = self._privacy.cohort_rate
        is_client = self._privacy.unit == "client"
        working = context.positions
        if self._drawn_positions is not None:
            working = working[self._drawn_positions]
        factors = self._queries.factors(query, context.cohort)
        total = torch.zeros(1, params.shape[1], dtype=torch.float64, device=params.device)
        height = max(_MAX_ENTRIES // max(params.shape[1], 1), 1)
        for first in range(0, len(working), height):
            which = slice(first, first + height)
            points = row_slices(params, self._drawn_positions, len(working), which)
            if anchor is None:
                anchors = None
            else:
                anchors = row_slices(anchor, self._drawn_positions, len(working), which)
            rows = self._sum(query, context, points, anchors, None if is_client else planned.clip, which)
            rows = scale_rows(rows, [factors[position] for position in working[which].tolist()])
            if is_client:
                # the sum over a secret cohort, divided by its rate, estimates the sum over all participants
                rows = planned.clip.rows(rows)[0] * (1 / rate)
            total += rows.sum(0, keepdim=True)
        if is_client:
            factors = [1 / rate]
        return self._release(planned, context, total, factors)

    def _check_points(self, context: RoundContext, params: Tensor, anchor: Tensor | None) -> None:
        super()._check_points(context, params, anchor)
        was_received = _is_received(params, context) and (anchor is None or _is_received(anchor, context))
        if context.index > 0 or not was_received:
            raise PrivacyError(
                "under this trust, only sums over clients are released. A second query in a round, or a query at a "
                "point that was not received from the server, would depend on a client's own query results, which "
                "are never released. Make one query per round, at the received point, or use local trust"
            )


class MessageEngine(DataQueryEngine):
    """Releases messages (`noise_on: message`), while gradients stay with the clients. The clients that compute may be
    drawn in secret from a cohort.
    """

    _answered_round = -1

    def begin_round(self, context: RoundContext) -> tuple[RoundContext, Tensor | None]:
        """See `QueryEngine`; rows of queries belong to the drawn clients."""
        context, _ = super().begin_round(context)
        if self._drawn_positions is None:
            return context, None
        return replace(context, positions=context.positions[self._drawn_positions]), self._drawn_positions

    def gradients(self, query: Query, context: RoundContext, params: Tensor, anchor: Tensor | None) -> Tensor:
        """See `QueryEngine`; without clipping and noise, for use by the clients themselves."""
        self._check_points(context, params, anchor)
        return scale_rows(self._sum(query, context, params, anchor), self._queries.factors(query, context.queried))

    def message(self, query: Query, context: RoundContext, message: Tensor) -> Tensor:
        """See `QueryEngine`."""
        rate = self._privacy.cohort_rate
        if rate < 1 and context.round <= self._answered_round:
            raise PrivacyError(
                f"round {context.round} already has a query result: the planned epsilon does not cover a second "
                "one from the same secret cohort. Make one query per round"
            )
        planned = self._releases.release(query, context, self.excluded)
        clipped = planned.clip.rows(message)[0]
        if self._scheme.sums_only:
            released = self._release(planned, context, clipped * (1 / rate), [1 / rate])
        else:
            released = self._release(planned, context, clipped, [1.0] * len(context.clients))
        self._answered_round = context.round
        return released


class UnprotectedEngine(DataQueryEngine):
    """Returns exact results, or results with noise as published in a paper. Neither is private."""

    def gradients(self, query: Query, context: RoundContext, params: Tensor, anchor: Tensor | None) -> Tensor:
        """See `QueryEngine`."""
        self._check_points(context, params, anchor)
        factors = self._queries.factors(query, context.queried)
        rows = scale_rows(self._sum(query, context, params, anchor), factors)
        if not self._queries.is_released(query):
            return rows
        return self._release_unprotected(query, context, rows, factors, params)

    def constraint_values(self, query: Query, context: RoundContext, params: Tensor) -> Tensor:
        """See `QueryEngine`."""
        self._check_points(context, params, None)
        record = self._releases.release(query, context).record
        return self._open(Release(record, self.problem(params)[1].detach()))

    def message(self, query: Query, context: RoundContext, message: Tensor) -> Tensor:
        """See `QueryEngine`."""
        return self._release_unprotected(query, context, message, [1.0] * len(context.positions), message)

    def exact(self, query: Query, context: RoundContext, params: Tensor) -> tuple[Tensor, Tensor]:
        """See `QueryEngine`."""
        objective, constraints = self.problem(params)
        if context.index == 0:
            check_finite(objective, "objective")
            check_finite(constraints, "constraint value")
            everything = torch.cat([objective.unsqueeze(1), constraints], 1).detach()
            self._open(Release(self._releases.release(query, context).record, everything))
        return objective, constraints

    def _release_unprotected(
        self, query: Query, context: RoundContext, rows: Tensor, factors: Sequence[float], params: Tensor
    ) -> Tensor:
        """Releases exact rows, or rows with noise as published in a paper; recorded as not private."""
        record = self._releases.release(query, context).record
        noise = self._privacy.published
        if noise is None:
            return self._open(Release(record, rows))

        def largest_norms() -> list[float]:
            batches = self._sampler.views(query.sampling, context.index)
            return self._sums.largest_norms(batches, params, replace(self._privacy.clip, norm="l1"))

        scales = noise.scales(record, factors, largest_norms)
        if scales is None:
            return self._open(Release(record, rows))
        clients = [context.clients[position] for position in context.positions.tolist()]
        return self._open(add_noise(rows, scales, noise.noise_mechanism, record, self._randomness, clients))


def _is_received(points: Tensor, context: RoundContext) -> bool:
    """Returns True if the points are the model that the clients received this round, or one of several models."""
    if context.received is None:
        return False
    for received in context.received.split(points.shape[1], 1):
        if len(points) == 1 and received.stride(0) == 0:
            received = received[:1]
        # memory that is the same needs no comparison, for which the processor would wait
        if points.is_set_to(received) or torch.equal(points, received):
            return True
    return False


def data_oracle(
    population: Population,
    sums: ClippedSums,
    privacy: Privacy,
    ledger: Ledger | FollowerLedger,
    randomness: Randomness,
    sum_clients: Callable[[Tensor], Tensor] = sum_rows,
    max_clients: Callable[[float], float] = float,
    pair_secrets: PairSecrets | None = None,
    table: ReleaseTable | None = None,
) -> Oracle[DataQueryEngine]:
    """Returns the oracle of a run; see `DataQueryEngine` for the arguments, except for the privacy settings."""
    queries = QueryBuilder(privacy, population.shard.all_sizes)
    boundary: type[DataQueryEngine]
    if not privacy.private:
        boundary = UnprotectedEngine
    elif privacy.noise_on == "message":
        boundary = MessageEngine
    elif queries.scheme.sums_only:
        boundary = GradientSumEngine
    else:
        boundary = GradientRowsEngine
    engine = boundary(population, sums, queries, ledger, randomness, sum_clients, max_clients, pair_secrets, table)
    return Oracle(queries, engine, population.params)
