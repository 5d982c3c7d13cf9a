"""Watches connections: each change is logged once, and a lasting disconnection is logged as a warning with a reason.

Zenoh connects in the background, repeatedly, and reports neither success nor failure.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from fedpriv.sites.connection_file import Connection
from fedpriv.sites.over_zenoh.diagnosis import diagnose_connection
from fedpriv.sites.over_zenoh.link import Credentials

if TYPE_CHECKING:
    import zenoh

_LOG = logging.getLogger(__name__)
_POLL = 0.5  # seconds between two checks of the connections
_PATIENCE = 5.0  # seconds without a connection before the reason is searched for
_LONGEST = 60.0  # seconds between two searches for the reason
_LEAVING = 1.0  # seconds for the thread to end; if it waits for a silent host, it ends with the process
UNKNOWN = "the other end"
"""The name of a party that has no certificate, over plain TCP on one machine."""


class ConnectionWatch:
    """Watches the sessions of a process in a thread, until `close`.

    Args:
        connect: Addresses to which this process connects.
        listen: Addresses at which it waits for others to connect.
        credentials: Its files for TLS; None for plain TCP.
        publish: Called with all connections, by name, after each check; for `fedpriv site status`.
    """

    def __init__(
        self,
        connect: Sequence[str],
        listen: Sequence[str],
        credentials: Credentials | None,
        publish: Callable[[Mapping[str, Connection]], None] = lambda connections: None,
    ) -> None:
        self._connect = connect
        self._listen = listen
        self._credentials = credentials
        self._publish = publish
        self._lock = threading.Lock()  # guards the sessions and the connections
        self._sessions: list[zenoh.Session] = []
        self._connections: dict[str, Connection] = {}  # of the expected parties, by name
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="connections", daemon=True)
        self._thread.start()

    def expect(self, session: zenoh.Session, names: Collection[str]) -> None:
        """Also watches this session, in which these parties are expected, by the names in their certificates."""
        with self._lock:
            self._sessions.append(session)
            for name in names or [UNKNOWN]:
                self._connections.setdefault(name, Connection(False, "", time.time()))
        _on_links(session, self._arrived)

    def close(self) -> None:
        """Ends the thread; call it before closing the sessions."""
        self._is_closed.set()
        self._thread.join(_LEAVING)

    def _watch(self) -> None:
        try:
            searches = _Searches()
            while not self._is_closed.is_set():
                missing = self._look()
                if searches.is_due(missing):
                    self._search(searches)
                with self._lock:
                    connections = dict(self._connections)
                self._publish(connections)
                self._is_closed.wait(_POLL)
        except Exception:  # a failing watch must not end the rounds
            _LOG.exception("connections are no longer observed")

    def _look(self) -> Sequence[str]:
        """Checks the connections and logs each change; returns the names of the parties that are not connected."""
        linked = self._linked()
        with self._lock:
            names = [*self._connections]
        for name in names:
            self._set(name, is_connected=name in linked)
        return [name for name in names if name not in linked]

    def _arrived(self, name: str) -> None:
        """Records that a party is connected, however soon it disconnects."""
        if name in self._connections:
            self._set(name, is_connected=True)
        elif name != UNKNOWN:
            _LOG.warning("connected: %s, which is in no plan of this site, so it can send nothing", name)

    def _set(self, name: str, *, is_connected: bool) -> None:
        """Records the state of a party's connection and logs a change."""
        with self._lock:
            if self._connections[name].is_connected == is_connected:
                return
            self._connections[name] = Connection(is_connected, "", time.time())
        change = "connected" if is_connected else "disconnected"
        _log(logging.INFO, f"{change}: {name}", change, name)

    def _linked(self) -> set[str]:
        """Returns the names of all parties that have a connection."""
        with self._lock:
            sessions = [*self._sessions]
        if self._is_closed.is_set():
            return set()
        return {link.auth_identifier or UNKNOWN for session in sessions for link in session.info.links()}

    def _search(self, searches: _Searches) -> None:
        """Searches for the reason why parties are not connected and logs it."""
        reason = self._reason()
        if self._is_closed.is_set():
            return
        missing = self._look()  # the search took seconds
        with self._lock:
            for name in missing:
                self._connections[name] = replace(self._connections[name], reason=reason)
        if missing and searches.is_news(missing, reason):
            names = ", ".join(missing)
            _log(logging.WARNING, f"not connected yet: {names}; {reason}", "not_connected", names, reason)

    def _reason(self) -> str:
        reasons: list[str] = []
        works: list[str] = []
        for address in self._connect:
            reason = diagnose_connection(address, self._credentials)
            if reason is None:
                works.append(address)
            else:
                reasons.append(f"{address}: {reason}")
        strangers = sorted(self._linked() - {*self._connections, UNKNOWN})
        if strangers and not self._listen:
            named = ", ".join(strangers)
            reasons.append(f"the connected party, {named}, is in no plan here: correct the address")
        elif works and not self._listen:
            named = ", ".join(works)
            reasons.append(
                f"{named} accepts TLS connections, but no fedpriv session: compare the versions of fedpriv at both ends"
            )
        if self._listen:
            reasons.append(
                f"no connection from them has reached {', '.join(self._listen)}; their own logs have the reason"
            )
        return "; ".join(reasons)


class _Searches:
    """Determines when to search for a reason and when to log it, with few lines if a server is down for weeks."""

    def __init__(self) -> None:
        self._missing: Sequence[str] = ()
        self._next = 0.0
        self._interval = _PATIENCE
        self._last = ""
        self._count = 0

    def is_due(self, missing: Sequence[str]) -> bool:
        """Returns True if it is time to search for the reason."""
        now = time.monotonic()
        if list(missing) != list(self._missing):
            self._missing = list(missing)
            self._interval = _PATIENCE
            self._next = now + _PATIENCE
            self._last = ""
        if not missing or now < self._next:
            return False
        self._interval = min(2 * self._interval, _LONGEST)
        self._next = now + self._interval
        return True

    def is_news(self, missing: Sequence[str], reason: str) -> bool:
        """Returns True for a new reason, and for the same reason the second, fourth, eighth time and so on."""
        text = f"{', '.join(missing)}: {reason}"
        if text != self._last:
            self._last = text
            self._count = 0
        self._count += 1
        return self._count & (self._count - 1) == 0


def _log(level: int, text: str, event: str, party: str, reason: str = "") -> None:
    facts = {"event": event, "party": party}
    if reason:
        facts["reason"] = reason
    _LOG.log(level, text, extra={"facts": facts})


def log_strangers(session: zenoh.Session, known: Collection[str]) -> None:
    """Logs a warning for each party that connects with a certificate name that is in no plan here."""

    def log(name: str) -> None:
        if name not in known and name != UNKNOWN:
            _LOG.warning("connected: %s, which is in no plan of this site, so it can send nothing", name)

    _on_links(session, log)


def _on_links(session: zenoh.Session, on_arrival: Callable[[str], None]) -> None:
    """Calls a function with the name of each party that is connected or connects later."""
    import zenoh

    def handle(event: zenoh.LinkEvent) -> None:
        if event.kind == zenoh.SampleKind.PUT:
            on_arrival(event.link.auth_identifier or UNKNOWN)

    session.info.declare_link_events_listener(zenoh.handlers.Callback(handle), history=True)
