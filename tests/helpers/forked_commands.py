"""Commands of `fedpriv` in processes of their own, without the seconds that each would take to import torch.

Each is a fork of one process that has imported what the commands import, and done nothing else. So it has its own
folder, files, signals and random numbers, as a command of a user's has; it can be stopped and killed like one. What it
does not show is that a command imports all that it uses, and that `python -m fedpriv` starts: others start real ones.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

IMPORTED = [
    "torch",
    "matplotlib.pyplot",
    "fedpriv.cli.printing",
    "fedpriv.config",
    "fedpriv.runs.training",
    "fedpriv.reports.run_statement",
    "fedpriv.sites.federation",
    "fedpriv.sites.operating",
    "fedpriv.sites.site",
    "fedpriv.sites.site_status",
    "fedpriv.sites.statement",
    "fedpriv.sites.over_zenoh.certificates",
    "fedpriv.sites.over_zenoh.coordinator",
    "fedpriv.sites.over_zenoh.proposing",
    "fedpriv.sites.over_zenoh.site_server",
    "fedpriv.sites.peers",
]


class ForkedCommand:
    """A command that runs.

    Args:
        words: It, without `fedpriv`.
        folder: Where it runs.
        output: What it prints is appended to this file.
        errors: And its errors to this one.
    """

    def __init__(self, words: Sequence[str], folder: Path, output: Path, errors: Path) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(IMPORTED)
        self._process = context.Process(target=_run, args=(list(words), folder, output, errors))
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def poll(self) -> int | None:
        """Its exit code, as of `subprocess.Popen`; none while it runs."""
        return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise TimeoutError(f"a command runs after {timeout} seconds")
        return self._process.exitcode

    def kill(self) -> None:
        """End it at once, with all that it started; nothing happens where it has ended."""
        if self.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
        self._process.join()


def _run(words: list[str], folder: Path, output: Path, errors: Path) -> None:
    os.setsid()
    import torch

    from fedpriv.cli import app

    for stream, file in ((1, output), (2, errors)):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
    os.chdir(folder)
    torch.set_num_threads(1)
    sys.argv = ["fedpriv", *words]
    app()
