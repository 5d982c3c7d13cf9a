"""Syncs and renames reach the operating system in order: content before names, names before reports."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.models import SoftmaxRegression
from fedpriv.storage import files
from fedpriv.storage.folder import RunFolder


@pytest.fixture
def disk_calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Every fsync and rename that reaches the system, with the number of the file or folder."""
    calls: list[tuple[str, int]] = []
    fsync, rename = os.fsync, os.replace

    def on_fsync(fd: int) -> None:
        fsync(fd)
        calls.append(("sync", os.fstat(fd).st_ino))

    def on_rename(old: Path, new: Path) -> None:
        calls.append(("rename", os.stat(old).st_ino))
        rename(old, new)

    monkeypatch.setattr(os, "fsync", on_fsync)
    monkeypatch.setattr(os, "replace", on_rename)
    return calls


def number(path: Path) -> int:
    return path.stat().st_ino


def test_write_whole_syncs_before_rename(tmp_path: Path, disk_calls: list[tuple[str, int]]) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"an older and longer one")
    files.write_whole(path, b"content")
    assert disk_calls == [("sync", number(path)), ("rename", number(path)), ("sync", number(tmp_path))]
    assert path.read_bytes() == b"content"
    assert [one.name for one in tmp_path.iterdir()] == ["x"]


def test_new_folder_name_synced(tmp_path: Path, disk_calls: list[tuple[str, int]]) -> None:
    """Otherwise a power cut could lose the folder of a run, with a ledger whose lines were all synced."""
    with RunFolder(tmp_path / "runs" / "one"):
        assert disk_calls == [("sync", number(tmp_path)), ("sync", number(tmp_path / "runs"))]
        assert (tmp_path / "runs" / "one").stat().st_mode & 0o777 == 0o700


def test_appender_syncs_lines_and_name_once(tmp_path: Path, disk_calls: list[tuple[str, int]]) -> None:
    path = tmp_path / "lines"
    grows = files.Appender(path)
    grows.append(b"one\n")
    grows.append(b"two\n")
    assert disk_calls == []  # the run says when
    grows.sync()
    assert disk_calls == [("sync", number(path)), ("sync", number(tmp_path))]
    grows.sync()
    assert len(disk_calls) == 2
    grows.append(b"three\n")
    grows.sync()
    assert disk_calls[2:] == [("sync", number(path))]
    assert path.read_bytes() == b"one\ntwo\nthree\n"


def test_torn_line_truncated_and_synced(tmp_path: Path, disk_calls: list[tuple[str, int]]) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"one\ntor")
    grows = files.Appender(path, keep=4)
    assert ("sync", number(path)) in disk_calls
    grows.append(b"two\n")
    assert path.read_bytes() == b"one\ntwo\n"
    disk_calls.clear()
    files.Appender(path, keep=8)
    assert disk_calls == []  # nothing to cut


def test_partial_write_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, bytes(data)[:3]))
    files.write_whole(tmp_path / "x", b"more than three bytes")
    assert (tmp_path / "x").read_bytes() == b"more than three bytes"


def test_failed_sync_not_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may have discarded the pages: a second fsync would succeed without them."""
    grows = files.Appender(tmp_path / "lines")
    grows.append(b"one\n")

    def fails(fd: int) -> None:
        raise OSError(errno.EIO, "the disk is gone")

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", fails)
        with pytest.raises(OSError, match="gone"):
            grows.sync()
    for again in (grows.sync, lambda: grows.append(b"two\n")):
        with pytest.raises(OSError, match="gone"):
            again()


def test_failed_append_leaves_file_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lines"
    grows = files.Appender(path)
    grows.append(b"one\n")
    write = os.write

    def half(fd: int, data: bytes) -> int:
        write(fd, bytes(data)[:2])
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as full:
        full.setattr(os, "write", half)
        with pytest.raises(OSError, match="full"):
            grows.append(b"two\n")
    assert path.read_bytes() == b"one\n"
    with pytest.raises(OSError, match="full"):  # there may be space again, but it was the last operation
        grows.append(b"two\n")


@pytest.mark.parametrize("is_synced", [True, False])
def test_report_after_ledger_sync_if_fsync(is_synced: bool, tmp_path: Path, disk_calls: list[tuple[str, int]]) -> None:
    x, y = torch.randn(12, 4, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 2
    data = [TensorDataset(x[:6], y[:6]), TensorDataset(x[6:], y[6:])]
    clients = fp.make_clients(SoftmaxRegression(4, 2), nn.CrossEntropyLoss(), data)
    privacy = fp.Privacy(noise_multiplier=5.0, fsync=is_synced)
    training = fp.Training(
        clients, fp.inexact_admm(), privacy, rounds=6, folder=tmp_path / "run", checkpoint_every=100, secret_seed=0
    )
    ledger = ("sync", number(tmp_path / "run" / "ledger.jsonl"))
    synced = []
    for _ in training:
        synced.append(ledger in disk_calls)
        disk_calls.clear()
    assert synced[1:-1] == [is_synced] * 4  # the first and the last come with a checkpoint
