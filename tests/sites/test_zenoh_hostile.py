"""Unauthorised parties get no answer, their replies are ignored, and other parties are not disturbed."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from parties import until
from signed import LOOPBACK, Authority
from zenoh_party import NAMES, Star, star, stranger

from fedpriv.errors import FedprivError
from fedpriv.privacy.ledger_file import LedgerFile
from fedpriv.sites.messages import TrainRequest, pack, unpack_response
from fedpriv.sites.over_zenoh.certificates import find_credentials, make_pin
from fedpriv.sites.over_zenoh.signatures import read_private_key, sign
from fedpriv.sites.over_zenoh.star import Signer

zenoh = pytest.importorskip("zenoh")
DIM = 640
NORTH, EAST = 0, 1


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Star]:
    found = star(tmp_path)
    yield found
    found.close()


def charged(made: Star, number: int) -> list[int]:
    ledger = made.folder / NAMES[number] / "runs" / made.proposal.hash / "ledger.jsonl"
    return [record.round for record in LedgerFile.read(ledger).records]


def signed_by_the_server(made: Star, round_index: int) -> bytes:
    """The server's signature of a request to north, as an eavesdropper would have it."""
    key = read_private_key(made.folder / "keys" / "key.pem")
    return Signer(key, None, made.key(NORTH)).sign_question(made.question(round_index))


def answers(reply: bytes) -> bool:
    return unpack_response(reply, DIM).code is None


def ask(session, key: str, question: bytes, signature: bytes = b"", seconds: float = 2) -> list[bytes]:
    """Repeats a request until it is answered or the time is over; returns the replies."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        replies = session.get(key, payload=question, attachment=signature, timeout=seconds)
        found = [reply.ok.payload.to_bytes() for reply in replies if reply.ok]
        if found:
            return found
        time.sleep(0.05)
    return []


def linked(session) -> list[str]:
    return sorted(str(link.auth_identifier) for link in session.info.links())


def test_server_of_other_authority_not_connected(made: Star, tmp_path: Path) -> None:
    Authority(tmp_path / "other").keys(tmp_path / "forged", "coordinator", LOOPBACK)
    with (
        made.serve(NORTH),
        stranger(tmp_path / "forged", listen=made.address, asks={"north": [made.key(NORTH)]}) as session,
    ):
        assert not ask(session, made.key(NORTH), made.question(0))
        assert not linked(session)
    assert not charged(made, NORTH)


def test_site_of_other_authority_not_connected(made: Star, tmp_path: Path) -> None:
    Authority(tmp_path / "other").keys(tmp_path / "forged", "north")
    with (
        made.server(wait=2) as transport,
        stranger(
            tmp_path / "forged",
            connect=made.address,
            answers={made.key(NORTH): lambda data: (data, b"")},
            requesters={"coordinator": [made.key(NORTH)]},
        ),
    ):
        assert transport.wait_for_all(2) == [*NAMES]
        assert not linked(transport._session)


@pytest.mark.parametrize("name", ["east", "other"])
def test_other_certificate_cannot_query_as_server(name: str, made: Star, tmp_path: Path) -> None:
    made.authority.keys(tmp_path / "false", name, LOOPBACK)
    with (
        made.serve(NORTH),
        stranger(tmp_path / "false", listen=made.address, asks={"north": [made.key(NORTH)]}) as session,
    ):
        until(lambda: linked(session) == ["north"], "north does not connect")  # TLS alone would let it ask
        assert not ask(session, made.key(NORTH), made.question(0), signed_by_the_server(made, 0))
    assert not charged(made, NORTH)


def test_site_cannot_query_other_site_via_server(made: Star) -> None:
    with (
        made.running(),
        stranger(
            made.folder / "east" / "tls", connect=made.address, asks={"coordinator": [made.key(NORTH)]}
        ) as session,
    ):
        until(lambda: linked(session) == ["coordinator"], "east does not connect")
        assert not ask(session, made.key(NORTH), made.question(0), signed_by_the_server(made, 0))
    assert not charged(made, NORTH)


def test_second_server_certificate_only_repeats_request(
    made: Star, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The authority signed two of one name; the plan names one key."""
    made.authority.keys(tmp_path / "second", "coordinator", LOOPBACK)
    real = read_private_key(made.folder / "keys" / "key.pem")
    false = read_private_key(tmp_path / "second" / "key.pem")
    north, first = made.key(NORTH), made.question(0)
    signed = Signer(real, None, north).sign_question(first)
    with (
        made.serve(NORTH),
        made.serve(EAST),
        stranger(
            tmp_path / "second", listen=made.address, asks={"north": [north], "east": [made.key(EAST)]}
        ) as session,
    ):
        until(lambda: linked(session) == ["east", "north"], "nobody connects")
        assert not ask(session, north, first)
        assert not ask(session, north, first, Signer(false, None, north).sign_question(first))
        assert "signed with another key than the one in the plan" in caplog.text
        # of what the real server signed it may repeat what it overheard, which is no news to anybody
        assert not ask(session, made.key(EAST), first, signed)
        assert not ask(session, north, made.question(1), signed)
        assert not (charged(made, NORTH) or charged(made, EAST))
        (reply,) = ask(session, north, first, signed)
        assert ask(session, north, first, signed) == [reply]
        assert answers(reply)
    assert charged(made, NORTH) == [0]


def test_second_site_certificate_reply_ignored(made: Star, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made.authority.keys(tmp_path / "second", "north")
    false = read_private_key(tmp_path / "second" / "key.pem")
    question = made.question(0)

    def forge(data: bytes) -> tuple[bytes, bytes]:
        return data, sign(false, made.key(NORTH).encode(), b"reply", data, data)

    forger = stranger(
        tmp_path / "second",
        connect=made.address,
        answers={made.key(NORTH): forge},
        requesters={"coordinator": [made.key(NORTH)]},
    )
    with made.server(wait=5) as transport, forger:
        until(lambda: transport._is_connected(NORTH), "nobody offers to answer")  # a link alone is not yet an offer
        assert linked(transport._session) == ["north"]
        assert not transport.ask({NORTH: question})
        assert "ignored a reply under the name of north" in caplog.text
        with made.serve(NORTH):  # the real one is heard beside it
            until(lambda: linked(transport._session) == ["north", "north"], "north does not connect")
            until(lambda: transport.ask({NORTH: question}), "north is not heard")
            (reply,) = transport.ask({NORTH: question}).values()
            assert answers(reply)


def test_old_reply_to_new_request_ignored(made: Star) -> None:
    key = read_private_key(made.folder / "north" / "tls" / "key.pem")
    old: list[tuple[bytes, bytes]] = []
    with made.running() as transport:
        first = made.question(0)
        reply = transport.ask({NORTH: first})[NORTH]
        old.append((reply, Signer(key, None, made.key(NORTH)).sign_reply(first, reply)))
    again = stranger(
        made.folder / "north" / "tls",
        connect=made.address,
        answers={made.key(NORTH): lambda _: old[0]},
        requesters={"coordinator": [made.key(NORTH)]},
    )
    with made.server(wait=5) as transport, again:
        until(lambda: transport.ask({NORTH: first}) == {NORTH: reply}, "the reply to the same question is heard")
        assert not transport.ask({NORTH: made.question(1)})


def test_too_long_message_dropped(made: Star) -> None:
    key = read_private_key(made.folder / "keys" / "key.pem")
    north, question = made.key(NORTH), made.question(0)
    with (
        made.serve(NORTH),
        stranger(made.folder / "keys", listen=made.address, asks={"north": [north]}) as session,
    ):
        until(lambda: linked(session) == ["north"], "north does not connect")
        signer = Signer(key, None, north)
        long = pack(TrainRequest(made.proposal.hash, 0, torch.zeros(250_000)))
        assert not ask(session, north, long, signer.sign_question(long), seconds=1)
        (reply,) = ask(session, north, question, signer.sign_question(question))
        assert answers(reply)
    its_key = read_private_key(made.folder / "north" / "tls" / "key.pem")
    long_reply = stranger(
        made.folder / "north" / "tls",
        connect=made.address,
        answers={north: lambda data: (long, Signer(its_key, None, north).sign_reply(data, long))},
        requesters={"coordinator": [north]},
    )
    with made.server(wait=1) as transport:
        with long_reply:
            until(lambda: transport._is_connected(NORTH), "nobody offers to answer")
            assert not transport.ask({NORTH: question})
        with made.serve(NORTH):
            until(lambda: transport.ask({NORTH: question}), "north is not heard")


def test_request_flood_uncharged_and_not_blocking(made: Star, caplog: pytest.LogCaptureFixture) -> None:
    key = read_private_key(made.folder / "keys" / "key.pem")
    north, question = made.key(NORTH), made.question(0)
    signer = Signer(key, None, north)
    with (
        made.serve(NORTH),
        stranger(made.folder / "keys", listen=made.address, asks={"north": [north]}) as session,
    ):
        until(lambda: linked(session) == ["north"], "north does not connect")
        for _ in range(500):
            session.get(north, payload=bytes(50_000), timeout=1)
        other = made.question(0, value=0.1)
        signed = signer.sign_question(question), signer.sign_question(other)
        (reply,) = ask(session, north, question, signed[0], seconds=30)
        for _ in range(200):  # the same round at another point, signed
            session.get(north, payload=other, attachment=signed[1], timeout=1)
        assert ask(session, north, question, signed[0], seconds=30) == [reply]
        assert answers(reply)
    assert charged(made, NORTH) == [0]
    lines = [record for record in caplog.records if "ignored" in record.message]
    assert 0 < len(lines) <= 10  # as many as the flood has binary digits


def test_silent_connections_do_not_block_sites(made: Star) -> None:
    port = int(made.address.rpartition(":")[2])
    with made.server(wait=10) as transport:
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(150)]
        for connection in silent[:50]:
            connection.sendall(b"\x16\x03")  # the beginning of a handshake that never ends
        with made.serve(NORTH):
            until(lambda: "north" in linked(transport._session), "north cannot connect")
            until(lambda: transport.ask({NORTH: made.question(0)}), "north is not heard")
        for connection in silent:
            connection.close()


def test_expired_certificate_refused_at_both_ends(made: Star, tmp_path: Path) -> None:
    keys = made.folder / "north" / "tls"
    made.authority.renew(keys, days=0)
    with pytest.raises(FedprivError, match=r"have request\.pem signed again; the plan stays as it is"):
        made.serve(NORTH)
    with (
        made.server(wait=2) as transport,
        stranger(keys, connect=made.address, requesters={"coordinator": [made.key(NORTH)]}),
    ):
        time.sleep(1)
        assert not linked(transport._session)
    made.authority.renew(keys)  # of the same key: the plan is the same
    with made.server(wait=10) as transport, made.serve(NORTH):
        until(lambda: transport.ask({NORTH: made.question(0)}), "north is not heard")


def test_unplanned_certificate_raises(made: Star, tmp_path: Path) -> None:
    made.authority.keys(tmp_path / "second", "coordinator", LOOPBACK)
    with pytest.raises(FedprivError, match="use the certificate that the plan names"):
        made.server(keys=tmp_path / "second")
    (made.folder / "keys" / "key.pem").chmod(0o644)
    with pytest.raises(FedprivError, match="can be read by other users"):
        made.server()
    with pytest.raises(FedprivError, match="is missing"):
        find_credentials(tmp_path, make_pin(tmp_path / "second" / "certificate.pem"))


def test_unknown_party_named_in_log(made: Star, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made.authority.keys(tmp_path / "guest", "guest")
    caplog.set_level(logging.WARNING)
    with made.server(wait=2), stranger(tmp_path / "guest", connect=made.address):
        until(lambda: "connected: guest" in caplog.text, "nobody says who came")
    assert "it can send nothing" in caplog.text
