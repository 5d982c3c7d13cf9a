"""Trust `pairwise`: noise that cancels between pairs of clients is added, so that individual noise can be small.

For participant i, with public factors f, sensitivity S of the clipped sum, and ratio r of a pair's noise to a client's
individual noise:

    y_i = f_i x_i + sigma Z_i + r sigma sum_{j > i} P_ij - r sigma sum_{j < i} P_ji
    sigma = (z / share) S max_k f_k sqrt(e),    Z, P standard normal

The P_ij are known to i and j alone. They cancel in the sum over participants, in which only individual noise remains. e
is the `exposure`: how much the variance of individual noise grows because colluders know the P that they share with a
client.

Guarantee: against the server, any outside observer and any `colluders` participants together, all rows of a round are a
Gaussian mechanism of the data of each other participant, with the noise multiplier on record.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from fedpriv.errors import PrivacyError
from fedpriv.privacy.accounting.pairwise import exposure
from fedpriv.privacy.exact_over_time import PairNoise
from fedpriv.privacy.ledger import Release
from fedpriv.privacy.mechanisms import add_noise
from fedpriv.privacy.normal_combinations import NormalCombinations
from fedpriv.privacy.pair_noise import pair_noise_of_round
from fedpriv.privacy.pairwise import Pairs, Pairwise, variance_inflation
from fedpriv.privacy.release.scheme import Answer, Price, ReleaseScheme, compact
from fedpriv.privacy.settings import Privacy


class PairwiseRelease(ReleaseScheme):
    """Releases each participant's row with individual noise and the noise of its pairs; see the module."""

    def __init__(self, privacy: Privacy, sizes: Sequence[int] | Sequence[float]) -> None:
        super().__init__(privacy, sizes)
        self._pairs = pairs_of(privacy, len(sizes))

    def price(self, answer: Answer, factors: Sequence[float]) -> Price:
        """See `ReleaseScheme`. Rows of excluded participants get a noise scale, but the record names only the others.

        Raises:
            PrivacyError: pairwise noise is correlated between rounds, and not all clients take part; or participants
                are excluded, and not every two clients share a secret.
        """
        noise_multiplier = self.relative_noise(answer)
        pairs = self._pairs_for_query(answer.query)
        self._check_participants(answer, pairs)
        noise_multiplier *= math.sqrt(exposure(pairs, answer.answering, self.n_clients))
        # both clients of a pair add the same noise, so that all rows get the noise of the largest factor
        if pairs.ratio > 0:
            noise_factors = [max(factors, default=1.0)] * len(factors)
        else:
            noise_factors = list(factors)
        sensitivity = self.privacy.sensitivity_of(answer.clip)
        scales = [noise_multiplier * sensitivity * factor for factor in noise_factors]

        # noise over each client's sensitivity, which is smaller for a smaller factor
        noise_multipliers = list[float]()
        for client, factor, noise_factor in zip(answer.clients, factors, noise_factors, strict=True):
            if client in answer.excluded:
                continue
            growth = noise_factor / factor
            if growth < 1 + 1e-9:
                growth = 1.0  # factors that differ in their last bits are equal
            noise_multipliers.append(noise_multiplier * growth)
        record = self.record(answer, noise_multiplier, compact(noise_multipliers or [noise_multiplier]))
        return Price(replace(record, pairs=pairs), scales)

    def _check_participants(self, answer: Answer, pairs: Pairs) -> None:
        if self.privacy.over_time is not None and len(answer.clients) < self.n_clients:
            raise PrivacyError(
                f"round {answer.round} has {len(answer.clients)} of {self.n_clients} clients: noise of pairs that "
                "cancels over time has a price only if all take part in every round"
            )
        if answer.excluded and pairs.edges is not None:
            raise PrivacyError("only where every two clients share a secret may pairs be left out")

    def _pairs_for_query(self, query: str) -> Pairs:
        """Returns the pairwise noise of a query: statistics, which clients use by themselves, have a separate ratio."""
        assert self._pairs is not None  # answers of runs without privacy have no price
        if query.startswith("statistic:"):
            return replace(self._pairs, ratio=self.privacy.statistics.ratio)
        return self._pairs

    def add_noise(self, answer: Answer, rows: Tensor, price: Price, positions: Sequence[int]) -> Release:
        """See `ReleaseScheme`."""
        clients = [answer.clients[position] for position in positions]
        return add_noise(
            rows,
            [price.noise_scales[position] for position in positions],
            self.privacy.mechanism,
            price.record,
            self.streams.randomness,
            clients,
            past=self.streams.history,
            pair_noise=self._pair_noise(answer, price, rows.shape[1]),
        )

    def _pair_noise(self, answer: Answer, price: Price, dim: int) -> PairNoise | None:
        """Returns a function from a round and some of the participants to the noise of pairs in their rows."""
        pairs = price.record.pairs
        assert pairs is not None
        if pairs.ratio == 0:
            return None
        # sites leave out the pairs of those who have signed that they do not answer
        if self.streams.pair_secrets is None:
            participants = answer.clients
        elif price.record.clients is None:
            participants = answer.answering
        else:
            participants = price.record.clients

        def pair_noise(round_index: int, clients: Sequence[int]) -> NormalCombinations | None:
            return pair_noise_of_round(
                pairs,
                self.streams.randomness,
                round_index,
                answer.index,
                participants,
                clients,
                dim,
                self.streams.pair_secrets,
            )

        return pair_noise

    def noise_variances(
        self, price: Price, clients: Sequence[int], positions: Sequence[int]
    ) -> tuple[list[float], list[float]]:
        """See `ReleaseScheme`: pairwise noise adds to the variance of rows, and cancels in their mean."""
        growth = self.growth_over_time(price.record.round)
        deviation = self.privacy.mechanism.deviation
        with_pairs = variance_inflation(price.record.pairs, self.n_clients)
        individual = [(deviation * price.noise_scales[position]) ** 2 * growth for position in positions]
        factors = [with_pairs[clients[position]] ** 2 for position in positions]
        row_variances = [variance * factor for variance, factor in zip(individual, factors, strict=True)]
        return row_variances, [variance / len(clients) for variance in individual]


def pairs_of(privacy: Privacy, n_clients: int) -> Pairs | None:
    """Returns the pairwise noise of the settings for `n_clients` clients; None if they have none."""
    if not privacy.private or not isinstance(privacy.trust, Pairwise):
        return None
    return privacy.trust.pairs(n_clients)
