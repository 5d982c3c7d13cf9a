"""The only door to the data: bounded query -> noise -> ledger -> tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from fedpriv.clients.population import Population
from fedpriv.errors import ConfigError, PrivacyError
from fedpriv.oracle.backends.base import Backend
from fedpriv.oracle.constraint_queries import ConstraintQueries
from fedpriv.oracle.draws import Draws
from fedpriv.oracle.sums import Sums, check_depth, statistics
from fedpriv.privacy.as_published import add_published_noise
from fedpriv.privacy.clipping import Clip
from fedpriv.privacy.ledger import Ledger, Release
from fedpriv.privacy.mechanisms import EVERYBODY, add_noise
from fedpriv.privacy.pricing import Pricing
from fedpriv.privacy.record import Record
from fedpriv.privacy.settings import Privacy, Sampling
from fedpriv.problems.problem import check_finite
from fedpriv.randomness.streams import Randomness


@dataclass(frozen=True)
class _Query:
    """A question.

    Attributes:
        name: Its name on record.
        clip: How each unit's contribution is bounded.
        sampling: How its examples are drawn.
        share: Its budget share beside a gradient's in the same round.
        weights: Public coefficients of each example's loss, `[examples]`; None is 1.
        whole: Whether what is asked is the mean over a client's examples rather than its objective's part of the run's.
    """

    name: str
    clip: Clip
    sampling: Sampling
    share: float = 1.0
    weights: Tensor | None = None
    whole: bool = False


class PrivateOracle:
    """Answers about the clients' data. What leaves it has been clipped, noised and written down.

    Guarantee: every tensor that a method returns (but for `at: none`, `at: message` and `published`, which the
    ledger says) is a Gaussian or Laplace mechanism whose sensitivity follows from how its sum was clipped.

    Args:
        population: The clients.
        backend: Computes clipped sums.
        privacy: The promise; `noise_multiplier` must be set (calibrated) when the run is private.
        ledger: Opens releases.
        randomness: The run's streams.
    """

    def __init__(
        self, population: Population, backend: Backend, privacy: Privacy, ledger: Ledger, randomness: Randomness
    ) -> None:
        self.privacy, self.ledger = privacy, ledger
        self._population, self._randomness = population, randomness
        self._pricing = Pricing(privacy, population.sizes.tolist())
        self._draws = Draws(population, randomness, privacy.cohort_rate)
        self._sums = Sums(backend, len(population), population.device)
        together = privacy.trust.sums_only
        added = population.counts.tolist() if together else [int(population.counts.max())]
        check_depth(added, population.chunk, len(population) if together else 1)
        self._answered = -1
        self.begin_round(0, torch.arange(len(population)))

    @property
    def n_clients(self) -> int:
        """Number of clients (public)."""
        return len(self._population)

    @property
    def weights(self) -> Tensor:
        """Weight of each client of the round, `n m_i / sum(m)` over all n clients, `[k]` (public)."""
        return self._population.weights[self._cohort].to(self._population.params)

    def begin_round(self, round_index: int, cohort: Tensor, received: Tensor | None = None) -> None:
        """Start a round: rows of queries now belong to the clients of `cohort [k]`."""
        self._round, self._index, self._cohort, self._received = round_index, 0, cohort, received
        self._clients: list[int] = cohort.tolist()
        self._draws.begin_round(round_index, cohort)

    def gradient(self, params: Tensor) -> Tensor:
        """Private gradient of each client's objective, on a fresh batch: `[k, dim] -> [k, dim]`."""
        return self._answer(self._query("gradient"), params)

    def client_gradient(self, params: Tensor) -> Tensor:
        """Private gradient of each client's own mean loss, on a fresh batch: `[k, dim] -> [k, dim]`."""
        return self._answer(replace(self._query("client_gradient"), whole=True), params)

    def full_gradient(self, params: Tensor) -> Tensor:
        """Private gradient of each client's objective on all its examples: `[k, dim] -> [k, dim]`."""
        return self._answer(self._query("full_gradient"), params)

    def gradient_difference(self, params: Tensor, anchor: Tensor, bound: float | None = None) -> Tensor:
        """Private difference of the gradients at two points, on a fresh batch: `[k, dim] -> [k, dim]`.

        Args:
            params: Where, `[k, dim]`.
            anchor: The other point, `[k, dim]`.
            bound: Norm to which each unit's difference is clipped: public, or a function of what was released. At most
                (and by default) twice the clip bound of a gradient.
        """
        widest, query = 2 * self.privacy.clip.bound, self._query("gradient_difference")
        clip = replace(query.clip, bound=widest if bound is None else min(bound, widest))
        return self._answer(replace(query, clip=clip), params, anchor)

    @property
    def equality(self) -> Tensor:
        """Which constraint values must be zero, `[k, m]` boolean (public)."""
        return self.queries.problem.equality[self._cohort]

    def exact(self, params: Tensor) -> tuple[Tensor, Tensor]:
        """Each client's share of the objective and its constraint values, exact: `[n, dim] -> [n], [n, m]`.

        Differentiable, so that local subproblems can be solved. The first answer of a round is a release, recorded as
        not private; it covers any number of further answers in that round, for epsilon is infinite then.

        Raises:
            PrivacyError: the run makes a promise.
            DataError: a value is not finite at the point received.
        """
        if self.privacy.at != "none" or len(self._cohort) < self.n_clients:
            raise PrivacyError("exact answers need at: none and every client in every round; epsilon is infinite")
        objective, constraints = self.queries.problem(params)
        if self._index == 0:
            check_finite(objective, "objective")
            check_finite(constraints, "constraint value")
            everything = torch.cat([objective.unsqueeze(1), constraints], 1).detach()
            self._open(Release(self._exact_record("exact"), everything))
        return objective, constraints

    def statistic(self, params: Tensor, name: str) -> Tensor:
        """Private statistic of each client at its row; `"constraints"`: its constraint values, `[n, dim] -> [n, m]`.

        Each example adds its loss, clipped to `[0, bound]` and centred, times public coefficients, so that its
        contribution has norm at most 1 before the public factor of the row.
        """
        if name != "constraints":
            raise ConfigError("statistic", name, "unknown: there is 'constraints'")
        if len(self._cohort) < self.n_clients:
            raise ConfigError("network.cohort", len(self._cohort), "constraints need every client in every round")
        self._check_query_points(params, None)
        query, queries = self._statistic(f"statistic:{name}"), self.queries
        if not self.privacy.private:
            return self._open(Release(self._exact_record(query.name), queries.problem(params)[1].detach()))
        bounded = statistics(self._draws.batches(query.sampling, self._index), params, queries)
        factors = queries.factors(self._sampled_factors(query.sampling))
        return queries.values(self._noised(query, bounded, factors))

    def statistic_deviation(self, round_index: int) -> Tensor:
        """Standard deviation `[n, m]` that noise and batches give constraint values in a round, at most (public).

        Every client takes part in the round.
        """
        queries = self.queries
        if not self.privacy.private:
            return torch.zeros(queries.problem.equality.shape)
        query, everyone = self._statistic("statistic:constraints"), range(self.n_clients)
        sampled = self._sampled_factors(query.sampling)
        priced = everyone, queries.factors(sampled), query.clip, query.share
        return queries.deviation(self._pricing.price(round_index, 0, query.name, *priced)[1], sampled)

    def lagrangian_gradient(self, params: Tensor, multipliers: Tensor) -> Tensor:
        """Private gradient of each client's `f_i + <multipliers_i, c_i>`: `[n, dim], [n, m] -> [n, dim]`.

        The mean over clients is the gradient of the mean objective plus the mean of the products.

        Args:
            params: Where.
            multipliers: Public: functions of what was released before.

        Each example's gradient is clipped as one vector, coefficients included.
        """
        weights = self.queries.weights.of_lagrangian(multipliers)
        return self._answer(replace(self._query("lagrangian_gradient"), weights=weights, whole=True), params)

    @cached_property
    def queries(self) -> ConstraintQueries:
        """What questions about constraints compute before noise."""
        return ConstraintQueries(self._population, self.privacy)

    def _sampled_factors(self, sampling: Sampling) -> Tensor:
        """Examples over expected examples of a batch, `[k]`."""
        return self._population.sizes[self._cohort] / self._draws.expected(sampling)

    def release_message(self, message: Tensor) -> Tensor:
        """Clip, noise and record whole messages `[k, dim]` when the boundary is `at: message`; else pass them on.

        Raises:
            BudgetExhausted: the release would overspend.
        """
        if self.privacy.boundary != "message":
            return message
        query = self._query("message")
        if not self.privacy.private:
            return self._open(self._not_private(query, message, [1.0] * len(message), message))
        return self._of_clients(query, self.privacy.clip.rows(message)[0])

    def _query(self, name: str) -> _Query:
        return _Query(name, self.privacy.clip, self._pricing.sampling_of(name))

    def _statistic(self, name: str) -> _Query:
        return replace(self._query(name), clip=self.queries.clip, share=self.queries.share)

    def _answer(self, query: _Query, params: Tensor, anchor: Tensor | None = None) -> Tensor:
        self._check_query_points(params, anchor)
        privacy, factors = self.privacy, self._factors(query)
        if privacy.private and privacy.at == "gradient" and privacy.unit == "sample":
            return self._noised(query, self._sum(query, params, anchor, query.clip), factors)
        exact = _scaled(self._sum(query, params, anchor), factors)
        if privacy.boundary == "message":
            self._index += 1
            return exact
        if privacy.private:
            return self._of_clients(query, query.clip.rows(exact)[0])
        return self._open(self._not_private(query, exact, factors, params))

    def _open(self, release: Release) -> Tensor:
        value = self.ledger.open(release).to(self._population.params.dtype)
        self._answered = self._round
        self._index += 1
        return value

    def _exact_record(self, query: str) -> Record:
        return self._pricing.exact(self._round, self._index, query, self._clients)

    def _noised(self, query: _Query, bounded: Tensor, factors: Sequence[float]) -> Tensor:
        """Release `bounded` with noise, its row i multiplied by the public `factors[i]`.

        Where only sums are seen, the noise stands on the sum and every row of the answer is the mean: whatever is made
        of the rows afterwards is made of what was released.
        """
        clients, parties = self._clients, self._pricing.parties
        at = self._round, self._index
        record, scales = self._pricing.price(*at, query.name, clients, factors, query.clip, query.share)
        if self.privacy.trust.sums_only and len(clients) < parties:
            raise PrivacyError(
                f"round {self._round} has {len(clients)} participants, fewer than min_honest = {parties}, who share "
                f"the noise (trust: {self.privacy.trust})"
            )
        rows, noise = _scaled(bounded, factors), (self.privacy.mechanism, record, self._randomness)
        if not self.privacy.trust.sums_only:
            return self._open(add_noise(rows, scales, *noise, clients))
        # the shares of all who take part, drawn as one
        total = add_noise(rows.sum(0, keepdim=True), scales[:1], *noise, [EVERYBODY], len(clients) / parties)
        return (self._open(total) / len(clients)).expand(len(clients), -1)

    def _of_clients(self, query: _Query, bounded: Tensor) -> Tensor:
        """Noise rows that are whole clients' contributions; those of clients that were not drawn count as zero."""
        rate = self.privacy.cohort_rate
        if rate < 1 and self._round <= self._answered:
            raise PrivacyError(
                f"round {self._round} was answered already: a second answer from the same secret cohort would need "
                "another price. Ask once a round"
            )
        return self._noised(query, self._draws.of_drawn(bounded), [1 / rate] * len(bounded))

    def _sum(self, query: _Query, params: Tensor, anchor: Tensor | None, clip: Clip | None = None) -> Tensor:
        """Sum over the query's examples, each clipped when `clip` is given."""
        batches = self._draws.batches(query.sampling, self._index)
        return self._sums.gradients(batches, self._cohort, params, anchor, clip, query.weights)

    def _factors(self, query: _Query) -> list[float]:
        """Public factor of each row, from a sum over the batch to what is asked."""
        population, expected = self._population, self._draws.expected(query.sampling)
        return (1 / expected if query.whole else population.weights[self._cohort] / expected).tolist()

    def _not_private(self, query: _Query, exact: Tensor, factors: Sequence[float], params: Tensor) -> Release:
        """The answer with a paper's noise, if any; not private, and recorded so."""
        record, clients = self._exact_record(query.name), self._clients
        if (published := self.privacy.published) is None:
            return Release(record, exact)

        def largest_norms() -> list[float]:
            batches = self._draws.batches(query.sampling, self._index)
            return self._sums.largest_norms(batches, params, replace(self.privacy.clip, norm="l1"))

        return add_published_noise(exact, published, record, self._randomness, clients, factors, largest_norms)

    def _check_query_points(self, params: Tensor, anchor: Tensor | None) -> None:
        wanted, published = (len(self._cohort), self._population.dim), self.privacy.published
        if params.shape != wanted or (anchor is not None and anchor.shape != wanted):
            raise ConfigError("oracle query", tuple(params.shape), f"one row for each participant: {wanted}")
        if anchor is not None and published is not None and published.scale is None:
            raise ConfigError("privacy.published", "gradient_difference", "the paper publishes no such answer")
        if self.privacy.at != "gradient" or not self.privacy.trust.sums_only:
            return
        asked_elsewhere = not self._was_received(params) or (anchor is not None and not self._was_received(anchor))
        if self._index > 0 or asked_elsewhere:
            raise PrivacyError(
                "where only sums are seen a client's own answers stay inside it with less noise, so a second answer, "
                "or one at a point that was not received, would depend on what was never released. Ask once a round, "
                "at what was received, or use trust: local"
            )

    def _was_received(self, points: Tensor) -> bool:
        """Whether the points came this round; several may come side by side, `[k, parts * dim]`."""
        received = () if self._received is None else self._received.split(points.shape[1], 1)
        return any(torch.equal(points, part) for part in received)


def _scaled(rows: Tensor, factors: Sequence[float]) -> Tensor:
    return rows * rows.new_tensor(factors).unsqueeze(1)
