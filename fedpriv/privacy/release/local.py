"""Trust `local`: every client adds noise to its own row before the row leaves it.

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
from fedpriv.privacy.release.scheme import Answer, Price, ReleaseScheme


class LocalRelease(ReleaseScheme):
    """Releases each participant's row with independent noise; see the module."""

    def price(self, answer: Answer, factors: Sequence[float]) -> Price:
        """See `ReleaseScheme`."""
        if answer.excluded:
            raise PrivacyError("only where every two clients share a secret may pairs be left out")
        noise_multiplier = self.relative_noise(answer)
        sensitivity = self.privacy.sensitivity_of(answer.clip)
        scales = [noise_multiplier * sensitivity * factor for factor in factors]
        return Price(self.record(answer, noise_multiplier, noise_multiplier), scales)

    def add_noise(self, answer: Answer, rows: Tensor, price: Price, positions: Sequence[int]) -> Release:
        """See `ReleaseScheme`."""
        return add_noise(
            rows,
            [price.noise_scales[position] for position in positions],
            self.privacy.mechanism,
            price.record,
            self.streams.randomness,
            [answer.clients[position] for position in positions],
            past=self.streams.history,
        )

    def noise_variances(
        self, price: Price, clients: Sequence[int], positions: Sequence[int]
    ) -> tuple[list[float], list[float]]:
        """See `ReleaseScheme`."""
        growth = self.growth_over_time(price.record.round)
        deviation = self.privacy.mechanism.deviation
        row_variances = [(deviation * price.noise_scales[position]) ** 2 * growth for position in positions]
        return row_variances, [variance / len(clients) for variance in row_variances]
