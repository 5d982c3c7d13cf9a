"""One writer a folder, by a lock that ends with its process; a loser removes nothing of a winner's."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
import torch
from processes import CONFIG, LONG, forked, rounds, running, wait
from torch import nn
from torch.utils.data import TensorDataset
from typer.testing import CliRunner

import fedpriv as fp
from fedpriv.cli import app
from fedpriv.errors import FedprivError
from fedpriv.privacy.ledger_file import read_ledger
from fedpriv.storage.folder import RunFolder, _holder


def fedpriv(*words: str) -> str:
    """The one line of an error."""
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 2, done.output
    return done.stderr


def test_a_second_process_is_refused_and_leaves_the_first_alone(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = (CONFIG, "--out", str(folder), *LONG)
    with running("train", *words) as run:
        wait(lambda: rounds(folder) > 2, run)
        run.send_signal(signal.SIGSTOP)
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        for command in (("train", *words), ("resume", str(folder))):
            assert f"{folder} is in use by process {run.pid} on " in fedpriv(*command)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
        run.send_signal(signal.SIGCONT)
        now = rounds(folder)
        wait(lambda: rounds(folder) > now, run)
        run.send_signal(signal.SIGKILL)
        run.wait()
    seen = [(record.round, record.index) for record in read_ledger(folder / "ledger.jsonl")]
    assert len(seen) == len(set(seen)) >= rounds(folder) > 2
    RunFolder(folder).close()  # the lock died with its process


def test_of_many_that_start_at_once_one_wins(tmp_path: Path) -> None:
    start = time.monotonic() + 0.2

    def claim() -> None:
        time.sleep(max(0.0, start - time.monotonic()))
        with RunFolder.new(tmp_path / "run") as folder:
            folder.write("config.yaml", b"mine")
            time.sleep(1)

    children = [forked(claim) for _ in range(12)]
    assert sorted(os.waitpid(child, 0)[1] for child in children) == [0] + [256] * 11
    assert (tmp_path / "run" / "config.yaml").read_bytes() == b"mine"


def test_of_many_without_a_name_each_gets_its_own(tmp_path: Path) -> None:
    children = [forked(lambda: RunFolder.numbered(tmp_path / "runs" / "a").write("config.yaml", b"")) for _ in range(8)]
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 8
    assert len(list((tmp_path / "runs").glob("a-*/config.yaml"))) == 8


def test_a_run_that_cannot_start_removes_only_what_it_made(tmp_path: Path) -> None:
    mine = tmp_path / "notes.txt"
    mine.write_text("mine")
    folder = RunFolder.new(tmp_path)
    folder.write("config.yaml", b"")
    folder.abandon()
    assert list(tmp_path.iterdir()) == [mine]
    (tmp_path / "metrics.jsonl").write_text("somebody's")
    with pytest.raises(FedprivError, match=r"holds metrics\.jsonl of another run"):
        RunFolder.new(tmp_path)
    resumed = RunFolder(tmp_path)
    resumed.abandon()
    assert (tmp_path / "metrics.jsonl").read_text() == "somebody's"


def test_a_fork_does_not_write_its_parents_folder(tmp_path: Path) -> None:
    folder = RunFolder.new(tmp_path / "run")

    def write() -> None:
        with pytest.raises(FedprivError, match=f"belongs to process {parent}, and this is a fork"):
            folder.write("config.yaml", b"the child's")

    parent = os.getpid()
    assert os.waitpid(forked(write), 0)[1] == 0
    folder.write("config.yaml", b"the parent's")
    assert (tmp_path / "run" / "config.yaml").read_bytes() == b"the parent's"


def training(folder: Path, *, resume: bool = False) -> fp.Training:
    rows = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    clients = fp.make_clients(nn.Linear(4, 2), nn.CrossEntropyLoss(), [TensorDataset(rows, torch.arange(20) % 2)])
    privacy = fp.Privacy(noise_multiplier=5.0)
    return fp.Training(clients, fp.fedavg(0.1), privacy, rounds=9, seed=1, folder=folder, resume=resume)


def test_in_one_process_the_last_has_it(tmp_path: Path) -> None:
    """A notebook that lost its Training makes another one; the first, were it found again, would charge twice."""
    first = training(tmp_path)
    reports = iter(first)
    next(reports)
    second = training(tmp_path, resume=True)
    before = (tmp_path / "ledger.jsonl").read_bytes()
    with pytest.raises(FedprivError, match="taken over by a later run"):
        list(reports)
    assert (tmp_path / "ledger.jsonl").read_bytes() == before, "it would not be charged, and break the chain"
    with pytest.raises(FedprivError, match="taken over by a later run"):
        first.save()
    assert [report.round for report in second][-1] == 9
    charged = [record.round for record in read_ledger(tmp_path / "ledger.jsonl")]
    assert sorted(set(charged)) == list(range(9))


def test_a_ledger_that_was_moved_away_gives_no_value(tmp_path: Path) -> None:
    """Else a new file without its first records would take its place."""
    reports = iter(training(tmp_path))
    next(reports)
    (tmp_path / "ledger.jsonl").unlink()
    with pytest.raises(fp.LedgerError, match=r"moved or removed.*not released"):
        next(reports)
    assert not (tmp_path / "ledger.jsonl").exists()


def test_a_ledger_that_something_else_wrote_to_gives_no_value(tmp_path: Path) -> None:
    """What follows would not be linked to the line before it."""
    reports = iter(training(tmp_path))
    next(reports)
    with (tmp_path / "ledger.jsonl").open("ab") as file:
        file.write(b"{}\n")
    before = (tmp_path / "ledger.jsonl").read_bytes()
    with pytest.raises(fp.LedgerError, match=r"another program wrote to it.*not released"):
        next(reports)
    assert (tmp_path / "ledger.jsonl").read_bytes() == before


def test_a_copy_in_the_ledgers_place_gives_no_value(tmp_path: Path) -> None:
    """What is appended to the file that was opened would be lost with it."""
    reports = iter(training(tmp_path))
    next(reports)
    path = tmp_path / "ledger.jsonl"
    before = path.read_bytes()
    path.rename(tmp_path / "elsewhere")
    path.write_bytes(before)
    with pytest.raises(fp.LedgerError, match=r"moved or removed.*not released"):
        next(reports)
    assert path.read_bytes() == before == (tmp_path / "elsewhere").read_bytes()


@pytest.mark.parametrize("text", ["process 7\x1b[31m on host", "whatever", ""])
def test_a_lock_that_does_not_say_who_holds_it_is_not_printed(text: str, tmp_path: Path) -> None:
    """It may hold anything, such as what moves a terminal's cursor."""
    lock = tmp_path / "lock"
    lock.write_text(text)
    assert _holder(lock) == "another process"
    lock.write_text("process 7 on host")
    assert _holder(lock) == "process 7 on host"


def test_a_lock_says_who_holds_it_to_its_owner(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run"):
        lock = tmp_path / "run" / ".lock"
        assert lock.read_text().startswith(f"process {os.getpid()} on ")
        assert lock.stat().st_mode & 0o777 == 0o600
