"""A run has one epsilon on the terminal, in its files, and read back; files that do not belong together have none."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from forging import lines_of, rewrite
from reported_runs import CONFIG, SMALL, cli, clients
from torch import Tensor

import fedpriv as fp
from fedpriv.privacy.accounting.accountant import account
from fedpriv.privacy.ledger_file import read_ledger
from fedpriv.reports import comparison
from fedpriv.reports.report import Run
from fedpriv.strategies.base import Aggregator, Network

# --- one run, one epsilon --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stopping:
    inner: Any
    k: int = 0
    done: bool = False


@dataclass(frozen=True)
class StopsAt:
    """An aggregator that says that it is done after so many rounds."""

    inner: Aggregator[Any]
    rounds: int
    receives = ("update",)
    sends = ("model",)
    is_sum = True

    def init(self, params: Tensor) -> tuple[Tensor, Stopping]:
        received, state = self.inner.init(params)
        return received, Stopping(state)

    def __call__(self, message: Tensor, network: Network, state: Stopping) -> tuple[Tensor, Stopping]:
        received, own = self.inner(message, network, state.inner)
        return received, Stopping(own, state.k + 1, state.k + 1 >= self.rounds)


def stops_at_four() -> fp.Strategy:
    plain = fp.fedavg(0.5)
    return replace(plain, aggregator=StopsAt(plain.aggregator, 4))


def test_self_ended_run_reports_one_epsilon(tmp_path: Path) -> None:
    """Terminal, result.json and the read-back run must report the same epsilon."""
    overrides = [*SMALL, f"strategy={{name: '{__name__}:stops_at_four'}}", "privacy.epsilon=2"]
    done = cli("train", str(CONFIG), "--allow-plugins", *overrides, "--out", str(tmp_path))
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["rounds"], result["planned_rounds"], result["ended"]) == (4, 20, "strategy")
    assert result["epsilon"] == pytest.approx(2, rel=1e-4)
    shown, found = cli("show", str(tmp_path)).stdout, Run.read(tmp_path)
    for text in (done.stdout, shown):
        assert "epsilon=2 (delta=1e-5" in text
        assert "4 of 20: the strategy ended the run; the whole plan is charged" in text
        assert "overspend" not in text
    assert json.loads(cli("show", str(tmp_path), "--json").stdout)["epsilon"] == result["epsilon"]
    assert found.spent.epsilon == result["epsilon"] == found.metrics[-1]["epsilon"]
    assert "  4 of 20 " in comparison.format_table([found, found])[1]
    training = fp.Training(clients(), stops_at_four(), fp.Privacy(epsilon=2, delta=1e-3), rounds=20)
    list(training)
    price = training.population.clients[0].released_cost
    assert price == str(training.result().spent)
    assert "4 rounds (of 20: the strategy ended the run" in str(training.result())


def test_result_states_reason_of_end() -> None:
    def ended(privacy: fp.Privacy, strategy: fp.Strategy, leave: int = 0) -> str:
        training = fp.Training(clients(), strategy, privacy, rounds=20)
        for report in training:
            if report.round == leave:
                break
        return training.result().ended

    target = fp.Privacy(epsilon=2, delta=1e-3)
    assert ended(target, fp.fedavg(0.5)) == "rounds"
    assert ended(target, fp.fedavg(0.5), leave=5) == "left"
    assert ended(replace(target, noise_multiplier=1.0), fp.fedavg(0.5)) == "budget"
    assert ended(target, stops_at_four()) == ended(fp.Privacy(noise_on="none"), stops_at_four()) == "strategy"


# --- files that do not belong together -------------------------------------------------------------------------------


@pytest.mark.parametrize("finished", [True, False])
def test_truncated_ledger_reported_incomplete(finished: bool, tmp_path: Path) -> None:
    cli("train", str(CONFIG), *SMALL, "--out", str(tmp_path / "run"))
    run = tmp_path / "run"
    whole = json.loads((run / "result.json").read_text())["epsilon"]
    if not finished:
        (run / "result.json").unlink()
    ledger = run / "ledger.jsonl"
    lines = ledger.read_text().splitlines(keepends=True)
    assert len(lines) == 21
    ledger.write_text("".join(lines[:6]))
    assert account(read_ledger(ledger), 3, 1e-5).epsilon < 0.6 * whole
    text = cli("show", str(run), code=1).stdout
    assert "unknown: the run is incomplete" in text
    assert "ledger.jsonl has 5 records, but" in text
    assert "epsilon=" not in text
    facts = json.loads(cli("show", str(run), "--json", code=1).stdout)
    assert "has 5 records, but" in facts["findings"][0]
    assert (facts["integrity"], facts["epsilon"], facts.get("per_client_epsilon")) == ("incomplete", None, None)
    two = cli("show", str(run), str(run), code=1).stdout
    assert two.count(" incomplete ") == two.count("is incomplete: ") == 2
    assert "together" not in two


def test_complete_ledger_reported_sound(tmp_path: Path) -> None:
    cli("train", str(CONFIG), *SMALL, "--out", str(tmp_path))
    facts = json.loads(cli("show", str(tmp_path), "--json").stdout)
    result = json.loads((tmp_path / "result.json").read_text())
    assert (facts["integrity"], facts["findings"]) == ("sound", [])
    assert facts["epsilon"] == result["epsilon"]


def test_ledger_with_extra_record_reported_altered(tmp_path: Path) -> None:
    cli("train", str(CONFIG), *SMALL, "--out", str(tmp_path))
    ledger = tmp_path / "ledger.jsonl"
    rewrite(ledger, [*lines_of(ledger), lines_of(ledger)[-1]])
    assert Run.read(tmp_path).integrity == "altered"
    assert "21 records, but result.json counts 20" in Run.read(tmp_path).privacy
