"""The interface of noise without a privacy guarantee; see `fedpriv.papers.published`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Literal

from fedpriv.privacy.mechanisms import Mechanism
from fedpriv.privacy.record import Record


class UnprotectedNoise(ABC):
    """Noise that is added to exact query results. Runs with this noise report infinite epsilon and the reason."""

    noise_on: Literal["gradient", "message"]
    """The value that the noise is added to."""

    @property
    @abstractmethod
    def noise_mechanism(self) -> Mechanism:
        """Distribution of the noise."""

    @property
    @abstractmethod
    def why_not(self) -> str:
        """The reason why this noise is not private, as reports print it."""

    @abstractmethod
    def scales(
        self, record: Record, factors: Sequence[float], largest_norms: Callable[[], Sequence[float]]
    ) -> Sequence[float] | None:
        """Returns the scale of each row's noise; None for a query result without noise.

        Args:
            record: The ledger record of the query result, marked as not private.
            factors: Public number by which each row has been multiplied.
            largest_norms: Returns each client's largest l1 norm of a per-example gradient; it needs another pass over
                the data.

        Raises:
            ConfigError: If there is no such noise for this query.
        """
