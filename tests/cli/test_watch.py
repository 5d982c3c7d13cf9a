"""`fedpriv watch`: a folder that grows is read as it grows."""

from __future__ import annotations

import json
import re
from pathlib import Path

from commands import DIGITS, SMALL, error_line, fedpriv
from rich.console import Console

from fedpriv.cli import watching
from fedpriv.cli.watching import WatchedRun


def trained(folder: Path) -> Path:
    assert fedpriv("train", DIGITS, *SMALL, "--out", str(folder)).exit_code == 0
    return folder


def test_watch_finished_run_shown_once(tmp_path: Path):
    folder = trained(tmp_path / "a")
    done = fedpriv("watch", str(folder))
    assert done.exit_code == 0
    text = " ".join(done.output.split())
    target = json.loads((folder / "result.json").read_text())["epsilon"]
    assert "6 of 6" in text and "finished" in text and re.search(r"test accuracy [\d.]+% in round 6", text)
    assert f"of {target:.0f}" in text


def test_watch_shows_time_left_and_silent_runs(tmp_path: Path):
    """Uses the files of the run, cut back to their state after some rounds."""
    folder = trained(tmp_path / "a")
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "result.json").unlink()
    run = WatchedRun(folder)
    (folder / "metrics.jsonl").write_text("".join(lines[:2]))
    assert run.look(100.0)["state"] == "not finished"
    (folder / "metrics.jsonl").write_text("".join(lines[:4]))
    looked = run.look(120.0)
    assert looked["round"] == "4 of 6" and looked["state"] == "running, about 20 s left"
    assert float(looked["epsilon spent, at most"].split()[0]) >= json.loads(lines[3])["epsilon"]
    assert run.look(300.0)["state"] == "no round for 3 min: slow, stopped or not responding"


def test_watch_ends_with_runs(tmp_path: Path, monkeypatch):
    folder = trained(tmp_path / "a")
    shown = Console(force_terminal=True, width=200, record=True)
    monkeypatch.setattr(watching, "out", shown)
    watching.watch([folder], 0.2)
    assert "finished" in shown.export_text()


def test_watch_folder_without_run_raises(tmp_path: Path):
    assert "contains no run" in error_line("watch", str(tmp_path))
