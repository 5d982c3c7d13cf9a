"""Over mutual TLS, non-neighbours and a second certificate with a neighbour's name read nothing."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import yaml
from parties import free_port
from peers_in_memory import TRACKING
from signed import LOOPBACK, Authority
from sites_in_memory import config_of, public_info

from fedpriv.errors import ConfigError, FedprivError
from fedpriv.sites import FederationPlan, Site, propose
from fedpriv.sites.over_zenoh.certificates import find_credentials
from fedpriv.sites.over_zenoh.link import Link, open_link
from fedpriv.sites.over_zenoh.peers import PeersOverZenoh, peer_key
from fedpriv.sites.peers.messages import longest_message
from fedpriv.sites.peers.neighbours import Patience
from fedpriv.sites.peers.node import Node
from fedpriv.sites.peers.running import run_node

NAMES = ("north", "east", "south", "west")
NORTH, EAST, SOUTH, WEST = range(4)


class Path4:
    """Four sites on a path, each with a certificate, and their running nodes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority(folder / "authority")
        self.config = config_of("network.topology=path", TRACKING, "rounds=6")
        self.sites = {}
        for number, name in enumerate(NAMES):
            site_settings = {"name": name, "data": self.config.data.model_dump(mode="json"), "client": number}
            (folder / f"{name}.yaml").write_text(yaml.safe_dump({**site_settings, "budget": {"epsilon": 50.0}}))
            site = Site.create(folder / name, folder / f"{name}.yaml")
            site.set_certificate(self.authority.keys(folder / name / "tls", name, LOOPBACK))
            self.sites[number] = site
        self.plan = propose(self.config, [site.card for site in self.sites.values()], public_info(self.config))
        for site in self.sites.values():
            site.join(self.plan.text, self.plan.fingerprint)
        self.addresses = {number: f"tls/127.0.0.1:{free_port()}" for number in self.sites}
        self.resolved_plan = self.sites[NORTH].node_session(self.plan.hash).resolved_plan
        self.answered: list[tuple[int, bytes, bytes]] = []
        self.transports: dict[int, PeersOverZenoh] = {}
        self.nodes: dict[int, Node] = {}
        self.threads: list[threading.Thread] = []

    def start(self, number: int) -> None:
        transport = self.transports[number] = PeersOverZenoh(
            self.plan,
            self.resolved_plan,
            number,
            listen=[self.addresses[number]],
            connect=[self.addresses[number - 1]] if number else [],
            keys=self.folder / NAMES[number] / "tls",
            wait=2.0,
        )
        node = Node(self.sites[number], self.plan.hash, transport, patience=Patience(60.0, 10.0))

        def answer(question: bytes) -> bytes:
            reply = node.answer(question)
            self.answered.append((number, question, reply))
            return reply

        transport.serve(answer, node.is_signed)
        self.nodes[number] = node
        thread = threading.Thread(target=run_node, args=[node, self.sites[number].spent], daemon=True)
        self.threads.append(thread)
        thread.start()

    def until_ended(self, *numbers: int) -> None:
        deadline = time.monotonic() + 120
        while not all(self.nodes[number].ended for number in numbers):
            assert time.monotonic() < deadline, {number: node.round for number, node in self.nodes.items()}
            time.sleep(0.02)

    def close(self) -> None:
        for thread in self.threads:
            thread.join()
        for transport in self.transports.values():
            transport.close()
        for site in self.sites.values():
            site.close()


@pytest.fixture
def row(tmp_path: Path):
    made = Path4(tmp_path)
    yield made
    made.close()


def ask(found: Path4, keys: Path, name: str, key: str, address: str, question: bytes) -> list[bytes]:
    """What a session with this certificate gets if it asks on a key."""
    pin = found.sites[NAMES.index(name)].card.certificate if keys.parent.name == name else found.authority_pin
    limit = longest_message(found.resolved_plan.widths[1]) + 1024
    link = Link(find_credentials(keys, pin), limit, connect=[address], repliers={n: ["fedpriv/**"] for n in NAMES})
    with open_link(link) as session:
        time.sleep(1.0)
        replies = session.get(key, payload=question, timeout=2.0)
        return [reply.ok.payload.to_bytes() for reply in replies if reply.ok is not None]


def test_non_neighbours_get_nothing_over_tls(row: Path4) -> None:
    for number in (NORTH, EAST, SOUTH):
        row.start(number)
    deadline = time.monotonic() + 60
    while row.nodes[NORTH].round < 1 and time.monotonic() < deadline:
        time.sleep(0.02)
    # questions of east to north, as whoever stood between them would have them
    questions = [question for number, question, reply in row.answered if number == NORTH and reply]
    key = peer_key(row.plan.hash, "north", "east")
    before = len(row.answered)
    # west is a site of the plan, but no neighbour of north: neither east's place nor its own key gives it anything
    west = row.folder / "west" / "tls"
    for asked in (key, peer_key(row.plan.hash, "north", "west")):
        assert not ask(row, west, "west", asked, row.addresses[NORTH], questions[-1])
    reached = [question for number, question, _ in row.answered[before:] if number == NORTH]
    assert questions[-1] not in reached
    # a second certificate of east's name passes TLS, and gets what was sealed for east: it cannot read it
    row.authority_pin = row.authority.keys(row.folder / "other", "east")
    replies = ask(row, row.folder / "other", "east", key, row.addresses[NORTH], questions[-1])
    for reply in replies:
        content = row.nodes[EAST]._codec.unpack(reply).row
        assert content is None or content.numpy().tobytes() not in reply
    row.start(WEST)
    row.until_ended(NORTH, EAST, SOUTH, WEST)
    assert {node.ended for node in row.nodes.values()} == {"finished"}
    assert row.nodes[EAST].neighbours["south"].last_up == 6


def test_graph_plan_needs_tls_and_its_certificate(row: Path4) -> None:
    def open_session(plan: FederationPlan, address: str, keys: Path | None) -> None:
        PeersOverZenoh(plan, row.resolved_plan, EAST, listen=[address], connect=[], keys=keys, wait=1.0)

    with pytest.raises(ConfigError, match="need TLS: write addresses as tls/HOST:PORT"):
        open_session(row.plan, "tcp/127.0.0.1:1", None)
    with pytest.raises(FedprivError, match="the plan names"):
        open_session(row.plan, "tls/127.0.0.1:1", row.folder / "west" / "tls")
    cards = [site.card.model_copy(update={"certificate": None}) for site in row.sites.values()]
    plain = propose(row.config, cards, public_info(row.config))
    with pytest.raises(ConfigError, match="names no certificates"):
        open_session(plain, "tls/127.0.0.1:1", row.folder / "east" / "tls")
    star = propose(config_of("strategy={name: fedavg, learning_rate: .5}"), cards, public_info(row.config))
    with pytest.raises(ConfigError, match="has a server"):
        open_session(star, "tcp/127.0.0.1:1", None)
