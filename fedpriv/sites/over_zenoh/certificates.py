"""Keys, signing requests and certificates (X.509) for mutual TLS between organisations.

A party creates a private key and a signing request. An authority signs it: either the organisation's authority, or one
that the owner of the federation creates. A plan names each certificate by its common name and its public key. It is
therefore independent of the signing authority, and a renewed certificate with the same key needs no new plan.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedpriv.errors import ConfigError, FedprivError
from fedpriv.sites.descriptor import CertificatePin
from fedpriv.sites.over_zenoh.link import Credentials
from fedpriv.sites.over_zenoh.signatures import fingerprint, read_private_key
from fedpriv.storage import files

KEY, REQUEST, CERTIFICATE, AUTHORITY = "key.pem", "request.pem", "certificate.pem", "authority.pem"
_AUTHORITY_KEY = "authority_key.pem"  # only in the folder of the authority
_CLOCKS = timedelta(hours=1)  # largest difference between clocks


def make_request(folder: Path, name: str, hosts: Sequence[str] = ()) -> CertificatePin:
    """Creates a private key and a signing request in a folder that only its owner can read.

    Args:
        folder: Folder for `key.pem` and `request.pem`; created if it does not exist.
        name: Common name of the certificate.
        hosts: Names and IP addresses under which others connect to this party; empty if it only connects to others.

    Returns:
        The certificate's pin, for the plan.

    Raises:
        FedprivError: If the folder already has a key.
    """
    if (folder / KEY).exists():
        raise FedprivError(
            f"{folder / KEY} exists already, and a plan may name this key: to replace the key, delete the file first"
        )
    key = ec.generate_private_key(ec.SECP256R1())
    builder = x509.CertificateSigningRequestBuilder().subject_name(_name(name))
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
    request = builder.sign(key, SHA256())
    _write_private(folder, KEY, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    files.write_whole(folder / REQUEST, request.public_bytes(Encoding.PEM))
    return CertificatePin(common_name=name, public_key=fingerprint(key.public_key()))


def make_authority(folder: Path, name: str, days: int) -> str:
    """Creates an authority that signs certificates: `authority.pem` is public, `authority_key.pem` is for its owner.

    Returns:
        The fingerprint of its public key.

    Raises:
        FedprivError: If the folder already has an authority.
    """
    if (folder / _AUTHORITY_KEY).exists():
        raise FedprivError(f"{folder / _AUTHORITY_KEY} exists already; use another folder for a new authority")
    key = ec.generate_private_key(ec.SECP256R1())
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    builder = _builder(_name(name), _name(name), key.public_key(), days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(usage, critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    certificate = builder.sign(key, SHA256())
    _write_private(folder, _AUTHORITY_KEY, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    files.write_whole(folder / AUTHORITY, certificate.public_bytes(Encoding.PEM))
    return fingerprint(key.public_key())


def sign_request(authority: Path, request: Path, days: int) -> tuple[x509.Certificate, Path]:
    """Signs a request with an authority from `make_authority`.

    Args:
        authority: The folder of the authority.
        request: The signing request, PEM.
        days: Number of days for which the certificate is valid, at most until the authority's certificate expires.

    Returns:
        The certificate, and the file in `authority` to which it was written.

    Raises:
        FedprivError: If a file cannot be read, or the request is not signed by its own key.
    """
    issuer = read_certificate(authority / AUTHORITY)
    key = read_private_key(authority / _AUTHORITY_KEY)
    try:
        asked = x509.load_pem_x509_csr(request.read_bytes())
    except ValueError as error:
        raise FedprivError(f"{request} must be a certificate signing request in PEM format ({error})") from None
    if not asked.is_signature_valid:
        raise FedprivError(
            f"{request} is not signed with the key that it contains: obtain a new signing request from its owner"
        )
    name = _common_name(asked.subject, request)
    public_key = asked.public_key()
    builder = _builder(_name(name), issuer.subject, public_key, days, issuer.not_valid_after_utc)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    usage = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
    builder = builder.add_extension(x509.ExtendedKeyUsage(usage), critical=False)
    # from the request, only the host names are used: the certificate can never be an authority itself
    hosts = list_hosts(asked.extensions)
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
    certificate = builder.add_extension(identifier, critical=False).sign(key, SHA256())
    path = authority / f"{_file_name(name)}.pem"
    files.write_whole(path, certificate.public_bytes(Encoding.PEM))
    return certificate, path


def install(folder: Path, certificate: Path, authority: Path, key: Path | None = None) -> CertificatePin:
    """Copies a certificate, its authority's, and possibly a key into a folder for `find_credentials`.

    Args:
        folder: The folder; it must contain the private key from `make_request` if `key` is None.
        certificate: The signed certificate, followed by any between it and the authority, PEM.
        authority: The authority's certificate, PEM.
        key: The private key, PEM; None uses the key in the folder.

    Returns:
        The certificate's pin, for the plan.

    Raises:
        FedprivError: If a file cannot be read, or the certificate belongs to another key.
    """
    if key is None:
        private = read_private_key(folder / KEY)
    else:
        private = read_private_key(key)
    pin = make_pin(certificate)
    if fingerprint(private.public_key()) != pin.public_key:
        raise FedprivError(f"{certificate} belongs to another private key: sign {folder / REQUEST} again")
    read_certificate(authority)
    if key is not None:
        _write_private(folder, KEY, key.read_bytes())
    files.write_whole(folder / CERTIFICATE, certificate.read_bytes())
    files.write_whole(folder / AUTHORITY, authority.read_bytes())
    return pin


def find_credentials(folder: Path, pin: CertificatePin) -> Credentials:
    """Returns the files for mutual TLS in a folder.

    Args:
        folder: The folder that `install` has filled.
        pin: The certificate's pin in the plan.

    Raises:
        FedprivError: If a file is missing, or the certificate does not match the plan or is not valid today.
    """
    credentials = Credentials(folder / AUTHORITY, folder / CERTIFICATE, folder / KEY)
    credentials.check()
    actual = make_pin(credentials.certificate)
    if actual != pin:
        raise FedprivError(
            f"{credentials.certificate} is for {actual.common_name}, key {actual.public_key[:23]}..., but the plan "
            f"names {pin.common_name}, key {pin.public_key[:23]}...: use the certificate that the plan names, or "
            "make a new plan"
        )
    certificate = read_certificate(credentials.certificate)
    if not certificate.not_valid_before_utc <= datetime.now(UTC) <= certificate.not_valid_after_utc:
        valid = f"{certificate.not_valid_before_utc:%Y-%m-%d} to {certificate.not_valid_after_utc:%Y-%m-%d}"
        raise FedprivError(
            f"{credentials.certificate} is valid only from {valid}, which does not include today: have {REQUEST} "
            "signed again; the plan stays as it is"
        )
    return credentials


def read_planned_pin(folder: Path) -> CertificatePin:
    """Returns the pin of this folder's certificate, from its signing request if there is no certificate yet.

    Raises:
        FedprivError: If the folder has neither.
    """
    if (folder / CERTIFICATE).exists():
        return make_pin(folder / CERTIFICATE)
    request = folder / REQUEST
    if not request.exists():
        raise FedprivError(f"{folder} has no certificate and no {REQUEST}: create one with `fedpriv federate keys`")
    asked = x509.load_pem_x509_csr(request.read_bytes())
    return CertificatePin(common_name=_common_name(asked.subject, request), public_key=fingerprint(asked.public_key()))


def make_pin(certificate: Path) -> CertificatePin:
    """Returns the pin of a certificate: its common name and the fingerprint of its public key.

    Raises:
        FedprivError: If it cannot be read, or has no common name.
    """
    first = read_certificate(certificate)
    return CertificatePin(
        common_name=_common_name(first.subject, certificate), public_key=fingerprint(first.public_key())
    )


def read_certificate(path: Path) -> x509.Certificate:
    """Reads the first certificate of a PEM file.

    Raises:
        FedprivError: If there is none.
    """
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())[0]
    except ValueError as error:
        raise FedprivError(f"{path} must be a certificate in PEM format ({error})") from None


def list_hosts(extensions: x509.Extensions) -> Sequence[str]:
    """Returns the host names and IP addresses of a request or certificate."""
    try:
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    addresses = [str(address) for address in names.get_values_for_type(x509.IPAddress)]
    return [*names.get_values_for_type(x509.DNSName), *addresses]


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: PublicKeyTypes, days: int, latest: datetime | None = None
) -> x509.CertificateBuilder:
    """Returns a certificate builder with these names, valid from now for some days but not after `latest`."""
    now = datetime.now(UTC)
    end = now + timedelta(days=days)
    if latest is not None:
        end = min(end, latest)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer)
    builder = builder.public_key(public_key).serial_number(x509.random_serial_number())  # pyright: ignore[reportArgumentType]
    return builder.not_valid_before(now - _CLOCKS).not_valid_after(end)


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _common_name(name: x509.Name, path: Path) -> str:
    values = [str(attribute.value) for attribute in name.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if len(values) != 1:
        raise FedprivError(
            f"{path} has {len(values)} common names in its subject: it must have exactly one, because access is "
            "granted by this name"
        )
    return values[0]


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError:
        raise ConfigError("host", host, "must be a host name in ASCII characters, or an IP address") from None


def _file_name(common_name: str) -> str:
    """Returns a file name for a common name that another organisation chose."""
    return "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in common_name)[:64]


def _write_private(folder: Path, name: str, content: bytes) -> None:
    """Writes a file that only its owner can read, as `write_whole` creates all files."""
    folder.mkdir(0o700, parents=True, exist_ok=True)
    files.write_whole(folder / name, content)
