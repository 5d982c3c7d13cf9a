"""After any edit of a run's folder, `show`, `show --json` and `resume` report it and print no smaller epsilon."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from edits import ALTERED, INCOMPLETE, OF_RESULTS, forge_all_files, in_config, in_metrics
from typer.testing import CliRunner

from fedpriv.cli import app
from fedpriv.config import build, load_config, to_yaml
from fedpriv.privacy.ledger_file import read_ledger
from fedpriv.reports.sinks import Jsonl
from fedpriv.storage.identity import digest_config

CONFIG = str(Path(__file__).parents[1] / "run.yaml")
SHORT = [
    "data.partition.n_clients=3",
    "rounds=6",
    "secret_seed=7",
    "compute.threads=1",
    "log={checkpoint_every: 2, tensorboard: false}",
]


def fedpriv(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, list(words))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture(scope="session")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    assert fedpriv("train", CONFIG, "--out", str(folder / "finished"), *SHORT)[0] == 0
    (folder / "stopped").mkdir()
    config = load_config(Path(CONFIG), SHORT)
    (folder / "stopped" / "config.yaml").write_text(to_yaml(config))
    sink = Jsonl(folder / "stopped" / "metrics.jsonl")
    training = build(config, folder / "stopped")
    for report in training:
        sink.write(report)
        if report.round == 5:  # the checkpoint is of round 4, the ledger holds 5 records
            training._directory.save = lambda *_: None  # as if it was killed
            break
    return folder


@pytest.fixture(autouse=True)
def _without_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpriv.reports.picture.draw", lambda run, path: None)


@pytest.fixture
def finished(originals: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(originals / "finished", tmp_path / "run"))


@pytest.fixture
def stopped(originals: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(originals / "stopped", tmp_path / "run"))


def assert_detected(folder: Path, kind: str) -> None:
    code, out, err = fedpriv("show", str(folder))
    assert code in (1, 2), out
    assert kind in out + err
    assert "epsilon=" not in next((line for line in out.splitlines() if line.startswith("privacy")), ""), out
    code, out, err = fedpriv("show", str(folder), "--json")
    assert code in (1, 2), out
    assert kind in out + err
    assert code == 2 or (json.loads(out)["epsilon"], json.loads(out)["integrity"]) == (None, kind)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    code, out, err = fedpriv("resume", str(folder))
    assert code == 2, out
    assert kind in err, err
    assert before == {path.name: path.read_bytes() for path in folder.iterdir()}


EDITS = [*(("altered", name) for name in ALTERED), *(("incomplete", name) for name in INCOMPLETE)]


@pytest.mark.parametrize("run", ["stopped", "finished"])
@pytest.mark.parametrize(("kind", "name"), EDITS)
def test_edited_or_cut_run_detected(originals: Path, tmp_path: Path, run: str, kind: str, name: str) -> None:
    folder = Path(shutil.copytree(originals / run, tmp_path / "run"))
    (ALTERED | INCOMPLETE)[name](folder)
    assert_detected(folder, kind)


@pytest.mark.parametrize("name", OF_RESULTS)
def test_edited_result_detected(finished: Path, name: str) -> None:
    edit, kind = OF_RESULTS[name]
    edit(finished)
    assert_detected(finished, kind)


def test_stopped_run_without_checkpoint_incomplete(stopped: Path) -> None:
    (stopped / "checkpoint.pt").unlink()
    assert_detected(stopped, "incomplete")


def test_forged_ledger_differs_from_configuration(finished: Path) -> None:
    (finished / "checkpoint.pt").unlink()
    forge_all_files(finished, unit="client")
    assert "config.yaml has unit = 'sample', but the ledger 'client'" in fedpriv("show", str(finished))[1]
    forge_all_files(finished, unit="sample", delta=1e-3)
    assert "config.yaml has delta = 1e-05, but the ledger 0.001" in fedpriv("show", str(finished))[1]
    in_config("privacy", epsilon=1.0)(finished)
    forge_all_files(finished, delta=1e-5, config=digest_config(yaml.safe_load((finished / "config.yaml").read_text())))
    assert "the ledger's records cost more than the 1 that config.yaml allows" in fedpriv("show", str(finished))[1]
    in_config("privacy", epsilon=3.0)(finished)
    forge_all_files(finished, config=digest_config(yaml.safe_load((finished / "config.yaml").read_text())))
    assert fedpriv("show", str(finished))[0] == 0


# --- what is no edit -------------------------------------------------------------------------------------------------


def test_stopped_run_sound_and_resumes_same_epsilon(stopped: Path, originals: Path) -> None:
    with (stopped / "ledger.jsonl").open("ab") as file:
        file.write(b'{"round":17,"query":"gra')
    in_metrics(lambda rows: rows[:4])(stopped)  # a power cut may take what the checkpoint does not count
    in_config("log", csv=True)(stopped)
    code, out, _ = fedpriv("show", str(stopped), "--json")
    facts = json.loads(out)
    assert (code, facts["integrity"], facts["findings"]) == (0, "sound", [])
    assert 0 < facts["epsilon"] < 3
    assert fedpriv("resume", str(stopped))[0] == 0
    results = [json.loads((folder / "result.json").read_text()) for folder in (stopped, originals / "finished")]
    assert results[0]["epsilon"] == results[1]["epsilon"]
    assert [record.round for record in read_ledger(stopped / "ledger.jsonl")] == list(range(6))


def test_finished_run_without_checkpoint_sound(finished: Path) -> None:
    """A checkpoint may hold states of clients, so it is not handed over with the run."""
    (finished / "checkpoint.pt").unlink()
    code, out, _ = fedpriv("show", str(finished))
    assert code == 0
    assert "6 records in a chain" in out


# --- what a resume compares with the plan ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"noise_multiplier": 1e3}, "line 2 has noise multiplier 1000.0, but the plan has "),
        ({"planned": 60}, "line 1 has planned = 60, but the run's plan has 6"),
        ({"n_clients": 30}, "line 1 has n_clients = 30, but the run's plan has 3"),
    ],
)
def test_resume_compares_ledger_with_new_plan(stopped: Path, changes: dict[str, object], said: str) -> None:
    """Also detects an edit that changes the checkpoint too."""
    saved = torch.load(stopped / "checkpoint.pt", weights_only=True)
    torch.save(saved | {"head": forge_all_files(stopped, **changes)[saved["records"]]}, stopped / "checkpoint.pt")
    assert fedpriv("show", str(stopped))[0] == 0
    code, _, err = fedpriv("resume", str(stopped))
    assert (code, said in err) == (2, True), err
