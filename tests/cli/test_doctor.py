"""`fedpriv doctor` names what is there, and each fault that is made here with its fix."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from fedpriv.cli import app, diagnosing
from fedpriv.distributed.cores import usable_cores


def findings(*options: str, env: dict[str, str | None] | None = None) -> tuple[int, dict[str, dict[str, Any]]]:
    done = CliRunner().invoke(app, ["doctor", "--json", *options], env=env)
    return done.exit_code, {row["name"]: row for row in json.loads(done.stdout)["findings"]}


def test_doctor_sound_machine_has_no_problem(tmp_path: Path):
    code, rows = findings("--folder", str(tmp_path), env={"FEDPRIV_DATA": None})
    assert code == 0
    assert torch.__version__ in rows["torch"]["text"]
    assert ("CUDA" in rows["torch"]["text"]) == (torch.version.cuda is not None)
    assert rows["locks"]["state"] == rows["files"]["state"] == "ok"
    assert rows["data"]["state"] == "note" and "FEDPRIV_DATA is not set" in rows["data"]["text"]
    assert not [*tmp_path.iterdir()], "nothing is left behind"


def test_doctor_lists_data_folders(tmp_path: Path):
    (tmp_path / "mnist").mkdir()
    _, rows = findings("--folder", str(tmp_path), env={"FEDPRIV_DATA": str(tmp_path)})
    assert ": mnist; not: adult" in rows["data"]["text"]
    code, rows = findings("--folder", str(tmp_path), env={"FEDPRIV_DATA": str(tmp_path / "none")})
    assert (code, rows["data"]["state"]) == (1, "problem")


def test_doctor_data_folders_match_loaders():
    sources = "".join(path.read_text() for path in (Path(diagnosing.__file__).parents[1] / "data").glob("*.py"))
    for name in diagnosing.DATA_FOLDERS:
        assert f"FEDPRIV_DATA/{name}" in sources


def test_doctor_extras_match_project():
    import tomllib

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert {*diagnosing.EXTRAS} == {*project["optional-dependencies"]} - {"dev", "docs"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_doctor_read_only_folder_is_problem(tmp_path: Path):
    tmp_path.chmod(0o500)
    code, rows = findings("--folder", str(tmp_path))
    tmp_path.chmod(0o700)
    assert (code, rows["files"]["state"]) == (1, "problem")


def test_doctor_missing_folder_is_problem(tmp_path: Path):
    code, rows = findings("--folder", str(tmp_path / "none"))
    assert (code, rows["disk"]["state"], rows["files"]["state"]) == (1, "problem", "problem")
    assert "--folder" in rows["files"]["fix"]


def test_doctor_notes_idle_cores(tmp_path: Path):
    cores = usable_cores()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "fedpriv", "doctor", "--json", "--folder", str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    rows = {row["name"]: row for row in json.loads(done.stdout)["findings"]}
    assert rows["threads"]["state"] == ("note" if cores > 1 else "ok")
    assert cores == 1 or f"compute.threads={cores}" in rows["threads"]["fix"]


def test_doctor_unused_nvidia_driver_is_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    if torch.cuda.is_available():
        pytest.skip("torch can use it")
    driver = tmp_path / "nvidia-smi"
    driver.write_text("#!/bin/sh\n")
    driver.chmod(0o700)
    code, rows = findings("--folder", str(tmp_path), env={"PATH": str(tmp_path)})
    assert (code, rows["device"]["state"]) == (1, "problem")


def test_doctor_table_shows_fix_below_row(tmp_path: Path):
    done = CliRunner().invoke(app, ["doctor", "--folder", str(tmp_path)], env={"FEDPRIV_DATA": None, "COLUMNS": "300"})
    lines = done.stdout.splitlines()
    row = next(index for index, line in enumerate(lines) if line.split()[:2] == ["note", "data"])
    assert "set it to a folder" in lines[row + 1]


def test_doctor_torchvision_agrees_with_plain_import() -> None:
    """In a new process, since fedpriv declares operators that torchvision may lack."""
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    plain = subprocess.run([sys.executable, "-c", "import torchvision"], capture_output=True, check=False)
    done = subprocess.run([sys.executable, "-m", "fedpriv", "doctor", "--json"], capture_output=True, check=False)
    findings = {finding["name"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert (findings["torchvision"]["state"] == "ok") == (plain.returncode == 0)
