"""`fedpriv train --processes 2` matches one process, and resumes after a process was killed, hung or stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fedpriv.privacy.ledger_file import LedgerFile

BARE = Path(__file__).parents[1] / "run.yaml"
QUICK = ["strategy={name: fedavg, learning_rate: 0.5}", "secret_seed=3", "log.tensorboard=false", "compute.threads=1"]
GRAPH = ["strategy={name: gradient_tracking}", "network={topology: ring}"]
LONG = [*QUICK, "rounds=60", "log.checkpoint_every=7"]


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "fedpriv", *words]


def fedpriv(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*words), capture_output=True, text=True, timeout=300)


def assert_same_run(one: Path, other: Path) -> None:
    models = [torch.load(folder / "model.pt", weights_only=True) for folder in (one, other)]
    for name, wanted in models[0].items():
        torch.testing.assert_close(models[1][name], wanted, rtol=1e-6, atol=1e-6)
    assert_same_releases(one, other)


def assert_same_releases(one: Path, other: Path) -> None:
    """Their ledgers have the same releases, each once, and their epsilon is the same."""
    output = [
        [(r.round, r.query, r.clients, r.noise_multiplier) for r in LedgerFile.read(folder / "ledger.jsonl").records]
        for folder in (one, other)
    ]
    assert output[0] == output[1]
    epsilon = [json.loads((folder / "result.json").read_text())["epsilon"] for folder in (one, other)]
    assert epsilon[0] == epsilon[1]


def test_two_processes_match_one(tmp_path: Path) -> None:
    for number, more in (("one", []), ("two", ["--processes", "2"])):
        found = fedpriv("train", str(BARE), *QUICK, *GRAPH, "rounds=6", "--out", str(tmp_path / number), *more)
        assert found.returncode == 0, found.stderr
        assert found.stderr.count("planned: epsilon") == 1
        assert found.stdout.count("test accuracy") == 2  # of the mean of all nodes' models, and of each
    assert_same_run(tmp_path / "one", tmp_path / "two")
    shown = fedpriv("show", str(tmp_path / "two"))
    assert shown.returncode == 0, shown.stderr


def test_error_printed_in_one_line(tmp_path: Path) -> None:
    found = fedpriv("train", str(BARE), *QUICK, "log.optimum=0.1", "--processes", "2", "--out", str(tmp_path / "a"))
    assert found.returncode == 2
    last = found.stderr.splitlines()[-1]
    assert last.startswith("error: log.optimum = 0.1: the gap to the optimum is computed on the data")
    assert found.stderr.count("error:") == 1
    assert "Traceback" not in found.stderr
    assert not (tmp_path / "a").exists()


class Started:
    """A run of two processes in the background."""

    def __init__(self, folder: Path, *more: str) -> None:
        self.folder = folder
        words = command("train", str(BARE), *LONG, *more, "--out", str(folder), "--processes", "2")
        self.launcher = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def until(self, rounds: int) -> None:
        deadline = time.monotonic() + 200
        while time.monotonic() < deadline:
            path = self.folder / "metrics.jsonl"
            if path.exists() and path.read_bytes().count(b"\n") >= rounds:
                return
            assert self.launcher.poll() is None, self.launcher.communicate()[1]
            time.sleep(0.02)
        raise AssertionError("the run makes no rounds")

    def rank(self, number: int) -> int:
        """Process id of a rank."""
        children = Path(f"/proc/{self.launcher.pid}/task/{self.launcher.pid}/children").read_text().split()
        for child in map(int, children):
            if f"\0RANK={number}\0".encode() in b"\0" + Path(f"/proc/{child}/environ").read_bytes():
                return child
        raise AssertionError(f"no rank {number} among {children}")

    def ended(self) -> tuple[int, str]:
        _, output = self.launcher.communicate(timeout=200)
        return self.launcher.returncode, output


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return in_one_process(tmp_path_factory)


@pytest.fixture(scope="module")
def whole_on_a_graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return in_one_process(tmp_path_factory, *GRAPH)


def in_one_process(tmp_path_factory: pytest.TempPathFactory, *more: str) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert fedpriv("train", str(BARE), *LONG, *more, "--out", str(folder)).returncode == 0
    return folder


@pytest.mark.distributed
@pytest.mark.parametrize("number", [0, 1])
def test_run_resumes_after_killed_process(tmp_path: Path, whole: Path, number: int) -> None:
    run = Started(tmp_path / "run")
    run.until(20)
    os.kill(run.rank(number), signal.SIGKILL)
    code, output = run.ended()
    assert code != 0
    assert "Traceback" not in output
    assert f"process {number} was killed (signal 9)" in output
    again = fedpriv("resume", str(run.folder), "--processes", "2")
    assert again.returncode == 0, again.stderr
    assert_same_releases(whole, run.folder)


@pytest.mark.distributed
@pytest.mark.parametrize("network", [[], GRAPH], ids=["star", "graph"])
def test_suspended_process_ends_run_in_one_line(
    tmp_path: Path, request: pytest.FixtureRequest, network: list[str]
) -> None:
    whole = request.getfixturevalue("whole_on_a_graph" if network else "whole")
    run = Started(tmp_path / "run", "compute.timeout=15", *network)
    run.until(20)
    hung = run.rank(1)
    os.kill(hung, signal.SIGSTOP)
    try:
        code, output = run.ended()
    finally:
        resume_if_there(hung)
    assert code == 2
    lines = [line for line in output.splitlines() if "error" in line.lower()]
    assert len(lines) == 1, output
    assert "process 0 of 2 lost another process, which ended or does not respond" in lines[0]
    assert fedpriv("resume", str(run.folder), "--processes", "2").returncode == 0
    assert_same_releases(whole, run.folder)


def resume_if_there(process: int) -> None:
    try:
        os.kill(process, signal.SIGCONT)
    except ProcessLookupError:
        return


@pytest.mark.distributed
@pytest.mark.parametrize("to", [lambda run: run.launcher.pid, lambda run: run.rank(1)], ids=["all", "one"])
def test_stopped_run_resumes_in_one_process(tmp_path: Path, whole: Path, to: Callable[[Started], int]) -> None:
    run = Started(tmp_path / "run")
    run.until(20)
    os.kill(to(run), signal.SIGTERM)
    code, output = run.ended()
    assert code in (143, 130)
    assert f"resume with: fedpriv resume {run.folder} --processes 2" in output
    again = fedpriv("resume", str(run.folder))
    assert again.returncode == 0, again.stderr
    assert_same_releases(whole, run.folder)
