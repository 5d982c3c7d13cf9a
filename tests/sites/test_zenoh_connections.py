"""Sites that connect, and sites that cannot: both ends report it, with the reason."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from parties import free_port, until
from signed import LOOPBACK, Authority
from sites_in_memory import config_of
from typer.testing import CliRunner
from zenoh_party import FEDAVG, Star, credentials, star, stranger

from fedpriv.cli import app
from fedpriv.config import to_yaml
from fedpriv.sites.connection_file import CONNECTIONS, ConnectionFile, connection_rows
from fedpriv.sites.over_zenoh.certificates import install, sign_request
from fedpriv.sites.over_zenoh.diagnosis import diagnose_connection
from fedpriv.sites.over_zenoh.refusals import log_refusals, parse_refusal_reason
from fedpriv.sites.over_zenoh.site_server import SiteServer


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Star]:
    made = star(tmp_path_factory.mktemp("star"), FEDAVG)
    yield made
    made.close()


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="fedpriv")
    return caplog


def status(made: Star) -> str:
    return str(connection_rows(made.folder / "north"))


def lines(log: pytest.LogCaptureFixture, word: str) -> list[str]:
    return [record.message for record in log.records if word in record.message]


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("other") / "authority")


def test_closed_port_named_if_server_down(made: Star, log: pytest.LogCaptureFixture) -> None:
    address = f"tls/127.0.0.1:{free_port()}"
    with (
        ConnectionFile(made.folder / "north") as file,
        SiteServer(made.sites[0], [address], made.folder / "north" / "tls", file.publish),
    ):
        until(lambda: "nothing listens" in status(made), "no reason")
        (line,) = lines(log, "not connected yet")
    assert line.startswith("not connected yet: coordinator; " + address)
    assert not lines(log, "connected: coordinator")
    assert not (made.folder / "north" / CONNECTIONS).exists()
    assert "not running" in connection_rows(made.folder / "north")["connections"]


def test_connection_logged_once_at_both_ends(made: Star, log: pytest.LogCaptureFixture) -> None:
    with ConnectionFile(made.folder / "north") as file:
        site = SiteServer(made.sites[0], [made.address], made.folder / "north" / "tls", file.publish)
        time.sleep(1)
        assert not lines(log, "connected: ")
        with made.server() as transport:
            transport.wait_for_all(2)
            until(lambda: "connected since" in status(made), "no connection")
        until(lambda: lines(log, "disconnected: coordinator"), "the end of the server is not noticed")
        site.close()
    assert [line for line in lines(log, "connected: ") if not line.startswith("disconnected")] == [
        "connected: coordinator",
        "connected: north",
    ]


def test_short_connection_logged(made: Star, log: pytest.LogCaptureFixture) -> None:
    """A federation may be over before the watch looks again."""
    with made.serve(0):
        with stranger(made.folder / "keys", listen=made.address) as session:
            until(lambda: session.info.links(), "north does not connect")
        until(lambda: lines(log, "connected: coordinator"), "not noticed")


def test_wrong_server_named_in_log(made: Star, tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    made.authority.keys(tmp_path / "guest", "guest", LOOPBACK)
    with made.serve(0), stranger(tmp_path / "guest", listen=made.address):
        until(lambda: lines(log, "not connected yet"), "no reason")
    assert "the connected party, guest, is in no plan here" in lines(log, "not connected yet")[0]


def test_wrong_host_name_lists_certificate_hosts(made: Star) -> None:
    keys = credentials(made.folder / "north" / "tls")
    with stranger(made.folder / "keys", listen=made.address.replace("127.0.0.1", "0.0.0.0")):
        assert diagnose_connection(made.address, keys) is None
        reason = diagnose_connection(made.address.replace("127.0.0.1", "127.0.0.2"), keys)
    assert reason is not None
    assert "is for localhost, 127.0.0.1, not for 127.0.0.2" in reason


def test_other_authority_named_at_site(made: Star, other: Authority, tmp_path: Path) -> None:
    other.keys(tmp_path / "alien", "north")
    with made.server():
        reason = diagnose_connection(made.address, credentials(tmp_path / "alien"))
    assert reason is not None
    assert f"not signed by the authority in {tmp_path / 'alien' / 'authority.pem'}" in reason


def test_refused_certificate_reported_at_site(made: Star, other: Authority, tmp_path: Path) -> None:
    """The site trusts the server, and the server does not trust the site."""
    other.keys(tmp_path / "alien", "north")
    _, signed = sign_request(other.folder, tmp_path / "alien" / "request.pem", 1)
    install(tmp_path / "alien", signed, made.authority.folder / "authority.pem")
    with made.server():
        reason = diagnose_connection(made.address, credentials(tmp_path / "alien"))
    assert reason is not None
    assert "the other end rejects the certificate" in reason


def test_unknown_host_or_missing_tls_reported(made: Star) -> None:
    keys = credentials(made.folder / "north" / "tls")
    reason = diagnose_connection("tls/no-such-host.invalid:7447", keys)
    assert reason is not None
    assert "no-such-host.invalid" in reason
    with socket.create_server(("127.0.0.1", 0)) as plain:
        port = plain.getsockname()[1]
        assert diagnose_connection(f"tcp/127.0.0.1:{port}", None) is None
        reason = diagnose_connection(f"tls/127.0.0.1:{port}", keys)
        assert reason is not None
        assert "does not use TLS" in reason


def test_server_names_missing_sites(made: Star, log: pytest.LogCaptureFixture) -> None:
    with (
        made.server() as transport,
        # connected, but without an answer to questions of this plan
        stranger(made.folder / "south" / "tls", connect=made.address),
        made.serve(0),
    ):
        assert transport.wait_for_all(7) == ["east", "south", "west"]
    (line,) = lines(log, "not connected yet")
    assert "east (no connection" in line
    assert "south (is connected, but does not reply for this plan" in line
    assert "north" not in line


def test_rounds_readable_and_json_on_request(made: Star) -> None:
    server = made.folder / "server"
    server.mkdir(mode=0o700)
    (server / "config.yaml").write_text(to_yaml(config_of(FEDAVG)))
    (server / "plan.yaml").write_text(made.proposal.text)
    words = "federate", "run", server, "--listen", made.address, "--keys", made.folder / "keys"
    running = [made.serve(number) for number in made.sites]
    try:
        done = CliRunner().invoke(app, [str(word) for word in words])
        again = CliRunner().invoke(app, [str(word) for word in (*words, "--json")])
    finally:
        for site in running:
            site.close()
    assert done.exit_code == 0, done.output
    assert "round 1/4; replies of north, east, south, west; test_" in done.output
    # the plan is over: the result alone
    assert json.loads(again.stdout)["ended"] == "rounds"


SCRIPT = """
import logging, sys, time
from pathlib import Path
from fedpriv.sites.operator_log import print_log
from fedpriv.sites.over_zenoh.link import Credentials, Link, open_link
from fedpriv.sites.over_zenoh.refusals import log_refused_connections

def keys(folder):
    return Credentials(*(Path(folder) / f"{name}.pem" for name in ("authority", "certificate", "key")))

server, site, address = sys.argv[1:]
with print_log(sys.stderr), log_refused_connections():
    print("before")
    with (
        open_link(Link(keys(server), 1000, listen=[address], repliers={"north": ["x"]})),
        open_link(Link(keys(site), 1000, connect=[address], requesters={"coordinator": ["x"]})),
    ):
        time.sleep(2)
    print("after")
print("end")
"""


def test_server_logs_reason_of_refusal(made: Star, other: Authority, tmp_path: Path) -> None:
    other.keys(tmp_path / "alien", "north")
    words = [sys.executable, "-c", SCRIPT, made.folder / "keys", tmp_path / "alien", made.address]
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.split() == ["before", "after", "end"]
    assert "warning: a connection was refused: the other end rejects the certificate of this end" in done.stderr


def test_zenoh_reasons_read_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    line = "2026-01-01T00:00:00Z  WARN acc-0 ThreadId(05) zenoh_link_tls::unicast: {}. Hint: increase the limit.\n"
    assert "another authority" in (parse_refusal_reason(line.format("invalid peer certificate: UnknownIssuer")) or "")
    assert "does not list" in (parse_refusal_reason(line.format("received fatal alert: BadCertificate")) or "")
    assert parse_refusal_reason(line.format("tls handshake eof")) == "the other end does not use mutual TLS"
    assert parse_refusal_reason("round 1 of 3\n") is None
    log_refusals(line.format("received fatal alert: UnknownCA") for _ in range(1000))
    assert len(caplog.records) == 10


def test_stale_connection_file_shows_no_connection(tmp_path: Path) -> None:
    """A site that was killed leaves its file behind."""
    path = tmp_path / CONNECTIONS
    path.write_text(json.dumps({"coordinator": {"is_connected": True, "reason": "", "since": 0.0}}))
    assert connection_rows(tmp_path) == {"coordinator": "connected since 1970-01-01 00:00:00 UTC"}
    os.utime(path, (time.time() - 100, time.time() - 100))
    assert re.search(r"no sign of the site for 10\d s", connection_rows(tmp_path)["connections"])
    path.write_text("{")
    assert "not running" in connection_rows(tmp_path)["connections"]
