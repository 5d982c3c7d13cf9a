"""The only door to the data: bounded query -> noise -> ledger -> tensor."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from fedpriv.backends.base import Backend
from fedpriv.batch import Batch
from fedpriv.constraint_queries import ConstraintQueries
from fedpriv.errors import ConfigError, PrivacyError
from fedpriv.population import Population
from fedpriv.privacy.clipping import Clip
from fedpriv.privacy.ledger import Ledger, Record, Release
from fedpriv.privacy.mechanisms import Gaussian, Laplace, add_noise
from fedpriv.privacy.pricing import Pricing
from fedpriv.privacy.randomness import Randomness
from fedpriv.privacy.settings import FixedSize, FullBatch, Poisson, Privacy, Published, Sampling
from fedpriv.problem import check_finite


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
        self,
        population: Population,
        backend: Backend,
        privacy: Privacy,
        ledger: Ledger,
        randomness: Randomness,
    ) -> None:
        self.privacy, self.ledger = privacy, ledger
        self._population, self._backend, self._randomness = population, backend, randomness
        self._pricing = Pricing(privacy, population.sizes.tolist())
        # a diagnostic on private data: it stays with whoever holds the clients and is never written or sent
        self._broken_examples = torch.zeros(len(population), dtype=torch.long, device=population.device)
        self._answered = (-1, 0)
        self.begin_round(0, torch.arange(len(population)))

    @property
    def n_clients(self) -> int:
        """Number of clients (public)."""
        return len(self._population)

    def begin_round(self, round_index: int, cohort: Tensor, received: Tensor | None = None) -> None:
        """Start a round: rows of queries now belong to the clients of `cohort [k]`."""
        self._round, self._index, self._cohort, self._received = round_index, 0, cohort, received
        self._drawn = self._draw_cohort()

    def gradient(self, params: Tensor) -> Tensor:
        """Private gradient of each client's objective, on a fresh batch: `[k, dim] -> [k, dim]`."""
        return self._answer(self._query("gradient"), params)

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
        clip = self.privacy.clip
        widest = 2 * clip.bound
        query = self._query("gradient_difference")
        query = replace(query, clip=replace(clip, bound=widest if bound is None else min(bound, widest)))
        return self._answer(query, params, anchor)

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
            self._open(Release(self._pricing.exact(self._round, self._index, "exact", self._clients()), everything))
            self._index += 1
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
            record = self._pricing.exact(self._round, self._index, query.name, self._clients())
            values = self._open(Release(record, queries.problem(params)[1].detach()))
        else:
            bounded = params.new_zeros(len(params), queries.n_sums)
            for batch in self._batches(query.sampling):
                bounded.index_add_(0, batch.rows, queries.bounded_sum(_rows(params, batch), batch))
            release = self._noised(query, bounded, queries.factors(self._sampled_factors(query.sampling)))
            values = queries.values(self._open(release))
        self._index += 1
        return values

    def statistic_deviation(self, round_index: int) -> Tensor:
        """Standard deviation `[n, m]` that noise gives constraint values in a round (public); zero without noise.

        Every client takes part in the round.
        """
        queries = self.queries
        if not self.privacy.private:
            return torch.zeros(queries.problem.equality.shape)
        query, everyone = self._statistic("statistic:constraints"), range(self.n_clients)
        factors = queries.factors(self._sampled_factors(query.sampling))
        _, scales = self._pricing.price(round_index, 0, query.name, everyone, factors, query.clip, query.share)
        return queries.deviation(scales)

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
        return self._population.sizes[self._cohort] / self._expected(sampling)

    def release_message(self, message: Tensor) -> Tensor:
        """Clip, noise and record whole messages `[k, dim]` when the boundary is `at: message`; else pass them on.

        Raises:
            BudgetExhausted: the release would overspend.
        """
        published = self.privacy.published
        if published is not None and published.at == "message":
            record = self._pricing.exact(self._round, self._index, "message", self._clients())
            return self._open(self._as_published(published, message, record))
        if self.privacy.at != "message" or published is not None:
            return message
        bounded, _ = self.privacy.clip.rows(message)
        return self._open(self._of_clients(self._query("message"), bounded))

    def _query(self, name: str) -> _Query:
        return _Query(name, self.privacy.clip, self._pricing.sampling_of(name))

    def _statistic(self, name: str) -> _Query:
        return replace(self._query(name), clip=self.queries.clip, share=self.queries.share)

    def _answer(self, query: _Query, params: Tensor, anchor: Tensor | None = None) -> Tensor:
        self._check_query_points(params, anchor)
        factors = self._factors(query)
        if (published := self.privacy.published) is not None:
            if published.at == "message":
                self._index += 1
                return _scaled(self._sum(query, params, anchor), factors)
            release = self._published(query, params, anchor)
        elif self.privacy.at != "gradient":
            exact = _scaled(self._sum(query, params, anchor), factors)
            if self.privacy.at == "message":
                self._index += 1
                return exact
            release = Release(self._pricing.exact(self._round, self._index, query.name, self._clients()), exact)
        elif self.privacy.unit == "client":
            exact = _scaled(self._sum(query, params, anchor), factors)
            release = self._of_clients(query, query.clip.rows(exact)[0])
        else:
            release = self._noised(query, self._sum(query, params, anchor, query.clip), factors)
        value = self._open(release)
        self._index += 1
        return value

    def _open(self, release: Release) -> Tensor:
        value = self.ledger.open(release)
        self._answered = (self._round, self._index)
        return value

    def _noised(self, query: _Query, bounded: Tensor, factors: Sequence[float]) -> Release:
        """Noise `bounded` and multiply row i by the public `factors[i]`."""
        if (self._round, self._index) <= self._answered:
            raise PrivacyError(
                f"round {self._round} was answered already, and its noise may not serve another answer: their "
                "difference would have none. Go on with the next round, or start a run with another seed"
            )
        clients = self._clients()
        record, scales = self._pricing.price(
            self._round, self._index, query.name, clients, factors, query.clip, query.share
        )
        parties = self._pricing.parties
        if self.privacy.trust.sums_only and len(clients) < parties:
            raise PrivacyError(
                f"round {self._round} has {len(clients)} participants, fewer than min_honest = {parties}, who share "
                f"the noise (trust: {self.privacy.trust})"
            )
        return add_noise(
            _scaled(bounded, factors), scales, self.privacy.mechanism, record, self._randomness, clients, parties
        )

    def _of_clients(self, query: _Query, bounded: Tensor) -> Release:
        """Noise rows that are whole clients' contributions; those of clients that were not drawn count as zero."""
        rate = self.privacy.cohort_rate
        if rate < 1 and self._round == self._answered[0]:
            raise PrivacyError(
                f"round {self._round} was answered already: a second answer from the same secret cohort would need "
                "another price. Ask once a round"
            )
        bounded = bounded.where(self._drawn.to(bounded.device).unsqueeze(1), 0)
        return self._noised(query, bounded, [1 / rate] * len(bounded))

    def _draw_cohort(self) -> Tensor:
        """Which of the round's clients take part, `[k]` boolean: secret, fresh after a restart with fresh noise."""
        rate = self.privacy.cohort_rate
        if rate == 1:
            return torch.ones(len(self._cohort), dtype=torch.bool)
        stream = self._randomness.stream("secret_cohort", self._round)
        return torch.from_numpy(stream.random(self.n_clients) < rate)[self._cohort]

    def _sum(self, query: _Query, params: Tensor, anchor: Tensor | None, clip: Clip | None = None) -> Tensor:
        """Sum over the query's examples, each clipped when `clip` is given."""
        total = torch.zeros(params.shape, device=params.device, dtype=params.dtype)
        for batch in self._batches(query.sampling):
            at = None if anchor is None else _rows(anchor, batch)
            if query.weights is not None:
                batch = batch.weighted(query.weights)
            part, broken = self._backend.clipped_sum(_rows(params, batch), batch, clip, at)
            total.index_add_(0, batch.rows, part)
            self._broken_examples.index_add_(0, self._cohort.to(total.device)[batch.rows], broken)
        return total

    def _batches(self, sampling: Sampling) -> Iterator[Batch]:
        counts = self._population.counts
        if isinstance(sampling, FullBatch) and bool(self._drawn.all()):
            return self._population.full_batches(self._cohort)
        chosen: list[Tensor] = []
        for client, drawn in zip(self._clients(), self._drawn.tolist(), strict=True):
            if not drawn or isinstance(sampling, FullBatch):
                chosen.append(torch.arange(int(counts[client]) if drawn else 0))
                continue
            stream = self._randomness.stream("batch", self._round, self._index, client)
            size = int(counts[client])
            if isinstance(sampling, Poisson):
                picked = (stream.random(size) < sampling.rate).nonzero()[0]
            else:
                picked = stream.permutation(size)[: sampling.size]
            chosen.append(torch.from_numpy(picked))
        return self._population.drawn_batches(self._cohort, chosen)

    def _expected(self, sampling: Sampling) -> Tensor:
        """Expected examples of each row's batch, `[k]` (public)."""
        sizes = self._population.sizes[self._cohort].double()
        if isinstance(sampling, Poisson):
            return sizes * sampling.rate
        return sizes.clamp_max(sampling.size) if isinstance(sampling, FixedSize) else sizes

    def _factors(self, query: _Query) -> list[float]:
        """Public factor of each row, from a sum over the batch to what is asked."""
        population, expected = self._population, self._expected(query.sampling)
        return (1 / expected if query.whole else population.weights[self._cohort] / expected).tolist()

    def _published(self, query: _Query, params: Tensor, anchor: Tensor | None) -> Release:
        """As-published noise: its scale is measured on the data, or not enough, so the record is non-private."""
        published = self.privacy.published
        assert published is not None
        factors = self._factors(query)
        total = _scaled(self._sum(query, params, anchor), factors)
        record = self._pricing.exact(self._round, self._index, query.name, self._clients())
        if math.isinf(published.epsilon_bar) or query.name in published.exact:
            return Release(record, total)
        if published.scale is not None:
            return self._as_published(published, total, record)
        if published.law == "gaussian":
            width = 2 * published.gradient_bound * math.sqrt(2 * math.log(1.25 / published.delta_bar))
            scales, mechanism = [f * width / published.epsilon_bar for f in factors], Gaussian()
        else:
            widths, mechanism = self._largest_norms(query, params), Laplace()
            scales = [f * w / published.epsilon_bar for f, w in zip(factors, widths, strict=True)]
        return add_noise(total, scales, mechanism, record, self._randomness, self._clients())

    def _as_published(self, published: Published, rows: Tensor, record: Record) -> Release:
        """Noise of the scale that a paper gives."""
        if published.scale is None or math.isinf(published.epsilon_bar):
            return Release(record, rows)
        scales = [published.scale * published.growth**self._round] * len(rows)
        mechanism = Gaussian() if published.law == "gaussian" else Laplace()
        return add_noise(rows, scales, mechanism, record, self._randomness, self._clients())

    def _largest_norms(self, query: _Query, params: Tensor) -> list[float]:
        norms, l1 = params.new_zeros(len(params)), replace(self.privacy.clip, norm="l1")
        for batch in self._batches(query.sampling):
            largest = self._backend.largest_norm(_rows(params, batch), batch, l1)
            norms[batch.rows] = norms[batch.rows].maximum(largest)
        return norms.tolist()

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
        if self._received is None:
            return False
        return any(torch.equal(points, part) for part in self._received.split(points.shape[1], 1))

    def _clients(self) -> list[int]:
        return self._cohort.tolist()


def _rows(params: Tensor, batch: Batch) -> Tensor:
    """The rows of a batch's clients, without a copy where all rows are one or all are wanted."""
    if params.stride(0) == 0:
        return params[:1].expand(len(batch.rows), -1)
    return params if len(batch.rows) == len(params) else params[batch.rows]


def _scaled(rows: Tensor, factors: Sequence[float]) -> Tensor:
    return rows * rows.new_tensor(factors).unsqueeze(1)
