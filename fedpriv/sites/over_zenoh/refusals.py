"""Logs why a listening process refused connections, which Zenoh writes to standard output only."""

from __future__ import annotations

import io
import logging
import os
import re
import sys
import threading
from collections import Counter
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import TextIO

_LOG = logging.getLogger(__name__)
_STDOUT = 1
_FILTER = "off,zenoh_link_tls=warn"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LINE = re.compile(r"zenoh_link_tls::unicast: (?P<reason>.*?)(?:\. Hint: .*)?$")
_OTHER_AUTHORITY = "the certificate of the other end is signed by another authority than the one installed here"
_DISTRUST = "the other end rejects the certificate of this end: another authority is installed there"
_REASONS = {
    "invalid peer certificate: UnknownIssuer": _OTHER_AUTHORITY,
    "invalid peer certificate: BadSignature": _OTHER_AUTHORITY,
    "invalid peer certificate: certificate expired": "the certificate of the other end is expired",
    "invalid peer certificate: Expired": "the certificate of the other end is expired",
    "invalid peer certificate: certificate not valid yet": (
        "the certificate of the other end is not valid yet: compare the clocks"
    ),
    "peer sent no certificates": "the other end has no certificate",
    "received fatal alert: UnknownCA": _DISTRUST,
    "received fatal alert: DecryptError": _DISTRUST,
    "received fatal alert: BadCertificate": (
        "the other end connects to a host name that the certificate of this end does not list"
    ),
    "received fatal alert: CertificateExpired": (
        "the other end regards the certificate of this end as expired: compare the clocks"
    ),
}
_OTHER = "the other end does not use mutual TLS"


@contextmanager
def log_refused_connections() -> Generator[None]:
    """Logs why connections to this process were refused, until the block ends; Zenoh does not record their origin.

    It replaces descriptor 1 with a pipe, which it reads, and redirects Python's output to the previous target. For
    commands only, since it changes the whole process. If `RUST_LOG` is set, Zenoh's log is not redirected.
    """
    try:
        import zenoh
    except ImportError:  # `open_link` raises an error that names the extra
        yield
        return
    if "RUST_LOG" in os.environ:
        yield
        return
    before = sys.stdout
    before.flush()
    terminal = os.dup(_STDOUT)
    reading, writing = os.pipe()
    os.dup2(writing, _STDOUT)
    os.close(writing)
    if _prints_to_descriptor(before):
        raw = io.FileIO(terminal, "w", closefd=False)
        buffer = io.BufferedWriter(raw)
        sys.stdout = io.TextIOWrapper(buffer, before.encoding, before.errors, line_buffering=True)
    reader = threading.Thread(target=_read, args=[reading], daemon=True)
    reader.start()
    zenoh.init_log_from_env_or(_FILTER)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stdout = before
        os.dup2(terminal, _STDOUT)  # closes the pipe
        os.close(terminal)
        reader.join()


def _read(descriptor: int) -> None:
    with open(descriptor, encoding="utf-8", errors="replace") as lines:
        log_refusals(lines)


def _prints_to_descriptor(stream: TextIO) -> bool:
    """Returns True if a stream is affected by the change of the descriptor."""
    try:
        return stream.fileno() == _STDOUT
    except (OSError, ValueError):  # a test's stream has no descriptor
        return False


def parse_refusal_reason(line: str) -> str | None:
    """Returns why a connection was refused, from a line of Zenoh's log; None for a line about something else.

    Args:
        line: The line, possibly with colour codes.
    """
    match = _LINE.search(_COLOUR.sub("", line).rstrip())
    if match is None:
        return None
    for beginning, reason in _REASONS.items():
        if match["reason"].startswith(beginning):
            return reason
    return _OTHER


def log_refusals(lines: Iterable[str]) -> None:
    """Logs the reasons in these lines, each the first, the second, the fourth time and so on."""
    counts: Counter[str] = Counter()
    for line in lines:
        reason = parse_refusal_reason(line)
        if reason is None:
            continue
        counts[reason] += 1
        count = counts[reason]
        if count & (count - 1) == 0:
            facts = {"event": "connection_refused", "reason": reason, "times": count}
            _LOG.warning("a connection was refused: %s", reason, extra={"facts": facts})
