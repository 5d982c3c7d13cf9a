"""Finds the reason why a party cannot connect to an address. Zenoh retries and reports no reason.

A short separate connection takes the same steps: host name, TCP, TLS with the same certificates. It sends nothing.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from fedpriv.sites.over_zenoh.link import Credentials, host_and_port

_STEP = 5.0  # seconds for each step
_VERDICT = 1.0  # seconds in which the other end may reject our certificate, after we accepted theirs
_MAX_HOSTS = 5  # number of hosts that a message lists
# error numbers of OpenSSL (X509_V_ERR_...)
_NOT_VALID_NOW = {9, 10}
_OTHER_HOST = {62, 64}
_NO_SUCH_HOST = "the host name {} has no known address: correct the name, or add it to the DNS"
_CLOSED = "nothing listens at {}: the other end is not running, or uses another port"
_SILENT = "{} does not respond: the machine is down, or a firewall drops the connection"


def diagnose_connection(address: str, credentials: Credentials | None) -> str | None:
    """Returns the reason why an address cannot be reached, and what to do; None if a connection is possible.

    Args:
        address: The address, such as `tls/server.example.org:7447`.
        credentials: This party's files for TLS; None for plain TCP.
    """
    host, port = host_and_port(address)
    try:
        connection = socket.create_connection((host, port), _STEP)
    except socket.gaierror:
        return _NO_SUCH_HOST.format(host)
    except ConnectionRefusedError:
        return _CLOSED.format(f"{host}:{port}")
    except TimeoutError:
        return _SILENT.format(f"{host}:{port}")
    except OSError as error:
        return f"{host}:{port} cannot be reached ({error.strerror})"
    with connection:
        if credentials is None:
            return None
        return _diagnose_tls(connection, host, port, credentials)


def _diagnose_tls(connection: socket.socket, host: str, port: int, credentials: Credentials) -> str | None:
    """Returns the reason why mutual TLS fails over a connection; None if it succeeds."""
    context = _context(credentials)
    try:
        with context.wrap_socket(connection, server_hostname=host) as tls:
            tls.settimeout(_VERDICT)
            with suppress(TimeoutError):  # it has accepted our certificate and waits
                tls.recv(1)
            return None
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in _OTHER_HOST:
            hosts = _hosts_of(host, port, credentials)
            return (
                f"the certificate of the other end is for {hosts}, not for {host}: connect to a name that this "
                f"certificate lists, or have it signed again with --host {host}"
            )
        if error.verify_code in _NOT_VALID_NOW:
            return f"the certificate of the other end is not valid now ({error.verify_message}): compare the clocks"
        return (
            f"the certificate of the other end is not signed by the authority in {credentials.authority} "
            f"({error.verify_message}): install the authority of the other end here, or have that certificate signed "
            "by the authority installed here"
        )
    except ssl.SSLError as error:
        reason = (error.reason or "").lower().replace("_", " ")
        if "alert" in reason:
            return (
                f"the other end rejects the certificate {credentials.certificate} ({reason}): this certificate must be "
                "signed by the authority installed at the other end, and must not be expired"
            )
        return f"{host}:{port} does not use TLS ({reason}): correct the port"
    except TimeoutError:
        return f"{host}:{port} accepts the connection but does not use TLS: correct the port"
    except OSError as error:
        return f"the other end closes the connection ({error.strerror or error}); its own log has the reason"


def _context(credentials: Credentials) -> ssl.SSLContext:
    """Returns a context for mutual TLS with these files."""
    context = ssl.create_default_context(cafile=credentials.authority)
    context.load_cert_chain(credentials.certificate, credentials.key)
    return context


def _hosts_of(host: str, port: int, credentials: Credentials) -> str:
    """Returns the hosts in the certificate of the other end, signed by the authority, as text."""
    context = _context(credentials)
    context.check_hostname = False
    certificate: Mapping[str, Any] = {}
    with (
        suppress(OSError),
        socket.create_connection((host, port), _STEP) as connection,
        context.wrap_socket(connection, server_hostname=host) as tls,
    ):
        certificate = tls.getpeercert() or {}
    hosts = [str(name) for _, name in certificate.get("subjectAltName", ())]
    return ", ".join(hosts[:_MAX_HOSTS]) or "no such host"
