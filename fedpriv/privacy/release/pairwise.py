"""Trust `pairwise`: noise that cancels between pairs of clients is added, so that each client's own can be small.

For participant i, with public factors f, sensitivity S of the clipped sum, and ratio r of a pair's noise to a client's
own:

    y_i = f_i x_i + sigma Z_i + r sigma sum_{j > i} P_ij - r sigma sum_{j < i} P_ji
    sigma = (z / share) S max_k f_k sqrt(e),    Z, P standard normal

The P_ij are known to i and j alone and cancel in the sum over participants, which has the clients' own noise only. e is
`exposure`: how much more noise of its own a client needs because the colluders know the P that they share with it.

Guarantee: against the server, everybody outside and any `colluders` participants together, all rows of a round are a
Gaussian mechanism of the data of each of the others, with the noise multiplier on record.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor

from fedpriv.errors import PrivacyError
from fedpriv.privacy.accounting.pairwise import exposure
from fedpriv.privacy.ledger import Release
from fedpriv.privacy.mechanisms import add_noise
from fedpriv.privacy.pair_noise import of_answer, with_noise_of_own_pairs, with_pair_noise
from fedpriv.privacy.pairwise import Pairs, Pairwise, variance_inflation
from fedpriv.privacy.record import PerClient
from fedpriv.privacy.release.scheme import Answer, Price, ReleaseScheme, compact
from fedpriv.privacy.settings import Privacy


class PairwiseRelease(ReleaseScheme):
    """Releases each participant's row with noise of its own and of its pairs; see the module."""

    def __init__(self, privacy: Privacy, sizes: Sequence[int] | Sequence[float]) -> None:
        super().__init__(privacy, sizes)
        self._pairs = pairs_of(privacy, len(sizes))

    def price(self, answer: Answer, factors: Sequence[float]) -> Price:
        """See `ReleaseScheme`. Rows of those who are excluded keep a scale, and the record is of the others alone.

        Raises:
            PrivacyError: noise of pairs cancels over time, and not all clients take part; or pairs are left out and
                not every two clients share a secret.
        """
        noise_multiplier = self.relative_noise(answer)
        pairs = self._pairs_of(answer.query)
        self._check_participants(answer, pairs)
        noise_multiplier *= math.sqrt(exposure(pairs, answer.answering, self.n_clients))
        # both ends of a pair add the same noise, so that all rows get that of the largest
        if pairs.ratio > 0:
            reference = [max(factors, default=1.0)] * len(factors)
        else:
            reference = list(factors)
        sensitivity = self.privacy.sensitivity_of(answer.clip)
        scales = [noise_multiplier * sensitivity * factor for factor in reference]
        paid = list[float]()  # noise over each client's own sensitivity, which may be smaller than the largest
        for client, factor, largest in zip(answer.clients, factors, reference, strict=True):
            if client not in answer.excluded:
                more = largest / factor
                paid.append(noise_multiplier * (1.0 if more < 1 + 1e-9 else more))  # not for last bits
        record = self.record(answer, noise_multiplier, _one_or_all(paid, noise_multiplier))
        return Price(replace(record, pairs=pairs), scales)

    def _check_participants(self, answer: Answer, pairs: Pairs) -> None:
        if self.privacy.over_time is not None and len(answer.clients) < self.n_clients:
            raise PrivacyError(
                f"round {answer.round} has {len(answer.clients)} of {self.n_clients} clients: noise of pairs that "
                "cancels over time has a price only if all take part in every round"
            )
        if answer.excluded and pairs.edges is not None:
            raise PrivacyError("only where every two clients share a secret may pairs be left out")

    def _pairs_of(self, query: str) -> Pairs:
        """Who adds noise that cancels, and how much: statistics, which are used by themselves, have their own ratio."""
        assert self._pairs is not None  # answers of runs without privacy have no price
        if query.startswith("statistic:"):
            return replace(self._pairs, ratio=self.privacy.statistics.ratio)
        return self._pairs

    def add_noise(self, answer: Answer, rows: Tensor, price: Price, positions: Sequence[int]) -> Release:
        """See `ReleaseScheme`."""
        pairs, streams = price.record.pairs, self.streams
        assert pairs is not None
        pair_noise_of_round = None
        if streams.history is not None:
            pair_noise_of_round = self._pair_noise_by_round(answer, pairs, positions, rows)
        elif streams.pair_secrets is not None:
            rows = with_noise_of_own_pairs(
                rows,
                price.noise_scales,
                pairs,
                price.record,
                streams.randomness,
                answer.answering if price.record.clients is None else price.record.clients,
                [answer.clients[position] for position in positions],
                streams.pair_secrets,
            )
        else:
            rows = self._with_noise_of_all_pairs(answer, rows, price, pairs, positions)
        return add_noise(
            rows,
            [price.noise_scales[position] for position in positions],
            self.privacy.mechanism,
            price.record,
            streams.randomness,
            [answer.clients[position] for position in positions],
            past=streams.history,
            shared=pair_noise_of_round,
        )

    def _with_noise_of_all_pairs(
        self, answer: Answer, rows: Tensor, price: Price, pairs: Pairs, positions: Sequence[int]
    ) -> Tensor:
        """Returns these participants' rows with the noise of their pairs, which this process draws for both ends."""
        noised = with_pair_noise(
            _among_all(rows, positions, len(answer.clients)),
            price.noise_scales,
            pairs,
            price.record,
            self.streams.randomness,
            answer.clients,
        )
        return _those_at(noised, positions)

    def _pair_noise_by_round(
        self, answer: Answer, pairs: Pairs, positions: Sequence[int], rows: Tensor
    ) -> Callable[[int], Tensor] | None:
        """Returns a function from a round to its pairs' noise in these rows, over the deviation of a client's own."""
        if pairs.ratio == 0 or self.n_clients < 2:
            return None

        def noise_of(round_index: int) -> Tensor:
            randomness, dim = self.streams.randomness, rows.shape[1]
            noise = of_answer(pairs, randomness, round_index, answer.index, answer.clients, dim)
            return _those_at(noise, positions).to(rows.device)

        return noise_of

    def noise_variances(
        self, price: Price, clients: Sequence[int], positions: Sequence[int]
    ) -> tuple[list[float], list[float]]:
        """See `ReleaseScheme`: noise of pairs is in rows, and cancels in their mean."""
        more = self.growth_over_time(price.record.round)
        deviation = self.privacy.mechanism.deviation
        with_pairs = variance_inflation(price.record.pairs, self.n_clients)
        own = [(deviation * price.noise_scales[position]) ** 2 * more for position in positions]
        factors = [with_pairs[clients[position]] ** 2 for position in positions]
        of_rows = [variance * factor for variance, factor in zip(own, factors, strict=True)]
        return of_rows, [variance / len(clients) for variance in own]


def pairs_of(privacy: Privacy, n_clients: int) -> Pairs | None:
    """Returns the noise that cancels between pairs of clients; None where the settings have none."""
    if not privacy.private or not isinstance(privacy.trust, Pairwise):
        return None
    return privacy.trust.pairs(n_clients)


def _one_or_all(paid: Sequence[float], noise_multiplier: float) -> PerClient:
    return compact(paid or [noise_multiplier])


def _among_all(rows: Tensor, positions: Sequence[int], count: int) -> Tensor:
    """Returns rows for all participants, zero for those of other processes: `[j, dim] -> [count, dim]`."""
    if len(rows) == count:
        return rows
    every = rows.new_zeros(count, rows.shape[1])
    every[list(positions)] = rows
    return every


def _those_at(rows: Tensor, positions: Sequence[int]) -> Tensor:
    """Returns the rows at these positions, uncopied where these are all."""
    if len(positions) == len(rows):
        return rows
    return rows[list(positions)]
