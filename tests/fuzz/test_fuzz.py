"""Made-up configurations, damaged files: each command ends soon, with a result or one line, and believes no nonsense.

The draws are fixed: case number 7 is the same everywhere. `make fuzz N=1000` tries so many of each kind.
"""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path

import fuzz_configurations
import fuzz_files
import fuzz_folders
import pytest
import torch
from fuzz_harness import cases_of, fault, fault_of

from fedpriv import data
from fedpriv.runs.checkpoint import Checkpoint

CASES = int(os.environ.get("FEDPRIV_FUZZ", "120"))
CHUNK = 25
CALLED_OUT = ('"integrity": "incomplete"', '"integrity": "altered"')


@pytest.mark.parametrize("first", range(0, CASES, CHUNK))
def test_configurations(first: int, tmp_path: Path):
    faults: list[str] = []
    for number in range(first, min(first + CHUNK, CASES)):
        rng = cases_of("configuration", number)
        case = fuzz_configurations.draw(rng)
        path = tmp_path / f"{number}.yaml"
        path.write_text(case.text, encoding="utf-8", errors="surrogatepass")
        words = ["train", str(path), "--out", str(tmp_path / str(number))] if number % 8 == 0 else ["plan", str(path)]
        found = fault(words, nonsense=case.nonsense)
        if found is not None:
            faults.append(f"configuration {number} ({words[0]}) {found}\n{case.text[:1500]}")
    assert not faults, f"{len(faults)} faults\n\n" + "\n\n".join(faults)


@pytest.mark.parametrize("first", range(0, CASES, CHUNK))
def test_data_files(first: int, tmp_path: Path):
    faults: list[str] = []
    for number in range(first, min(first + CHUNK, CASES)):
        folder = tmp_path / str(number)
        folder.mkdir()
        name, options, case = fuzz_files.draw(cases_of("file", number), folder)
        found = fault_of(partial(data.load, name, **options), nonsense=case.nonsense)
        if found is not None:
            faults.append(f"file {number} ({case.text}) {found}")
    assert not faults, f"{len(faults)} faults\n\n" + "\n\n".join(faults)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    """A finished run and one that stopped."""
    folder = tmp_path_factory.mktemp("runs")
    fuzz_folders.half_a_run(folder / "stopped")
    shutil.copytree(folder / "stopped", folder / "finished")
    assert fault(["resume", str(folder / "finished")], nonsense=False) is None
    return folder / "finished", folder / "stopped"


@pytest.mark.parametrize("first", range(0, CASES, CHUNK))
def test_run_folders(first: int, runs: tuple[Path, ...], tmp_path: Path):
    """`show` alone draws, which takes most of the time, so most cases show a run beside a sound one."""
    faults: list[str] = []
    for number in range(first, min(first + CHUNK, CASES)):
        rng = cases_of("folder", number)
        folder = tmp_path / str(number)
        case = fuzz_folders.draw(rng, runs, folder)
        beside = [str(runs[0])] if number % 8 else []
        shown = fault(["show", str(folder), *beside, "--json"], nonsense=case.nonsense, called_out=CALLED_OUT)
        resumed = fault(["resume", str(folder)], nonsense=case.nonsense)
        for command, found in (("show", shown), ("resume", resumed)):
            if found is not None:
                faults.append(f"folder {number} ({command} {case.text}) {found}")
    assert not faults, f"{len(faults)} faults\n\n" + "\n\n".join(faults)


def test_truncated_checkpoint_raises(runs: tuple[Path, ...], tmp_path: Path):
    content = (runs[1] / "checkpoint.pt").read_bytes()
    path = tmp_path / "checkpoint.pt"
    faults: list[str] = []
    for length in [*range(0, len(content), max(1, len(content) // 200)), len(content) - 1]:
        path.write_bytes(content[:length])
        found = fault_of(partial(Checkpoint.load, path, torch.device("cpu")), nonsense=True)
        faults += [] if found is None else [f"{length} bytes: {found}"]
    assert not faults, "\n".join(faults)
