"""Certificates for mutual TLS: `fedpriv site keys` and `fedpriv federate authority`, `keys` and `sign`."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from fedpriv.cli.federating import TLS, SiteFolder
from fedpriv.errors import ConfigError

site = typer.Typer()
federate = typer.Typer()

Hosts = Annotated[
    list[str] | None,
    typer.Option("--host", metavar="HOST", help="Name or address at which others connect. May be repeated."),
]
Certificate = Annotated[
    Path | None, typer.Option("--certificate", metavar="PEM", help="The signed certificate to install.")
]
Authority = Annotated[
    Path | None,
    typer.Option(
        "--authority", metavar="PEM", help="Certificate of the authority that signs the other parties' certificates."
    ),
]
Key = Annotated[Path | None, typer.Option("--key", metavar="PEM", help="Private key, if your organisation created it.")]


@site.command("keys")
def site_keys(
    folder: SiteFolder,
    hosts: Hosts = None,
    certificate: Certificate = None,
    authority: Authority = None,
    key: Key = None,
) -> None:
    """Create the key of the site's certificate and a signing request, or install a signed certificate.

    The card names the certificate from then on: create the keys before you send the card to the server.
    """
    from fedpriv.cli.printing import print_rows
    from fedpriv.sites.over_zenoh.certificates import CERTIFICATE, REQUEST, install, make_request
    from fedpriv.sites.site import Site

    with closing(Site(folder)) as owner:
        if certificate is None:
            _refuse_lone_files(authority, key)
            pin = make_request(folder / TLS, owner.card.name, hosts or ())
            rows = {"to be signed": str(folder / TLS / REQUEST)}
            rows["next"] = f"fedpriv site keys {folder} --certificate SIGNED.pem --authority AUTHORITY.pem"
        else:
            pin = install(folder / TLS, certificate, _needed(authority), key)
            rows = {"installed": str(folder / TLS / CERTIFICATE)}
        is_new = owner.card.certificate != pin
        owner.set_certificate(pin)
        rows = {"certificate": f"{pin.common_name}, public key {pin.public_key}"} | rows
        if is_new:
            rows["for the server"] = f"{folder / 'card.json'}, which now names this certificate; earlier plans do not"
        print_rows(rows)


@federate.command("keys")
def federate_keys(
    folder: Annotated[Path, typer.Argument(metavar="KEYS", help="Folder of the server's key and certificate.")],
    hosts: Hosts = None,
    name: Annotated[str, typer.Option("--name", help="Common name of the certificate.")] = "coordinator",
    certificate: Certificate = None,
    authority: Authority = None,
    key: Key = None,
) -> None:
    """Create the key of the server's certificate and a signing request, or install a signed certificate."""
    from fedpriv.cli.printing import print_rows
    from fedpriv.sites.over_zenoh.certificates import CERTIFICATE, REQUEST, install, make_request

    if certificate is None:
        _refuse_lone_files(authority, key)
        if not hosts:
            raise ConfigError("--host", None, "is required: give the host name or address that sites use in --connect")
        pin = make_request(folder, name, hosts)
        rows = {"to be signed": str(folder / REQUEST)}
        rows["next"] = f"fedpriv federate keys {folder} --certificate SIGNED.pem --authority AUTHORITY.pem"
    else:
        pin = install(folder, certificate, _needed(authority), key)
        rows = {"installed": str(folder / CERTIFICATE)}
    print_rows({"certificate": f"{pin.common_name}, public key {pin.public_key}"} | rows)


@federate.command("authority")
def federate_authority(
    folder: Annotated[Path, typer.Argument(metavar="AUTHORITY", help="New folder for the authority.")],
    name: Annotated[str, typer.Option("--name", help="Common name of the authority.")] = "federation",
    days: Annotated[int, typer.Option("--days", help="Days for which the authority is valid.", min=1)] = 3650,
) -> None:
    """Create an authority that signs the certificates of sites and server, if the organisations share none."""
    from fedpriv.cli.printing import print_rows
    from fedpriv.sites.over_zenoh.certificates import AUTHORITY, make_authority

    public_key = make_authority(folder, name, days)
    rows = {"authority": f"{name}, public key {public_key}, in {folder}: anyone with this folder can sign in your name"}
    print_rows(rows | {"for everybody": str(folder / AUTHORITY), "next": f"fedpriv federate sign {folder} REQUEST..."})


@federate.command("sign")
def federate_sign(
    authority: Annotated[Path, typer.Argument(metavar="AUTHORITY", help="Folder of the authority.")],
    requests: Annotated[list[Path], typer.Argument(metavar="REQUEST...", help="Signing requests, PEM.")],
    days: Annotated[int, typer.Option("--days", help="Days for which the certificates are valid.", min=1)] = 365,
) -> None:
    """Sign requests of sites and server. Check the host names: nothing else is copied from a request."""
    from fedpriv.cli.printing import print_rows
    from fedpriv.sites.over_zenoh.certificates import AUTHORITY, list_hosts, make_pin, sign_request

    for request in requests:
        certificate, path = sign_request(authority, request, days)
        pin = make_pin(path)
        hosts = ", ".join(list_hosts(certificate.extensions)) or "none (this party makes only outgoing connections)"
        print_rows(
            {
                "signed": f"{path}, for {pin.common_name}, public key {pin.public_key}",
                "hosts": hosts,
                "valid until": f"{certificate.not_valid_after_utc:%Y-%m-%d}",
                "send back": f"{path} and {authority / AUTHORITY}",
            }
        )


def _refuse_lone_files(authority: Path | None, key: Path | None) -> None:
    """Raises an error for files that are only useful together with a certificate."""
    for option, path in (("--authority", authority), ("--key", key)):
        if path is not None:
            raise ConfigError(
                option,
                str(path),
                "is used only together with --certificate: add --certificate with the signed certificate, or leave "
                "this out",
            )


def _needed(authority: Path | None) -> Path:
    if authority is None:
        raise ConfigError(
            "--authority",
            None,
            "is required with --certificate: give the certificate of the authority that signs the other parties' "
            "certificates",
        )
    return authority
