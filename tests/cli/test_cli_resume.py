"""`fedpriv resume` after `kill -9`, Ctrl-C and full disks: the rest of the run, or one line that says why not."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

import own_code
import pytest
from commands import (
    COMMAND,
    DIGITS,
    LONG,
    SMALL,
    assert_each_release_once,
    assert_same_run,
    error_line,
    fedpriv,
    releases_in,
    run_and_kill,
    trained,
)

EXACT = "privacy={noise_on: none}"


@pytest.fixture(scope="module")
def stopped_run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a run that `kill -9` ended between two checkpoints."""
    folder = tmp_path_factory.mktemp("killed") / "run"
    # rounds that take their time are reported one by one: the checkpoint is that of round 8
    run_and_kill(folder, [*SMALL, *LONG, "compute.pad_seconds=0.05"], after=10)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def stopped_folder(stopped_run: dict[str, bytes], tmp_path: Path) -> Path:
    for name, content in stopped_run.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, unbroken."""
    return trained(tmp_path_factory.mktemp("whole") / "run", *LONG)


def test_killed_private_run_resumes_each_release_once(stopped_folder: Path, whole_run: Path):
    so_far = json.loads(fedpriv("show", str(stopped_folder), "--json").stdout)
    assert so_far["finished"] is False
    assert 10 <= so_far["rounds"] < 40
    lines = (stopped_folder / "ledger.jsonl").read_bytes().splitlines()
    done = fedpriv("resume", str(stopped_folder))
    assert done.exit_code == 0, done.stderr
    assert_each_release_once(stopped_folder, whole_run)
    assert (stopped_folder / "ledger.jsonl").read_bytes().splitlines()[: len(lines)] == lines
    assert f"rounds 9 to {len(lines) - 1} were released before this run was stopped" in " ".join(done.stderr.split())


def test_killed_exact_run_resumed_equals_unbroken(tmp_path: Path):
    run_and_kill(tmp_path / "run", [*SMALL, *LONG, EXACT, "compute.pad_seconds=0.05"], after=10)
    done = fedpriv("resume", str(tmp_path / "run"))
    assert done.exit_code == 0, done.stderr
    assert_same_run(tmp_path / "run", trained(tmp_path / "whole", *LONG, EXACT))


def test_resume_truncated_ledger_raises(stopped_folder: Path):
    ledger = stopped_folder / "ledger.jsonl"
    ledger.write_bytes(b"\n".join(ledger.read_bytes().split(b"\n")[:4]) + b"\n")
    message = error_line("resume", str(stopped_folder))
    assert "incomplete: " in message and "ledger.jsonl has 3 records, but" in message
    ledger.unlink()
    assert "without its ledger has no epsilon" in error_line("resume", str(stopped_folder))


def test_resume_damaged_ledger_line_raises(stopped_folder: Path):
    ledger = stopped_folder / "ledger.jsonl"
    lines = ledger.read_bytes().split(b"\n")
    ledger.write_bytes(b"\n".join([*lines[:3], lines[3][:20], *lines[4:]]))
    assert "line 4 does not match the lines before it: it was altered" in error_line("resume", str(stopped_folder))


def test_resume_ledger_with_torn_last_line(stopped_folder: Path, whole_run: Path):
    with (stopped_folder / "ledger.jsonl").open("ab") as file:
        file.write(b'{"round":17,"query":"gra')
    assert fedpriv("resume", str(stopped_folder)).exit_code == 0
    assert_each_release_once(stopped_folder, whole_run)


def test_resume_changed_config_raises(stopped_folder: Path):
    config = stopped_folder / "config.yaml"
    config.write_text(config.read_text().replace("rounds: 40", "rounds: 41"))
    assert "config.yaml has changed since the run began" in error_line("resume", str(stopped_folder))


def test_resumed_copy_draws_other_noise(stopped_run: dict[str, bytes], tmp_path: Path):
    """A copy that added the same noise to other query results would reveal their difference exactly."""
    models = list[bytes]()
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        for file, content in stopped_run.items():
            (folder / file).write_bytes(content)
        assert fedpriv("resume", str(folder)).exit_code == 0
        models.append((folder / "model.pt").read_bytes())
    assert releases_in(tmp_path / "one") == releases_in(tmp_path / "two")
    assert models[0] != models[1]


def test_interrupt_prints_resume_command(tmp_path: Path, whole_run: Path):
    folder = tmp_path / "run"
    words = [*COMMAND, "train", DIGITS, "--out", str(folder), *SMALL, *LONG, "log.checkpoint_every=100"]
    words += ["compute.pad_seconds=0.05"]  # or the rounds are over when the first is reported
    words += ["--allow-plugins"]  # without it such a run could not go on
    default_interrupt = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # shells let background jobs ignore it
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, preexec_fn=default_interrupt) as run:
        while not ((folder / "metrics.jsonl").exists() and (folder / "metrics.jsonl").stat().st_size):
            time.sleep(0.01)
        run.send_signal(signal.SIGINT)
        _, stderr = run.communicate(timeout=60)
    assert run.returncode == 130
    assert f"resume with: fedpriv resume {folder} --allow-plugins\n" in stderr
    assert "Traceback" not in stderr
    assert fedpriv("resume", str(folder)).exit_code == 0
    assert_each_release_once(folder, whole_run)


def with_disk(size: int, *words: str) -> subprocess.CompletedProcess[str]:
    """Run where no file may grow past `size` bytes: a write fails as it does on a full disk."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    # Python would leave half of what it compiles for all others
    path = {**os.environ, "PYTHONPATH": str(Path(own_code.__file__).parent), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, check=False, preexec_fn=limit, env=path)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return done


def test_full_disk_run_resumes_after_space_freed(tmp_path: Path):
    """The ledger is the first file to reach 8 kB. With space again the run goes on where it was."""
    folder, whole = tmp_path / "run", tmp_path / "whole"
    words = ["data.partition.n_clients=1", "model={name: 'own_code:Tiny', width: 1}", *SMALL[2:]]
    words += ["rounds=32", "log.checkpoint_every=8", "--allow-plugins"]
    done = with_disk(8192, "train", DIGITS, "--out", str(folder), *words)
    assert "ledger.jsonl could not be written" in done.stderr
    assert (folder / "ledger.jsonl").read_bytes().endswith(b"\n"), "no torn line is left"
    assert fedpriv("resume", str(folder), "--allow-plugins").exit_code == 0
    assert fedpriv("train", DIGITS, "--out", str(whole), *words).exit_code == 0
    assert_each_release_once(folder, whole)


def test_full_disk_at_start_leaves_nothing(tmp_path: Path):
    done = with_disk(2000, "train", DIGITS, "--out", str(tmp_path / "run"), *SMALL)
    assert "checkpoint.pt could not be written" in done.stderr
    assert not (tmp_path / "run").exists()
