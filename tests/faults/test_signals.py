"""SIGTERM and SIGHUP end a run as Ctrl-C does: a message, a checkpoint, an exit code."""

from __future__ import annotations

import os
import pty
import signal
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from processes import COMMAND, CONFIG, LONG, rounds, running, wait

from fedpriv.cli.signals import Signals


def checkpoint(folder: Path) -> tuple[int, int]:
    """Its round, and the number of records that it has seen."""
    saved = torch.load(folder / "checkpoint.pt", weights_only=True)
    return saved["progress"]["round"], saved["records"]


def checkpoint_is_last(folder: Path) -> bool:
    """So that a resume has nothing to repeat."""
    records = (folder / "ledger.jsonl").read_bytes().count(b"\n") - 1
    return checkpoint(folder) == (rounds(folder), records)


def test_sigterm_ends_run_ignored_sighup_does_not(tmp_path: Path) -> None:
    """SIGHUP is ignored as under `nohup`. Ctrl-C has a test in test_cli_resume.py."""
    folder = tmp_path / "run"
    with running("train", CONFIG, "--out", str(folder), *LONG) as run:
        wait(lambda: rounds(folder) > 2, run)
        run.send_signal(signal.SIGHUP)
        now = rounds(folder)
        wait(lambda: rounds(folder) > now + 1, run)
        run.send_signal(signal.SIGTERM)
        _, stderr = run.communicate(timeout=300)
    assert run.returncode == 143
    assert f"stopped after round {rounds(folder)}; resume with: fedpriv resume {folder}" in stderr
    assert "Traceback" not in stderr
    assert checkpoint_is_last(folder)


def test_closed_terminal_ends_run_with_checkpoint(tmp_path: Path) -> None:
    """The message cannot be printed; the checkpoint is written."""
    folder = tmp_path / "run"
    child, terminal = pty.fork()
    if child == 0:
        os.execv(COMMAND[0], [*COMMAND, "train", CONFIG, "--out", str(folder), *LONG])
    os.set_blocking(terminal, False)
    deadline = time.monotonic() + 550
    while rounds(folder) < 3:
        assert time.monotonic() < deadline
        try:
            os.read(terminal, 10_000)  # else it would wait for its reader
        except BlockingIOError:
            time.sleep(0.005)
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 129
    assert checkpoint_is_last(folder)


@pytest.fixture
def default_signals() -> Iterator[None]:
    """Nothing is ignored, as a program in the background ignores Ctrl-C."""
    before = {
        number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("default_signals")
def test_repeated_sighup_ignored_ctrl_c_interrupts() -> None:
    """A closed terminal sends SIGHUP twice to the session leader, perhaps while the run is ending."""
    for patient in (True, False):
        with Signals() as signals, pytest.raises(KeyboardInterrupt), signals.patiently() if patient else nullcontext():
            with nullcontext() if patient else pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGHUP)
            signal.raise_signal(signal.SIGHUP)
            signal.raise_signal(signal.SIGTERM)
            assert signals.exit_code == 129
            signal.raise_signal(signal.SIGINT)
            raise AssertionError
        assert signals.pending == (signal.SIGHUP if patient else 0)
