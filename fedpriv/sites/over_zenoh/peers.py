"""A node's side of its links over Zenoh: each neighbour has one key for its requests and one for its replies."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from fedpriv.errors import ConfigError
from fedpriv.sites.connection_file import Connection
from fedpriv.sites.federation_plan import FederationPlan
from fedpriv.sites.over_zenoh.certificates import find_credentials
from fedpriv.sites.over_zenoh.connections import ConnectionWatch
from fedpriv.sites.over_zenoh.link import Link, join_all, open_link
from fedpriv.sites.peers.messages import longest_message
from fedpriv.sites.peers.round_links import PlannedLinks
from fedpriv.sites.resolved_plan import ResolvedPlan

if TYPE_CHECKING:
    import zenoh

_LOG = logging.getLogger(__name__)
_WAITING = 4  # waiting requests of a neighbour; a newer one replaces the oldest
_FRAMING = 1024  # bytes that Zenoh adds to a message: key expression, identifiers, lengths
_MAX_THREADS = 64


def peer_key(plan_hash: str, answers: str, asks: str) -> str:
    """Returns the key expression on which a site replies to the requests of one of its neighbours."""
    return f"fedpriv/{plan_hash}/peer/{answers}/{asks}"


class PeersOverZenoh:
    """The transport of a node: sends and receives requests to and from neighbours, over one session.

    Messages are signed and sealed by the nodes themselves (`fedpriv.sites.peers.messages`), with the keys that the plan
    names. Certificates keep strangers out of the session.

    Args:
        proposal: The plan, on a graph.
        resolved_plan: The same, resolved.
        number: The site's number in it.
        listen: Addresses to listen on, such as `tls/0.0.0.0:7447`.
        connect: Addresses of neighbours, such as `tls/south.example.org:7447`. One of two neighbours connects.
        keys: Folder with the site's certificate; None for plain TCP on this machine alone.
        wait: Seconds to wait for a reply.
        publish: Called with the connections to neighbours; see `ConnectionWatch`.

    Raises:
        ConfigError: If an address belongs to another machine without certificate, or the transport does not fit the
            plan.
        FedprivError: If the certificate does not match the plan, or an address is in use.
    """

    def __init__(
        self,
        proposal: FederationPlan,
        resolved_plan: ResolvedPlan,
        number: int,
        *,
        listen: Sequence[str],
        connect: Sequence[str],
        keys: Path | None,
        wait: float,
        publish: Callable[[Mapping[str, Connection]], None] = lambda connections: None,
    ) -> None:
        _check_kind(proposal, has_tls=keys is not None)
        names = [card.name for card in resolved_plan.cards]
        neighbours = PlannedLinks(resolved_plan, number).neighbours
        self._ask_keys = {other: peer_key(proposal.hash, names[other], names[number]) for other in neighbours}
        self._answer_keys = {other: peer_key(proposal.hash, names[number], names[other]) for other in neighbours}
        self._names = {other: names[other] for other in neighbours}
        self._wait = wait
        self._is_signed: Callable[[bytes], bool] = lambda data: False
        requesters: dict[str, Sequence[str]] = {}
        repliers: dict[str, Sequence[str]] = {}
        for other in neighbours:
            pin = proposal.cards[other].certificate
            if pin is not None:
                requesters[pin.common_name] = [self._answer_keys[other]]
                repliers[pin.common_name] = [self._ask_keys[other]]
        credentials = None
        own_pin = proposal.cards[number].certificate
        if keys is not None and own_pin is not None:
            credentials = find_credentials(keys, own_pin)
        limit = longest_message(resolved_plan.widths[1]) + _FRAMING
        link = Link(credentials, limit, connect=connect, listen=listen, requesters=requesters, repliers=repliers)
        self._session = open_link(link)
        self._watch = ConnectionWatch(connect, listen, credentials, publish)
        self._watch.expect(self._session, requesters)
        self._threads: list[threading.Thread] = []
        self._pool = ThreadPoolExecutor(min(max(len(neighbours), 1), _MAX_THREADS), thread_name_prefix="ask")

    def serve(self, answer: Callable[[bytes], bytes], is_signed: Callable[[bytes], bool]) -> None:
        """Replies to neighbours' requests from now on, in one thread for each neighbour.

        Args:
            answer: Returns the reply to a request, or nothing if there is no reply; must not raise.
            is_signed: Returns True if a neighbour has signed these bytes for this site.
        """
        self._is_signed = is_signed
        for other, key in self._answer_keys.items():
            thread = threading.Thread(target=self._serve, args=[other, key, answer], daemon=True)
            self._threads.append(thread)
            thread.start()

    def ask(self, questions: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """See `Transport`; an unconnected neighbour is absent at once, a silent one after the waiting time."""
        replies = self._pool.map(lambda other: self._ask(other, questions[other]), questions)
        return {other: reply for other, reply in zip(questions, replies, strict=True) if reply}

    def close(self) -> None:
        """Ends all connections."""
        self._watch.close()
        self._session.close()
        self._pool.shutdown()
        join_all(self._threads)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _ask(self, other: int, question: bytes) -> bytes:
        """Returns the reply of a neighbour; nothing if none arrives in time."""
        import zenoh

        try:
            replies = self._session.get(
                self._ask_keys[other],
                payload=question,
                timeout=self._wait,
                target=zenoh.QueryTarget.ALL,
                consolidation=zenoh.ConsolidationMode.NONE,
            )
        except zenoh.ZError as error:
            _LOG.warning("%s could not be queried: %s", self._names[other], error)
            return b""
        # other parties that reply under this name must not block the neighbour's reply
        for reply in replies:
            if reply.ok is not None:
                data = reply.ok.payload.to_bytes()
                if self._is_signed(data):
                    return data
        return b""

    def _serve(self, other: int, key: str, answer: Callable[[bytes], bytes]) -> None:
        """Replies to the requests of one neighbour, one after another, until the session is closed."""
        import zenoh

        waiting: Any = zenoh.handlers.RingChannel(_WAITING)
        queryable = self._session.declare_queryable(key, waiting)
        while not self._session.is_closed():
            try:
                query = queryable.recv()
            except zenoh.ZError:  # the session is closed
                return
            with query:
                self._answer(query, other, key, answer)

    def _answer(self, query: zenoh.Query, other: int, key: str, answer: Callable[[bytes], bytes]) -> None:
        import zenoh

        if str(query.key_expr) != key or query.payload is None:
            return
        reply = answer(query.payload.to_bytes())
        if not reply:
            return
        try:
            query.reply(key, reply)
        except zenoh.ZError as error:  # it is gone; it repeats the request and gets the same bytes
            _LOG.info("a reply to %s could not be sent: %s", self._names[other], error)


def _check_kind(proposal: FederationPlan, *, has_tls: bool) -> None:
    """Raises an error for plain TCP with a plan that names certificates, or TLS with one that names none.

    Raises:
        ConfigError: If the transport does not fit the plan.
    """
    if not proposal.is_graph:
        raise ConfigError(
            "plan",
            proposal.fingerprint,
            "has a server, but this command runs only plans on a graph: use fedpriv site run",
        )
    if has_tls and not proposal.has_certificates:
        fix = "names no certificates, which TLS needs: run `fedpriv site keys` at every site, then make a new plan"
        raise ConfigError("plan", proposal.fingerprint, fix)
    if not has_tls and proposal.has_certificates:
        raise ConfigError(
            "plan",
            proposal.fingerprint,
            "names certificates, so its connections need TLS: write addresses as tls/HOST:PORT",
        )
