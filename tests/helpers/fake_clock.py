"""A clock that stands still but for sleep: no test waits, and none depends on how fast the machine is."""

from __future__ import annotations


class FakeClock:
    """Stands for the module `time`."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        if seconds:
            self.slept.append(seconds)
        self.now += seconds
