"""An authority, and certificates of it for sites and a server, in the folders in which the commands put them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedpriv.sites import Site
from fedpriv.sites.descriptor import CertificatePin
from fedpriv.sites.over_zenoh.certificates import install, make_authority, make_request, sign_request

LOOPBACK = ("localhost", "127.0.0.1")


class Authority:
    """Signs whatever it is asked to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        make_authority(folder, "test authority", 2)

    def keys(self, folder: Path, name: str, hosts: Sequence[str] = (), days: int = 1) -> CertificatePin:
        """Make a key and its certificate in this folder."""
        make_request(folder, name, hosts)
        return self.renew(folder, days)

    def renew(self, folder: Path, days: int = 1) -> CertificatePin:
        _, signed = sign_request(self.folder, folder / "request.pem", days)
        return install(folder, signed, self.folder / "authority.pem")

    def site(self, site: Site, folder: Path) -> None:
        """Make the certificate of a site, and write it on its card."""
        site.set_certificate(self.keys(folder / "tls", site.card.name))

    def server(self, folder: Path) -> CertificatePin:
        return self.keys(folder, "coordinator", LOOPBACK)
