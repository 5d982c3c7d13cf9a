"""Plans over Zenoh: a server offers a plan to its sites; sites accept offers from servers that their owners name.

Only a certificate name in `policy.proposers` may propose a plan, and a proposal only waits for the owner. Messages are
therefore not signed: mutual TLS determines the permitted senders, and the fingerprint determines the accepted plan.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.errors import ConfigError
from fedpriv.sites.federation_plan import FederationPlan
from fedpriv.sites.over_zenoh.certificates import find_credentials
from fedpriv.sites.over_zenoh.link import Link, open_link
from fedpriv.sites.plan_review import LONGEST_REVIEW
from fedpriv.sites.proposals import MAX_PROPOSAL_BYTES, is_proposal, offer
from fedpriv.sites.site import Site

if TYPE_CHECKING:
    import zenoh

_LOG = logging.getLogger(__name__)
_POLL = 0.05  # seconds
_FRAMING = 4096  # bytes of a message in addition to the plan
PROPOSAL_LIMIT = MAX_PROPOSAL_BYTES + _FRAMING
"""Bytes of the longest message with a proposal."""


def proposal_key(site_name: str) -> str:
    """Returns the key expression on which a site receives proposals."""
    return f"fedpriv/proposals/{site_name}"


class _OverLink:
    """Carries proposals to the sites of a plan; see `fedpriv.sites.proposals.Carrier`."""

    def __init__(self, session: zenoh.Session, names: Sequence[str], wait: float) -> None:
        self._session = session
        self._names = names
        self._wait = wait

    def ask(self, questions: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """Returns the responses of the sites that reply in time."""
        queriers = {site: self._session.declare_querier(proposal_key(self._names[site])) for site in questions}
        deadline = time.monotonic() + self._wait
        replies: dict[int, bytes] = {}
        for site, data in questions.items():
            status: Any = queriers[site].matching_status
            while not status.matching and time.monotonic() < deadline:
                time.sleep(_POLL)
                status = queriers[site].matching_status
            if not status.matching:
                continue
            # a connected site computes the privacy cost of the plan before it replies
            limit = self._wait + LONGEST_REVIEW
            for reply in self._session.get(proposal_key(self._names[site]), payload=data, timeout=limit):
                if reply.ok is not None:
                    replies[site] = reply.ok.payload.to_bytes()
        return replies


def offer_over_zenoh(plan: FederationPlan, listen: Sequence[str], keys: Path, wait: float) -> Mapping[str, str]:
    """Offers a plan to all its sites; returns the response of each by name, `no_reply` for none.

    Args:
        plan: The plan, which names the certificates of all parties.
        listen: Addresses to listen on, to which sites connect.
        keys: Folder with the server's certificate.
        wait: Seconds to wait for sites to connect. Responses may take two minutes more to compute the plan's cost.

    Raises:
        ConfigError: If the plan names no certificates.
        FedprivError: If a certificate does not match the plan, or an address is in use.
    """
    coordinator = plan.document.coordinator
    if coordinator is None:
        raise ConfigError(
            "plan",
            plan.fingerprint,
            "names no certificates, but plans are proposed over TLS only: create keys and a new plan, or let owners "
            "join",
        )
    repliers = {
        card.certificate.common_name: [proposal_key(card.name)] for card in plan.cards if card.certificate is not None
    }
    link = Link(find_credentials(keys, coordinator), PROPOSAL_LIMIT, listen=listen, repliers=repliers)
    with open_link(link) as session:
        return offer(_OverLink(session, [card.name for card in plan.cards], wait), plan)


def take_proposals(session: zenoh.Session, site: Site) -> None:
    """Receives proposals, one after another, until the session is closed; other messages get no reply."""
    import zenoh

    key = proposal_key(site.card.name)
    waiting: Any = zenoh.handlers.RingChannel(1)
    queryable = session.declare_queryable(key, waiting)
    parties = ", ".join(site.settings.policy.proposers)
    while not session.is_closed():
        try:
            query = queryable.recv()
        except zenoh.ZError:  # the session is closed
            return
        with query:
            data = b"" if query.payload is None else query.payload.to_bytes()
            if not is_proposal(data):
                _LOG.warning("ignored a message that is not a proposed plan; the sender is one of: %s", parties)
                continue
            query.reply(key, site.answer(data, parties))
