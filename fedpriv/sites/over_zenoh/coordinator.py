"""The server's side: sends requests to all sites of a round at once and collects the replies that arrive in time."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from fedpriv.sites.federation_plan import FederationPlan
from fedpriv.sites.over_zenoh.certificates import find_credentials
from fedpriv.sites.over_zenoh.connections import log_strangers
from fedpriv.sites.over_zenoh.link import Link, open_link
from fedpriv.sites.over_zenoh.signatures import BadSignature, read_private_key
from fedpriv.sites.over_zenoh.star import Signer, check_transport, message_limit, question_key
from fedpriv.sites.resolved_plan import ResolvedPlan

if TYPE_CHECKING:
    import zenoh

_LOG = logging.getLogger(__name__)
_POLL = 0.005  # seconds
_PATIENCE = 5.0  # seconds before the names of unconnected sites are logged
_MAX_THREADS = 128


class OverZenoh:
    """Transport over Zenoh: sites connect to this session and receive requests by name.

    Args:
        proposal: The plan.
        listen: Addresses to listen on, such as `tls/0.0.0.0:7447`.
        keys: Folder with the server's certificate; None for plain TCP on this machine alone.
        wait: Seconds to wait for a reply, and for sites to return after all connections were lost at once.
        grace: Seconds to wait for a site after each loss of its connection.

    Raises:
        ConfigError: If an address belongs to another machine and there is no certificate, or the plan has none.
        FedprivError: If a certificate does not match the plan, or an address is in use.
    """

    def __init__(
        self, proposal: FederationPlan, listen: Sequence[str], keys: Path | None, *, wait: float, grace: float
    ) -> None:
        check_transport(proposal, has_tls=keys is not None)
        self._names = [card.name for card in proposal.cards]
        self._keys = [question_key(proposal.hash, name) for name in self._names]
        self._wait = wait
        self._grace = grace
        self._away: set[int] = set()  # sites that did not return within the grace period

        credentials = None
        private_key = None
        coordinator = proposal.document.coordinator
        if keys is not None and coordinator is not None:
            credentials = find_credentials(keys, coordinator)
            private_key = read_private_key(credentials.key)
        repliers: dict[str, Sequence[str]] = {}
        self._common_names: list[str | None] = []
        self._signers: list[Signer] = []
        for card, key in zip(proposal.cards, self._keys, strict=True):
            pinned = None
            common_name = None
            if card.certificate is not None:
                pinned = card.certificate.public_key
                common_name = card.certificate.common_name
                repliers[card.certificate.common_name] = [key]
            self._signers.append(Signer(private_key, pinned, key))
            self._common_names.append(common_name)

        limit = message_limit(ResolvedPlan.of(proposal))
        self._session = open_link(Link(credentials, limit, listen=listen, repliers=repliers))
        log_strangers(self._session, repliers)
        self._queriers = [self._session.declare_querier(key) for key in self._keys]
        self._pool = ThreadPoolExecutor(min(len(self._keys), _MAX_THREADS), thread_name_prefix="ask")

    def wait_for_all(self, seconds: float) -> Sequence[str]:
        """Waits at most `seconds` until all sites are connected; returns the names of those that are not.

        Logs each site that connects and, after some seconds, the sites that have not connected.
        """
        deadline = time.monotonic() + seconds
        missing = {*range(len(self._keys))}
        interval = _PATIENCE
        while missing and time.monotonic() < deadline:
            earlier = missing
            missing = self._wait_for_one(earlier, min(interval, deadline - time.monotonic()))
            if missing == earlier and time.monotonic() < deadline:
                interval *= 2
                _LOG.warning("not connected yet: %s", "; ".join(self._absence(site) for site in sorted(missing)))
            for site in sorted(earlier - missing):
                self._log_connected(site)
        self._away |= missing
        return [self._names[site] for site in sorted(missing)]

    def ask(self, questions: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """See `Transport`."""
        # a restarted site reconnects; after a missed grace period it is used again when it is back
        expected = {*questions} - self._away
        missing = self._wait_for(expected, self._grace)
        if missing == expected:
            # this machine slept, or its network was down: the sites reconnect one by one
            missing = self._wait_for(expected, self._wait)
        for site in questions:
            if self._is_connected(site):
                if site in self._away:
                    self._log_connected(site)
                self._away.discard(site)
            elif site in missing:
                _LOG.warning(
                    "%s is not connected; rounds continue without this site until it reconnects", self._names[site]
                )
                self._away.add(site)
        asked = [site for site in questions if site not in self._away]
        replies = self._pool.map(lambda site: self._ask(site, questions[site]), asked)
        return {site: reply for site, reply in zip(asked, replies, strict=True) if reply is not None}

    def close(self) -> None:
        """Ends all connections."""
        self._session.close()
        self._pool.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _is_connected(self, site: int) -> bool:
        status: Any = self._queriers[site].matching_status  # an object, although Zenoh declares it as bool
        return status.matching

    def _log_connected(self, site: int) -> None:
        _LOG.info("connected: %s", self._names[site], extra={"facts": {"event": "connected"}})

    def _absence(self, site: int) -> str:
        """Returns the name of a site that does not reply, and the reason as far as it is known."""
        name = self._names[site]
        common_name = self._common_names[site]
        if common_name is not None and common_name in {link.auth_identifier for link in self._session.info.links()}:
            return f"{name} (is connected, but does not reply for this plan: its owner may not have accepted the plan)"
        return f"{name} (no connection; its own log has the reason: fedpriv site status SITE)"

    def _wait_for_one(self, sites: Collection[int], seconds: float) -> set[int]:
        """Waits until one more of these sites is connected; returns those that are not after `seconds`."""
        deadline = time.monotonic() + seconds
        while True:
            missing = {site for site in sites if not self._is_connected(site)}
            if len(missing) < len(sites) or time.monotonic() >= deadline:
                return missing
            time.sleep(_POLL)

    def _wait_for(self, sites: Collection[int], seconds: float) -> set[int]:
        """Waits until these sites are connected; returns those that are not after `seconds`."""
        deadline = time.monotonic() + seconds
        while True:
            missing = {site for site in sites if not self._is_connected(site)}
            if not missing or time.monotonic() >= deadline:
                return missing
            time.sleep(_POLL)

    def _ask(self, site: int, question: bytes) -> bytes | None:
        """Returns the reply of a site; None if no signed reply arrives in time."""
        import zenoh

        signer = self._signers[site]
        replies = self._session.get(
            self._keys[site],
            payload=question,
            attachment=signer.sign_question(question),
            timeout=self._wait,
            # other parties that reply under this name must not block the site's reply
            target=zenoh.QueryTarget.ALL,
            consolidation=zenoh.ConsolidationMode.NONE,
        )
        for reply in replies:
            data, signature = _read(reply)
            if data is None:
                continue
            try:
                signer.check_reply(signature, question, data)
            except BadSignature as error:
                _LOG.warning("ignored a reply under the name of %s: %s", self._names[site], error)
                continue
            return data
        return None


def _read(reply: zenoh.Reply) -> tuple[bytes | None, bytes]:
    """Returns the bytes of a reply and its signature; None for an error, such as a timeout."""
    sample = reply.ok
    if sample is None:
        return None, b""
    attachment = sample.attachment
    if attachment is None:
        return sample.payload.to_bytes(), b""
    return sample.payload.to_bytes(), attachment.to_bytes()
