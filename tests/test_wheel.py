"""The wheel alone, installed elsewhere: every command of the README, and what `fedpriv init` writes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[1]

# one process for all commands: each would import torch again
DRIVER = """
import runpy, shlex, sys, traceback
from pathlib import Path
from typer.testing import CliRunner
import fedpriv
from fedpriv.cli import app

assert Path(fedpriv.__file__).is_relative_to(sys.prefix), fedpriv.__file__
for line in sys.stdin.read().splitlines():
    program, *words = shlex.split(line, comments=True)
    print("$", line, flush=True)
    if words[:1] == ["-m"]:  # a module of the wheel beside fedpriv
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__")
        continue
    if program == "rm":
        Path(words[0]).unlink()
    elif program == "python":
        sys.path.insert(0, str(Path(words[0]).parent.resolve()))
        runpy.run_path(words[0], run_name="__main__")
    else:
        words, into = (words[: words.index(">")], words[-1]) if ">" in words else (words, None)
        done = CliRunner().invoke(app, words)
        print(done.output, flush=True)
        if into is not None:
            Path(into).write_text(done.stdout)
        assert done.exit_code == 0, (line, done.output, done.exception)
"""


@pytest.fixture(scope="module")
def wheel_environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel, which sees this one's libraries but not this one's fedpriv."""
    folder = tmp_path_factory.mktemp("elsewhere")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input"]
    build = ["wheel", ".", "--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    subprocess.run([*pip, *build], cwd=ROOT, check=True)
    venv.create(folder / "env", symlinks=os.name != "nt")
    python = folder / "env" / "bin" / "python"
    (wheel,) = folder.glob("*.whl")
    install = ["--python", str(python), "install", "--no-index", "--no-deps", str(wheel)]
    subprocess.run([*pip, *install], check=True)
    paths = {"base": str(folder / "env"), "platbase": str(folder / "env")}
    own = Path(sysconfig.get_path("purelib", scheme="venv", vars=paths))
    # a line of a .pth file adds the folder, but does not read the .pth files in it: no editable fedpriv comes along
    (own / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


def commands() -> list[str]:
    """The README's commands without downloads, with a crash before `resume` and a second run before `account`."""
    blocks = re.findall(r"^```console\n(.*?)^```$", (ROOT / "README.md").read_text(), flags=re.MULTILINE | re.DOTALL)
    lines = [line[2:].split(" >")[0] for line in "".join(blocks).splitlines() if line.startswith("$ fedpriv ")]
    lines = [line for line in lines if "mnist" not in line]
    assert len(lines) >= 8
    return [extra for line in lines for extra in (*BEFORE.get(line.split(" #")[0].strip(), ()), line)]


BEFORE = {
    "fedpriv resume runs/a": ("rm runs/a/result.json",),
    "fedpriv account runs/a runs/b": ("fedpriv train digits_iadmm rounds=2 --out runs/b",),
}
STARTING = [
    "python -m fedpriv_verify runs/a/ledger.jsonl",
    "fedpriv init digits_iadmm --python --dir script",
    "python script/digits_iadmm.py",
    "fedpriv init --project --dir own",
    "python own/train.py",
    "fedpriv plan own/config.yaml --allow-plugins",
]


def test_wheel_runs_readme_commands(wheel_environment: Path):
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "FEDPRIV_DATA")}
    bin_ = wheel_environment / "env" / "bin"
    output = subprocess.run(
        [bin_ / "fedpriv", "--version"], env=environment, capture_output=True, text=True, check=True
    )
    assert output.stdout.startswith("fedpriv ")
    work = wheel_environment / "work"
    work.mkdir()
    given = "\n".join([*commands(), *STARTING])
    driver = [bin_ / "python", "-c", DRIVER]
    done = subprocess.run(driver, cwd=work, env=environment, input=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "epsilon <= 3" in done.stdout
    assert (work / "runs" / "a" / "result.json").is_file()
    assert (work / "script" / "digits_iadmm_result" / "model.pt").is_file()


def test_editable_install_uses_checkout_verifier():
    """Files that are forced in are copied on the day of an editable install; packages are read where they lie."""
    builder = WheelBuilder(str(ROOT))
    modules = {file.distribution_path: Path(file.path) for file in builder.recurse_selected_project_files()}
    assert modules["fedpriv_verify.py"] == ROOT / "tools" / "fedpriv_verify.py"
    assert {"fedpriv/__init__.py", "fedpriv/settings/words.yaml"} <= {*modules}
    copied = builder.config.get_force_include()
    assert {Path(source) for source in copied} == {ROOT / "configs", ROOT / "examples"}
