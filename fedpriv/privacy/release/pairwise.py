"""Trust `pairwise`: noise that cancels between pairs of clients is added, so that individual noise can be small.

For participant i, with public factors f, sensitivity S of the clipped sum, and ratio r of a pair's noise to a client's
individual noise:

    y_i = f_i x_i + sigma Z_i + r sigma sum_{j > i} P_ij - r sigma sum_{j < i} P_ji
    sigma = (z / share) S max_k f_k sqrt(e),    Z, P standard normal

The P_ij are known to i and j alone. They cancel in the sum over participants, in which only individual noise remains. e
is the exposure (`compute_exposure`), a factor by which the variance of individual noise grows because colluders know
the P that they share with a client.

Guarantee: against the server, any outside observer and any `colluders` participants together, all rows of a round are a
Gaussian mechanism of the data of each other participant, with the recorded noise multiplier.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from fedpriv.errors import PrivacyError
from fedpriv.privacy.accounting.pairwise import compute_exposure
from fedpriv.privacy.exact_over_time import PairNoise
from fedpriv.privacy.ledger import Release
from fedpriv.privacy.mechanisms import add_noise
from fedpriv.privacy.normal_combinations import NormalCombinations
from fedpriv.privacy.pair_noise import draw_pair_noise
from fedpriv.privacy.pairwise import Pairs, Pairwise, variance_inflation
from fedpriv.privacy.release.scheme import Answer, PlannedRelease, ReleaseScheme, collapse_equal
from fedpriv.privacy.settings import Privacy


class PairwiseRelease(ReleaseScheme):
    """Releases each participant's row with individual noise and the noise of its pairs; see the module."""

    def __init__(self, privacy: Privacy, sizes: Sequence[int] | Sequence[float]) -> None:
        super().__init__(privacy, sizes)
        self._pairs = make_pairs(privacy, len(sizes))

    def price(self, answer: Answer, factors: Sequence[float]) -> PlannedRelease:
        """See `ReleaseScheme`. Rows of excluded participants get a noise scale, but the record contains only the other
        participants.

        Raises:
            PrivacyError: If pairwise noise is correlated between rounds but not all clients take part; or if
                participants are excluded but not every two clients share a secret.
        """
        noise = self.relative_noise(answer)
        pairs = self._pairs_for_query(answer.query)
        self._check_participants(answer, pairs)
        noise *= math.sqrt(compute_exposure(pairs, answer.answering, self.n_clients))

        # noise over each client's sensitivity, which is smaller for a smaller factor
        noise_multipliers = list[float]()
        row_factors = _row_factors(pairs, factors)
        for client, factor, row_factor in zip(answer.clients, factors, row_factors, strict=True):
            if client in answer.excluded:
                continue
            growth = row_factor / factor
            if growth < 1 + 1e-9:
                growth = 1.0  # factors that differ in their last bits are equal
            noise_multipliers.append(noise * growth)
        record = self.record(answer, collapse_equal(noise_multipliers or [noise]))
        return PlannedRelease.of(answer, replace(record, pairs=pairs), noise, factors)

    def noise_scales(self, planned: PlannedRelease, factors: Sequence[float]) -> Sequence[float]:
        """See `ReleaseScheme`."""
        assert planned.record.pairs is not None
        sensitivity = self.privacy.sensitivity_of(planned.clip)
        return [planned.noise * sensitivity * factor for factor in _row_factors(planned.record.pairs, factors)]

    def _check_participants(self, answer: Answer, pairs: Pairs) -> None:
        if self.privacy.over_time is not None and len(answer.clients) < self.n_clients:
            raise PrivacyError(
                f"round {answer.round} has {len(answer.clients)} of {self.n_clients} clients: correlated "
                "pairwise noise has a known privacy cost only if all clients take part in every round"
            )
        if answer.excluded and pairs.edges is not None:
            raise PrivacyError(
                "absent clients can be left out of the noise only if every two clients share a secret (secrets: "
                "complete)"
            )

    def _pairs_for_query(self, query: str) -> Pairs:
        """Returns the pairwise noise of a query. Statistics have a separate ratio, because clients also use their own
        value alone.
        """
        assert self._pairs is not None  # queries of runs without privacy have no cost
        if query.startswith("statistic:"):
            return replace(self._pairs, ratio=self.privacy.statistics.ratio)
        return self._pairs

    def add_noise(
        self, planned: PlannedRelease, rows: Tensor, factors: Sequence[float], positions: Sequence[int]
    ) -> Release:
        """See `ReleaseScheme`."""
        scales = self.noise_scales(planned, factors)
        return add_noise(
            rows,
            [scales[position] for position in positions],
            self.privacy.mechanism,
            planned.record,
            self.streams.randomness,
            [planned.clients[position] for position in positions],
            past=self.streams.history,
            pair_noise=self._pair_noise(planned, rows.shape[1]),
        )

    def _pair_noise(self, planned: PlannedRelease, dim: int) -> PairNoise | None:
        """Returns a function from a round and some of the participants to the noise of pairs in their rows."""
        record = planned.record
        pairs = record.pairs
        assert pairs is not None
        if pairs.ratio == 0:
            return None
        # sites leave out the pairs of clients that declared, signed, that they do not answer
        if self.streams.pair_secrets is None:
            participants = planned.clients
        elif record.clients is None:
            participants = planned.answer.answering
        else:
            participants = record.clients

        def pair_noise(round_index: int, clients: Sequence[int]) -> NormalCombinations | None:
            return draw_pair_noise(
                pairs,
                self.streams.randomness,
                round_index,
                record.index,
                participants,
                clients,
                dim,
                self.streams.pair_secrets,
            )

        return pair_noise

    def noise_variances(
        self, planned: PlannedRelease, factors: Sequence[float], positions: Sequence[int]
    ) -> tuple[list[float], list[float]]:
        """See `ReleaseScheme`: pairwise noise increases the variance of rows, and cancels in their mean."""
        clients = planned.clients
        scales = self.noise_scales(planned, factors)
        growth = self.growth_over_time(planned.record.round)
        deviation = self.privacy.mechanism.deviation
        with_pairs = variance_inflation(planned.record.pairs, self.n_clients)
        individual = [(deviation * scales[position]) ** 2 * growth for position in positions]
        inflations = [with_pairs[clients[position]] ** 2 for position in positions]
        row_variances = [variance * inflation for variance, inflation in zip(individual, inflations, strict=True)]
        return row_variances, [variance / len(clients) for variance in individual]


def _row_factors(pairs: Pairs, factors: Sequence[float]) -> Sequence[float]:
    """Returns the factor of each row's noise. All rows get the largest factor, because both clients of a pair add the
    same noise.
    """
    if pairs.ratio > 0:
        return [max(factors, default=1.0)] * len(factors)
    return factors


def make_pairs(privacy: Privacy, n_clients: int) -> Pairs | None:
    """Returns the pairwise noise of the settings for `n_clients` clients; None if they have none."""
    if not privacy.private or not isinstance(privacy.trust, Pairwise):
        return None
    return privacy.trust.pairs(n_clients)
