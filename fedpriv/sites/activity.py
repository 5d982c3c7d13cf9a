"""Counts and logs a running site's replies, refusals, and requesting parties, in bounded memory and log size."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from dataclasses import dataclass

from fedpriv.sites.messages import Code

_LOG = logging.getLogger(__name__)
_MAX_NAMES = 1000  # of separately counted parties; a stranger can invent any number of names
_OTHERS = "(others)"
_MAX_NAME_LENGTH = 100


@dataclass(frozen=True)
class Totals:
    """Counts since the site was started.

    Attributes:
        answered: Number of replies by hash of the plan; repeated replies count again.
        refused: Number of refusals by code.
        last_answer: Time of the last reply in seconds since 1970; 0 if there was none.
    """

    answered: dict[str, int]
    refused: dict[str, int]
    last_answer: float


class Activity:
    """Counts the requests of each party. A flood of refusals is logged once for each power of ten."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answered: Counter[str] = Counter()
        self._refused: Counter[tuple[str, str]] = Counter()  # by party and code
        self._parties: set[str] = set()
        self._last_answer = 0.0

    def count_answer(self, party: str, plan: str, round_index: int) -> None:
        """Counts a request that was answered.

        Args:
            party: Sender of the request, by its name in the transport.
            plan: Hash of the plan, which the site has accepted.
            round_index: The round, from 0.
        """
        with self._lock:
            self._answered[plan] += 1
            self._last_answer = time.time()
        facts = {"event": "answered", "party": _shortened(party), "plan": plan[:32], "round": round_index + 1}
        _LOG.info("answered", extra={"facts": facts})

    def count_refusal(self, party: str, plan: str, round_index: int, code: Code) -> None:
        """Counts a request that was refused; see `count_answer` for the arguments. The plan may be any text."""
        with self._lock:
            name = self._bounded(_shortened(party))
            self._refused[name, code] += 1
            count = self._refused[name, code]
        if _is_power_of_ten(count):
            facts = {"event": "refused", "party": name, "code": code, "times": count}
            facts |= {"plan": plan[:32], "round": round_index + 1}
            _LOG.warning("a request was refused", extra={"facts": facts})

    def totals(self) -> Totals:
        """Returns all counts so far."""
        with self._lock:
            refused: Counter[str] = Counter()
            for (_, code), count in self._refused.items():
                refused[code] += count
            return Totals(dict(self._answered), dict(refused), self._last_answer)

    def _bounded(self, party: str) -> str:
        """Returns the name under which a party is counted."""
        if party in self._parties:
            return party
        if len(self._parties) >= _MAX_NAMES:
            return _OTHERS
        self._parties.add(party)
        return party


def _shortened(party: str) -> str:
    return party[:_MAX_NAME_LENGTH] or "(unknown)"


def _is_power_of_ten(count: int) -> bool:
    while count % 10 == 0:
        count //= 10
    return count == 1
