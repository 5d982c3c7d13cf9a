"""The only door to the data: bounded query -> noise -> ledger -> tensor."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedpriv.checks import check_finite
from fedpriv.clients.population import Population
from fedpriv.errors import ConfigError, PrivacyError
from fedpriv.oracle.batches import Draws
from fedpriv.oracle.constraints import ConstraintSums
from fedpriv.oracle.exact import ProblemValues
from fedpriv.oracle.noising import Noising, here
from fedpriv.oracle.questions import Question
from fedpriv.oracle.sums import Sums, check_depth, points_of, scaled
from fedpriv.privacy.as_published import add_published_noise
from fedpriv.privacy.clipping import Clip
from fedpriv.privacy.ledger import Ledger, Release, Witness
from fedpriv.privacy.pairwise import excess
from fedpriv.privacy.record import Record
from fedpriv.privacy.settings import Privacy, Sampling
from fedpriv.randomness.streams import PairSecrets, Randomness

_NUMBERS = 2**23
"""Numbers in rows of clients that are added up at once where only their sum is released."""


class PrivateOracle(Noising):
    """Answers about the clients' data, clipped, noised and written in the ledger.

    Guarantee: every tensor that a method returns is a Gaussian or Laplace mechanism whose sensitivity follows from how
    its sum was clipped. Not so for `at: none` and `published`, which the ledger records as not private, and for
    gradients with `at: message`, where only messages are noised.

    Args:
        population: The clients: all, or those that are here.
        sums: Computes sums over examples, each of them clipped.
        privacy: The privacy settings; a private run needs a `noise_multiplier`.
        ledger: Records each release before its value is handed out.
        randomness: The run's random streams.
        total: Adds up the rows of all places, `[k, dim] -> [1, dim]`, as `network.total` does, for what is a sum of all
            clients and for public facts. By default all rows are here.
        largest: Largest of the numbers that all places have. A bound that a strategy computes from what its clients
            received is none where nobody takes part.
    """

    def __init__(
        self,
        population: Population,
        sums: Sums,
        privacy: Privacy,
        ledger: Ledger | Witness,
        randomness: Randomness,
        total: Callable[[Tensor], Tensor] = here,
        largest: Callable[[float], float] = float,
        secrets: PairSecrets | None = None,
    ) -> None:
        self._population, self._part = population, population.part
        draws = Draws(population, randomness, privacy.cohort_rate)
        self._sums, self._largest = sums, largest
        check_depth(self._added(privacy), population.chunk)
        self._bounded: ConstraintSums | None = None
        super().__init__(privacy, self._part.all_sizes, population.params, draws, ledger, randomness, total, secrets)

    def _added(self, privacy: Privacy) -> list[int]:
        """How many clipped rows each client adds to one sum."""
        if privacy.unit == "client":
            return [1] * self._part.n_clients
        if not privacy.trust.sums_only:
            return [max(self._population.counts.tolist(), default=0)]
        sizes = torch.tensor(np.asarray(self._part.all_sizes, dtype=np.int64))
        return sizes.index_copy(0, self._part.ids, self._population.counts).tolist()

    def begin_round(self, round_index: int, cohort: Tensor, received: Tensor | None = None) -> Tensor | None:
        """See `Questions`."""
        super().begin_round(round_index, cohort, received)
        self._drawn = self._draws.begin_round(round_index, cohort)
        self._answered_rows = len(self._here)
        if self._drawn is None or not self.privacy.draws_senders:
            return None
        self._here = self._here[self._drawn]
        return self._drawn

    @property
    def alike(self) -> bool:
        """Whether an answer is one for all participants: what is released is made of the sum over them."""
        return self.privacy.private and self.privacy.trust.sums_only and self.privacy.at == "gradient"

    def gradient_difference(self, params: Tensor, anchor: Tensor, bound: float | None = None) -> Tensor:
        """See `Questions`; the bound is one for all places."""
        return super().gradient_difference(params, anchor, None if bound is None else self._largest(bound))

    @property
    def equality(self) -> Tensor:
        """See `Questions`."""
        return self._population.equality[self._part.rows(self._cohort)]

    def _places(self, cohort: Tensor) -> Tensor:
        """See `Questions`."""
        return self._part.places(cohort)

    @cached_property
    def problem(self) -> ProblemValues:
        """Exact objectives and constraints: without noise, for runs that make no promise."""
        return ProblemValues(self._population)

    def prepare(self, asked: Collection[str]) -> None:
        """Before a run that asks these questions: what all places compute together, so that each may be asked alone."""
        if self.privacy.private and "statistic:constraints" in asked:
            _ = self.constraints

    @property
    def constraints(self) -> ConstraintSums:
        """What answers about constraints are sums of, before noise."""
        if self._bounded is None:  # no cached_property: its lock would keep other places from meeting in `total`
            self._bounded = ConstraintSums(self._population, self.privacy, self._total)
        return self._bounded

    def statistic_deviation(self, round_index: int) -> Tensor:
        """Upper bound on the standard deviation of constraint values, by noise and random batches (public).

        Returns:
            `[n_clients, m]`, of all clients, for a round in which every client takes part.
        """
        question = self._constraints
        if not self.privacy.private:
            return torch.zeros(self.n_clients, self._population.equality.shape[1])
        sampled = self._sampled_factors(question.sampling)
        priced = range(self.n_clients), self.constraints.factors(sampled), question.clip, question.share
        record, scales = self._pricing.price(round_index, 0, question.name, *priced)
        more = excess(record.pairs, self.n_clients)
        return self.constraints.deviation([a * b for a, b in zip(scales, more, strict=True)], sampled)

    def _exact(self, question: Question, params: Tensor) -> tuple[Tensor, Tensor]:
        objective, constraints = self.problem(params)
        if self._index == 0:
            check_finite(objective, "objective")
            check_finite(constraints, "constraint value")
            everything = torch.cat([objective.unsqueeze(1), constraints], 1).detach()
            self._open(Release(self._exact_record(question.name), everything))
        return objective, constraints

    def _statistic(self, question: Question, params: Tensor) -> Tensor:
        self._check_query_points(params, None)
        if not self.privacy.private:
            return self._open(Release(self._exact_record(question.name), self.problem(params)[1].detach()))
        bounded = self.constraints.of_losses(self._draws.batches(question.sampling, self._index), params)
        factors = self.constraints.factors(self._sampled_factors(question.sampling))
        return self.constraints.values(self._noised(question, bounded, factors))

    def _sampled_factors(self, sampling: Sampling) -> Tensor:
        """Examples over expected examples of a batch, of every participant."""
        sizes = self._sizes[self._cohort]
        return sizes / self._expected(sampling, sizes)

    def _message(self, question: Question, message: Tensor) -> Tensor:
        if not self.privacy.private:
            return self._open(self._not_private(question, message, [1.0] * len(self._here), message))
        return self._of_clients(question, self.privacy.clip.rows(message)[0])

    def _answer(self, question: Question, params: Tensor, anchor: Tensor | None = None) -> Tensor:
        self._check_query_points(params, anchor)
        privacy = self.privacy
        if self.alike:
            return self._answer_for_all(question, params, anchor)
        if privacy.private and privacy.unit == "sample":
            bounded = self._sum(question, params, anchor, question.clip)
            return self._noised(question, bounded, self._factors(question))
        factors = self._factors(question, self._cohort[self._here])
        exact = scaled(self._sum(question, params, anchor), factors)
        if not self._recorded(question):
            self._index += 1
            return exact
        if privacy.private:
            return self._of_clients(question, question.clip.rows(exact)[0])
        return self._open(self._not_private(question, exact, factors, params))

    def _answer_for_all(self, question: Question, params: Tensor, anchor: Tensor | None) -> Tensor:
        """Release the sum of the clients' contributions, which is added up some clients at a time."""
        self._check_not_answered()
        self._answered_rows = len(params)
        rate, of_clients = self.privacy.cohort_rate, self.privacy.unit == "client"
        here = self._here if self._drawn is None else self._here[self._drawn]
        factors, places = self._factors(question), self._drawn
        total = torch.zeros(1, params.shape[1], dtype=torch.float64, device=params.device)
        for first in range(0, len(here), height := max(_NUMBERS // max(params.shape[1], 1), 1)):
            some = slice(first, first + height)
            at = points_of(params, places, len(here), some)
            less = None if anchor is None else points_of(anchor, places, len(here), some)
            rows = self._sum(question, at, less, None if of_clients else question.clip, some)
            rows = scaled(rows, [factors[place] for place in here[some].tolist()])
            rows = question.clip.rows(rows)[0] * (1 / rate) if of_clients else rows
            total += rows.sum(0, keepdim=True)
        return self._noised_sum(question, total, 1 / rate if of_clients else max(factors, default=1.0))

    def _exact_record(self, name: str) -> Record:
        return self._pricing.exact(self._round, self._index, name, self._clients)

    def _of_clients(self, question: Question, bounded: Tensor) -> Tensor:
        """Noise rows that are whole clients' contributions."""
        self._check_not_answered()
        rate = self.privacy.cohort_rate
        if self.privacy.trust.sums_only:
            return self._noised_sum(question, bounded * (1 / rate), 1 / rate)
        return self._noised_rows(question, bounded, [1.0] * len(self._clients))

    def _check_not_answered(self) -> None:
        if self.privacy.cohort_rate < 1 and self._round <= self._answered:
            raise PrivacyError(
                f"round {self._round} was answered already: a second answer from the same secret cohort is not in the "
                "planned epsilon. Ask once a round"
            )

    def _sum(
        self,
        question: Question,
        params: Tensor,
        anchor: Tensor | None,
        clip: Clip | None = None,
        some: slice = slice(None),
    ) -> Tensor:
        """Sum over the question's examples, each clipped when `clip` is given, of some of those who work."""
        batches, multipliers = self._draws.views(question.sampling, self._index, some), question.multipliers
        weights = None if multipliers is None else self.constraints.of_gradients(multipliers)
        return self._sums.gradients(batches, self._draws.rows[some], params, anchor, clip, weights)

    def _not_private(self, question: Question, exact: Tensor, factors: Sequence[float], params: Tensor) -> Release:
        """The answer with a paper's noise, if any; not private, and recorded so."""
        record, clients = self._exact_record(question.name), [self._clients[place] for place in self._here.tolist()]
        if (published := self.privacy.published) is None:
            return Release(record, exact)

        def largest_norms() -> list[float]:
            batches = self._draws.views(question.sampling, self._index)
            return self._sums.largest_norms(batches, params, replace(self.privacy.clip, norm="l1"))

        return add_published_noise(exact, published, record, self._randomness, clients, factors, largest_norms)

    def _check_query_points(self, params: Tensor, anchor: Tensor | None) -> None:
        wanted, published = (len(self._here), self._population.dim), self.privacy.published
        if self.alike and len(params) == 1:  # one point for all
            wanted = 1, self._population.dim
        if params.shape != wanted or (anchor is not None and anchor.shape != wanted):
            raise ConfigError("oracle query", tuple(params.shape), f"one row for each participant: {wanted}")
        if anchor is not None and published is not None and published.scale is None:
            raise ConfigError("privacy.published", "gradient_difference", "the paper publishes no such answer")
        if self.privacy.at != "gradient" or not self.privacy.trust.sums_only:
            return
        asked_elsewhere = not self._was_received(params) or (anchor is not None and not self._was_received(anchor))
        if self._index > 0 or asked_elsewhere:
            raise PrivacyError(
                "with this trust only sums over clients are released. A second answer, or one at a point that was not "
                "received, would depend on a client's own answers, which are never released. Ask once a round, at what "
                "was received, or use trust: local"
            )

    def _was_received(self, points: Tensor) -> bool:
        """Whether the points came this round; several may come side by side, `[k, parts * dim]`."""
        all_received = () if self._received is None else self._received.split(points.shape[1], 1)
        received = [part[:1] if len(points) == 1 and part.stride(0) == 0 else part for part in all_received]
        # the same memory needs no comparison, for which the processor would wait
        return any(points.is_set_to(part) or torch.equal(points, part) for part in received)
