"""Runs that count the releases of an earlier run with another model: one ledger, one target, one epsilon."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import torch
from extended import ROUNDS, run, training

import fedpriv as fp
from fedpriv.planning.plan import BEFORE
from fedpriv.privacy.accounting import gaussian
from fedpriv.privacy.ledger_file import LedgerFile
from fedpriv.runs.integrity import find_problems
from fedpriv.runs.run_files import RunFiles

FULL = fp.FullBatch()


@pytest.fixture
def look(tmp_path: Path) -> Path:
    """A finished release of statistics, with two owners and 20 rows each."""
    table = {"x": torch.linspace(-1, 1, 20).tolist()}
    asked = [fp.statistics.Mean("x", (-1, 1))]
    fp.describe([table, table], asked, fp.Privacy(epsilon=0.5), folder=tmp_path / "look")
    return tmp_path / "look"


def test_epsilon_of_both_is_the_target(look: Path, tmp_path: Path):
    result = run(tmp_path / "run", ROUNDS, after=look, sampling=FULL)
    assert 1.99 < result.spent.epsilon <= 2.0
    first, *others = LedgerFile.read(tmp_path / "run" / "ledger.jsonl").records
    assert first.round == BEFORE and [record.round for record in others] == [*range(ROUNDS)]
    # Gaussian mechanisms compose by their squared sensitivity / noise
    ratio = sum(record.noise_multiplier**-2 for record in [first, *others]) ** 0.5
    assert gaussian.compute_epsilon(ratio, 1e-5) == pytest.approx(2.0, rel=1e-3)
    assert result.releases == ROUNDS + 1
    assert find_problems(RunFiles.read(tmp_path / "run")) == []


def test_earlier_run_leaves_less_for_training(look: Path):
    alone = training(None, ROUNDS, sampling=FULL).plan.privacy.noise_multiplier
    after = training(None, ROUNDS, sampling=FULL, after=look)
    assert alone < after.plan.privacy.noise_multiplier
    assert after.plan.spent().epsilon <= 2.0
    assert any("counts 1 release of an earlier run" in warning for warning in after.warnings)


def test_sampled_training_counts_it_too(look: Path):
    plan = training(None, ROUNDS, after=look).plan
    assert 1.9 < plan.spent().epsilon <= 2.0 and len(plan.records) == ROUNDS + 1


def test_independent_verifier_agrees(look: Path, tmp_path: Path):
    sys.path.insert(0, "tools")
    import fedpriv_verify as verifier

    run(tmp_path / "run", ROUNDS, after=look, sampling=FULL)
    header, records = verifier.read(tmp_path / "run" / "ledger.jsonl")
    assert len(records) == ROUNDS + 1
    assert verifier.histories_of(header, records)


@pytest.mark.parametrize("rounds_done", [0, 1, 3])
def test_resume_releases_nothing_twice(look: Path, tmp_path: Path, rounds_done: int):
    """The folder of the statistics is not even needed after the first checkpoint."""
    first = training(tmp_path / "run", ROUNDS, after=look, sampling=FULL, checkpoint_every=1)
    for _, _ in zip(range(rounds_done), first, strict=False):
        pass
    first._directory.folder.close()  # as after a kill
    shutil.rmtree(look)
    result = run(tmp_path / "run", ROUNDS, resume=True, sampling=FULL, checkpoint_every=1)
    rounds = [record.round for record in LedgerFile.read(tmp_path / "run" / "ledger.jsonl").records]
    assert rounds == [BEFORE, *range(ROUNDS)]
    assert 1.99 < result.spent.epsilon <= 2.0 and result.rounds == ROUNDS


def test_killed_before_first_checkpoint_starts_again(look: Path, tmp_path: Path):
    first = training(tmp_path / "run", ROUNDS, after=look, sampling=FULL)
    first._directory.folder.close()
    (tmp_path / "run" / "checkpoint.pt").unlink()
    result = run(tmp_path / "run", ROUNDS, resume=True, after=look, sampling=FULL)
    assert result.releases == ROUNDS + 1 and result.spent.epsilon <= 2.0


def test_extended_run_keeps_counting_it(look: Path, tmp_path: Path):
    run(tmp_path / "run", ROUNDS, after=look, sampling=FULL)
    longer = run(tmp_path / "longer", ROUNDS + 2, extend=tmp_path / "run", epsilon=3.0, sampling=FULL)
    assert longer.releases == ROUNDS + 3
    assert 2.9 < longer.spent.epsilon <= 3.0


def test_early_end_charges_the_whole_plan_and_it(look: Path, tmp_path: Path):
    started = training(tmp_path / "run", ROUNDS, after=look, sampling=FULL)
    next(iter(started))
    assert started._release_path.accountant.charged_at_end("strategy", 1).epsilon == pytest.approx(2.0, rel=1e-3)
    assert started._release_path.accountant.charged_at_end("left", 0).epsilon == pytest.approx(2.0, rel=1e-3)


def test_budget_charged_once_for_each(tmp_path: Path):
    budget = fp.Budget.create(tmp_path / "b.jsonl", epsilon=2, delta=1e-5)
    table = {"x": torch.linspace(-1, 1, 20).tolist()}
    privacy = fp.Privacy(epsilon=0.5, budget=budget.path)
    fp.describe([table, table], [fp.statistics.Mean("x", (-1, 1))], privacy, folder=tmp_path / "look")
    both = fp.Privacy(epsilon=2, sampling=FULL, budget=budget.path)
    run(tmp_path / "run", ROUNDS, after=tmp_path / "look", privacy=both)
    assert 1.99 < budget.balance().spent.epsilon <= 2.0


def test_kill_before_the_reservation_reserves_on_resume(tmp_path: Path):
    """The earlier run's releases in the ledger do not count as releases of a run without a reservation."""
    budget = fp.Budget.create(tmp_path / "b.jsonl", epsilon=2, delta=1e-5)
    table = {"x": torch.linspace(-1, 1, 20).tolist()}
    privacy = fp.Privacy(epsilon=0.5, budget=budget.path)
    fp.describe([table, table], [fp.statistics.Mean("x", (-1, 1))], privacy, folder=tmp_path / "look")
    both = fp.Privacy(epsilon=2, sampling=FULL, budget=budget.path)
    before = {path: path.read_bytes() for path in tmp_path.glob("b.jsonl*")}
    training(tmp_path / "run", ROUNDS, after=tmp_path / "look", privacy=both)._directory.folder.close()
    for path, content in before.items():
        path.write_bytes(content)
    run(tmp_path / "run", ROUNDS, resume=True, privacy=both)
    assert 1.99 < budget.balance().spent.epsilon <= 2.0


@pytest.mark.parametrize("with_budget", ["look", "run"])
def test_budget_of_one_run_only_raises(tmp_path: Path, with_budget: str):
    budget = fp.Budget.create(tmp_path / "b.jsonl", epsilon=3, delta=1e-5)
    paths = {name: budget.path if name == with_budget else None for name in ("look", "run")}
    table = {"x": torch.linspace(-1, 1, 20).tolist()}
    privacy = fp.Privacy(epsilon=0.5, budget=paths["look"])
    fp.describe([table, table], [fp.statistics.Mean("x", (-1, 1))], privacy, folder=tmp_path / "look")
    with pytest.raises(fp.LedgerError, match="budget"):
        training(None, ROUNDS, after=tmp_path / "look", privacy=fp.Privacy(epsilon=2, budget=paths["run"]))


def test_other_guarantees_raise(look: Path, tmp_path: Path):
    for changes, text in (
        ({"trust": fp.Central()}, "the same privacy unit, relation and trust"),
        ({"unit": "client"}, "differ in privacy unit"),
        ({"relation": "add_remove"}, "differ in privacy unit"),
        ({"noise": fp.BSR(2)}, "correlated noise"),
    ):
        with pytest.raises(fp.FedprivError, match=text):
            training(None, ROUNDS, after=look, privacy=fp.Privacy(epsilon=2, **changes))
    with pytest.raises(fp.FedprivError):
        training(None, ROUNDS, after=tmp_path / "nothing")
    with pytest.raises(fp.ConfigError, match="cannot be combined with extend"):
        training(None, ROUNDS, after=look, extend=look)


def test_other_clients_and_unfinished_runs_raise(look: Path, tmp_path: Path):
    table = {"x": torch.linspace(-1, 1, 20).tolist()}
    fp.describe(table, [fp.statistics.Mean("x", (-1, 1))], fp.Privacy(epsilon=0.5), folder=tmp_path / "one")
    with pytest.raises(fp.ConfigError, match="1 clients instead of 2"):
        training(None, ROUNDS, after=tmp_path / "one")
    begun = training(tmp_path / "begun", ROUNDS)
    next(iter(begun))
    with pytest.raises(fp.FedprivError, match="not finished"):
        training(None, ROUNDS, after=tmp_path / "begun")
    (look / "ledger.jsonl").unlink()
    with pytest.raises(fp.FedprivError):
        training(None, ROUNDS, after=look)


def test_earlier_releases_of_some_clients_raise(tmp_path: Path):
    """Their cost depends on which client is which, and the later run may have another order."""
    examples = [[(torch.ones(1), 0), (torch.ones(1), 1)] for _ in range(2)]
    clients = fp.make_clients(torch.nn.Linear(1, 2), torch.nn.CrossEntropyLoss(), examples)
    cohorts = fp.Star(2, fp.FixedCohort(1))
    fp.train(clients, fp.fedavg(0.1), fp.Privacy(epsilon=0.5), rounds=1, network=cohorts, folder=tmp_path / "some")
    with pytest.raises(fp.ConfigError, match="releases of some clients"):
        training(None, ROUNDS, after=tmp_path / "some")
