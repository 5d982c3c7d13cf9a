"""Serves a site through a socket: one process holds the data in memory, and short-lived ones pass requests to it.

The socket is in the site's folder, which only its owner can access. Only bytes are transferred; nothing is unpickled.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Client, Listener
from pathlib import Path

from fedpriv.errors import FedprivError

SOCKET = "socket"
_MAX_PATH_LENGTH = 90  # characters of a socket's path that every system accepts
_MAX_BYTES = 2**31 - 1  # of a request or a reply


def serve(folder: Path, answer: Callable[[bytes], bytes], goes_on: Callable[[], bool]) -> None:
    """Replies to requests, one after another, while `goes_on()` is true.

    Args:
        folder: The site's folder, which the caller owns.
        answer: Returns the reply to a request; must not raise.
        goes_on: Called after each connection.

    Raises:
        FedprivError: If the folder's path is too long for a socket.
    """
    path = (folder / SOCKET).absolute()
    if len(str(path)) > _MAX_PATH_LENGTH:
        raise FedprivError(f"{path} is too long for the path of a socket; move the site's folder to a shorter path")
    path.unlink(missing_ok=True)
    with Listener(str(path), "AF_UNIX") as listener:
        path.chmod(0o600)
        while goes_on():
            try:
                with listener.accept() as connection:
                    question = connection.recv_bytes(_MAX_BYTES)
                    if question:
                        connection.send_bytes(answer(question))
            except (EOFError, OSError):  # the other end has closed the connection
                continue


def wake_after(folder: Path, end: Callable[[], object]) -> None:
    """Starts a thread that calls `end` and then wakes the server of this folder, so that it calls its `goes_on`."""

    def wake() -> None:
        end()
        while True:  # the server may not listen yet
            with suppress(OSError, EOFError):
                ask(folder, b"")
            time.sleep(1)

    threading.Thread(target=wake, daemon=True).start()


def ask(folder: Path, question: bytes) -> bytes:
    """Returns the reply of the site that is served from this folder; an empty request only wakes its server."""
    with Client(str((folder / SOCKET).absolute()), "AF_UNIX") as connection:
        connection.send_bytes(question)
        if question:
            return connection.recv_bytes(_MAX_BYTES)
        return b""
