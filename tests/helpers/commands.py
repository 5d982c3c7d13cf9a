"""Commands of `fedpriv` on small real runs: in this process, or in one of its own that may be killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from typer.testing import CliRunner

from fedpriv.cli import app

DIGITS = str(Path(__file__).parents[1] / "run.yaml")


# five clients, a few rounds, one thread: a fraction of a second
SMALL = [
    "data.partition.n_clients=5",
    "rounds=6",
    "seed=0",
    "compute.threads=1",
    "log.checkpoint_every=2",
    "log.tensorboard=false",
]


LONG = ["rounds=40", "log.checkpoint_every=8", "log.csv=true"]
FULL_LINE = r"epsilon=\S+ \(delta=1e-5, unit=sample, relation=replace_one, trust=local, accountant=\w+\)"
COMMAND = [sys.executable, "-c", "import torch; torch.set_num_threads(1); from fedpriv.cli import app; app()"]


def fedpriv(*words: str):
    return CliRunner().invoke(app, list(words))


def trained(folder: Path, *overrides: str) -> Path:
    done = fedpriv("train", DIGITS, "--out", str(folder), *SMALL, *overrides)
    assert done.exit_code == 0, done.stderr
    return folder


def error_line(*words: str) -> str:
    """The one line of an error."""
    done = fedpriv(*words)
    assert done.exit_code == 2
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, done.stderr
    return lines[0]


def result_of(folder: Path) -> dict[str, object]:
    return {**json.loads((folder / "result.json").read_text()), "seconds": None}


def assert_same_run(one: Path, other: Path) -> None:
    """Equal runs without noise, but for the clock, their names, and answers that a killed process gave before."""
    left_out = {"chain": None, "head": None, "releases": None}
    metrics = [(folder / "metrics.jsonl").read_text().splitlines() for folder in (one, other)]
    for line, wanted in zip(*metrics, strict=True):
        assert json.loads(line) | left_out == json.loads(wanted) | left_out
    assert result_of(one) | left_out == result_of(other) | left_out
    assert {*releases_in(one)} == {*releases_in(other)}


def releases_in(folder: Path) -> list[tuple[int, str, int]]:
    """Round, query and index of each release of a run."""
    lines = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()[1:]]
    return [(line["round"], line["query"], line["index"]) for line in lines]


def assert_each_release_once(folder: Path, whole: Path) -> None:
    """The private run has the releases and the epsilon of an unbroken run with the same plan."""
    assert releases_in(folder) == releases_in(whole)
    assert result_of(folder)["epsilon"] == result_of(whole)["epsilon"]


def run_and_kill(folder: Path, overrides: Sequence[str], after: int) -> None:
    """Start a run in a process of its own and end it with `kill -9` once it has reported `after` rounds."""
    metrics = folder / "metrics.jsonl"
    with subprocess.Popen(
        [*COMMAND, "train", DIGITS, "--out", str(folder), *overrides], stderr=subprocess.DEVNULL
    ) as run:
        deadline = time.monotonic() + 120
        while not (metrics.exists() and metrics.read_bytes().count(b"\n") >= after):
            assert run.poll() is None, "the run ended before it could be killed"
            assert time.monotonic() < deadline
            time.sleep(0.005)
        run.send_signal(signal.SIGKILL)
    assert not (folder / "result.json").exists()
