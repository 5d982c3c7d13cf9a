"""The file in which a running site records its connections, for `fedpriv site status`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from fedpriv.storage import files

CONNECTIONS = "connections.json"
_TOUCHED = 5.0  # seconds after which a running site updates the file's time
_STALE = 30.0  # seconds without an update after which the site counts as stopped
_NOT_RUNNING = "none: the site is not running (start it with fedpriv site run), or it uses Flower"


@dataclass(frozen=True)
class Connection:
    """The state of a party's connection.

    Attributes:
        is_connected: True if the party is connected.
        reason: Reason for a missing connection, and the fix; empty while the reason is unknown.
        since: Time of connection or disconnection, or start of this process, in seconds since 1970.
    """

    is_connected: bool
    reason: str
    since: float


class ConnectionFile:
    """The connection file of a running site: written at each change, and touched every few seconds.

    Args:
        folder: The site's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / CONNECTIONS
        self._written: Mapping[str, Connection] | None = None
        self._touched = 0.0

    def publish(self, connections: Mapping[str, Connection]) -> None:
        """Writes the current connections, by the name of the party."""
        if connections != self._written:
            self._written = dict(connections)
            content = {name: asdict(connection) for name, connection in connections.items()}
            files.write_whole(self._path, json.dumps(content).encode())
        elif time.monotonic() - self._touched < _TOUCHED:
            return
        with suppress(FileNotFoundError):
            os.utime(self._path)
        self._touched = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Removes the file, since the site has stopped."""
        self._path.unlink(missing_ok=True)


def connection_rows(folder: Path) -> Mapping[str, str]:
    """Returns the connections of a site as text, by the name of the party.

    Args:
        folder: The site's folder.
    """
    try:
        age = time.time() - (folder / CONNECTIONS).stat().st_mtime
        content = json.loads((folder / CONNECTIONS).read_bytes())
        connections = {str(name): Connection(**fields) for name, fields in content.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {"connections": _NOT_RUNNING}
    if age > _STALE:
        return {"connections": f"none: no sign of the site for {age:.0f} s; start it again"}
    if not connections:  # the site has just started
        return {"connections": "none yet"}
    return {name: _row(connection) for name, connection in connections.items()}


def _row(connection: Connection) -> str:
    since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(connection.since))
    if connection.is_connected:
        return f"connected since {since}"
    if connection.reason:
        return f"not connected since {since}: {connection.reason}"
    return f"not connected since {since}"
