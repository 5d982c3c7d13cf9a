"""Keeps running totals, from which each client's epsilon is computed quickly after every release.

Releases with the same cost for all clients are added to one common row. A client gets an individual row at the first
release with a different cost for this client. So the time to count a release depends on the number of its clients, and
not on the number of all clients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedpriv.privacy.accounting import gaussian, rdp
from fedpriv.privacy.accounting.events import Event

Array = NDArray[np.float64]
Rows = NDArray[np.int64]
_ROOM = 16  # rows, at first
_MOST_CHANGES = 100  # releases for which rows are kept until the largest epsilon is requested


@dataclass(frozen=True)
class Totals:
    """Sums from which the quick bounds are computed for any delta. There is a row for each client, or for clients with
    equal costs.

    Attributes:
        rdp: Sums of Rényi divergences ``[rows, orders]``.
        pure: Sums of pure epsilons ``[rows]``.
        mu2: Sums of squared Gaussian ratios ``[rows]``; infinite after a release of any other kind.
    """

    rdp: Array
    pure: Array
    mu2: Array

    @staticmethod
    def zeros(rows: int) -> Totals:
        """Returns the totals before any release."""
        return Totals(np.zeros((rows, len(rdp.ORDERS))), np.zeros(rows), np.zeros(rows))

    def plus(self, other: Totals) -> Totals:
        """Returns the sums row by row; if `other` is a single row, it is added to all."""
        return Totals(self.rdp + other.rdp, self.pure + other.pure, self.mu2 + other.mu2)

    def add(self, rows: Rows, other: Totals) -> None:
        """Adds to some of these rows, in place."""
        self.rdp[rows] += other.rdp
        self.pure[rows] += other.pure
        self.mu2[rows] += other.mu2

    def at(self, rows: Rows) -> Totals:
        """Returns a copy of some of the rows."""
        return Totals(self.rdp[rows], self.pure[rows], self.mu2[rows])

    def with_room(self) -> Totals:
        """Returns these rows followed by as many rows of zeros."""
        zeros = Totals.zeros(len(self.pure))
        return Totals(
            np.concatenate([self.rdp, zeros.rdp]),
            np.concatenate([self.pure, zeros.pure]),
            np.concatenate([self.mu2, zeros.mu2]),
        )

    def bounds(self, delta: float) -> dict[str, Array]:
        """Returns the epsilon of every row by each quick bound, by the bound's name."""
        ratios = self.mu2.tolist()
        exact = {mu2: gaussian.compute_epsilon(mu2**0.5, delta) for mu2 in {*ratios}}
        by_gaussian = np.array([exact[mu2] for mu2 in ratios])
        return {"pure": self.pure, "rdp": rdp.compute_epsilons(self.rdp, delta), "gaussian": by_gaussian}

    def epsilon(self, delta: float) -> Array:
        """Returns the smallest of the quick bounds for every row."""
        return np.minimum.reduce(list(self.bounds(delta).values()))


class RunningTotals:
    """The running totals of all clients.

    Args:
        n_clients: Number of clients.
        delta: Failure probability of the epsilons.
    """

    def __init__(self, n_clients: int, delta: float) -> None:
        self._delta = delta
        self._common = Totals.zeros(1)
        # row 0 stays zero: it belongs to all clients that have paid nothing but the common row
        self._individual = Totals.zeros(_ROOM)
        self._n_rows = 1
        self._row_by_client: Rows = np.zeros(n_clients, dtype=np.int64)
        # the largest epsilon so far, and the rows that have changed since it was computed
        self._largest = 0.0
        self._changed = list[Rows]()

    def after(self, clients: Sequence[int] | None, cost: Totals) -> Totals:
        """Returns the totals of some clients after one more release, without counting it.

        Args:
            clients: The clients that pay, each once; None means all.
            cost: A row for each of them, or one for all.

        Returns:
            A row for each of these clients. If the cost is the same for all clients, a row for each distinct total.
        """
        if clients is None and len(cost.pure) == 1:
            rows = self._all_rows
        else:
            rows = self._row_by_client[self._indices(clients)]
        return self._individual.at(rows).plus(self._common).plus(cost)

    def take(self, clients: Sequence[int] | None, cost: Totals) -> None:
        """Counts a release.

        Args:
            clients: The clients that pay, each once; None means all.
            cost: A row for each of them, or one for all.
        """
        if clients is None and len(cost.pure) == 1:
            self._common = self._common.plus(cost)
            self._changed = [self._all_rows]
            return
        indices = self._indices(clients)
        # a round of a network may have no participant
        if len(indices):
            rows = self._individual_rows(indices)
            self._individual.add(rows, cost)
            self._changed.append(rows)
            if len(self._changed) > _MOST_CHANGES:
                self._changed = [self._all_rows]

    def epsilon(self) -> Array:
        """Returns the smallest of the quick bounds for every client ``[n_clients]``."""
        epsilons = self._individual.at(self._all_rows).plus(self._common).epsilon(self._delta)
        return epsilons[self._row_by_client]

    def largest(self, enough: float = math.inf) -> float:
        """Returns the largest `epsilon`. Only rows that changed since the last call are computed, because epsilons
        never decrease.

        Args:
            enough: The caller does not need to distinguish numbers that are at least this large.

        Returns:
            The largest epsilon; if it is known to be at least `enough`, any number from `enough` on.
        """
        if self._largest >= enough:
            return self._largest
        for rows in self._changed:
            changed = self._individual.at(rows).plus(self._common)
            self._largest = max(self._largest, float(changed.epsilon(self._delta).max()))
        self._changed.clear()
        return self._largest

    @property
    def is_exact(self) -> bool:
        """True if all releases had Gaussian noise without sampling, for which the quick bound is exact."""
        return bool(np.isfinite(self._common.mu2).all() and np.isfinite(self._individual.mu2).all())

    @property
    def _all_rows(self) -> Rows:
        return np.arange(self._n_rows)

    def _indices(self, clients: Sequence[int] | None) -> Rows:
        if clients is None:
            return np.arange(len(self._row_by_client))
        return np.asarray(clients, dtype=np.int64)

    def _individual_rows(self, clients: Rows) -> Rows:
        """Returns the individual rows of some clients, and makes new ones for clients that have none."""
        newcomers = clients[self._row_by_client[clients] == 0]
        while self._n_rows + len(newcomers) > len(self._individual.pure):
            self._individual = self._individual.with_room()
        self._row_by_client[newcomers] = np.arange(self._n_rows, self._n_rows + len(newcomers))
        self._n_rows += len(newcomers)
        return self._row_by_client[clients]


@lru_cache(maxsize=4)
def compute_quick_costs(events: tuple[Event, ...]) -> Totals:
    """Returns the costs of events for the quick bounds, with a row for each event. They are read-only, and cached
    because most rounds have the same cost.
    """
    pure = [rdp.compute_pure_epsilon(event) for event in events]
    mu2 = [event.noise**-2 if _closed(event) else math.inf for event in events]
    return Totals(rdp.compute_curves(events), np.array(pure), np.array(mu2))


def _closed(event: Event) -> bool:
    """True if the Gaussian ratio of an event is its exact cost."""
    # infinite noise releases nothing, for any law
    return event.composes_exactly or event.noise == math.inf
