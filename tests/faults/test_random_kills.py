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
    "secret_seed=1",
    "compute.threads=1",
    "log={checkpoint_every: 7, csv: true, tensorboard: false, save_node_models: true}",
)
COMPARED = ("ledger.jsonl", "metrics.jsonl", "metrics.csv", "model.pt", "node_models.pt")


def contents(folder: Path) -> dict[str, object]:
    result = {**json.loads((folder / "result.json").read_bytes()), "seconds": None}
    return {"result": result, **{name: (folder / name).read_bytes() for name in COMPARED}}


@pytest.mark.slow
def test_killed_at_random_moments(tmp_path: Path) -> None:
    whole, draws = tmp_path / "whole", random.Random()
    assert go_on(whole, patience=None)
    wanted, kills = contents(whole), 0
    for number in itertools.count():
        folder = tmp_path / f"run-{number}"
        while not go_on(folder, patience=draws.expovariate(1 / SECONDS) if kills < KILLS else None):
            kills += 1
        assert contents(folder) == wanted
        if kills >= KILLS:
            return


def go_on(folder: Path, patience: float | None) -> bool:
    """Start, resume or show a run, and kill it when patience ends; returns whether it came to its end."""
    if (folder / "config.yaml").exists() and not (folder / "checkpoint.pt").exists():
        shutil.rmtree(folder)  # nothing was released; a resume would draw another secret seed
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
