"""Trust `local`: every client adds noise to its row before sending it.

For participant i, with clipped sum x_i, public factor f_i and sensitivity S of the clipped sum:

    y_i = f_i x_i + sigma_i Z_i,    sigma_i = (z / share) S f_i,    Z_i standard normal (or Laplace)

Guarantee: y_i is a Gaussian (Laplace) mechanism of client i's data with noise multiplier z / share, against any
observer except client i itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fedpriv.errors import PrivacyError
from fedpriv.privacy.ledger import Release
from fedpriv.privacy.mechanisms import add_noise
from fedpriv.privacy.release.scheme import Answer, PlannedRelease, ReleaseScheme, has_own_rates


class LocalRelease(ReleaseScheme):
    """Releases each participant's row with independent noise; see the module."""

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
        """See `ReleaseScheme`."""
        sensitivity = self.privacy.sensitivity_of(planned.clip)
        return [planned.noise * sensitivity * factor for factor in factors]

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
        )

    def noise_variances(
        self, planned: PlannedRelease, factors: Sequence[float], positions: Sequence[int]
    ) -> tuple[list[float], list[float]]:
        """See `ReleaseScheme`."""
        scales = self.noise_scales(planned, factors)
        growth = self.growth_over_time(planned.record.round)
        deviation = self.privacy.mechanism.deviation
        row_variances = [(deviation * scales[position]) ** 2 * growth for position in positions]
        return row_variances, [variance / len(planned.clients) for variance in row_variances]
