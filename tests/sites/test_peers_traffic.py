"""No row reaches a site to which the graph does not send it: a test records and reads all traffic of all sites."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peers_in_memory import TRACKING, Peers, peers
from safetensors.torch import load
from sites_in_memory import NAMES

from fedpriv.errors import ConfigError
from fedpriv.privacy.ledger import Ledger, Release
from fedpriv.sites import Federation
from fedpriv.sites.messages import MalformedMessage, TrainRequest, unpack_response
from fedpriv.sites.messages import pack as pack_request
from fedpriv.sites.peers.messages import MessageCodec, PeerMessage
from fedpriv.sites.peers.round_links import PlannedLinks

DIM = 640
Released = dict[tuple[int, int], bytes]  # by site and round


def released_rows(found: Peers, monkeypatch: pytest.MonkeyPatch) -> Released:
    """Every row that a site hands to its own node, as bytes: filled while the nodes run."""
    rows: Released = {}
    for number, site in found.sites.items():
        answer = site.answer_node

        def watched(question, number=number, answer=answer):
            reply = answer(question)
            content = unpack_response(reply, found.resolved_plan.widths[1])
            if content.message is not None:
                rows[number, content.round] = content.message.numpy().tobytes()
            return reply

        monkeypatch.setattr(site, "answer_node", watched)
    return rows


def check_traffic(found: Peers, rows: Released) -> None:
    """Only neighbours of a row's owner in the row's round receive bytes that contain the row."""
    links = {number: PlannedLinks(found.resolved_plan, number) for number in range(len(NAMES))}
    allowed = {(owner, index, other) for owner, index in rows for other in links[owner].links_in_round(index).weights}
    reached = set()
    for sender, receiver, data in found.wire.sent:
        # on the way a row is sealed: nobody else can read it
        assert not any(row in data for row in rows.values())
        # the receiver reads it
        content = found.nodes[receiver]._codec.unpack(data)
        if content.row is None:
            assert len(data) < 1000
            continue
        assert content.row.numpy().tobytes() == rows[sender, content.round], "no row but the sender's own"
        reached.add((sender, content.round, receiver))
    assert reached == allowed
    for sender, receiver, data in found.wire.sent:
        for other in {*found.nodes} - {receiver}:
            with pytest.raises(MalformedMessage):
                found.nodes[other]._codec.unpack(data)
            forged = PeerMessage(**{**vars(found.nodes[receiver]._codec.unpack(data)), "receiver": other, "row": None})
            sealed = load(data).get("sealed")
            if sealed is not None and sender in found.nodes[other]._codec._seals:
                with pytest.raises(MalformedMessage, match="encrypted row is for another"):
                    found.nodes[other]._codec._open(forged, sealed.numpy().tobytes())


@pytest.mark.parametrize(
    "options",
    [
        (TRACKING,),
        ("strategy={name: dual_averaging}", "network.activity={name: random_links, rate: .6}", "rounds=8"),
        ("strategy={name: gradient_tracking_pair}", "network.topology=path"),
    ],
    ids=["ring", "random links", "path, pairs of rows"],
)
def test_rows_reach_graph_neighbours_only(
    options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = peers(tmp_path, *options)
    rows = released_rows(found, monkeypatch)
    found.run()
    assert len(rows) == sum(len(found.ledger(number)) for number in found.sites)
    check_traffic(found, rows)
    found.close()


def test_row_released_once_and_repeated_bitwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []
    whole = Ledger.open

    def watched(ledger: Ledger, release: Release) -> torch.Tensor:
        opened.append(id(ledger))
        return whole(ledger, release)

    monkeypatch.setattr(Ledger, "open", watched)
    found = peers(tmp_path, TRACKING)
    # every question is sent twice and every second reply is lost
    count = 0

    def loses(sender: int, receiver: int, data: bytes, is_reply: bool) -> bool:
        nonlocal count
        count += is_reply
        return is_reply and count % 2 == 0

    found.wire.loses = loses
    found.run()
    assert len(opened) == 16
    sent: dict[tuple[int, int], set[bytes]] = {}
    for sender, receiver, data in found.wire.sent:
        if not data:
            continue
        message = found.nodes[receiver]._codec.unpack(data)
        if message.row is not None:
            sent.setdefault((sender, message.round), set()).add(message.row.numpy().tobytes())
    assert len(sent) == 16
    assert all(len(rows) == 1 for rows in sent.values())
    found.close()


def test_secrets_stay_in_site_folder(tmp_path: Path) -> None:
    found = peers(tmp_path, TRACKING, "privacy.trust={pairwise: {colluders: 0, ratio: 3.0, secrets: topology}}")
    found.run()
    sent = b"\n".join(data for _, _, data in found.wire.sent)
    for number, site in found.sites.items():
        folder, member = site._folder, site._plans.session(found.proposal.hash)
        secrets = [folder.private_key, folder.signing_key, member._data_key()]
        files = [path for path in tmp_path.rglob("*") if path.is_file() and NAMES[number] not in path.parts]
        others = b"\n".join(path.read_bytes() for path in files)
        for secret in secrets:
            for text in (secret, secret.hex().encode()):
                assert text not in sent
                assert text not in others
    found.close()


def ask(found: Peers, receiver: int, message: PeerMessage, signer: int) -> bytes:
    """What a node replies to a message that some site has signed; the row is sealed as for the receiver."""
    codec = found.nodes[signer]._codec
    site = found.sites[signer]._plans.session(found.proposal.hash)
    everyone = dict.fromkeys({0, 1, 2, 3} - {signer}, b"")
    forger = MessageCodec(codec._plan, site.agreed_secrets(), found.sites[signer]._folder.signing_key, everyone, DIM)
    return found.nodes[receiver].answer(forger.pack(message))


def test_node_answers_neighbours_only(tmp_path: Path) -> None:
    found = peers(tmp_path, TRACKING)
    found.run(until=lambda: found.nodes[0].round == 2)
    plan, row = found.proposal.hash, torch.zeros(DIM)
    facts = {"round": 2, "at": 2, "is_ready": True}
    # north (0) is linked with east (1) and west (3), not with south (2)
    neighbour = PeerMessage("hello", plan, sender=1, receiver=0, **facts)
    assert found.nodes[1]._codec.unpack(ask(found, 0, neighbour, 1)).kind == "here"
    assert not ask(found, 0, neighbour, 2)  # signed by another one
    assert not ask(found, 3, neighbour, 1)  # for another one: a copy does not help
    assert not ask(found, 0, PeerMessage("hello", plan, sender=2, receiver=0, **facts), 2)
    assert not ask(found, 0, PeerMessage("exchange", plan, sender=2, receiver=0, row=row, **facts), 2)
    assert not ask(found, 0, PeerMessage("hello", "0" * 64, sender=1, receiver=0, **facts), 1)
    assert not ask(found, 0, PeerMessage("up", plan, sender=1, receiver=0, row=row, **facts), 1)
    assert not ask(found, 3, PeerMessage("exchange", plan, sender=2, receiver=3, row=row[:5], **facts), 2)
    nan = torch.full((DIM,), torch.nan)
    assert not ask(found, 3, PeerMessage("exchange", plan, sender=2, receiver=3, row=nan, **facts), 2)
    for data in (b"", b"\0" * 9, b"\xff" * 10_000, found.nodes[1]._codec.pack(neighbour)[:-9]):
        assert not found.nodes[0].answer(data)
    # west (3) follows north and south (both smaller): nobody with a larger number asks it for a row
    assert not ask(found, 3, PeerMessage("exchange", plan, sender=2, receiver=3, row=row, **facts), 2)
    found.close()


def test_refused_message_flood_log_bounded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = peers(tmp_path, TRACKING)
    for _ in range(300):
        assert not found.nodes[0].answer(b"no message")
    assert sum("was refused" in record.message for record in caplog.records) == 9  # 1, 2, 4 ... 256
    found.close()


def test_graph_plan_refuses_server_requests(tmp_path: Path) -> None:
    found = peers(tmp_path, TRACKING)
    question = pack_request(TrainRequest(found.proposal.hash, 0, torch.zeros(DIM)))
    assert unpack_response(found.sites[0].answer(question), DIM).code == "other_plan"
    assert not found.ledger(0)
    with pytest.raises(ConfigError, match="a graph has no server"):
        Federation(found.proposal, found.wire.of(0), tmp_path / "server")
    found.close()
