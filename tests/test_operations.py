"""The examples for operators: a systemd unit and a container file that start a command that exists, with few rights."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from configparser import RawConfigParser
from pathlib import Path

import pytest
import typer
from click import Context

from fedpriv.cli import app

FOLDER = Path(__file__).parents[1] / "examples" / "operations"
UNIT = FOLDER / "fedpriv-site@.service"
CONTAINER = FOLDER / "Containerfile"


def sections() -> RawConfigParser:
    parser = RawConfigParser(strict=True, delimiters=("=",), comment_prefixes=("#",))
    parser.optionxform = str  # pyright: ignore
    parser.read(UNIT)
    return parser


def options_of(*words: str) -> set[str]:
    """The options of a command of fedpriv, which must exist."""
    command = typer.main.get_command(app)
    for word in words:
        assert hasattr(command, "get_command"), word
        found = command.get_command(Context(command), word)  # pyright: ignore
        assert found is not None, word
        command = found
    return {name for parameter in command.params for name in parameter.opts}


def test_systemd_unit_runs_site_with_own_user() -> None:
    unit = sections()
    assert {*unit.sections()} == {"Unit", "Service", "Install"}
    service = unit["Service"]
    program, *words = shlex.split(service["ExecStart"])
    assert Path(program).name == "fedpriv"
    options_of(*words[:2])
    assert words[:2] == ["site", "run"]
    assert service["User"] not in ("", "root")
    assert service["Restart"] == "always"
    assert service["UMask"] == "0077"
    for field in ("NoNewPrivileges", "PrivateTmp", "ProtectHome", "PrivateDevices"):
        assert service[field] == "yes", field
    assert service["ProtectSystem"] == "strict"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_unit_passes_verify(tmp_path: Path) -> None:
    # programs and accounts that this machine lacks are put where the unit wants them: under this folder
    unit = tmp_path / "fedpriv-site@north.service"
    program = tmp_path / "fedpriv"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit.write_text(UNIT.read_text().replace("/opt/fedpriv/bin/fedpriv", str(program)))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(unit)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    faults = [line for line in done.stderr.splitlines() if unit.name in line or "fedpriv" in line]
    assert not faults
    assert done.returncode == 0, done.stderr


def test_damaged_systemd_unit_fails_verify(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd here")
    unit = tmp_path / "fedpriv-site@north.service"
    unit.write_text(UNIT.read_text().replace("Restart=always", "Restart=sometimes"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(unit)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "sometimes" in done.stderr


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"\\\n", " ", CONTAINER.read_text())
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in lines]


def test_container_copies_no_data_and_is_not_root() -> None:
    steps = instructions()
    assert steps[0][0] == "FROM"
    assert re.search(r":\d", steps[0][1]), "name a version of the base image"
    assert {name for name, _ in steps} <= {"FROM", "ARG", "RUN", "USER", "WORKDIR", "ENV", "STOPSIGNAL", "ENTRYPOINT"}
    users = [value for name, value in steps if name == "USER"]
    assert users
    assert users[-1] not in ("root", "0")
    assert [name for name, _ in steps].index("USER") > [name for name, _ in steps].index("RUN")
    entry = [value for name, value in steps if name == "ENTRYPOINT"][-1]
    program, *words = re.findall(r'"([^"]*)"', entry)
    assert (program, words[:2]) == ("fedpriv", ["site", "run"])
    options_of(*words[:2])


def test_container_extras_exist() -> None:
    import tomllib

    project = tomllib.loads((FOLDER.parents[1] / "pyproject.toml").read_text())["project"]
    (extras,) = re.findall(r"fedpriv\[([a-z,]+)\]", CONTAINER.read_text())
    assert {*extras.split(",")} <= {*project["optional-dependencies"], "zenoh"}
    assert f"FEDPRIV_VERSION={project['version']}" in CONTAINER.read_text()
