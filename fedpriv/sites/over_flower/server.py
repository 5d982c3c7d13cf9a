"""The server's end of Flower: a process that the SuperLink starts, in which a federation trains."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp
from pydantic import ValidationError

from fedpriv.config import load_config
from fedpriv.config.building import load_data
from fedpriv.sites.descriptor import SiteDescriptor
from fedpriv.sites.federation import Federation
from fedpriv.sites.federation_plan import FederationPlan
from fedpriv.sites.recording import CONFIG, PLAN, follow

_POLL = 0.1  # seconds
app = ServerApp()


class OverFlower:
    """Carries questions to the SuperNodes of sites. Sites are known by the cards that their nodes show.

    Args:
        grid: Flower's.
        cards: Everybody's card, by number.
        wait: Seconds for a round's replies, and for all sites to come before the first.
    """

    def __init__(self, grid: Grid, cards: Sequence[SiteDescriptor], wait: float) -> None:
        self._grid, self._cards, self._wait = grid, list(cards), wait
        self._site_of: dict[int, int | None] = {}
        until = time.monotonic() + wait
        while len(self._nodes()) < len(cards) and time.monotonic() < until:
            time.sleep(_POLL)

    def ask(self, questions: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """See `Transport`."""
        nodes = self._nodes()
        said = self._sent("query.round", {nodes[site]: data for site, data in questions.items() if site in nodes})
        found = {site: said[node] for site, node in nodes.items() if node in said}
        return {site: data for site, data in found.items() if data}

    def _nodes(self) -> dict[int, int]:
        """The node of each site that is there; of several with one card none, since one of them is not the site."""
        here = {*self._grid.get_node_ids()}
        if new := here - {*self._site_of}:
            shown = self._sent("query.card", dict.fromkeys(new, b"card"))
            self._site_of |= {node: self._number(data) for node, data in shown.items()}
        sites = [site for node, site in self._site_of.items() if node in here]
        return {
            site: node
            for node, site in self._site_of.items()
            if node in here and site is not None and sites.count(site) == 1
        }

    def _number(self, data: bytes) -> int | None:
        try:
            card = SiteDescriptor.model_validate_json(data)
        except ValidationError:
            return None
        if card in self._cards:
            return self._cards.index(card)
        return None

    def _sent(self, kind: str, messages: Mapping[int, bytes]) -> dict[int, bytes]:
        """The replies, by node, that come in time."""
        told = [
            Message(RecordDict({"fedpriv": ConfigRecord({"bytes": data})}), node, kind, ttl=self._wait)
            for node, data in messages.items()
        ]
        todo, found, until = {*self._grid.push_messages(told)}, dict[int, bytes](), time.monotonic() + self._wait
        while todo and time.monotonic() < until:
            for reply in self._grid.pull_messages(todo):
                todo.discard(reply.metadata.reply_to_message_id)
                if not reply.has_error():
                    found[reply.metadata.src_node_id] = _bytes_of(reply)
            time.sleep(_POLL)
        return found


def _bytes_of(reply: Message) -> bytes:
    try:
        said = reply.content["fedpriv"]["bytes"]
    except (KeyError, TypeError):
        return b""
    if isinstance(said, bytes):
        return said
    return b""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train the federation of the folder that the run's configuration names."""
    folder, wait = Path(str(context.run_config["folder"])), float(context.run_config["wait"])
    proposal = FederationPlan.read((folder / PLAN).read_text(encoding="utf-8"))
    test = load_data(load_config(folder / CONFIG)).test
    transport = OverFlower(grid, proposal.cards, wait)
    federation = Federation(proposal, transport, folder, test)
    try:
        for _ in follow(federation, folder):
            pass
    finally:
        federation.close()
