"""A lock admits one writer per folder and ends with its process; a refused process removes no file of the other."""

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


def test_second_process_refused_first_continues(tmp_path: Path) -> None:
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


def test_concurrent_claims_one_succeeds(tmp_path: Path) -> None:
    start = time.monotonic() + 0.2

    def claim() -> None:
        time.sleep(max(0.0, start - time.monotonic()))
        with RunFolder.new(tmp_path / "run") as folder:
            folder.write("config.yaml", b"mine")
            time.sleep(1)

    children = [forked(claim) for _ in range(12)]
    assert sorted(os.waitpid(child, 0)[1] for child in children) == [0] + [256] * 11
    assert (tmp_path / "run" / "config.yaml").read_bytes() == b"mine"


def test_concurrent_unnamed_runs_get_own_folders(tmp_path: Path) -> None:
    children = [forked(lambda: RunFolder.numbered(tmp_path / "runs" / "a").write("config.yaml", b"")) for _ in range(8)]
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 8
    assert len(list((tmp_path / "runs").glob("a-*/config.yaml"))) == 8


def test_abandoned_folder_removes_own_files_only(tmp_path: Path) -> None:
    mine = tmp_path / "notes.txt"
    mine.write_text("mine")
    folder = RunFolder.new(tmp_path)
    folder.write("config.yaml", b"")
    folder.abandon()
    assert list(tmp_path.iterdir()) == [mine]
    (tmp_path / "metrics.jsonl").write_text("somebody's")
    with pytest.raises(FedprivError, match=r"contains metrics\.jsonl of another run"):
        RunFolder.new(tmp_path)
    resumed = RunFolder(tmp_path)
    resumed.abandon()
    assert (tmp_path / "metrics.jsonl").read_text() == "somebody's"


def test_fork_writing_parent_folder_raises(tmp_path: Path) -> None:
    folder = RunFolder.new(tmp_path / "run")

    def write() -> None:
        with pytest.raises(FedprivError, match=f"is in use by process {parent}, and this process is a fork"):
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


def test_later_run_takes_over_folder(tmp_path: Path) -> None:
    """A notebook may create a second Training; the first must not charge the ledger again."""
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


def test_moved_ledger_raises_before_release(tmp_path: Path) -> None:
    """Otherwise a new file without the first records would replace it."""
    reports = iter(training(tmp_path))
    next(reports)
    (tmp_path / "ledger.jsonl").unlink()
    with pytest.raises(fp.LedgerError, match=r"moved or removed.*nothing was released"):
        next(reports)
    assert not (tmp_path / "ledger.jsonl").exists()


def test_foreign_ledger_line_raises_before_release(tmp_path: Path) -> None:
    """The next record would not be linked to the line before it."""
    reports = iter(training(tmp_path))
    next(reports)
    with (tmp_path / "ledger.jsonl").open("ab") as file:
        file.write(b"{}\n")
    before = (tmp_path / "ledger.jsonl").read_bytes()
    with pytest.raises(fp.LedgerError, match=r"another program wrote to the file.*nothing was released"):
        next(reports)
    assert (tmp_path / "ledger.jsonl").read_bytes() == before


def test_replaced_ledger_raises_before_release(tmp_path: Path) -> None:
    """Records appended to the opened file would be lost with it."""
    reports = iter(training(tmp_path))
    next(reports)
    path = tmp_path / "ledger.jsonl"
    before = path.read_bytes()
    path.rename(tmp_path / "elsewhere")
    path.write_bytes(before)
    with pytest.raises(fp.LedgerError, match=r"moved or removed.*nothing was released"):
        next(reports)
    assert path.read_bytes() == before == (tmp_path / "elsewhere").read_bytes()


@pytest.mark.parametrize("text", ["process 7\x1b[31m on host", "whatever", ""])
def test_malformed_lock_text_not_printed(text: str, tmp_path: Path) -> None:
    """The lock may contain anything, such as terminal control sequences."""
    lock = tmp_path / "lock"
    lock.write_text(text)
    assert _holder(lock) == "another process"
    lock.write_text("process 7 on host")
    assert _holder(lock) == "process 7 on host"


def test_lock_names_process_for_owner_only(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run"):
        lock = tmp_path / "run" / ".lock"
        assert lock.read_text().startswith(f"process {os.getpid()} on ")
        assert lock.stat().st_mode & 0o777 == 0o600
