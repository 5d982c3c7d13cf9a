"""Flower on this machine alone, as organisations would run it: TLS, registered node keys, a process for each party."""

from __future__ import annotations

import ipaddress
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from parties import PATIENCE, Parties, free_port, until

from fedpriv.sites.over_flower.starting import find_program, make_environment


def certificates(folder: Path) -> dict[str, Path]:
    """A certificate authority, and a certificate of it for this machine."""
    day = timedelta(days=1)
    keys = {name: ec.generate_private_key(ec.SECP256R1()) for name in ("ca", "server")}
    names = {name: x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"fedpriv test {name}")]) for name in keys}
    own = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    found: dict[str, Path] = {}
    for name, key in keys.items():
        made = x509.CertificateBuilder().subject_name(names[name]).issuer_name(names["ca"])
        made = made.public_key(key.public_key()).serial_number(x509.random_serial_number())
        made = made.not_valid_before(datetime.now(UTC) - day).not_valid_after(datetime.now(UTC) + day)
        made = made.add_extension(x509.BasicConstraints(ca=name == "ca", path_length=None), critical=True)
        made = made.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(keys["ca"].public_key())
        made = made.add_extension(issuer, critical=False)
        made = made.add_extension(own, critical=False) if name == "server" else made
        found[name] = folder / f"{name}.pem"
        found[name].write_bytes(made.sign(keys["ca"], hashes.SHA256()).public_bytes(Encoding.PEM))
    found["key"] = folder / "server.key"
    private = keys["server"].private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    found["key"].write_bytes(private)
    return found


class Loopback(Parties):
    """A SuperLink with TLS that takes registered nodes only, and sites that reach it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, {**make_environment(), "FLWR_HOME": str(folder / "flwr")})
        self.port, self.tls = free_port(), certificates(folder)
        self.env["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] = "0.05"
        secure = [
            "--ssl-ca-certfile",
            self.tls["ca"],
            "--ssl-certfile",
            self.tls["server"],
            "--ssl-keyfile",
            self.tls["key"],
        ]
        words = [find_program("flower-superlink"), "--host", "127.0.0.1", "--port", self.port, *secure]
        self.start("superlink", [*words, "--enable-supernode-auth", "--disable-runtime-dependency-installation"])
        until(self._listens, "the SuperLink does not listen")

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def register(self, site: Path) -> None:
        """Make the key of a site's node known to the SuperLink."""
        home = Path(self.env["FLWR_HOME"])
        home.mkdir(exist_ok=True)
        settings_text = f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{self.address}"\n'
        (home / "config.toml").write_text(f'{settings_text}root-certificates = "{self.tls["ca"]}"\n')
        words = [find_program("flwr"), "supernode", "register", str(site / "node_key.pub"), "here"]
        found = subprocess.run(words, env=self.env, capture_output=True, text=True, timeout=PATIENCE)
        assert found.returncode == 0, found.stdout + found.stderr

    def site(self, folder: Path) -> None:
        """Run a site and its SuperNode."""
        words = ["site", "run", folder, "--superlink", self.address, "--root-certificates", self.tls["ca"]]
        self.start(folder.name, [sys.executable, "-m", "fedpriv", *words, "--port", free_port()])

    def federate(self, folder: Path) -> None:
        """Run the server of a federation."""
        words = ["federate", "run", folder, "--superlink", self.address, "--root-certificates", self.tls["ca"]]
        self.start("federation", [sys.executable, "-m", "fedpriv", *words, "--wait", 120])

    def _listens(self) -> bool:
        assert self.running["superlink"].poll() is None, self.log_tail("superlink")
        with socket.socket() as found:
            return found.connect_ex(("127.0.0.1", self.port)) == 0


@contextmanager
def loopback(folder: Path) -> Iterator[Loopback]:
    found = Loopback(folder)
    try:
        yield found
    finally:
        found.end()
