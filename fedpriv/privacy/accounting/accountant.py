"""The accountant: adds up the epsilon of releases, and refuses the release that would pass the limit."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedpriv.errors import BudgetExhausted, ConfigError
from fedpriv.privacy.accounting import bounds, gaussian, rdp
from fedpriv.privacy.accounting.composition import Composition
from fedpriv.privacy.accounting.events import Event, PrivacyCost, cost_of, histories
from fedpriv.privacy.accounting.reserve import Foresight, PlannedReserve
from fedpriv.privacy.accounting.running_totals import RunningTotals, Totals, price_of
from fedpriv.privacy.accounting.spent import PrivacySpent, round_up

if TYPE_CHECKING:
    from fedpriv.privacy.record import Record

_EXACT_LEVELS = 256
_COARSE = math.log(1.01)
_RECENT = 16


class Accountant:
    """Counts every release; with a limit, refuses the release that would pass it.

    Guarantee: whenever ``admit`` returns, all admitted records together are (epsilon, delta)-DP for every client with
    the epsilon of ``spent()``, at most ``epsilon_limit`` when there is one. Noise levels, sampling rates and cohorts
    must not depend on earlier answers.

    Whether a release fits is decided by quick bounds (Rényi, pure, exact Gaussian; microseconds), and where those pass
    the limit by the tight bound (privacy loss distributions; slow), for many releases at a time.

    Args:
        n_clients: Number of clients.
        delta: Failure probability in [0, 1); 0 asks for pure epsilon, which Gaussian noise does not have.
        epsilon_limit: Most that any client may spend; None only counts.
        plan: Releases known beforehand. If they fit the limit together, each is admitted without further computation,
            in any order, also with more noise or fewer clients than planned, until a release is not in the plan.

    Raises:
        ConfigError: an argument is out of range.

    Source: Mironov 2017 (Rényi composition); Rogers, Roth, Ullman, Vadhan 2016 (privacy filters).
    """

    def __init__(
        self, n_clients: int, delta: float, epsilon_limit: float | None = None, plan: Sequence[Record] = ()
    ) -> None:
        check_target(n_clients, delta, 1.0 if epsilon_limit is None else epsilon_limit)
        self._n_clients, self._delta, self._limit = n_clients, delta, epsilon_limit
        self._tally = RunningTotals(n_clients, delta)
        self._bill, self._rounds = Composition(n_clients), 0
        self._levels: set[Event] = set()
        self._plan = PlannedReserve((record, cost_of(record, n_clients)) for record in plan)
        self._foresight = Foresight()
        self._recent: deque[PrivacyCost] = deque(maxlen=_RECENT)
        if epsilon_limit is not None:
            self._allowance = rdp.allowance(epsilon_limit, delta)
            self._largest_mu2 = gaussian.ratio_of(epsilon_limit, delta) ** 2

    def admit(self, record: Record) -> None:
        """Count a record.

        Raises:
            BudgetExhausted: some client's epsilon would pass the limit; nothing was counted.
            ConfigError: the record is out of range, or no sound bound on its epsilon is known.
            PrivacyError: the record protects another unit or relation than the ones before it, or its noise is
                correlated with that of rounds that are missing.
        """
        charge = self._bill.check(record)
        price = self._price(charge.events)
        if self._limit is not None and not self._fits(record, charge, self._tally.after(charge.clients, price)):
            raise self._refusal(record, charge)
        self._count(record, charge, price)

    def count(self, record: Record) -> None:
        """Count a record of a release that has been made, whether or not it is within the limit.

        Raises:
            ConfigError: the record is out of range, or no sound bound on its epsilon is known.
            PrivacyError: as for `admit`.
        """
        charge = self._bill.check(record)
        self._count(record, charge, self._price(charge.events))

    def _count(self, record: Record, charge: PrivacyCost, price: Totals) -> None:
        self._tally.take(charge.clients, price)
        self._bill.take(record, charge)
        self._rounds = max(self._rounds, record.round + 1)
        self._plan.take(record, charge)
        self._foresight.take(charge)
        if charge not in self._recent:
            self._recent.append(charge)

    def epsilon(self) -> NDArray[np.float64]:
        """Quick upper bound on each client's epsilon, ``[n_clients]``."""
        return self._tally.epsilon()

    def so_far(self) -> float:
        """Upper bound on the largest epsilon of a client, cheap enough for every round.

        The smallest of: the quick bound, the limit, and the tight bound of the plan up to one of the next rounds.
        """
        shown = min(self._tally.largest(), math.inf if self._limit is None else self._limit)
        if self._delta == 0 or self._tally.is_exact or not self._plan.holds or math.isinf(shown):
            return shown
        return min(shown, self._plan.milestones.epsilon(self._rounds, self._largest))

    def spent(self) -> PrivacySpent:
        """Tight upper bound on what has been spent, with the conditions under which it holds."""
        return self._bill.spent(self._delta)

    def _price(self, events: Sequence[Event]) -> Totals:
        """Quick prices; past a few hundred levels, sampled events are rounded to 1 % less noise."""
        return price_of([event if event.selection == "full" else self._level(event) for event in events])

    def _level(self, event: Event) -> Event:
        if event in self._levels or len(self._levels) < _EXACT_LEVELS:
            self._levels.add(event)
            return event
        return event._replace(noise=math.exp(math.floor(math.log(event.noise) / _COARSE) * _COARSE))

    def _fits(self, record: Record, charge: PrivacyCost, after: Totals) -> bool:
        assert self._limit is not None
        within = (after.pure <= self._limit) | (after.mu2 <= self._largest_mu2)
        if (within | (after.rdp <= self._allowance).any(-1)).all():
            return True
        if not np.isfinite(after.rdp).any(-1).all() or self._delta == 0:
            return False
        if self._plan.covers(record, charge) and self._plan.fits(self._tight_fit):
            return True
        return self._foresight.covers(charge) or self._foresight.look(
            charge, self._recent, lambda extra: self._tight_fit(self._bill.charges + extra)
        )

    def _largest(self, charges: Counter[PrivacyCost]) -> float:
        return bounds.largest([history for _, history in histories(charges, self._n_clients)], self._delta)

    def _tight_fit(self, charges: Counter[PrivacyCost]) -> bool:
        assert self._limit is not None
        found = [history for _, history in histories(charges, self._n_clients)]
        return bounds.largest(found, self._delta, self._limit) <= self._limit

    def _refusal(self, record: Record, charge: PrivacyCost) -> BudgetExhausted:
        epsilon = self._largest(self._bill.charges + Counter({charge: 1}))
        if math.isinf(epsilon):
            would = "infinite"
        else:
            would = f"{round_up(epsilon)} by the tightest bound known here"
        return BudgetExhausted(
            f"round {record.round}, {record.query}: the target is epsilon={self._limit} at delta={self._delta}, and "
            f"this release would bring it to {would}; it was not made. Keep the result reached so far, or plan a new "
            "run with fewer rounds, a larger noise multiplier or a larger target"
        )


def check_target(n_clients: int, delta: float, epsilon: float) -> None:
    """Check the arguments of an accountant.

    Raises:
        ConfigError: an argument is out of range.
    """
    if n_clients < 1:
        raise ConfigError("n_clients", n_clients, "there is at least one client")
    if not 0 <= delta < 1:
        raise ConfigError(
            "delta", delta, "delta is a probability in [0, 1), well below 1 / (number of records), e.g. 1e-5"
        )
    if not 0 < epsilon < math.inf:
        raise ConfigError("epsilon", epsilon, "a target epsilon is positive and finite, e.g. 3.0")


def account(records: Sequence[Record], n_clients: int, delta: float) -> PrivacySpent:
    """Tight upper bound on the epsilon of a list of records.

    Args:
        records: The ledger; in any order, but for records of noise that is correlated between rounds.
        n_clients: Number of clients.
        delta: Failure probability in [0, 1).

    Raises:
        ConfigError: a record or an argument is out of range.
        PrivacyError: the records protect different units or relations.
    """
    check_target(n_clients, delta, 1.0)
    bill = Composition(n_clients)
    for record in records:
        bill.take(record, bill.check(record))
    return bill.spent(delta)
