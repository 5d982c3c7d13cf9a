"""Runs are killed with SIGKILL at random moments, again and again, until they are done."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from processes import COMMAND, CONFIG

KILLS = int(os.environ.get("FEDPRIV_KILLS", "25"))
SECONDS = 8  # between kills, on average; most of a process's life is the import of torch
WORDS = (
    "data.partition.n_clients=3",
    "rounds=300",
    "seed=1",
    "compute.threads=1",
    "log={csv: true, tensorboard: false, save_node_models: true}",
)


def check(folder: Path) -> None:
    """Each release was made once, all rounds are there, and epsilon is at most that of the plan."""
    lines = [json.loads(line) for line in (folder / "ledger.jsonl").read_bytes().splitlines()]
    made = [(line["round"], line["query"], line["index"]) for line in lines[1:]]
    assert len({*made}) == len(made)
    result = json.loads((folder / "result.json").read_bytes())
    assert (result["ended"], result["rounds"]) == ("rounds", 300)
    assert result["epsilon"] <= 3
    rows = [json.loads(line)["round"] for line in (folder / "metrics.jsonl").read_bytes().splitlines()]
    assert rows == [*range(1, 301)]


@pytest.mark.slow
def test_run_killed_at_random_resumes(tmp_path: Path) -> None:
    draws, kills = random.Random(), 0
    for number in itertools.count():
        folder = tmp_path / f"run-{number}"
        while not run_until_killed(folder, patience=draws.expovariate(1 / SECONDS) if kills < KILLS else None):
            kills += 1
        check(folder)
        if kills >= KILLS:
            return


def run_until_killed(folder: Path, patience: float | None) -> bool:
    """Start, resume or show a run, and kill it when patience ends; returns whether it came to its end."""
    if (folder / "config.yaml").exists() and not (folder / "checkpoint.pt").exists():
        shutil.rmtree(folder)  # nothing was released
    if (folder / "result.json").exists():
        words = ["show", str(folder)]
    elif (folder / "config.yaml").exists():
        words = ["resume", str(folder)]
    else:
        words = ["train", CONFIG, "--out", str(folder), *WORDS]
    with subprocess.Popen([*COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        try:
            said, _ = run.communicate(timeout=patience)
        except subprocess.TimeoutExpired:
            run.send_signal(signal.SIGKILL)
            return False
    assert run.returncode == 0, said
    return True
