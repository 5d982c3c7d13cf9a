"""One fuzzed case: a command in this process, and what is wrong with how it ended."""

from __future__ import annotations

import faulthandler
import random
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from typer.testing import CliRunner

from fedpriv.cli import app
from fedpriv.errors import FedprivError

SECONDS = 5.0


@dataclass(frozen=True)
class Case:
    """What is tried.

    Attributes:
        text: The configuration, or the damage to a file in words: what a report needs to repeat it.
        nonsense: Whether the format can tell that it is wrong, so that it must be refused.
    """

    text: str
    nonsense: bool


class _Hang(BaseException):
    """Not an Exception: nothing under test may swallow it."""


@contextmanager
def _limited() -> Iterator[None]:
    """Ends what takes more processor time than it may, even where Python does not get to run."""

    def stop(_: int, __: FrameType | None) -> None:
        raise _Hang

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    faulthandler.dump_traceback_later(20 * SECONDS, exit=True, file=sys.__stderr__)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGPROF, before)


def fault(words: Sequence[str], *, nonsense: bool, called_out: Sequence[str] = ()) -> str | None:
    """What is wrong with how `fedpriv words` ends: a traceback, a hang, not one line, or nonsense that is accepted.

    Args:
        words: The command.
        nonsense: Whether it must be refused.
        called_out: Words one of which in what is printed will do instead, with exit code 1.
    """
    try:
        with _limited(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a user's terminal shows them, they end nothing
            done = CliRunner().invoke(app, list(words))
    except _Hang:
        return f"hangs: {''.join(traceback.format_exc(limit=-4))}"
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        if isinstance(done.exception, _Hang):
            return f"hangs: {''.join(traceback.format_exception(done.exception)[-5:])}"
        return "".join(traceback.format_exception(done.exception)[-4:])
    if done.exit_code == 0:
        return "nonsense is accepted" if nonsense else None
    if done.exit_code == 1 and any(word in done.stdout for word in called_out):
        return None
    if done.exit_code != 2:
        return f"ends with {done.exit_code}: {done.stderr}"
    lines = done.stderr.splitlines()
    told = [line for line in lines if line.startswith("error: ")]
    if len(told) != 1 or lines[-1] != told[0]:
        return None if "Usage:" in done.stderr else f"says, instead of one line: {done.stderr}"
    return f"goes on for {len(told[0])} characters" if len(told[0]) > 1500 else None


def fault_of(call: Callable[[], object], *, nonsense: bool) -> str | None:
    """What is wrong with how a Python function ends: another error than ours, a hang, or nonsense that is accepted."""
    try:
        with _limited(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call()
    except _Hang:
        return f"hangs: {''.join(traceback.format_exc(limit=-4))}"
    except FedprivError as error:
        return f"goes on for {len(str(error))} characters" if len(str(error)) > 1500 else None
    except Exception as error:
        return "".join(traceback.format_exception(error)[-4:])
    return "nonsense is accepted" if nonsense else None


def cases_of(kind: str, number: int) -> random.Random:
    """The draws of one case, the same on every machine."""
    return random.Random(f"{kind} {number}")
