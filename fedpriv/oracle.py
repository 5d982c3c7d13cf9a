"""The only door to the data: bounded query -> noise -> ledger -> tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedpriv.backends.base import Backend
from fedpriv.batch import Batch
from fedpriv.errors import ConfigError, PrivacyError
from fedpriv.population import Population
from fedpriv.privacy.ledger import Ledger, PerClient, Record, Release
from fedpriv.privacy.mechanisms import Gaussian, Laplace, add_noise
from fedpriv.privacy.randomness import Randomness
from fedpriv.privacy.settings import FixedSize, FullBatch, Poisson, Privacy, SecureAggregation


class PrivateOracle:
    """Answers about the clients' data. What leaves it has been clipped, noised and written down.

    Guarantee: every tensor that a method returns (but for ``at: none``, ``at: message`` and ``published``, which the
    ledger says) is a Gaussian or Laplace mechanism whose sensitivity follows from how its sum was clipped.

    Args:
        population: The clients.
        backend: Computes clipped sums.
        privacy: The promise; ``noise_multiplier`` must be set (calibrated) when the run is private.
        ledger: Opens releases.
        randomness: The run's streams.
        cohort_rate: Probability that a client takes part in a round. It amplifies only when nobody sees who took part,
            that is at client level under secure aggregation.
    """

    def __init__(
        self,
        population: Population,
        backend: Backend,
        privacy: Privacy,
        ledger: Ledger,
        randomness: Randomness,
        cohort_rate: float = 1.0,
    ) -> None:
        self.privacy, self.ledger = privacy, ledger
        self._population, self._backend, self._randomness = population, backend, randomness
        self._pricing = Pricing(privacy, population.sizes.tolist(), cohort_rate)
        self.broken_examples = torch.zeros(len(population), dtype=torch.long)
        self.begin_round(0, torch.arange(len(population)))

    @property
    def n_clients(self) -> int:
        """Number of clients (public)."""
        return len(self._population)

    def begin_round(self, round_index: int, cohort: Tensor, received: Tensor | None = None) -> None:
        """Start a round: rows of queries now belong to the clients of ``cohort [k]``."""
        self._round, self._index, self._cohort, self._received = round_index, 0, cohort, received

    def gradient(self, params: Tensor) -> Tensor:
        """Private gradient of each client's objective, on a fresh batch: ``[k, dim] -> [k, dim]``."""
        return self._answer("gradient", params, None)

    def gradient_difference(self, params: Tensor, anchor: Tensor) -> Tensor:
        """Private difference of the gradients at two points, clipped example by example: ``[k, dim] -> [k, dim]``."""
        return self._answer("gradient_difference", params, anchor)

    def release_message(self, message: Tensor) -> Tensor:
        """Clip, noise and record whole messages ``[k, dim]`` when the boundary is ``at: message``; else pass them on.

        Raises:
            BudgetExhausted: the release would overspend.
        """
        if self.privacy.at != "message" or self.privacy.published is not None:
            return message
        bounded, _ = self.privacy.clip.rows(message)
        return self.ledger.open(self._noised("message", bounded, [1.0] * len(message)))

    def _answer(self, query: str, params: Tensor, anchor: Tensor | None) -> Tensor:
        self._check_query_point(params)
        if self.privacy.published is not None:
            release = self._published(query, params)
        elif self.privacy.at != "gradient":
            exact = self._sum(params, anchor, clip=False) * self._per_client_factor()
            if self.privacy.at == "message":
                self._index += 1
                return exact
            release = Release(self._pricing.exact(self._round, self._index, query, self._clients()), exact)
        elif self.privacy.unit == "client":
            exact = self._sum(params, anchor, clip=False) * self._per_client_factor()
            release = self._noised(query, self.privacy.clip.rows(exact)[0], [1.0] * len(exact))
        else:
            bounded = self._sum(params, anchor, clip=True)
            release = self._noised(query, bounded, self._per_client_factor().flatten().tolist())
        value = self.ledger.open(release)
        self._index += 1
        return value

    def _noised(self, query: str, bounded: Tensor, factors: Sequence[float]) -> Release:
        """Noise ``bounded`` and multiply row i by the public ``factors[i]``."""
        clients = self._clients()
        record, scales = self._pricing.price(self._round, self._index, query, clients, factors)
        parties = self._pricing.parties
        if len(clients) < parties:
            raise PrivacyError(
                f"round {self._round} has {len(clients)} participants, fewer than min_honest = {parties}"
            )
        values = bounded * bounded.new_tensor(factors).unsqueeze(1)
        return add_noise(values, scales, self.privacy.mechanism, record, self._randomness, clients, parties)

    def _sum(self, params: Tensor, anchor: Tensor | None, *, clip: bool) -> Tensor:
        total = torch.zeros_like(params)
        bound = self.privacy.clip if clip else None
        for batch in self._batches():
            at = None if anchor is None else anchor[batch.rows]
            part, broken = self._backend.clipped_sum(params[batch.rows], batch, bound, at)
            total.index_add_(0, batch.rows, part)
            self.broken_examples[self._cohort[batch.rows.cpu()]] += broken.cpu()
        return total

    def _batches(self) -> Sequence[Batch]:
        sampling, sizes = self.privacy.sampling, self._population.sizes
        if isinstance(sampling, FullBatch):
            return list(self._population.full_batches(self._cohort))
        chosen: list[Tensor] = []
        for client in self._clients():
            stream = self._randomness.stream("batch", self._round, self._index, client)
            size = int(sizes[client])
            if isinstance(sampling, Poisson):
                picked = (stream.random(size) < sampling.rate).nonzero()[0]
            else:
                picked = stream.choice(size, min(sampling.size, size), replace=False)
            chosen.append(torch.from_numpy(picked))
        return list(self._population.drawn_batches(self._cohort, chosen))

    def _per_client_factor(self) -> Tensor:
        """Public factor from a sum over the batch to the gradient of the client's objective, ``[k, 1]``."""
        population, sampling = self._population, self.privacy.sampling
        sizes = population.sizes[self._cohort].double()
        if isinstance(sampling, Poisson):
            expected = sizes * sampling.rate
        elif isinstance(sampling, FixedSize):
            expected = sizes.clamp_max(sampling.size)
        else:
            expected = sizes
        return (population.weights[self._cohort] / expected).to(population.params).unsqueeze(1)

    def _published(self, query: str, params: Tensor) -> Release:
        """As-published noise: its scale is measured on the data, so the record is non-private."""
        published = self.privacy.published
        assert published is not None
        factor = self._per_client_factor()
        total = self._sum(params, None, clip=False)
        record = self._pricing.exact(self._round, self._index, query, self._clients())
        if math.isinf(published.epsilon_bar):
            return Release(record, total * factor)
        if published.law == "gaussian":
            scale = 2 * published.gradient_bound * math.sqrt(2 * math.log(1.25 / published.delta_bar))
            scales = (factor.flatten() * scale / published.epsilon_bar).tolist()
            why = "the gradient bound is assumed, not enforced"
            mechanism: Gaussian | Laplace = Gaussian()
        else:
            norms = torch.zeros(len(params), dtype=params.dtype)
            for batch in self._batches():
                largest = self._backend.largest_norm(params[batch.rows], batch, replace(self.privacy.clip, norm="l1"))
                norms[batch.rows.cpu()] = torch.maximum(norms[batch.rows.cpu()], largest.cpu())
            scales = (factor.flatten().cpu() * norms / published.epsilon_bar).tolist()
            why = "the noise scale is measured on the client's own data (eq 20)"
            mechanism = Laplace()
        record = replace(record, non_private=f"as published: {why}")
        return add_noise(total * factor, scales, mechanism, record, self._randomness, self._clients())

    def _check_query_point(self, params: Tensor) -> None:
        if self.privacy.at != "gradient" or not isinstance(self.privacy.trust, SecureAggregation):
            return
        if self._index > 0 or self._received is None or not torch.equal(params, self._received):
            raise PrivacyError(
                "under secure aggregation a client's own answers stay inside it with less noise, so a second answer, or "
                "one at a point that was not received, would depend on what was never released. Ask once a round, at "
                "what was received, or use trust: local"
            )

    def _clients(self) -> list[int]:
        return self._cohort.tolist()


class Pricing:
    """Records and noise scales of answers; all of it public, so a plan can use it without data.

    Args:
        privacy: The promise.
        sizes: Public number of examples of each client.
        cohort_rate: Probability that a client takes part.
    """

    def __init__(self, privacy: Privacy, sizes: Sequence[int], cohort_rate: float = 1.0) -> None:
        self._privacy, self._sizes, self._cohort_rate = privacy, sizes, cohort_rate
        trust = privacy.trust
        self.parties = trust.min_honest if isinstance(trust, SecureAggregation) else 1

    def price(
        self, round_index: int, index: int, query: str, clients: Sequence[int], factors: Sequence[float]
    ) -> tuple[Record, list[float]]:
        """The record of a noised answer and the noise scale of each row.

        Args:
            round_index: The round.
            index: Which answer of the round.
            query: What was asked.
            clients: Who answers.
            factors: Public factor of each row; row i's sensitivity is ``factors[i] * privacy.sensitivity``.

        Under secure aggregation only the sum is seen, so each client's share is scaled to the largest sensitivity in
        the cohort: noise scaled to a neighbour's smaller one would not cover it.
        """
        privacy = self._privacy
        if privacy.noise_multiplier is None:
            raise ConfigError("privacy.noise_multiplier", None, "calibrate the run first (fedpriv.train does)")
        multiplier = privacy.noise_multiplier / privacy.schedule.share(round_index)
        largest = max(factors, default=1.0)
        reference = [largest] * len(factors) if self.parties > 1 else list(factors)
        scales = [multiplier * privacy.sensitivity * r for r in reference]
        return self._record(round_index, index, query, clients, multiplier), scales

    def exact(self, round_index: int, index: int, query: str, clients: Sequence[int]) -> Record:
        """The record of an answer that is not private."""
        record = self._record(round_index, index, query, clients, 0.0)
        return replace(record, mechanism="none", sampling="full", rate=1.0, non_private="exact answers, no noise")

    def _record(self, round_index: int, index: int, query: str, clients: Sequence[int], multiplier: float) -> Record:
        privacy, sampling = self._privacy, self._privacy.sampling
        kind, rate = "full", 1.0
        if privacy.unit == "sample" and isinstance(sampling, Poisson) and query != "message":
            kind, rate = "poisson", sampling.rate
        elif privacy.unit == "sample" and isinstance(sampling, FixedSize) and query != "message":
            kind, rate = "without_replacement", _compact([min(1.0, sampling.size / self._sizes[c]) for c in clients])
        everyone = len(clients) == len(self._sizes)
        hidden_cohort = privacy.unit == "client" and isinstance(privacy.trust, SecureAggregation)
        if hidden_cohort and self._cohort_rate < 1:
            # whoever was not drawn is covered as well: the record prices every client
            kind, rate, everyone = "poisson", self._cohort_rate, True
        return Record(
            round=round_index,
            query=query,
            index=index,
            mechanism=privacy.mechanism.name,
            noise_multiplier=multiplier,
            unit=privacy.unit,
            relation=privacy.relation,
            clients=None if everyone else tuple(clients),
            norm=privacy.clip.norm,
            bound=privacy.clip.bound,
            sampling=kind,
            rate=rate,
            trust=str(privacy.trust),
        )


def _compact(values: Sequence[float]) -> PerClient:
    return values[0] if len(set(values)) == 1 else tuple(values)


class DryOracle:
    """An oracle without data: answers zeros and lists what would be released.

    It prices any strategy, a user's own too, before data is touched. A strategy whose number of questions depends on
    the (private) answers may ask differently in earnest; the budget's filter covers that.
    """

    def __init__(self, pricing: Pricing, privacy: Privacy, n_clients: int) -> None:
        self.records: list[Record] = []
        self.n_clients = n_clients
        self._pricing, self._privacy = pricing, privacy
        self.begin_round(0, torch.arange(n_clients))

    def begin_round(self, round_index: int, cohort: Tensor, received: Tensor | None = None) -> None:
        """Start a round."""
        self._round, self._index, self._clients = round_index, 0, cohort.tolist()

    def gradient(self, params: Tensor) -> Tensor:
        """Zeros."""
        return self._answer("gradient", params)

    def gradient_difference(self, params: Tensor, anchor: Tensor) -> Tensor:
        """Zeros."""
        return self._answer("gradient_difference", params)

    def release_message(self, message: Tensor) -> Tensor:
        """The message, listed when the boundary is there."""
        return self._answer("message", message) if self._privacy.at == "message" else message

    def _answer(self, query: str, params: Tensor) -> Tensor:
        privacy = self._privacy
        if privacy.private and (privacy.at == "gradient" or query == "message"):
            record, _ = self._pricing.price(self._round, self._index, query, self._clients, [1.0] * len(self._clients))
            self.records.append(record)
        elif not privacy.private:
            self.records.append(self._pricing.exact(self._round, self._index, query, self._clients))
        self._index += 1
        return torch.zeros_like(params)
