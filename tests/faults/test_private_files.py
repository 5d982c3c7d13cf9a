"""Files of a run are readable by the owner only, with any umask, and symbolic links are refused."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedpriv.cli import app

CONFIG = str(Path(__file__).parents[1] / "run.yaml")
WORDS = ("data.partition.n_clients=2", "rounds=2", "log={csv: true, save_node_models: true}")


@pytest.fixture(params=[0o000, 0o022, 0o777], ids=oct)
def umask(request: pytest.FixtureRequest):
    before = os.umask(request.param)
    yield
    os.umask(before)


def fedpriv(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(words))
    return done.exit_code, done.output


@pytest.mark.usefixtures("umask")
def test_run_files_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "above" / "run"
    code, said = fedpriv("train", CONFIG, "--out", str(folder), *WORDS)
    assert code == 0, said
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (folder.parent, folder, *folder.iterdir())}
    wanted = {path: 0o700 if path.is_dir() else 0o600 for path in modes}
    assert modes == wanted
    assert len(modes) == 12


@pytest.mark.parametrize("name", ["ledger.jsonl", "checkpoint.pt", "config.yaml", "metrics.jsonl", "metrics.csv"])
@pytest.mark.parametrize("dangling", [True, False])
def test_new_run_refuses_symlinks(name: str, dangling: bool, tmp_path: Path) -> None:
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "run"
    folder.mkdir()
    if not dangling:
        elsewhere.write_text("precious")
    (folder / name).symlink_to(elsewhere)
    code, said = fedpriv("train", CONFIG, "--out", str(folder), *WORDS)
    assert code == 2 and "another run" in said
    assert elsewhere.exists() is not dangling
    assert dangling or elsewhere.read_text() == "precious"


@pytest.mark.parametrize("name", ["ledger.jsonl", "checkpoint.pt", "metrics.jsonl", "metrics.csv", ".lock"])
def test_resume_refuses_symlinks(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert fedpriv("train", CONFIG, "--out", str(folder), *WORDS)[0] == 0
    (folder / "result.json").unlink()
    (folder / name).touch()
    moved = (folder / name).rename(tmp_path / "elsewhere")
    before = moved.read_bytes()
    (folder / name).symlink_to(moved)
    code, said = fedpriv("resume", str(folder))
    assert code == 2
    assert "symbolic link" in said
    assert moved.read_bytes() == before
