"""Opens Zenoh sessions for known parties only: mutual TLS, access by certificate name, bounded messages.

A star and a graph use the same link. The replying party declares a queryable for a key expression, the requesting party
calls `session.get` with it, and each names the other's certificate:

    site = open_link(Link(connect=["tls/server.example.org:7447"], credentials=mine, max_bytes=n,
                          requesters={"coordinator": ["fedpriv/site/north"]}))
    server = open_link(Link(listen=["tls/0.0.0.0:7447"], credentials=mine, max_bytes=n,
                            repliers={"north": ["fedpriv/site/north"]}))

All sessions are peers that neither search for others nor forward messages, so two sites that are connected to the same
server do not reach each other. Close a session explicitly (`with`): a process that only ends may hang.

Zenoh checks the name in a certificate and its signature. It does not compare public keys, and for outgoing connections
it also accepts the public authorities of the web. `signatures.py` binds each message to the public keys that a plan
names.
"""

from __future__ import annotations

import ipaddress
import json
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.errors import ConfigError, FedprivError

if TYPE_CHECKING:
    import zenoh

_ADDRESS = re.compile(r"(?P<protocol>tls|tcp)/(?P<host>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):(?P<port>[0-9]{1,5})")
_RETRY = {"period_init_ms": 200, "period_max_ms": 2000, "period_increase_factor": 2}  # of a connection that was lost
_BATCH = 65535  # bytes; a message of up to this length is not fragmented, so no smaller limit can be set
_STALLED = 20_000_000  # microseconds without progress after which a full link is closed
_LEAVING = 5.0  # seconds for a thread to leave a closed session
_SESSIONS = 32  # connections beyond the known parties', for parties with unchecked certificates


@dataclass(frozen=True)
class Credentials:
    """The PEM files that prove a party's identity.

    Attributes:
        authority: Certificates of the authorities that sign the others' certificates.
        certificate: This party's certificate, followed by those between it and the authority.
        key: Its private key.
    """

    authority: Path
    certificate: Path
    key: Path

    def check(self) -> None:
        """Checks that the files exist and that only their owner can read the private key.

        Raises:
            FedprivError: If a file is missing, or others can read the key.
        """
        for path in (self.authority, self.certificate, self.key):
            if not path.is_file():
                raise FedprivError(
                    f"{path} is missing: mutual TLS needs the certificates of the authority and of this party, and a "
                    "private key"
                )
        if self.key.stat().st_mode & 0o077:
            raise FedprivError(
                f"{self.key} can be read by other users: run chmod go= {self.key}, and create a new key, because "
                "others may have copied the present one"
            )


@dataclass(frozen=True)
class Link:
    """The settings of a session: addresses, credentials, and the messages that each party may send.

    Attributes:
        credentials: Files for mutual TLS; None for plain TCP, which is only allowed for addresses of this machine.
        max_bytes: The longest message that is received, in bytes; longer ones are dropped while they arrive.
        connect: Addresses to connect to, such as `tls/server.example.org:7447`. Lost connections are re-established.
        listen: Addresses to listen on, such as `tls/0.0.0.0:7447`.
        requesters: For each certificate name (common name), the key expressions on which it may send requests to this
            party.
        repliers: For each certificate name, the key expressions on which this party sends it requests.
    """

    credentials: Credentials | None
    max_bytes: int
    connect: Sequence[str] = ()
    listen: Sequence[str] = ()
    requesters: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    repliers: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])

    @property
    def names(self) -> Sequence[str]:
        """The certificate names of all parties that may send messages."""
        return sorted({*self.requesters, *self.repliers})


def open_link(link: Link) -> zenoh.Session:
    """Opens a session with these settings and returns at once: parties may start in any order.

    Raises:
        ConfigError: If an address cannot be used, or belongs to another machine and there are no credentials.
        FedprivError: If Zenoh is not installed, a credential cannot be used, or an address is in use.
    """
    for address in (*link.connect, *link.listen):
        check_address(address, link.credentials)
    if link.credentials is not None:
        link.credentials.check()
    try:
        import zenoh
    except ImportError:
        raise FedprivError("Zenoh is not installed: pip install 'fedpriv[zenoh]'") from None
    config = zenoh.Config()
    for name, value in session_settings(link).items():
        config.insert_json5(name, json.dumps(value))
    try:
        return zenoh.open(config)
    except zenoh.ZError as error:
        addresses = ", ".join([*link.listen, *link.connect])
        raise FedprivError(f"no connection can be opened at {addresses}: {error}") from None


def check_address(address: str, credentials: Credentials | None) -> None:
    """Raises an error for addresses that Zenoh would read as settings, and for plain TCP to other machines.

    Raises:
        ConfigError: If the address cannot be used.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None or int(match["port"]) > 65535:
        raise ConfigError(
            "address", address, "must have the form tls/HOST:PORT, or tcp/127.0.0.1:PORT on this machine only"
        )
    if match["protocol"] == "tls":
        if credentials is None:
            raise ConfigError(
                "address",
                address,
                "TLS needs a certificate: create its key with `fedpriv site keys` or, for a server, `fedpriv "
                "federate keys`",
            )
        return
    if credentials is not None:
        raise ConfigError(
            "address", address, "tcp/ does not encrypt the connection: with certificates, write tls/HOST:PORT"
        )
    if not _is_loopback(match["host"].strip("[]")):
        raise ConfigError(
            "address",
            address,
            "is not limited to this machine, and tcp/ does not encrypt: use tls/HOST:PORT, with certificates on both "
            "sides",
        )


def host_and_port(address: str) -> tuple[str, int]:
    """Returns the host, without brackets, and the port of an address that `check_address` has accepted."""
    host, _, port = address.partition("/")[2].rpartition(":")
    return host.strip("[]"), int(port)


def _is_loopback(host: str) -> bool:
    """Returns True if the address is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def session_settings(link: Link) -> dict[str, Any]:
    """Returns Zenoh's settings by their paths (https://zenoh.io/docs/manual/configuration)."""
    settings: dict[str, Any] = {
        "mode": "peer",
        "connect/endpoints": [*link.connect],
        "listen/endpoints": [*link.listen],
        # connect in the background for as long as it takes; fail at once if an address cannot be listened on
        "connect/timeout_ms": -1,
        "connect/exit_on_failure": False,
        "connect/retry": _RETRY,
        "listen/timeout_ms": 0,
        "listen/exit_on_failure": True,
        # no search for peers, and no announcement of addresses
        "scouting/multicast/enabled": False,
        "scouting/gossip/enabled": False,
        "scouting/delay": 0,
        "adminspace/enabled": False,
        # shared memory would bypass TLS
        "transport/shared_memory/enabled": False,
        "transport/unicast/max_sessions": len(link.names) + _SESSIONS,
        "transport/link/rx/max_message_size": max(link.max_bytes, _BATCH),
        "transport/link/tx/queue/congestion_control/block/wait_before_close": _STALLED,
    }
    credentials = link.credentials
    if credentials is None:
        return {**settings, "transport/link/protocols": ["tcp"]}
    return {
        **settings,
        "transport/link/protocols": ["tls"],
        "transport/link/tls": {
            "root_ca_certificate": str(credentials.authority),
            "enable_mtls": True,
            "verify_name_on_connect": True,
            "close_link_on_expiration": True,
            "listen_certificate": str(credentials.certificate),
            "listen_private_key": str(credentials.key),
            "connect_certificate": str(credentials.certificate),
            "connect_private_key": str(credentials.key),
        },
        "access_control": access_rules(link),
    }


def access_rules(link: Link) -> dict[str, Any]:
    """Returns Zenoh's access control: everything is denied, except for each party's requests and replies."""
    rules: list[dict[str, Any]] = []
    subjects: list[dict[str, Any]] = []
    policies: list[dict[str, Any]] = []
    for number, name in enumerate(link.names):
        # messages that arrive from this party or are sent to it
        messages = [
            (["query"], "ingress", link.requesters.get(name, ())),
            (["reply", "declare_queryable"], "egress", link.requesters.get(name, ())),
            (["query"], "egress", link.repliers.get(name, ())),
            (["reply", "declare_queryable"], "ingress", link.repliers.get(name, ())),
        ]
        identifiers: list[str] = []
        for kinds, flow, keys in messages:
            if keys:
                identifiers.append(f"rule{len(rules)}")
                rules.append(
                    {
                        "id": identifiers[-1],
                        "messages": kinds,
                        "flows": [flow],
                        "permission": "allow",
                        "key_exprs": [*keys],
                    }
                )
        subjects.append({"id": f"party{number}", "cert_common_names": [name]})
        policies.append({"rules": identifiers, "subjects": [f"party{number}"]})
    return {
        "enabled": True,
        "default_permission": "deny",
        "rules": rules,
        "subjects": subjects,
        "policies": policies,
    }


def join_all(threads: Sequence[threading.Thread]) -> None:
    """Waits until threads that used a session have left Zenoh, after the session is closed.

    Python ends threads that are still inside foreign code in a way that may abort the whole process.
    """
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(_LEAVING)
