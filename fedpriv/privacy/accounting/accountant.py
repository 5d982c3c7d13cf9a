"""Composes the privacy costs of releases to an epsilon. The accountant never rejects a release; `plan_filter` does
that.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedpriv.errors import ConfigError
from fedpriv.privacy.accounting.composition import Composition
from fedpriv.privacy.accounting.epochs import PlannedCosts
from fedpriv.privacy.accounting.events import Event, PrivacyCost
from fedpriv.privacy.accounting.running_totals import RunningTotals, Totals, compute_quick_costs
from fedpriv.privacy.accounting.spent import PrivacySpent

if TYPE_CHECKING:
    from fedpriv.privacy.record import Record

_EXACT_LEVELS = 256
_COARSE = math.log(1.01)


class Accountant:
    """Counts every release, and adds up their costs to an epsilon.

    Guarantee: for every client, all counted releases together are (epsilon, delta)-DP with the epsilon of `spent()`, as
    long as noise levels, sampling rates and cohorts do not depend on earlier releases.

    The class also implements `fedpriv.privacy.ledger.PrivacyFilter`, as a filter without a plan or a limit that admits
    every release.

    Args:
        n_clients: Number of clients.
        delta: Failure probability in [0, 1); 0 requests pure epsilon, which is infinite for Gaussian noise.

    Attributes:
        n_records: Number of releases counted so far.

    Raises:
        ConfigError: If an argument is out of range.

    Source: Mironov 2017 (Rényi composition).
    """

    def __init__(self, n_clients: int, delta: float) -> None:
        check_target(n_clients, delta, 1.0)
        self.n_clients, self.delta = n_clients, delta
        self.n_records = 0
        self._totals = RunningTotals(n_clients, delta)
        self._composition = Composition(n_clients)
        self._levels: set[Event] = set()

    @property
    def charges(self) -> Counter[PrivacyCost]:
        """The distinct counted costs, with the number of times that each occurred. Callers must not change it."""
        return self._composition.charges

    @property
    def is_exact(self) -> bool:
        """True if the quick bound is the exact epsilon: all releases are Gaussian and without sampling."""
        return self._totals.is_exact

    def check(self, record: Record) -> PrivacyCost:
        """Returns the cost of a release, without counting it.

        Raises:
            ConfigError: If the record is out of range, or no sound bound on its epsilon is known.
            PrivacyError: If the record protects another unit or relation than the earlier records, or its noise is
                correlated with the noise of missing rounds.
        """
        return self._composition.check(record)

    def due(self, record: Record, cost: PrivacyCost) -> PrivacyCost:
        """Returns the cost that a release adds to the counted releases, given the cost of this release alone.

        Raises:
            PrivacyError: See `check`.
        """
        return self._composition.due(record, cost)

    def costs_of(self, coming: Sequence[Record]) -> PlannedCosts:
        """Returns the cost that each of several future releases would add; they are not counted."""
        return self._composition.costs_of(coming)

    def count(self, record: Record) -> None:
        """Counts a release.

        Raises:
            ConfigError, PrivacyError: See `check`; the release is not counted.
        """
        self.take(record, self.check(record))

    def take(self, record: Record, cost: PrivacyCost) -> None:
        """Counts a release with the cost that `check` has just returned for it."""
        self._totals.take(cost.clients, self._price(cost.events))
        self._composition.take(record, cost)
        self.n_records += 1

    def admit(self, record: Record) -> None:
        """Counts a release that is about to be made. Without a plan or a limit every release is admitted."""
        self.count(record)

    def epsilon(self) -> NDArray[np.float64]:
        """Returns a quick upper bound on each client's epsilon, ``[n_clients]``."""
        return self._totals.epsilon()

    def quick_epsilon(self, enough: float = math.inf) -> float:
        """Returns an upper bound on the largest epsilon of a client that is quick enough to be computed in every round.

        Args:
            enough: If the bound is known to be at least this number, any number from `enough` on may be returned.
        """
        return self._totals.largest(enough)

    def spent(self) -> PrivacySpent:
        """Returns a tight upper bound on the cost so far, with the conditions under which it holds."""
        return self._composition.spent(self.delta)

    def _price(self, events: Sequence[Event]) -> Totals:
        """Returns the costs of events for the quick bound, one row for each event."""
        return compute_quick_costs(
            tuple([event if event.selection == "full" else self._rounded(event) for event in events])
        )

    def _rounded(self, event: Event) -> Event:
        """Returns a sampled event unchanged. If there are more than a few hundred noise levels, returns an event with
        up to 1 % less noise.

        The privacy curve of each noise level with sampling takes milliseconds to compute, so the number of levels is
        kept small.
        """
        if event in self._levels or len(self._levels) < _EXACT_LEVELS:
            self._levels.add(event)
            return event
        return event._replace(noise=math.exp(math.floor(math.log(event.noise) / _COARSE) * _COARSE))


def check_target(n_clients: int, delta: float, epsilon: float) -> None:
    """Checks the arguments of an accountant.

    Raises:
        ConfigError: If an argument is out of range.
    """
    if n_clients < 1:
        raise ConfigError("n_clients", n_clients, "must be at least 1")
    if not 0 <= delta < 1:
        raise ConfigError(
            "delta", delta, "must be a probability in [0, 1), well below 1 / (number of records), e.g. 1e-5"
        )
    if not 0 < epsilon < math.inf:
        raise ConfigError("epsilon", epsilon, "must be positive and finite, e.g. 3.0")


def account(records: Sequence[Record], n_clients: int, delta: float) -> PrivacySpent:
    """Returns a tight upper bound on the epsilon of a list of records.

    Args:
        records: The ledger's records, in any order. Only records of noise that is correlated between rounds must be
            in the order of their rounds.
        n_clients: Number of clients.
        delta: Failure probability in [0, 1).

    Raises:
        ConfigError: If a record or an argument is out of range.
        PrivacyError: If the records protect different units or relations.
    """
    check_target(n_clients, delta, 1.0)
    composition = Composition(n_clients)
    composition.count(records)
    return composition.spent(delta)
