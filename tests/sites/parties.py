"""Processes of a federation on this machine: started, killed, stopped, and ended with the test."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

PATIENCE = 900.0  # seconds for anything: a busy machine is no failure


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def until(what: Callable[[], Any], sends: str) -> Any:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if found := what():
            return found
        time.sleep(0.05)
    raise TimeoutError(sends)


def rounds_of(folder: Path) -> list[dict[str, Any]]:
    path = folder / "rounds.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class Parties:
    """Processes by name, each with a log."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self.folder, self.env = folder, {**env, "OMP_NUM_THREADS": "1"}
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, words: list[Any]) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [str(word) for word in words], stdout=log, stderr=log, env=self.env, start_new_session=True
            )

    def kill(self, name: str) -> None:
        """End a party and all that it started, at once."""
        process = self.running.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def signal(self, name: str, number: int) -> None:
        os.killpg(self.running[name].pid, number)

    def log_tail(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")[-3000:]

    def end(self) -> None:
        for name in [*self.running]:
            self.kill(name)


class Organisations(Parties):
    """Sites that connect to a server over Zenoh with mutual TLS, each a process."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, os.environ)
        self.address = f"tls/127.0.0.1:{free_port()}"

    def site(self, name: str) -> None:
        words = ["site", "run", self.folder / name, "--connect", self.address]
        self.start(name, [sys.executable, "-m", "fedpriv", *words])

    def federate(self, *options: object) -> None:
        words = ["federate", "run", self.folder / "server", "--listen", self.address, "--keys", self.folder / "keys"]
        self.start("federation", [sys.executable, "-m", "fedpriv", *words, *options])
