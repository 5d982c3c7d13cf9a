"""Handles Ctrl-C, SIGTERM and SIGHUP: they end a run after the present round, or at once if it has not begun."""

from __future__ import annotations

import signal
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")  # the last is not available on Windows


class Signals:
    """A context that handles these signals. Signals that the process ignores (`nohup`) stay ignored.

    Attributes:
        pending: Number of the signal that came inside `patiently`; 0 if none did.
    """

    def __init__(self) -> None:
        self.pending = 0
        self._last = signal.SIGINT.value
        self._patient = False
        self._received = False
        self._previous_handlers: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        for number in (getattr(signal, name) for name in _NAMES if hasattr(signal, name)):
            if signal.getsignal(number) != signal.SIG_IGN:
                self._previous_handlers[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)

    @contextmanager
    def patiently(self) -> Generator[None]:
        """A context in which the first signal only sets `pending`; a second Ctrl-C raises `KeyboardInterrupt`."""
        self._patient = True
        try:
            yield
        finally:
            self._patient = False

    @property
    def exit_code(self) -> int:
        """The exit code by the convention of shells: 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP."""
        return 128 + self._last

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._received and number != signal.SIGINT:
            return  # a closing terminal may send several; only a second Ctrl-C ends the run at once
        is_first = not self._received
        self._received = True
        self._last = number
        if not (is_first and self._patient):
            raise KeyboardInterrupt
        self.pending = number
