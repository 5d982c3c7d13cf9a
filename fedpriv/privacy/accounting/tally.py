"""Running totals from which each client's epsilon follows quickly after every release."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedpriv.privacy.accounting import gaussian, rdp
from fedpriv.privacy.accounting.events import Charge, Event

Array = NDArray[np.float64]
Price = tuple[Array, Array, Array]


@dataclass(frozen=True)
class Tally:
    """What the quick bounds need of all releases so far, for any delta.

    Attributes:
        rdp: Sums of Rényi divergences ``[n_clients, orders]``.
        pure: Sums of pure epsilons ``[n_clients]``.
        mu2: Sums of squared Gaussian ratios ``[n_clients]``; infinite once anything else was released.
    """

    rdp: Array
    pure: Array
    mu2: Array

    @staticmethod
    def empty(n_clients: int) -> Tally:
        """Nothing released yet."""
        return Tally(np.zeros((n_clients, len(rdp.ORDERS))), np.zeros(n_clients), np.zeros(n_clients))

    def plus(self, charge: Charge, price: Callable[[Sequence[Event]], Price]) -> Tally:
        """The totals after one more charge."""
        curve, pure, mu2 = price(charge.events)
        if charge.clients is None:
            return Tally(self.rdp + curve, self.pure + pure, self.mu2 + mu2)
        after, rows = Tally(self.rdp.copy(), self.pure.copy(), self.mu2.copy()), list(charge.clients)
        after.rdp[rows] += curve
        after.pure[rows] += pure
        after.mu2[rows] += mu2
        return after

    def bounds(self, delta: float) -> dict[str, Array]:
        """Epsilon of every client ``[n_clients]`` by each quick bound."""
        ratios, where = np.unique(self.mu2, return_inverse=True)
        exact = np.array([gaussian.epsilon_of(float(mu2) ** 0.5, delta) for mu2 in ratios])
        return {"pure": self.pure, "rdp": rdp.epsilons(self.rdp, delta), "gaussian": exact[where]}

    def epsilon(self, delta: float) -> Array:
        """The smallest of the quick bounds for every client ``[n_clients]``."""
        return np.minimum.reduce(list(self.bounds(delta).values()))


def price_of(events: Sequence[Event]) -> Price:
    """Rényi divergences ``[events, orders]``, pure epsilons and squared Gaussian ratios ``[events]``."""
    pure = [rdp.pure(event) for event in events]
    mu2 = [event.noise**-2 if _closed(event) else math.inf for event in events]
    return rdp.curves(events), np.array(pure), np.array(mu2)


def _closed(event: Event) -> bool:
    # infinite noise releases nothing, whatever its law
    return event.composes_exactly or event.noise == math.inf
