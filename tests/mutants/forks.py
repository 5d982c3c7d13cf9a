"""Test runs in forks of a process that has imported the libraries already, but nothing of the project."""

from __future__ import annotations

import importlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = (
    "cryptography.hazmat.primitives.ciphers",
    "dp_accounting.pld.privacy_loss_distribution",
    "filelock",
    "hypothesis",
    "matplotlib.pyplot",
    "networkx",
    "opacus",
    "pydantic",
    "rich.progress",
    "scipy.optimize",
    "scipy.sparse",
    "scipy.stats",
    "sklearn.datasets",
    "sklearn.linear_model",
    "torch.func",
    "torch.utils.tensorboard",
    "typer.testing",
    "yaml",
)


def import_libraries() -> None:
    """What takes seconds and does not change from one mutant to the next."""
    for name in LIBRARIES:
        importlib.import_module(name)
    import torch
    from hypothesis import settings

    torch.set_num_threads(1)
    # a busy machine must not kill a mutant, nor chance
    settings.register_profile("mutants", deadline=None, database=None, derandomize=True)


def copy_of_project(folder: Path) -> None:
    """The project's files as they are now, without what git ignores."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


class Recorder:
    """A pytest plug-in: how long each test took, and which failed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seconds: dict[str, float] = {}
        self.failed: list[str] = []
        self.skipped: list[str] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if report.failed:
            self.failed.append(report.nodeid)
        if report.skipped:
            self.skipped.append(report.nodeid)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.failed.append(f"{report.nodeid} (not imported)")

    def pytest_unconfigure(self) -> None:
        self.path.write_text(json.dumps({"seconds": self.seconds, "failed": self.failed, "skipped": self.skipped}))


@dataclass
class TestRun:
    """A fork that runs tests in a copy of the project, which is its own.

    Args:
        folder: The copy.
        words: What pytest is told.
        cpu: Seconds of processor time after which it counts as hung.
        plugins: Makes more of pytest's plug-ins, in the fork.
    """

    __test__ = False

    folder: Path
    words: list[str]
    cpu: float
    plugins: Callable[[], list[Any]] = list

    def __post_init__(self) -> None:
        self._report = self.folder / ".report.json"
        self._report.unlink(missing_ok=True)
        self._deadline = (
            time.monotonic() + 120 + 20 * self.cpu
        )  # a machine may be busy; waiting takes no processor time
        self.result: str | None = None
        self.pid = os.fork()
        if self.pid == 0:
            self._work()

    def _work(self) -> None:
        code = 99
        try:
            os.setpgid(0, 0)
            limit = int(self.cpu) + 1
            resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            log = os.open(self.folder / ".log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for stream in (1, 2):
                os.dup2(log, stream)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.chdir(self.folder)
            os.environ["PYTHONPATH"] = str(self.folder)
            sys.path[:0] = [str(self.folder)]
            import pytest

            words = ["-p", "no:cacheprovider", "--no-header", "--tb=short", "--hypothesis-profile=mutants", *self.words]
            code = pytest.main(words, plugins=[Recorder(self._report), *self.plugins()])
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(int(code))

    def poll(self) -> bool:
        """Whether it has ended."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        late = time.monotonic() > self._deadline
        if not pid and not late:
            return False
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # and what it started
        if not pid:
            os.waitpid(self.pid, 0)
            self.result = "timeout"
        elif os.WIFSIGNALED(status):
            self.result = "timeout" if os.WTERMSIG(status) in (signal.SIGKILL, signal.SIGXCPU) else "crash"
        else:
            self.result = {0: "passed", 1: "failed", 2: "failed", 3: "failed", 5: "nothing"}.get(
                os.WEXITSTATUS(status), f"exit {os.WEXITSTATUS(status)}"
            )
        return True

    def report(self) -> dict[str, Any]:
        """What the recorder saw; nothing where the process died."""
        return json.loads(self._report.read_text()) if self._report.exists() else {"failed": [], "seconds": {}}
