"""Flower's server app: a process that the SuperLink starts and in which a federation trains."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp
from pydantic import ValidationError

from fedpriv.sites.descriptor import SiteDescriptor
from fedpriv.sites.federation import Federation
from fedpriv.sites.federation_plan import FederationPlan
from fedpriv.sites.recording import PLAN, load_test_data, record_federation

_POLL = 0.1  # seconds
app = ServerApp()


class OverFlower:
    """Transport over Flower: carries requests to the SuperNodes of sites, which it identifies by their cards.

    Args:
        grid: Flower's grid of nodes.
        cards: The cards of all sites, by number.
        wait: Seconds to wait for the replies of a round, and for all sites to connect before the first.
    """

    def __init__(self, grid: Grid, cards: Sequence[SiteDescriptor], wait: float) -> None:
        self._grid = grid
        self._cards = list(cards)
        self._wait = wait
        self._site_by_node: dict[int, int | None] = {}  # None for a node without a site's card
        deadline = time.monotonic() + wait
        while len(self._nodes()) < len(cards) and time.monotonic() < deadline:
            time.sleep(_POLL)

    def ask(self, questions: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """See `Transport`."""
        nodes = self._nodes()
        messages = {nodes[site]: data for site, data in questions.items() if site in nodes}
        replies = self._exchange("query.round", messages)
        # a reply without bytes comes from a site with no running worker
        return {site: replies[node] for site, node in nodes.items() if replies.get(node)}

    def _nodes(self) -> dict[int, int]:
        """Returns the node of each connected site.

        If several nodes show the same card, that site has none, since only one of them can be the site.
        """
        connected = {*self._grid.get_node_ids()}
        new = connected - {*self._site_by_node}
        if new:
            cards = self._exchange("query.card", dict.fromkeys(new, b"card"))
            self._site_by_node |= {node: self._site_number(data) for node, data in cards.items()}
        sites = [site for node, site in self._site_by_node.items() if node in connected]
        return {
            site: node
            for node, site in self._site_by_node.items()
            if node in connected and site is not None and sites.count(site) == 1
        }

    def _site_number(self, data: bytes) -> int | None:
        """Returns the number of the site with this card; None if the card is not part of the federation."""
        try:
            card = SiteDescriptor.model_validate_json(data)
        except ValidationError:
            return None
        if card in self._cards:
            return self._cards.index(card)
        return None

    def _exchange(self, kind: str, messages: Mapping[int, bytes]) -> dict[int, bytes]:
        """Sends a message to each node; returns the replies that arrive in time, by node."""
        outgoing = [
            Message(RecordDict({"fedpriv": ConfigRecord({"bytes": data})}), node, kind, ttl=self._wait)
            for node, data in messages.items()
        ]
        unanswered = {*self._grid.push_messages(outgoing)}
        replies: dict[int, bytes] = {}
        deadline = time.monotonic() + self._wait
        while unanswered and time.monotonic() < deadline:
            for reply in self._grid.pull_messages(unanswered):
                unanswered.discard(reply.metadata.reply_to_message_id)
                if not reply.has_error():
                    replies[reply.metadata.src_node_id] = _read_bytes(reply)
            time.sleep(_POLL)
        return replies


def _read_bytes(reply: Message) -> bytes:
    """Returns the bytes of a reply; empty if it has none."""
    try:
        content = reply.content["fedpriv"]["bytes"]
    except (KeyError, TypeError):
        return b""
    if isinstance(content, bytes):
        return content
    return b""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Trains the federation of the folder that the run's configuration names."""
    folder = Path(str(context.run_config["folder"]))
    wait = float(context.run_config["wait"])
    proposal = FederationPlan.read((folder / PLAN).read_text(encoding="utf-8"))
    test = load_test_data(proposal, folder)
    transport = OverFlower(grid, proposal.cards, wait)
    federation = Federation(proposal, transport, folder, test)
    try:
        for _ in record_federation(federation, folder):
            pass
    finally:
        federation.close()
