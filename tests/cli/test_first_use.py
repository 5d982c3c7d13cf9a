"""What a newcomer meets first: names of shipped configurations, files to start from, help that keeps nobody waiting."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

import fedpriv
from fedpriv.cli import app, json_schema, shipped
from fedpriv.config import load_config
from fedpriv.storage import strict_yaml

SMALL = ["rounds=2", "compute.threads=1", "log.tensorboard=false"]
HEAVY = {"torch", "numpy", "scipy", "pandas", "networkx", "matplotlib", "opacus", "dp_accounting", "sklearn"}


def run(*words: str, ok: bool = True) -> str:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == (0 if ok else 2), done.output
    return done.stdout if ok else done.stderr


def imported_by(code: str) -> set[str]:
    """What a fresh Python has imported after the code."""
    asked = f"{code}\nimport sys; print('\\n' + ' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    "code",
    [
        "import fedpriv",
        "from fedpriv.cli import app",
        "from fedpriv.cli import app; app(['--help'], standalone_mode=False)",
        "from fedpriv.cli import app; app(['list', 'configs'], standalone_mode=False)",
    ],
)
def test_import_and_help_load_no_heavy_library(code: str):
    assert not HEAVY & imported_by(code)


def test_help_skips_slow_imports():
    found = imported_by("from fedpriv.cli import app; app(['--help'], standalone_mode=False)")
    assert not {"typer.rich_utils", "fedpriv.settings.plugins", "fedpriv.cli.printing"} & found


@pytest.mark.parametrize("code", ["from fedpriv import *", "import fedpriv.config"])
def test_optional_libraries_imported_lazily(code: str):
    unused = {"scipy.stats", "matplotlib", "pandas", "opacus", "dp_accounting", "sklearn", "tensorboard"}
    assert not unused & imported_by(code)


def test_every_public_name_exists():
    assert len(fedpriv.__all__) > 70
    for name in fedpriv.__all__:
        assert getattr(fedpriv, name) is not None
    assert fedpriv.data.load
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        _ = fedpriv.nothing_of_the_kind


def test_shipped_config_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    run("train", "digits_iadmm", "--out", "runs/a", *SMALL)
    assert "iadmm_prox, 2 rounds" in run("plan", "digits_iadmm.yaml", *SMALL)
    # a file of that name goes first
    text = shipped.list_configs()["digits_iadmm"].read_text().replace("n_clients: 10", "n_clients: 3")
    (tmp_path / "digits_iadmm.yaml").write_text(text)
    assert "3, with 479 examples each" in run("plan", "digits_iadmm.yaml", *SMALL)


@pytest.mark.parametrize("words", [("train", "digits_iadm"), ("plan", "digits_iadm.yaml"), ("init", "digits_iadm")])
def test_unknown_config_name_suggests_nearest(words: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert "did you mean 'digits_iadmm'" in run(*words, ok=False)
    assert not list(tmp_path.iterdir())
    assert "this file does not exist" in run("plan", "folder/digits_iadmm.yaml", ok=False)


def test_init_writes_valid_config_and_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert "fedpriv train digits_tracking.yaml" in run("init", "digits_tracking")
    assert load_config(tmp_path / "digits_tracking.yaml") == load_config(shipped.list_configs()["digits_tracking"])
    schema = (tmp_path / "fedpriv.schema.json").read_text()
    assert schema == run("schema") == json_schema.dumps()
    assert "fedpriv train new/digits_iadmm.yaml" in run("init", "--dir", "new")
    run("plan", "new/digits_iadmm.yaml", *SMALL)


@pytest.mark.parametrize("words", [["init"], ["init", "--python"], ["init", "--project"]])
def test_init_overwrites_nothing(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for name in ("digits_iadmm.yaml", "model.py"):
        (tmp_path / name).write_text("mine")
    assert "already exists" in run(*words, ok=False)
    assert sorted(path.read_text() for path in tmp_path.iterdir()) == ["mine", "mine"]


def test_init_project_tests_pass(tmp_path: Path) -> None:
    run("init", "--project", "--dir", str(tmp_path / "mine"))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    tested = subprocess.run(command, cwd=tmp_path / "mine", capture_output=True, text=True)
    assert tested.returncode == 0, tested.stdout
    assert "3 passed" in tested.stdout


@pytest.mark.parametrize(
    "path", [*shipped.list_configs().values(), shipped.find_folder("examples") / "project" / "config.yaml"]
)
def test_shipped_configs_valid_against_schema(path: Path):
    validator = Draft202012Validator(json.loads(json_schema.dumps()))
    text = path.read_text()
    assert text.startswith("# yaml-language-server: $schema=fedpriv.schema.json\n")
    assert not [error.message for error in validator.iter_errors(strict_yaml.read(text, path.name))]


WRONG = [
    "strategy={name: iadm_prox}",
    "strategy=iadm_prox",
    "strategy.etta=1",
    "strategy={name: fedavg}",
    "strategy={name: fedavg, learning_rate: 0.1, preset: mnist}",
    "strategy={name: iadmm_prox, variant: published, eta: 1}",
    "data={name: digits, partition: {kind: iid, n_clients: 0}}",
    "data={name: digits, partition: {kind: idd, n_clients: 2}}",
    "privacy.trust=nobody",
    "privacy.epsilon=three",
    "rounds=1.5",
    "round=3",
]


@pytest.mark.parametrize("setting", WRONG)
def test_schema_rejects_invalid_settings(setting: str):
    from fedpriv.config.files import override

    given = strict_yaml.read(shipped.list_configs()["digits_iadmm"].read_text(), "digits_iadmm")
    validator = Draft202012Validator(json.loads(json_schema.dumps()))
    assert validator.is_valid(given)
    assert not validator.is_valid(override(given, setting))


def test_list_one_kind_or_name():
    listed = json.loads(run("list", "--json"))
    kinds = "strategies models losses data topologies partitions mechanisms backends configs"
    assert set(kinds.split()) <= set(listed)
    for kind in listed:
        assert list(json.loads(run("list", kind, "--json"))) == [kind]
    assert set(listed["partitions"]) == {"iid", "in_order", "by_label", "dirichlet", "stratified", "by_writer"}
    assert all(line for rows in listed.values() for line in rows.values())
    assert "did you mean 'strategies'" in run("list", "strategie", ok=False)
    assert "is unknown; choose one of activities, augmentations, backends" in run("list", "zzz", ok=False), (
        "kinds, no names"
    )


def test_version_and_shell_completion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert run("--version") == f"fedpriv {fedpriv.__version__}\n"
    asked = {"_FEDPRIV_COMPLETE": "complete_bash", "COMP_WORDS": "fedpriv train digits_i", "COMP_CWORD": "2"}
    done = CliRunner().invoke(app, [], env=asked, prog_name="fedpriv")
    assert done.stdout.split() == ["digits_iadmm"]
