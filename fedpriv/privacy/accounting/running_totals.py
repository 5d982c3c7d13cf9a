"""Running totals from which each client's epsilon follows quickly after every release.

What everybody pays alike is one row. A client gets a row of its own with the first release that concerns it otherwise,
so that counting a release costs what its clients cost, however many others there are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedpriv.privacy.accounting import gaussian, rdp
from fedpriv.privacy.accounting.events import Event

Array = NDArray[np.float64]
Rows = NDArray[np.int64]
_ROOM = 16  # rows, at first


@dataclass(frozen=True)
class Totals:
    """What the quick bounds need of releases, for any delta; a row for each client, or for clients that are alike.

    Attributes:
        rdp: Sums of Rényi divergences ``[rows, orders]``.
        pure: Sums of pure epsilons ``[rows]``.
        mu2: Sums of squared Gaussian ratios ``[rows]``; infinite once anything else was released.
    """

    rdp: Array
    pure: Array
    mu2: Array

    @staticmethod
    def zeros(rows: int) -> Totals:
        """Nothing released yet."""
        return Totals(np.zeros((rows, len(rdp.ORDERS))), np.zeros(rows), np.zeros(rows))

    def plus(self, other: Totals) -> Totals:
        """Sums, row by row; one row is added to all."""
        return Totals(self.rdp + other.rdp, self.pure + other.pure, self.mu2 + other.mu2)

    def add(self, rows: Rows, other: Totals) -> None:
        """Add to some of these rows, in place."""
        self.rdp[rows] += other.rdp
        self.pure[rows] += other.pure
        self.mu2[rows] += other.mu2

    def at(self, rows: Rows) -> Totals:
        """Some of the rows."""
        return Totals(self.rdp[rows], self.pure[rows], self.mu2[rows])

    def with_room(self) -> Totals:
        """These rows, and as many of zeros."""
        more = Totals.zeros(len(self.pure))
        return Totals(
            np.concatenate([self.rdp, more.rdp]),
            np.concatenate([self.pure, more.pure]),
            np.concatenate([self.mu2, more.mu2]),
        )

    def bounds(self, delta: float) -> dict[str, Array]:
        """Epsilon of every row by each quick bound."""
        ratios, where = np.unique(self.mu2, return_inverse=True)
        exact = np.array([gaussian.epsilon_of(float(mu2) ** 0.5, delta) for mu2 in ratios])
        return {"pure": self.pure, "rdp": rdp.epsilons(self.rdp, delta), "gaussian": exact[where]}

    def epsilon(self, delta: float) -> Array:
        """The smallest of the quick bounds for every row."""
        return np.minimum.reduce(list(self.bounds(delta).values()))


class RunningTotals:
    """The totals of all clients.

    Args:
        n_clients: Number of clients.
        delta: Of the epsilons.
    """

    def __init__(self, n_clients: int, delta: float) -> None:
        self._delta = delta
        # row 0 of `own` stays zero: it is that of all clients who have paid nothing of their own
        self._common, self._own, self._count = Totals.zeros(1), Totals.zeros(_ROOM), 1
        self._row_of: Rows = np.zeros(n_clients, dtype=np.int64)
        self._largest, self._changed = 0.0, list[Rows]()

    def after(self, clients: Sequence[int] | None, price: Totals) -> Totals:
        """The totals of some clients after one more release, which is not counted.

        Args:
            clients: Whom it concerns, each once; None means all.
            price: A row for each of them, or one for all.

        Returns:
            A row for each of them or, where all pay alike, for each kind of client.
        """
        if clients is None and len(price.pure) == 1:
            rows = self._kinds
        else:
            rows = self._row_of[self._indices(clients)]
        return self._own.at(rows).plus(self._common).plus(price)

    def take(self, clients: Sequence[int] | None, price: Totals) -> None:
        """Count a release."""
        if clients is None and len(price.pure) == 1:
            self._common, self._changed = self._common.plus(price), [self._kinds]
            return
        if len(indices := self._indices(clients)):  # a round of a network may have no participant
            rows = self._rows_of_their_own(indices)
            self._own.add(rows, price)
            self._changed.append(rows)

    def epsilon(self) -> Array:
        """The smallest of the quick bounds for every client ``[n_clients]``."""
        return self._own.at(self._kinds).plus(self._common).epsilon(self._delta)[self._row_of]

    def largest(self) -> float:
        """The largest of `epsilon`; looks only at what has changed since the last call, for no epsilon ever falls."""
        for rows in self._changed:
            changed = self._own.at(rows).plus(self._common)
            self._largest = max(self._largest, float(changed.epsilon(self._delta).max()))
        self._changed.clear()
        return self._largest

    @property
    def is_exact(self) -> bool:
        """Whether all was unsampled Gaussian noise, for which the quick bound is exact."""
        return bool(np.isfinite(self._common.mu2).all() and np.isfinite(self._own.mu2).all())

    @property
    def _kinds(self) -> Rows:
        return np.arange(self._count)

    def _indices(self, clients: Sequence[int] | None) -> Rows:
        if clients is None:
            return np.arange(len(self._row_of))
        return np.asarray(clients, dtype=np.int64)

    def _rows_of_their_own(self, clients: Rows) -> Rows:
        newcomers = clients[self._row_of[clients] == 0]
        while self._count + len(newcomers) > len(self._own.pure):
            self._own = self._own.with_room()
        self._row_of[newcomers] = np.arange(self._count, self._count + len(newcomers))
        self._count += len(newcomers)
        return self._row_of[clients]


def price_of(events: Sequence[Event]) -> Totals:
    """What each event costs, a row for each."""
    pure = [rdp.pure(event) for event in events]
    mu2 = [event.noise**-2 if _closed(event) else math.inf for event in events]
    return Totals(rdp.curves(events), np.array(pure), np.array(mu2))


def _closed(event: Event) -> bool:
    # infinite noise releases nothing, whatever its law
    return event.composes_exactly or event.noise == math.inf
