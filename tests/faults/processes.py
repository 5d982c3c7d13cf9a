"""Runs in separate processes, started as users start them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

CONFIG = str(Path(__file__).parents[1] / "run.yaml")
# rounds that take long enough to be caught in the middle of the run
LONG = (
    "data.partition.n_clients=2",
    "strategy={name: fedavg, learning_rate: 0.01, local_steps: 50}",
    "privacy={unit: client, noise_on: message, noise_multiplier: 50}",
    "rounds=80",
    "compute.threads=1",
    "log={tensorboard: false, checkpoint_every: 1000}",
)
COMMAND = [sys.executable, "-c", "import torch; torch.set_num_threads(1); from fedpriv.cli import app; app()"]


def rounds(folder: Path) -> int:
    metrics = folder / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def wait(until: Callable[[], object], run: subprocess.Popen[str], seconds: float = 550) -> None:
    deadline = time.monotonic() + seconds
    while not until():
        assert run.poll() is None, f"the run ended early: {run.communicate()}"
        assert time.monotonic() < deadline
        time.sleep(0.005)


@contextmanager
def running(*words: str) -> Iterator[subprocess.Popen[str]]:
    """A command that is ended with the block, started as under `nohup`."""

    def hear() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    pipe = subprocess.PIPE
    with subprocess.Popen([*COMMAND, *words], stdout=pipe, stderr=pipe, text=True, preexec_fn=hear) as run:
        try:
            yield run
        finally:
            run.kill()


def forked(work: Callable[[], object]) -> int:
    """Do it in a fork of this process; returns its number."""
    child = os.fork()
    if child:
        return child
    try:
        work()
        os._exit(0)
    except BaseException:
        os._exit(1)
