"""Trust `secure_aggregation` and `central`: only the sum over the participants is released.

With clipped sums x_i, public factors f_i, sensitivity S of a clipped sum, m participants, and h the number of those
that follow the protocol (`min_honest`; for a trusted server, which draws the noise itself, h is the number of all
clients):

    Y = sum_i f_i x_i + sum_i sigma_i Z_i,    sigma_i^2 = sigma^2 / h,    sigma = (z / share) S max_k f_k

Every participant adds a share of the noise inside the sum. The shares of h participants together already have standard
deviation sigma. The sum of all m shares is drawn at once.

Guarantee: Y, and all that is computed from it, is a Gaussian mechanism of each client's data with noise multiplier z /
share, against any observer that sees no single row, and against any m - h participants together. All rows of a query
result are Y / m.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fedpriv.errors import PrivacyError
from fedpriv.privacy.ledger import Release
from fedpriv.privacy.mechanisms import EVERYBODY, add_noise
from fedpriv.privacy.release.scheme import Answer, PlannedRelease, ReleaseScheme, has_own_rates
from fedpriv.privacy.settings import Privacy


class SumRelease(ReleaseScheme):
    """Releases the sum over the participants; see the module."""

    sums_only = True

    def __init__(self, privacy: Privacy, sizes: Sequence[int] | Sequence[float]) -> None:
        super().__init__(privacy, sizes)
        self._min_honest = privacy.trust.shares(len(sizes))

    def price(self, answer: Answer, factors: Sequence[float]) -> PlannedRelease:
        """See `ReleaseScheme`."""
        if answer.excluded:
            raise PrivacyError(
                "absent clients can be left out of the noise only with pairwise trust in which every two clients "
                "share a secret"
            )
        noise = self.relative_noise(answer)
        return PlannedRelease.of(answer, self.record(answer, noise), noise)

    def depends_on_clients(self, query: str) -> bool:
        """See `ReleaseScheme`: noise and record are the same for any participants."""
        return has_own_rates(self, query)

    def noise_scales(self, planned: PlannedRelease, factors: Sequence[float]) -> Sequence[float]:
        """See `ReleaseScheme`; the noise of the sum is scaled by the largest factor."""
        return [planned.noise * self.privacy.sensitivity_of(planned.clip) * max(factors, default=1.0)]

    def add_noise(
        self, planned: PlannedRelease, rows: Tensor, factors: Sequence[float], positions: Sequence[int]
    ) -> Release:
        """See `ReleaseScheme`."""
        senders = self._senders(planned.clients)
        if senders < self._min_honest:
            raise PrivacyError(
                f"round {planned.record.round} has {senders} participants, but the noise needs at least "
                f"{self._min_honest} honest ones (min_honest), because each participant adds a part of it (trust: "
                f"{self.privacy.trust}): let more clients take part"
            )
        return add_noise(
            rows,
            self.noise_scales(planned, factors),
            self.privacy.mechanism,
            planned.record,
            self.streams.randomness,
            [EVERYBODY],
            amount=senders / self._min_honest,
            past=self.streams.history,
        )

    def noise_variances(
        self, planned: PlannedRelease, factors: Sequence[float], positions: Sequence[int]
    ) -> tuple[list[float], list[float]]:
        """See `ReleaseScheme`: every row is the mean."""
        clients = planned.clients
        sum_variance = (self.privacy.mechanism.deviation * self.noise_scales(planned, factors)[0]) ** 2
        sum_variance *= self.growth_over_time(planned.record.round)
        mean_variance = sum_variance * (self._senders(clients) / len(clients)) / (len(clients) * self._min_honest)
        return [mean_variance] * len(positions), [mean_variance] * len(positions)

    def _senders(self, clients: Sequence[int]) -> int:
        """Returns the number of clients that send a share of the noise.

        If the noise must cancel noise of earlier rounds, all clients send a share.
        """
        if self.privacy.over_time is None:
            return len(clients)
        return self.n_clients
