"""`fedpriv audit`, as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedpriv.audit.check_result import SECRET
from fedpriv.cli import app

RUN = str(Path(__file__).parents[1] / "run.yaml")
MODULE = '''
from fedpriv import Gaussian, fedavg
from fedpriv.strategies.base import Strategy

def own(learning_rate: float = 0.5) -> Strategy:
    """FedAvg."""
    return fedavg(learning_rate)

made = fedavg(0.5)
'''


@pytest.fixture(autouse=True)
def few_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is typed is tested here; how well guesses do has tests of its own."""
    monkeypatch.setattr("fedpriv.audit.canaries.REPLICAS", 4)


@pytest.fixture(autouse=True)
def empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An audit looks for other runs in the folder `runs`, where those of `make demo` may lie."""
    monkeypatch.chdir(tmp_path)


def audit(*given: str) -> tuple[int, str]:
    found = CliRunner().invoke(app, ["audit", *given], catch_exceptions=False)
    return found.exit_code, found.stdout


def test_audit_cli_config_holds(tmp_path: Path) -> None:
    code, text = audit(RUN, "data.partition.n_clients=4", "--json", "--out", str(tmp_path / "out"))
    output = json.loads(text)
    assert code == output["status"] == 0
    assert {one["verdict"] for one in output["findings"]} == {"held"}
    assert all(one["power"] for one in output["findings"])
    assert json.loads((tmp_path / "out" / "audit.json").read_text()) == output
    assert (tmp_path / "out" / "audit.png").read_bytes().startswith(b"\x89PNG")
    assert output["note"] == SECRET and "not private" in output["note"]


def test_audit_cli_run_without_guarantee_exits_2() -> None:
    code, text = audit(RUN, "data.partition.n_clients=4", "privacy={noise_on: none}")
    assert code == 2
    assert "not checked noise: the run claims no privacy guarantee" in " ".join(text.split())
    assert SECRET in " ".join(text.split())


def test_audit_cli_detects_altered_ledger(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    settings = [RUN, "data.partition.n_clients=4", "rounds=3"]
    assert CliRunner().invoke(app, ["train", *settings, "--out", str(folder)]).exit_code == 0
    assert audit(str(folder))[0] == 0
    ledger = folder / "ledger.jsonl"
    lines = ledger.read_text().splitlines(keepends=True)
    ledger.write_text("".join(lines[:-1]))
    code, text = audit(str(folder))
    assert code == 1 and "found ledger:" in " ".join(text.split()) and "has 2 records, but" in " ".join(text.split())
    assert audit(str(folder), "rounds=4")[0] == 2


@pytest.mark.parametrize("name", ["own", "made"])
def test_audit_cli_custom_strategy(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"audited_{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    reference = f"audited_{name}:{name}"
    assert audit(reference)[0] == 2  # running it is the user's choice
    code, text = audit(reference, "data.partition.n_clients=3", "--allow-plugins")
    assert code == 0, text
