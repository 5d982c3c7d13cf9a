"""Noise that is added in float64 has a price of real numbers: the epsilon line says so, and says it of no other."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import fedpriv as command
from commands import trained
from privacy_worlds import blank, clients_of

import fedpriv as fp
from fedpriv.config.recovered_plan import recover_plan
from fedpriv.errors import LedgerError
from fedpriv.privacy import mechanisms
from fedpriv.privacy.accounting.accountant import Accountant
from fedpriv.privacy.accounting.events import Event, PrivacyCost
from fedpriv.privacy.budget_file import BudgetLines, BudgetTerms, Reserved, to_plain
from fedpriv.privacy.budget_shares import compute_shares, compute_spending
from fedpriv.privacy.composition import RunCost, compose
from fedpriv.privacy.float64_noise import float64_noise_of_run
from fedpriv.privacy.ledger import Ledger
from fedpriv.privacy.ledger_file import LedgerFile
from fedpriv.privacy.mechanisms import Gaussian
from fedpriv.privacy.pairwise import RandomRegular
from fedpriv.reports.spending import compute_run_charge
from fedpriv.runs.run_directory import check_rounding
from fedpriv.runs.run_files import RunFiles
from fedpriv.runs.total import total

BUFFERED: dict[str, Any] = {"noise": fp.BLT(2), "sampling": fp.Cyclic(2)}
LAPLACE: dict[str, Any] = {"mechanism": fp.Laplace(), "clip": fp.Clip(1.0, "l1")}


@dataclass(frozen=True)
class OwnGaussian(Gaussian):
    """A user-defined mechanism, which could draw anything."""


RUNS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "gaussian": ({}, ()),
    "laplace": (LAPLACE, ()),
    "poisson": ({"sampling": fp.Poisson(0.5)}, ()),
    "central": ({"trust": fp.Central()}, ()),
    "secure aggregation": ({"trust": fp.SecureAggregation(2)}, ()),
    "secure aggregation, laplace": ({**LAPLACE, "trust": fp.SecureAggregation(2)}, ()),
    "pairs": ({"trust": fp.Pairwise(1, 2.0)}, ()),
    "over time": ({"noise": fp.BSR(2), "sampling": fp.Cyclic(2)}, ()),
    "over time, buffered": (BUFFERED, ()),
    "pairs over time": (
        {"trust": fp.Pairwise(1, 2.0), "noise": fp.BSR(2), "sampling": fp.Cyclic(2)},
        (),
    ),
    "over time, buffered, sums": ({**BUFFERED, "trust": fp.SecureAggregation(2)}, ()),
    "over time, sums": ({"noise": fp.BSR(2), "sampling": fp.Cyclic(2), "trust": fp.Central()}, ()),
    "pairs over time, buffered": (
        {**BUFFERED, "trust": fp.Pairwise(1, 2.0)},
        (),
    ),
    "some pairs": ({"trust": fp.Pairwise(0, 2.0, RandomRegular(2))}, ()),
    "custom mechanism over time": ({**BUFFERED, "mechanism": OwnGaussian()}, ("noise of an own mechanism",)),
    "custom mechanism": ({"mechanism": OwnGaussian()}, ("noise of an own mechanism",)),
}


@pytest.mark.parametrize("name", RUNS)
def test_epsilon_line_rounding_equals_code(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each release is rounded as a real number, with pairwise noise, or the line contains rounding=float64."""
    settings, kinds = RUNS[name]
    exact = list[bool]()
    decide = mechanisms.is_rounded_exactly

    def watched(*arguments: Any) -> bool:
        exact.append(decide(*arguments))
        return exact[-1]

    monkeypatch.setattr(mechanisms, "is_rounded_exactly", watched)
    budget = fp.Budget.create(tmp_path / "budget.jsonl", epsilon=9.0, delta=1e-5, invariants="same blocks")
    privacy = fp.Privacy(epsilon=3.0, budget=budget.path, **settings)
    planned = fp.plan(clients_of(blank((6, 6, 6))), fp.fedavg(0.1), privacy, rounds=2)
    result = fp.train(clients_of(blank((6, 6, 6))), fp.fedavg(0.1), privacy, rounds=2, seed=0)
    assert len(exact) >= 2
    assert result.spent.float64_noise == kinds
    assert all(exact) == (not kinds)
    line = str(result.spent)
    assert line.endswith(", rounding=float64)") == bool(kinds)
    for together in (total([result]), budget.balance().spent, planned.spent):
        assert str(together).endswith(", rounding=float64)") == bool(kinds)


def test_composed_runs_report_float64_noise() -> None:
    exact, custom = (
        fp.train(clients_of(blank((6, 6))), fp.fedavg(0.1), fp.Privacy(epsilon=1.0, **settings), rounds=2, seed=seed)
        for seed, settings in enumerate(({}, RUNS["custom mechanism"][0]))
    )
    assert total([exact, custom]).float64_noise == RUNS["custom mechanism"][1]
    assert total([exact]).float64_noise == ()


def test_device_noise_reported_as_float64() -> None:
    for kind in ("cuda", "mps"):
        assert float64_noise_of_run(fp.Privacy(epsilon=1.0), torch.device(kind)) == (f"noise on a device ({kind})",)
    assert float64_noise_of_run(fp.Privacy(epsilon=1.0), torch.device("cpu")) == ()
    assert float64_noise_of_run(fp.Privacy(noise_on="none"), torch.device("cuda")) == ()
    planned = fp.plan([6, 6], fp.fedavg(0.1), fp.Privacy(epsilon=1.0), rounds=2, compute=fp.Compute(device="cuda"))
    assert planned.spent.float64_noise == ("noise on a device (cuda)",)
    on_device = RunCost("run", [], 1, float64_noise=("noise on a device (cuda)",))
    assert compose([on_device], 1e-5).float64_noise == ("noise on a device (cuda)",)


def test_non_private_run_reports_no_rounding() -> None:
    result = fp.train(clients_of(blank((6, 6))), fp.fedavg(0.1), fp.Privacy(noise_on="none"), rounds=1)
    assert result.spent.float64_noise == ()
    assert "rounding" not in str(result.spent)


def test_commands_and_statement_report_float64(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = trained(tmp_path / "exact", "privacy.trust={pairwise: {colluders: 1, ratio: 2}}", "rounds=2")
    with monkeypatch.context() as patch:  # as on a machine that has a device
        patch.setattr("fedpriv.planning.plan.float64_noise_of_run", lambda *_: ("noise on a device (cuda)",))
        on_device = trained(tmp_path / "device", "rounds=2")
    assert json.loads((on_device / "result.json").read_text())["float64_noise"] == ["noise on a device (cuda)"]
    assert json.loads((exact / "result.json").read_text())["float64_noise"] == []
    for words in (("show",), ("account",)):
        assert ", rounding=float64)" in command(*words, str(on_device)).stdout.replace("\n", "")
        assert "rounding=float64" not in command(*words, str(exact)).stdout.replace("\n", "")
    page = command("statement", str(on_device)).stdout
    assert "Not proved: that the lowest bits of noise on a device (cuda), which is added in float64" in page
    assert "Not proved" not in command("statement", str(exact)).stdout
    # the run may not be finished: the ledger alone says it, too
    (on_device / "result.json").unlink()
    assert ", rounding=float64)" in command("show", str(on_device)).stdout.replace("\n", "")


def test_custom_mechanism_noted_in_ledger(tmp_path: Path) -> None:
    """No record contains this noise, and a killed run has no result."""
    privacy = fp.Privacy(epsilon=3.0, mechanism=OwnGaussian())
    fp.train(clients_of(blank((6, 6))), fp.fedavg(0.1), privacy, rounds=2, seed=0, folder=tmp_path)
    (tmp_path / "result.json").unlink()
    files = RunFiles.read(tmp_path)
    assert str(files.counted).endswith(", rounding=float64)")
    together = compose([compute_run_charge(files, recover_plan(files))], 1e-5)
    assert together.float64_noise == ("noise of an own mechanism",)


def test_resume_with_other_rounding_raises(tmp_path: Path) -> None:
    """A run may not move from CPU to a device; after the opposite move, the float64 noise remains reported."""
    folder = tmp_path / "run"
    clients, privacy = clients_of(blank((6, 6))), fp.Privacy(epsilon=3.0)
    fp.train(clients, fp.fedavg(0.1), privacy, rounds=2, seed=0, folder=folder)
    with pytest.raises(LedgerError, match="line 1 declares exactly rounded noise"):
        check_rounding(LedgerFile.read(folder / "ledger.jsonl"), ("noise on a device (cuda)",))
    ledger = Ledger(Accountant(2, 1e-5), tmp_path / "device.jsonl", {"float64_noise": ["noise on a device (cuda)"]})
    ledger.sync()
    on_device = LedgerFile.read(tmp_path / "device.jsonl")
    check_rounding(on_device, ())
    check_rounding(on_device, ("noise on a device (cuda)",))


def test_earlier_budget_reports_float64_noise() -> None:
    terms = BudgetTerms(9.0, 1e-5, "sample", "replace_one", "", "data", None, "0" * 32)
    charges = to_plain({PrivacyCost(None, (Event("gaussian", 2.0),)): 3})
    for noted, rounding in ((None, True), ((), False), (("noise of Opacus",), True)):
        line = Reserved("noise", "run", "now", 2, "local", None, charges, noted)
        shares = compute_shares(BudgetLines(terms, (line,), "", 0))
        assert str(compute_spending([*shares.values()], terms)).endswith(", rounding=float64)") == rounding
