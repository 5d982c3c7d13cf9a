"""Extensions of finished runs by further rounds, with an epsilon for both parts."""

from __future__ import annotations

import gc
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from extended import ROUNDS, run, training
from typer.testing import CliRunner

import fedpriv as fp
from fedpriv.cli import app
from fedpriv.config.recovered_plan import recover_plan
from fedpriv.errors import LedgerError
from fedpriv.privacy.accounting.accountant import account
from fedpriv.privacy.accounting.calibration import calibrate_rest
from fedpriv.privacy.ledger_file import LedgerFile
from fedpriv.privacy.record import Record
from fedpriv.reports.spending import compute_run_charge
from fedpriv.runs.integrity import find_problems
from fedpriv.runs.run_files import RunFiles

CONFIG = """
data: {name: digits, partition: {kind: iid, n_clients: 3}}
model: softmax
loss: cross_entropy
strategy: {name: fedavg, learning_rate: 0.5}
privacy: {epsilon: 2.0, sampling: {poisson: {rate: 0.1}}}
rounds: 3
log: {csv: true}
"""


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    run(tmp_path / "a", ROUNDS)
    return tmp_path / "a"


def ledger(folder: Path) -> LedgerFile:
    return LedgerFile.read(folder / "ledger.jsonl")


def test_extended_ledger_includes_earlier_records(finished: Path) -> None:
    folder = finished.with_name("b")
    result = run(folder, 9, epsilon=3.0, extend=finished)
    before, records = ledger(finished).records, ledger(folder).records
    assert records[:ROUNDS] == before
    assert [record.round for record in records] == list(range(9))
    assert result.spent.epsilon == account(records, 2, 1e-5).epsilon
    assert account(records[ROUNDS:], 2, 1e-5).epsilon < 2.99 < result.spent.epsilon <= 3.0
    assert (result.rounds, result.releases) == (9, 9)
    assert find_problems(RunFiles.read(folder)) == []


def test_two_extensions_use_different_attempts(finished: Path) -> None:
    """The attempt number is part of the noise key, so no extension repeats noise."""
    first, second = (finished.with_name(name) for name in "bc")
    for folder in (first, second):
        run(folder, 6, epsilon=3.0, extend=finished)
    further = [ledger(folder).records[ROUNDS:] for folder in (first, second)]
    attempts = {record.attempt for records in further for record in records}
    assert len(attempts) == 2
    assert 0 not in attempts


@pytest.mark.parametrize("strategy", [fp.fedavg(0.5), fp.inexact_admm()], ids=["fedavg", "inexact_admm"])
def test_extension_continues_model_and_state(strategy: fp.Strategy, tmp_path: Path) -> None:
    exact: dict[str, Any] = {"privacy": fp.Privacy(noise_on="none"), "strategy": strategy, "seed": 1}
    run(tmp_path / "a", 3, **exact)
    extended = run(tmp_path / "b", 7, **exact, extend=tmp_path / "a")
    longer = run(None, 7, **exact)
    torch.testing.assert_close(extended.params, longer.params, rtol=0, atol=0)
    assert not torch.equal(extended.params, run(None, 4, **exact).params)
    assert math.isinf(extended.spent.epsilon)


def test_extension_error_gives_sufficient_epsilon(finished: Path) -> None:
    folder = finished.with_name("b")
    with pytest.raises(fp.ConfigError, match=r"the first 4 rounds spent .* all rounds together cost (\d)") as error:
        run(folder, 8, extend=finished)
    assert not (folder / "ledger.jsonl").exists()
    cost = float(str(error.value).partition("privacy.epsilon=")[2].partition(",")[0])
    result = run(folder, 8, extend=finished, epsilon=cost)
    assert result.noise_multiplier == pytest.approx(ledger(finished).records[0].noise_multiplier, rel=2e-3)
    assert result.spent.epsilon <= cost


def test_extension_uses_given_noise_multiplier(tmp_path: Path) -> None:
    loud: dict[str, Any] = {"privacy": fp.Privacy(noise_multiplier=2.0)}
    quiet: dict[str, Any] = {"privacy": fp.Privacy(noise_multiplier=1.0)}
    run(tmp_path / "a", 2, **loud)
    result = run(tmp_path / "b", 4, **quiet, extend=tmp_path / "a")
    # unsampled Gaussian answers: squared ratios add up
    once = run(None, 1, privacy=fp.Privacy(noise_multiplier=1 / math.sqrt(2 / 4 + 2))).spent.epsilon
    assert result.spent.epsilon == pytest.approx(once, rel=1e-6)
    assert [record.noise_multiplier for record in ledger(tmp_path / "b").records] == [2.0, 2.0, 1.0, 1.0]


def test_extension_with_noise_stops_at_target(tmp_path: Path) -> None:
    run(tmp_path / "a", 2, privacy=fp.Privacy(noise_multiplier=3.0))
    limited = fp.Privacy(
        noise_multiplier=3.0, epsilon=run(None, 3, privacy=fp.Privacy(noise_multiplier=3.0)).spent.epsilon
    )
    result = run(tmp_path / "b", 9, privacy=limited, extend=tmp_path / "a")
    assert (result.ended, result.rounds) == ("budget", 3)


def test_extended_run_extended_again(finished: Path) -> None:
    b, c = finished.with_name("b"), finished.with_name("c")
    run(b, 6, epsilon=3.0, extend=finished)
    result = run(c, 8, epsilon=4.0, extend=b)
    assert ledger(c).records[:6] == ledger(b).records
    assert 3.0 < result.spent.epsilon == account(ledger(c).records, 2, 1e-5).epsilon <= 4.0


def test_extensions_share_first_run_id(finished: Path) -> None:
    """An extension may share the secret draw of an epoch with another extension of the same run."""
    b, c = finished.with_name("b"), finished.with_name("c")
    run(b, 6, epsilon=3.0, extend=finished)
    run(c, 8, epsilon=4.0, extend=b)
    names = {ledger(folder).first_run for folder in (finished, b, c)}
    assert names == {ledger(finished).header.run}
    assert len({ledger(folder).header.run for folder in (finished, b, c)}) == 3


def test_extension_in_memory(finished: Path) -> None:
    result = run(None, 6, epsilon=3.0, extend=finished)
    assert 2.0 < result.spent.epsilon <= 3.0
    assert result.releases == 6


def test_extended_run_resumes(finished: Path) -> None:
    folder = finished.with_name("b")
    first = training(folder, 9, epsilon=3.0, extend=finished, checkpoint_every=2)
    noise = first.plan.privacy.noise_multiplier
    for report in first:
        if report.round == 7:
            break
    del first
    gc.collect()
    with pytest.raises(fp.FedprivError, match="other settings"):
        training(folder, 10, epsilon=3.0, resume=True)
    again = training(folder, 9, epsilon=3.0, resume=True)
    assert again.plan.privacy.noise_multiplier == noise
    for _ in again:
        pass
    records, result = ledger(folder).records, again.result()
    assert (result.ended, result.rounds) == ("rounds", 9)
    assert len(records) == result.releases == 9
    assert result.spent.epsilon == account(records, 2, 1e-5).epsilon <= 3.0
    assert find_problems(RunFiles.read(folder)) == []


def test_budget_charges_added_rounds_only(tmp_path: Path) -> None:
    path = tmp_path / "budget.jsonl"
    budget = fp.Budget.create(path, epsilon=5.0, delta=1e-5)
    paid = {"sampling": fp.Poisson(0.2), "budget": path}
    run(tmp_path / "a", 4, privacy=fp.Privacy(epsilon=2.0, **paid))
    once = budget.balance().spent.epsilon
    result = run(tmp_path / "b", 8, privacy=fp.Privacy(epsilon=3.0, **paid), extend=tmp_path / "a")
    assert once < budget.balance().spent.epsilon == pytest.approx(result.spent.epsilon, rel=1e-3)
    with pytest.raises(fp.LedgerError, match="would continue without it"):
        run(tmp_path / "c", 8, epsilon=3.0, extend=tmp_path / "a")


def test_extended_run_reserves_only_new_releases(tmp_path: Path) -> None:
    """Also when it resumes, which it then does without the folder of the earlier run."""
    path = tmp_path / "budget.jsonl"
    budget = fp.Budget.create(path, epsilon=5.0, delta=1e-5)
    paid = {"sampling": fp.Poisson(0.2), "budget": path}
    run(tmp_path / "a", ROUNDS, privacy=fp.Privacy(epsilon=2.0, **paid))
    further: dict[str, Any] = {"privacy": fp.Privacy(epsilon=3.0, **paid), "checkpoint_every": 1}
    first = training(tmp_path / "b", 8, **further, extend=tmp_path / "a")
    planned, target = list(first.plan.releases.records), first.plan.enforced_target
    assert [record.round for record in planned] == [4, 5, 6, 7]
    assert [record.round for record in first.plan.records] == list(range(8))
    reserved = budget.balance().entries[-1].epsilon
    assert reserved == pytest.approx(account(planned, 2, 1e-5).epsilon)
    next(iter(first))
    del first
    gc.collect()
    shutil.rmtree(tmp_path / "a")
    again = training(tmp_path / "b", 8, **further, resume=True)
    assert list(again.plan.releases.records) == planned
    assert again.plan.enforced_target == target == 3.0
    for _ in again:
        pass
    assert budget.balance().entries[-1].epsilon == pytest.approx(reserved)


def test_extended_run_stopped_by_its_target_returns_nothing(tmp_path: Path) -> None:
    path = tmp_path / "budget.jsonl"
    budget = fp.Budget.create(path, epsilon=20.0, delta=1e-5)
    run(tmp_path / "a", 2, privacy=fp.Privacy(noise_multiplier=3.0, budget=path))
    limit = run(None, 3, privacy=fp.Privacy(noise_multiplier=3.0)).spent.epsilon
    limited = fp.Privacy(noise_multiplier=3.0, epsilon=limit, budget=path)
    further = training(tmp_path / "b", 9, privacy=limited, extend=tmp_path / "a")
    reserved = budget.balance().entries[-1].epsilon
    assert [report.round for report in further] == [3]
    assert further.result().ended == "budget"
    assert budget.balance().entries[-1].epsilon == pytest.approx(reserved)


@pytest.mark.parametrize("sampling", ["full", "poisson"])
@pytest.mark.parametrize("target", [1.5, 3.0, 20.0])
def test_calibration_of_added_rounds_is_tight(sampling: Any, target: float) -> None:
    rate = 1.0 if sampling == "full" else 0.1

    def record(number: int, noise: float) -> Record:
        return Record(number, "gradient", 0, "gaussian", noise, "sample", "replace_one", sampling=sampling, rate=rate)

    spent, plan = [record(t, 6.0 if rate == 1 else 1.5) for t in range(5)], [record(5 + t, 1.0) for t in range(3)]
    factor = calibrate_rest(spent, plan, 2, target, 1e-5)

    def whole(multiplier: float) -> float:
        return account([*spent, *(record(5 + t, multiplier) for t in range(3))], 2, 1e-5).epsilon

    assert whole(factor) <= target < whole(factor * 0.998)


def test_cli_extends_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(CONFIG)

    def fedpriv(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, words)
        return done.exit_code, " ".join((done.output + str(done.exception or "")).split())

    assert fedpriv("train", "run.yaml", "--out", "a")[0] == 0
    files = {path.name: path.read_bytes() for path in Path("a").iterdir() if path.is_file()}

    code, said = fedpriv("train", "--extend", "a", "rounds=6")
    assert code != 0
    assert "set privacy.epsilon=" in said
    code, said = fedpriv("train", "--extend", "a", "rounds=6", "privacy.epsilon=3", "strategy.learning_rate=0.1")
    assert code != 0
    assert "strategy.learning_rate: 0.5 then, 0.1 now" in said
    code, said = fedpriv("train", "run.yaml", "rounds=6", "--extend", "a")
    assert code != 0
    assert "leave it out" in said
    assert fedpriv("train")[0] == 2

    code, said = fedpriv("train", "--extend", "a", "rounds=6", "privacy.epsilon=3")
    assert code == 0, said
    assert "extending a from round 3; the privacy cost includes its releases" in said
    assert {path.name: path.read_bytes() for path in Path("a").iterdir() if path.is_file()} == files
    made = Path("runs/a-extended-1")
    assert [json.loads(line)["round"] for line in (made / "metrics.jsonl").read_text().splitlines()] == [*range(1, 7)]
    assert len((made / "metrics.csv").read_text().splitlines()) == 7
    code, said = fedpriv("show", str(made))
    assert code == 0
    assert "an earlier run (3 rounds, 3 records)" in said
    shown = json.loads(CliRunner().invoke(app, ["show", "--json", str(made)]).output)
    assert 2.0 < shown["epsilon"] <= 3.0
    assert shown["integrity"] == "sound"
    both = json.loads(CliRunner().invoke(app, ["account", "--json", "a", str(made)]).output)
    assert both["epsilon"] > shown["epsilon"], "the first part is counted in each of the two ledgers"
    assert fedpriv("statement", str(made), "--out", "page.md")[0] == 0
    assert "A run that extends an earlier one includes its releases" in Path("page.md").read_text()

    # stopped before its end: as any other run
    shutil.copytree(made, "stopped")
    (Path("stopped") / "result.json").unlink()
    assert fedpriv("resume", "stopped")[0] == 0


def test_target_below_spent_reports_spent(finished: Path) -> None:
    spent = account(ledger(finished).records, 2, 1e-5).epsilon
    settings = fp.Privacy(epsilon=spent / 2, noise_multiplier=1.0, sampling=fp.Poisson(0.2))
    further = training(finished.with_name("b"), 9, privacy=settings, extend=finished)
    assert further.result().spent.epsilon >= spent
    assert list(further) == []
    assert further.result().ended == "budget"
    assert further.result().spent.epsilon == spent


def test_extension_keeps_uncovered_disclosures(tmp_path: Path) -> None:
    """A Python run writes no result, and its extension does not compute the optimality gap again."""
    gap = ("the optimality gap, exact",)
    first = run(tmp_path / "a", ROUNDS, optimum=0.5)
    assert first.optimality_gap is not None
    assert first.spent.not_covered == gap
    gc.collect()
    files = RunFiles.read(tmp_path / "a")
    assert compute_run_charge(files, recover_plan(files)).not_covered == gap
    assert RunFiles.read(tmp_path / "a").counted.not_covered == gap
    assert run(tmp_path / "b", 6, epsilon=3.0, extend=tmp_path / "a").spent.not_covered == gap
    gc.collect()
    assert RunFiles.read(tmp_path / "b").counted.not_covered == gap


def test_resume_discloses_as_ledger(tmp_path: Path) -> None:
    for name, optimum in (("with", 0.5), ("without", None)):
        stopped = training(tmp_path / name, ROUNDS, optimum=optimum, checkpoint_every=1)
        rounds = iter(stopped)
        next(rounds)
        next(rounds)
        rounds.close()
        del stopped, rounds
        gc.collect()
    assert run(tmp_path / "with", ROUNDS, resume=True, checkpoint_every=1).spent.not_covered != ()
    with pytest.raises(LedgerError, match=r"line 1 does not list the optimality gap, exact.*log\.optimum"):
        training(tmp_path / "without", ROUNDS, resume=True, checkpoint_every=1, optimum=0.5)
