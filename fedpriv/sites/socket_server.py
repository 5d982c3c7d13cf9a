"""A site that stays in memory: one process has the data, and short-lived ones bring it questions through a socket.

The socket is in the site's folder, which only its owner can enter. Bytes cross it, and nothing is unpickled.
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
_LONGEST = 90  # characters of a socket's path that every system takes
_MOST = 2**31 - 1  # bytes of a question


def serve(folder: Path, answer: Callable[[bytes], bytes], goes_on: Callable[[], bool]) -> None:
    """Answer questions, one after another, while `goes_on`.

    Args:
        folder: The site's folder, which the caller holds.
        answer: From a question to a reply; it raises nothing.
        goes_on: Asked after each connection.

    Raises:
        FedprivError: the folder's path is too long for a socket.
    """
    path = (folder / SOCKET).absolute()
    if len(str(path)) > _LONGEST:
        raise FedprivError(f"{path} is too long for a socket; put the site's folder nearer to the root")
    path.unlink(missing_ok=True)
    with Listener(str(path), "AF_UNIX") as listener:
        path.chmod(0o600)
        while goes_on():
            try:
                with listener.accept() as connection:
                    if question := connection.recv_bytes(_MOST):
                        connection.send_bytes(answer(question))
            except (EOFError, OSError):  # whoever asked is gone
                continue


def wake_after(folder: Path, end: Callable[[], object]) -> None:
    """Have whoever serves this folder look whether it goes on, once `end` has returned; at once, in a thread."""

    def wake() -> None:
        end()
        while True:  # it may not listen yet
            with suppress(OSError, EOFError):
                ask(folder, b"")
            time.sleep(1)

    threading.Thread(target=wake, daemon=True).start()


def ask(folder: Path, question: bytes) -> bytes:
    """The reply of the site that is served from this folder; empty bytes only wake it."""
    with Client(str((folder / SOCKET).absolute()), "AF_UNIX") as connection:
        connection.send_bytes(question)
        if question:
            return connection.recv_bytes(_MOST)
        return b""
