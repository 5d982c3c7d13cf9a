"""The file of a lifetime budget against crashes, races and edits."""

from __future__ import annotations

import json
import multiprocessing
import os
from pathlib import Path

import pytest
from budgets import budget, mu_of, run

import fedpriv as fp
from fedpriv.errors import BudgetExhausted, LedgerError
from fedpriv.privacy.budget import Budget
from fedpriv.storage import files


def _reserve_at_barrier(path: str, number: int, gate: object, results: object) -> None:
    wish = run(1 / mu_of(1.0), f"r{number}")
    found = Budget(path)
    gate.wait()
    try:
        found.reserve(wish)
        results.put("won")
    except BudgetExhausted:
        results.put("refused")


def test_concurrent_reservations_one_succeeds(tmp_path: Path):
    found, count = budget(tmp_path, 1.4), 4
    context = multiprocessing.get_context("fork")
    gate, results = context.Barrier(count), context.Queue()
    racing = [
        context.Process(target=_reserve_at_barrier, args=(str(found.path), i, gate, results)) for i in range(count)
    ]
    for one in racing:
        one.start()
    for one in racing:
        one.join(60)
    assert sorted(results.get(timeout=1) for _ in racing) == ["refused"] * (count - 1) + ["won"]
    assert len(found.balance().entries) == 1


def test_budget_file_mode_is_owner_only(tmp_path: Path):
    before = os.umask(0)
    try:
        found = budget(tmp_path)
        found.reserve(run(5.0, "r"))
    finally:
        os.umask(before)
    assert {oct(path.stat().st_mode & 0o777) for path in tmp_path.iterdir() if path.is_file()} == {"0o600"}


def test_budget_symbolic_link_raises(tmp_path: Path):
    found = budget(tmp_path)
    (tmp_path / "link.jsonl").symlink_to(found.path)
    with pytest.raises(fp.FedprivError, match="symbolic link"):
        Budget(tmp_path / "link.jsonl")


def test_edited_budget_raises(tmp_path: Path):
    found = budget(tmp_path)
    for number in range(3):
        found.reserve(run(9.0, f"r{number}"))
    found.close("r1", "rounds")
    whole = found.path.read_bytes()
    lines = whole.splitlines(keepends=True)
    edits = [
        whole.replace(b'"gaussian",9.0', b'"gaussian",90.', 1),
        whole.replace(b'"epsilon":2.0', b'"epsilon":9.0', 1),
        b"".join(lines[:2] + lines[3:]),
        b"".join([lines[0], lines[2], lines[1], *lines[3:]]),
        b"".join(lines[:-1]),
        b"".join([*lines, lines[-1]]),
        b"",
        b"\n",
    ]
    for edited in edits:
        assert edited != whole
        found.path.write_bytes(edited)
        with pytest.raises(LedgerError):
            Budget(found.path)
    found.path.write_bytes(whole)
    assert len(found.balance().entries) == 3


def test_earlier_copy_of_budget_raises(tmp_path: Path):
    found = budget(tmp_path)
    old = found.path.read_bytes()
    found.reserve(run(9.0, "r"))
    new = found.path.read_bytes()
    found.path.write_bytes(old)
    with pytest.raises(LedgerError, match="earlier copy"):
        found.reserve(run(9.0, "other"))
    found.path.unlink()
    with pytest.raises(LedgerError, match="a budget of this name existed"):
        budget(tmp_path)
    found.path.write_bytes(new)
    assert len(found.balance().entries) == 1


def test_unknown_budget_fields_raise(tmp_path: Path):
    from fedpriv.privacy.chain import START, add_chained_line

    found = budget(tmp_path)
    (tmp_path / "b.jsonl.head").unlink()
    terms = json.loads(found.path.read_text())
    del terms["chain"]
    end = {"close": "nobody", "ended": "rounds", "time": "now", "charges": None}
    for changes in ([{**terms, "more": 1}], [{**terms, "delta": "0"}], [terms, end], [{**terms, "fedpriv_budget": 2}]):
        text, chain = "", START
        for change in changes:
            line, chain = add_chained_line(json.dumps(change), chain)
            text += line + "\n"
        found.path.write_text(text)
        with pytest.raises(LedgerError, match="not a budget that this version of fedpriv can read"):
            Budget(found.path)


class _CrashingDisk(files.Disk):
    """A disk whose process dies at its k-th operation, in the middle of it."""

    def __init__(self, last: int) -> None:
        self.left = last

    def _spend(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise _Killed

    def open(self, path: Path, flags: int) -> int:
        self._spend()
        return super().open(path, flags)

    def write(self, fd: int, data: bytes) -> None:
        if self.left == 0:
            os.write(fd, data[: len(data) // 2])
        self._spend()
        super().write(fd, data)

    def sync(self, fd: int) -> None:
        self._spend()
        super().sync(fd)

    def rename(self, old: Path, new: Path) -> None:
        self._spend()
        super().rename(old, new)

    def sync_folder(self, folder: Path) -> None:
        self._spend()
        super().sync_folder(folder)


class _Killed(BaseException):
    pass


def test_crash_at_any_operation_keeps_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for last in range(60):
        folder = tmp_path / str(last)
        folder.mkdir()
        with monkeypatch.context() as patched:
            patched.setattr(files, "disk", _CrashingDisk(last))
            done = list[str]()
            try:
                found = budget(folder)
                done.append("made")
                found.reserve(run(9.0, "a"))
                done.append("a")
                found.reserve(run(9.0, "b"))
                done.append("b")
                found.close("a", "rounds")
                done.append("closed")
            except _Killed:
                pass
        if not (folder / "b.jsonl").exists():
            assert not done
            found = budget(folder)
        again = Budget(folder / "b.jsonl")
        known = {one.run: one.state for one in again.balance().entries}
        assert {name for name in done if name in "ab"} <= set(known) <= {"a", "b"}
        assert "closed" not in done or known["a"] == "rounds"
        again.reserve(run(9.0, "next"))
        assert len(again.balance().entries) == len(known) + 1
        if "closed" in done:
            return
    raise AssertionError("no end was reached")
