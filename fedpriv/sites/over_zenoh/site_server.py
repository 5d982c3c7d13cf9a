"""A site's side: connects to the servers of its plans and replies to requests that they have signed."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from fedpriv.errors import ConfigError, FedprivError
from fedpriv.sites.connection_file import Connection
from fedpriv.sites.federation_plan import FederationPlan
from fedpriv.sites.messages import MalformedMessage, read_plan_hash
from fedpriv.sites.over_zenoh.certificates import find_credentials
from fedpriv.sites.over_zenoh.connections import ConnectionWatch
from fedpriv.sites.over_zenoh.link import Link, join_all, open_link
from fedpriv.sites.over_zenoh.proposing import PROPOSAL_LIMIT, proposal_key, take_proposals
from fedpriv.sites.over_zenoh.signatures import BadSignature, PrivateKey, read_private_key
from fedpriv.sites.over_zenoh.star import Signer, check_transport, message_limit, question_key
from fedpriv.sites.site import Site

if TYPE_CHECKING:
    import zenoh

_LOG = logging.getLogger(__name__)
_WATCH_INTERVAL = 1.0  # seconds between checks for plans that the owner has approved
_WAITING = 2  # waiting requests of a plan; a newer one replaces the oldest


@dataclass(frozen=True)
class _Plan:
    """An accepted plan that is being served."""

    hash: str
    key: str
    signer: Signer
    party: str


class SiteServer:
    """Replies to requests that arrive over Zenoh until `close`, in one thread for each accepted plan.

    A site that accepts proposals serves a plan once its owner approves it; its session stays open to the others.

    Args:
        site: The site.
        connect: Addresses of the servers, such as `tls/server.example.org:7447`.
        keys: Folder with the site's certificate; None for plain TCP on this machine alone.
        publish: Called with the connections to the servers; see `ConnectionWatch`.

    Attributes:
        served: Fingerprints of the plans that are being served.

    Raises:
        ConfigError: If an address belongs to another machine and there is no certificate, or no plan fits.
        FedprivError: If the certificate does not match the plans.
    """

    def __init__(
        self,
        site: Site,
        connect: Sequence[str],
        keys: Path | None,
        publish: Callable[[Mapping[str, Connection]], None] = lambda connections: None,
    ) -> None:
        self._site = site
        self._connect = connect
        self._has_tls = keys is not None
        self._ignored: Counter[str] = Counter()
        self._credentials = None
        self._private_key = None
        self._lock = threading.Lock()  # guards the sessions
        self._sessions: list[zenoh.Session] = []
        self._is_closed = threading.Event()
        self._threads: list[threading.Thread] = []
        self.served: list[str] = []
        proposers: Sequence[str] = ()
        if self._has_tls:  # without certificates, a proposer cannot be identified
            proposers = site.settings.policy.proposers
        proposals = _plans_for(site, has_tls=self._has_tls, takes_proposals=bool(proposers))
        if keys is not None:
            pin = site.card.certificate
            if pin is None:
                raise FedprivError(
                    "the site's card names no certificate: run `fedpriv site keys`, and make a new plan with the new "
                    "card"
                )
            self._credentials = find_credentials(keys, pin)
            self._private_key = read_private_key(self._credentials.key)
        self._watch = ConnectionWatch(connect, (), self._credentials, publish)
        try:
            self._serve_plans(proposals, proposers)
        except BaseException:
            self._watch.close()
            raise
        if proposers:
            self._start(self._watch_approvals, [], "approvals")

    def close(self) -> None:
        """Ends all connections."""
        self._is_closed.set()
        self._watch.close()
        with self._lock:
            for session in self._sessions:
                session.close()
        join_all(self._threads)

    def _start(self, target: Callable[..., None], args: Sequence[object], name: str) -> None:
        """Starts a thread, which ends after `close`."""
        thread = threading.Thread(target=target, args=args, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _serve_plans(self, proposals: Sequence[FederationPlan], proposers: Sequence[str]) -> None:
        """Opens a session in which the servers of these plans may send requests, and these parties may propose plans.

        The permitted senders are fixed when a session is opened, so later plans have separate sessions.
        """
        site = self._site
        plans = [_plan(proposal, site.card.name, self._private_key) for proposal in proposals]
        requesters: dict[str, list[str]] = {}
        for proposal, plan in zip(proposals, plans, strict=True):
            coordinator = proposal.document.coordinator
            if coordinator is not None:
                requesters.setdefault(coordinator.common_name, []).append(plan.key)
        limits = [message_limit(site.resolved_plan(plan.hash)) for plan in plans]
        for name in proposers:
            requesters.setdefault(name, []).append(proposal_key(site.card.name))
            limits.append(PROPOSAL_LIMIT)
        with self._lock:
            if self._is_closed.is_set():
                return
            session = open_link(Link(self._credentials, max(limits), connect=self._connect, requesters=requesters))
            self._sessions.append(session)
        self._watch.expect(session, requesters)
        for plan in plans:
            self._start(self._serve, [session, plan], f"plan {plan.hash[:8]}")
        if proposers:
            self._start(take_proposals, [session, site], "proposals")
        self.served += [proposal.fingerprint for proposal in proposals]

    def _watch_approvals(self) -> None:
        """Accepts plans that the owner approves while the site is running, and serves them."""
        try:
            while not self._is_closed.wait(_WATCH_INTERVAL):
                self._site.accept_approved()
                fitting = _fitting_plans(self._site, has_tls=self._has_tls)
                new = [proposal for proposal in fitting if proposal.fingerprint not in self.served]
                if new:
                    self._serve_plans(new, ())
                for proposal in new:
                    facts = {"event": "served", "plan": proposal.fingerprint}
                    _LOG.info("an approved plan is answered from now on", extra={"facts": facts})
        except Exception:  # for any exception: accepted plans are served as long as the site itself allows
            _LOG.exception("approved plans are answered only after the site is started again")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _serve(self, session: zenoh.Session, plan: _Plan) -> None:
        """Replies to the requests of a plan, one after another, until the session is closed."""
        import zenoh

        waiting: Any = zenoh.handlers.RingChannel(_WAITING)
        queryable = session.declare_queryable(plan.key, waiting)
        while not session.is_closed():
            try:
                query = queryable.recv()
            except zenoh.ZError:  # the session is closed
                return
            with query:
                self._answer(query, plan)

    def _answer(self, query: zenoh.Query, plan: _Plan) -> None:
        """Replies to a request; one that the server of the plan has not signed gets no reply."""
        import zenoh

        question = b"" if query.payload is None else query.payload.to_bytes()
        signature = b"" if query.attachment is None else query.attachment.to_bytes()
        try:
            plan.signer.check_question(signature, question)
            if str(query.key_expr) != plan.key or read_plan_hash(question) != plan.hash:
                raise MalformedMessage("the request is for another plan")
        except (BadSignature, MalformedMessage) as error:
            self._count_ignored(plan, str(error))
            return
        reply = self._site.answer(question, plan.party)
        try:
            query.reply(plan.key, reply, attachment=plan.signer.sign_reply(question, reply))
        except zenoh.ZError as error:  # the server is gone; it repeats the request and gets the same bytes
            _LOG.warning("a reply of plan %s could not be sent: %s", plan.hash[:8], error)

    def _count_ignored(self, plan: _Plan, why: str) -> None:
        """Logs an ignored request: the first, second, fourth and so on, so that a flood does not fill the log."""
        self._ignored[plan.hash] += 1
        count = self._ignored[plan.hash]
        if count & (count - 1) == 0:
            _LOG.warning("ignored a request of plan %s (%d ignored so far): %s", plan.hash[:8], count, why)


def _plans_for(site: Site, *, has_tls: bool, takes_proposals: bool) -> Sequence[FederationPlan]:
    """Returns the open plans that this transport may serve; possibly none for a site that accepts proposals.

    Raises:
        ConfigError: If there is none; if there is exactly one open plan, the error names the mismatch.
    """
    proposals = [proposal for proposal in site.open_plans.values() if not proposal.is_graph]
    if not proposals and takes_proposals:
        return []
    if not proposals:
        fix = (
            "has accepted no open plan with a server: accept one (fedpriv site join); for a plan on a graph, use "
            "fedpriv site peer"
        )
        raise ConfigError("site", site.card.name, fix)
    fitting = _fitting_plans(site, has_tls=has_tls)
    if not fitting and not takes_proposals:
        check_transport(proposals[-1], has_tls=has_tls)
    return fitting


def _fitting_plans(site: Site, *, has_tls: bool) -> Sequence[FederationPlan]:
    """Returns the open plans with a server and, as `has_tls` requires, with or without certificates."""
    return [
        proposal
        for proposal in site.open_plans.values()
        if not proposal.is_graph and (proposal.document.coordinator is not None) == has_tls
    ]


def _plan(proposal: FederationPlan, name: str, private_key: PrivateKey | None) -> _Plan:
    key = question_key(proposal.hash, name)
    pinned = None
    party = ""
    if proposal.document.coordinator is not None:
        pinned = proposal.document.coordinator.public_key
        party = proposal.document.coordinator.common_name
    return _Plan(proposal.hash, key, Signer(private_key, pinned, key), party)
