"""Many mutants in one collected test session: each in a fork, by the code of one function.

Collecting the tests takes longer than most of them, and so do imports; here both are done once. A fork gives the
changed function its new code, wherever it is known. Programs that a test starts read the files, which are
not changed: such a test kills nothing here by what its program does.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest
from mutations import Mutant

NOT_PATCHED = "not patched"
Where = tuple[str, str, int]  # file, qualified name, first line


@dataclass
class Job:
    """A mutant, the tests to try it with, and the seconds that they take."""

    mutant: Mutant
    changed: bytes
    names: list[str]
    seconds: float


@dataclass
class Loop:
    """A pytest plug-in in the place of its loop over tests.

    Args:
        folder: The copy of the project that the session is in.
        jobs: What is to be tried.
        many: How many forks at the same time.
        note: Is told of each job that has ended and the test that failed, or how else it ended; "" if none did.
    """

    folder: Path
    jobs: list[Job]
    many: int
    note: Callable[[Job, str], None]
    _items: dict[str, Any] = field(default_factory=dict)
    _functions: dict[Where, list[FunctionType]] = field(default_factory=dict)

    def pytest_runtestloop(self, session: Any) -> bool:
        self._items = {item.nodeid: item for item in session.items}
        for one in gc.get_objects():
            if type(one) is FunctionType:
                self._functions.setdefault(_where(one.__code__), []).append(one)
        gc.freeze()
        waiting, at_work = deque(self.jobs), dict[int, tuple[Job, float]]()
        while waiting or at_work:
            while waiting and len(at_work) < self.many:
                job = waiting.popleft()
                at_work[self._fork(job)] = job, time.monotonic() + 120 + 20 * _cpu(job)
            for pid, (job, deadline) in list(at_work.items()):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if not ended and time.monotonic() < deadline:
                    continue
                with suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
                if not ended:
                    _, status = os.waitpid(pid, 0)
                del at_work[pid]
                self.note(job, self._verdict(pid, status))
            time.sleep(0.01)
        return True

    def _verdict(self, pid: int, status: int) -> str:
        said = self.folder / f".failed-{pid}"
        name = said.read_text() if said.exists() else ""
        said.unlink(missing_ok=True)
        if os.WIFSIGNALED(status):
            return "timeout" if os.WTERMSIG(status) in (signal.SIGKILL, signal.SIGXCPU) else "crash"
        return name or {0: "", 1: "crash"}.get(os.WEXITSTATUS(status), NOT_PATCHED)

    def _fork(self, job: Job) -> int:
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            os.setpgid(0, 0)
            resource.setrlimit(resource.RLIMIT_CPU, (_cpu(job), _cpu(job)))
            nowhere = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(nowhere, stream)
            code = self._try(job)
        except BaseException:
            (self.folder / f".failed-{os.getpid()}").write_text(traceback.format_exc()[-300:])
        finally:
            os._exit(code)

    def _try(self, job: Job) -> int:
        if not self._patch(job):
            return 2
        found = Failures()
        items = [self._items[name] for name in job.names]
        items[0].config.pluginmanager.register(found)
        for item, after in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            if found.first:
                (self.folder / f".failed-{os.getpid()}").write_text(found.first)
                return 0
        return 0

    def _patch(self, job: Job) -> bool:
        path = str(self.folder / job.mutant.path)
        old = {
            _where(code): code for code in _codes(compile((self.folder / job.mutant.path).read_bytes(), path, "exec"))
        }
        new = {_where(code): code for code in _codes(compile(job.changed, path, "exec"))}
        changed = [where for where in old if where in new and old[where] != new[where]]
        # a function inside another one exists as often as that was called, and may be made again
        functions = [(function, new[where]) for where in changed for function in self._functions.get(where, [])]
        for function, code in functions:
            try:
                function.__code__ = code
            except ValueError:  # it uses other names of the function around it
                return False
        return bool(functions)


class Failures:
    """A pytest plug-in that knows the first test that failed."""

    first = ""

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self.first:
            self.first = report.nodeid


def in_session(folder: Path, files: list[str], loop: Loop) -> None:
    """Collect these files of tests in a fork, which runs the loop to its end."""
    pid = os.fork()
    if pid:
        _, status = os.waitpid(pid, 0)
        if status:
            raise SystemExit("the tests could not be collected")
        return
    try:
        os.chdir(folder)
        os.environ["PYTHONPATH"] = str(folder)
        sys.path[:0] = [str(folder)]
        words = ["-p", "no:cacheprovider", "-qq", "-s", "--disable-warnings", "--hypothesis-profile=mutants"]
        os._exit(int(pytest.main([*words, *files], plugins=[loop])))
    finally:
        os._exit(9)


def _cpu(job: Job) -> int:
    return int(30 + 5 * job.seconds)


def _where(code: CodeType) -> Where:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code of all functions that are not inside another one."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_flags & 0x01:  # optimised: a function, not the body of a class
                yield constant
            else:
                yield from _codes(constant)
