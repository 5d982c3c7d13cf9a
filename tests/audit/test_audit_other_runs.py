"""Other runs on the same data are found in their folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedpriv.audit.check_result import CheckResult
from fedpriv.audit.other_runs import check_other_runs
from fedpriv.audit.targets import target_from_folder
from fedpriv.cli import app
from fedpriv.config import build, load_config, to_yaml
from fedpriv.privacy.accounting.accountant import account
from fedpriv.privacy.ledger_file import LedgerFile

RUN = str(Path(__file__).parents[1] / "run.yaml")
CLIENT_LEVEL = ("privacy={epsilon: 1, unit: client, noise_on: message}", "strategy={name: fedavg, learning_rate: .5}")
SHORT = ("data.partition.n_clients=3", "rounds=2")


def train(folder: Path, *settings: str) -> Path:
    found = CliRunner().invoke(app, ["train", RUN, *SHORT, *settings, "--out", str(folder)])
    assert found.exit_code == 0, found.output
    return folder


def look(run: Path) -> CheckResult:
    found = target_from_folder(run)
    return check_other_runs(replace(found, runs=run.parent), [])


def tight(folders: Sequence[Path]) -> float:
    records = [record for folder in folders for record in LedgerFile.read(folder / "ledger.jsonl").records]
    return account(records, 3, 1e-5).epsilon


def test_audit_finds_other_runs_on_same_data(tmp_path: Path) -> None:
    one = train(tmp_path / "one")
    assert look(one).verdict == "held"
    two = train(tmp_path / "two", "strategy.rho={scale: 2.0}", "data.seed=1")  # the same people, split otherwise
    config = two / "config.yaml"
    text = config.read_text()
    config.write_text(text.replace("name: digits", "name: mnist"))
    assert look(one).verdict == "held"
    config.write_text(text)
    found, together = look(one), tight([one, two])
    assert found.verdict == "found" and "1 other run has the same data" in found.evidence
    assert 3 < together < 6
    assert f"the joint epsilon is {together:.4g}"[:24] in found.evidence
    three = train(tmp_path / "three", "data.partition.n_clients=4")
    accounted = CliRunner().invoke(app, ["account", str(one), str(two), str(three), "--json"])
    epsilon = json.loads(accounted.stdout)["epsilon"]
    assert f"the joint epsilon is {epsilon:.4g}"[:24] in look(one).evidence


def test_audit_different_clients_have_no_joint_epsilon(tmp_path: Path) -> None:
    """One client of the first run may be several of the second, so no sum of epsilons holds."""
    one = train(tmp_path / "one", *CLIENT_LEVEL)
    two = train(tmp_path / "two", *CLIENT_LEVEL, "data.partition.n_clients=4")
    assert "have no joint epsilon" in look(one).evidence
    assert "protect whole clients, but different ones" in look(one).evidence
    assert CliRunner().invoke(app, ["account", str(one), str(two)]).exit_code == 2


def test_audit_resumed_copy_counts_as_other_run(tmp_path: Path) -> None:
    """Its noise differs, so its releases count too; an unchanged copy counts once."""
    config, one = load_config(Path(RUN), [*SHORT, "log.checkpoint_every=1"]), tmp_path / "one"
    one.mkdir()
    (one / "config.yaml").write_text(to_yaml(config))
    stopped = build(config, one)
    next(iter(stopped))
    assert stopped.folder is not None
    stopped.folder.close()
    copy = Path(shutil.copytree(one, tmp_path / "copy"))
    assert look(one).verdict == "held"
    for folder in (one, copy):
        done = CliRunner().invoke(app, ["resume", str(folder)])
        assert done.exit_code == 0, done.output
    found, together = look(one), tight([one, copy])
    assert found.verdict == "found" and "1 other run has the same data" in found.evidence
    assert f"the joint epsilon is {together:.4g}"[:24] in found.evidence


def test_audit_reports_unreadable_run(tmp_path: Path) -> None:
    one = train(tmp_path / "one")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "ledger.jsonl").write_text("nothing\n")
    found = look(one)
    assert found.verdict == "not checked" and "1 run cannot be read" in found.evidence


@pytest.mark.parametrize("name", ["runs"])
def test_audit_cli_finds_neighbouring_run(name: str, tmp_path: Path) -> None:
    one = train(tmp_path / name / "one")
    train(tmp_path / name / "two", "strategy.rho={scale: 2.0}")
    found = CliRunner().invoke(app, ["audit", str(one)])
    assert found.exit_code == 1 and "other runs" in found.output
