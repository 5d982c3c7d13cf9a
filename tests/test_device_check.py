"""The script for a GPU runs without one, and keeps its results whatever ends it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "benchmarks/device_check.py"
LINES, TABLE = "device_check.jsonl", "device_check.md"


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(SCRIPT), "--out", str(folder), *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True)


def results(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / LINES).read_text().splitlines()]


def states(folder: Path) -> dict[str, str]:
    return {line["check"]: line["state"] for line in results(folder)}


@pytest.mark.parametrize(
    "stage",
    ["truth", "memory", pytest.param("speed", marks=pytest.mark.slow), pytest.param("runs", marks=pytest.mark.slow)],
)
def test_device_check_stage_passes_on_cpu(stage: str, tmp_path: Path) -> None:
    run = start(tmp_path, "--only", stage, "--device", "cpu", "--stage-limit", "900", "--limit", "900")
    printed, _ = run.communicate()
    assert run.returncode == 0, printed
    assert set(states(tmp_path).values()) == ({"measured", "passed"} if stage == "truth" else {"measured"})
    assert len(states(tmp_path)) > 2
    assert (tmp_path / TABLE).read_text().count("\n") == 2 + sum(x["state"] != "started" for x in results(tmp_path))


def test_stage_results_survive_crash_and_kill(tmp_path: Path) -> None:
    """A check that ends its process is recorded, and the next process continues after it."""
    run = start(tmp_path, "--only", "troubled_stage", "--device", "cpu", "--stage-limit", "900")
    end = time.monotonic() + 300
    while not ((tmp_path / LINES).exists() and "hangs" in (tmp_path / LINES).read_text()):
        assert time.monotonic() < end and run.poll() is None
        time.sleep(0.1)
    os.killpg(run.pid, signal.SIGKILL)  # as when the machine's time is over
    run.wait()
    found = states(tmp_path)
    assert found.pop("machine") == "measured"
    assert found == {
        "good": "passed",
        "bad": "failed",
        "raises": "error",
        "exits_process": "crashed",
        "good again": "passed",
        "hangs": "started",
    }
    lines = {(line["check"], line["state"]): line for line in results(tmp_path)}
    assert lines["good", "passed"]["found"] == 3
    assert "for a reason" in lines["raises", "error"]["error"]
    assert lines["exits_process", "crashed"]["code"] == 7


def test_late_stage_terminated(tmp_path: Path) -> None:
    run = start(tmp_path, "--only", "troubled_stage", "--device", "cpu", "--stage-limit", "1", "--limit", "5")
    assert run.communicate()[0]
    assert run.returncode == 1
    assert set(states(tmp_path).values()) & {"late", "crashed"}


@pytest.mark.slow
@pytest.mark.parametrize("check", ["kill_and_resume(bench)", "processes(1, bench)", "processes(2, bench)"])
def test_process_starting_checks_pass(check: str, tmp_path: Path) -> None:
    code = (
        "import sys; from on_device.bench import *; from on_device import truth\n"
        f"bench = Bench(torch.device('cpu'), True, Path({str(tmp_path)!r}))\n"
        f"found = truth.{check}; print(found); sys.exit(not found['passed'])"
    )
    paths = os.pathsep.join([str(ROOT), str(ROOT / "benchmarks")])
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
