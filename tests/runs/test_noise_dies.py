"""Noise dies with its process: no file makes it again, each release of a plan is made once, copies have other noise."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.clients.population import Population
from fedpriv.errors import ConfigError, DataError, LedgerError
from fedpriv.oracle.sampler import BatchSampler
from fedpriv.privacy.accounting.accountant import account
from fedpriv.privacy.budget import Budget
from fedpriv.privacy.ledger_file import read_ledger
from fedpriv.randomness.streams import Randomness
from fedpriv.runs.checkpoint import Checkpoint
from fedpriv.runs.integrity import find_problems
from fedpriv.runs.run_files import RunFiles

ROUNDS = 12
N_CLIENTS = 4


def clients(scale: float = 1.0) -> list[fp.Client]:
    draw = torch.Generator().manual_seed(1)
    data = [TensorDataset(scale * torch.randn(15, 4, generator=draw), torch.arange(15) % 2) for _ in range(N_CLIENTS)]
    torch.manual_seed(0)
    return fp.make_clients(torch.nn.Linear(4, 2), torch.nn.CrossEntropyLoss(), data)


def training(folder: Path | None, case: str, *, scale: float = 1.0, **options: Any) -> fp.Training:
    strategy, privacy, problem = CASES[case]
    members = clients(scale)
    if problem is not None:
        for client in members:
            client.problem = problem
    settings = {"rounds": ROUNDS, "seed": 1, "checkpoint_every": 4, **options}
    return fp.Training(members, strategy(), fp.Privacy(**privacy), folder=folder, **settings)


Case = tuple[Callable[[], fp.Strategy], dict[str, Any], Any]
CASES: dict[str, Case] = {
    "poisson": (lambda: fp.fedavg(0.1, local_steps=2), {"epsilon": 3, "sampling": fp.Poisson(0.5)}, None),
    "fixed noise": (lambda: fp.fedavg(0.1), {"noise_multiplier": 5.0}, None),
    "correlated noise": (lambda: fp.fedavg(0.1), {"epsilon": 3, "sampling": fp.Cyclic(3), "noise": fp.BSR(3)}, None),
    "buffered noise": (lambda: fp.fedavg(0.1), {"epsilon": 3, "noise": fp.BLT(2)}, None),
    "allocation": (lambda: fp.fedavg(0.1), {"epsilon": 3, "sampling": fp.Allocation(5)}, None),
    "cohorts": (
        lambda: fp.fedavg(0.1),
        {"epsilon": 3, "unit": "client", "trust": fp.Central(cohort_rounds=3)},
        None,
    ),
    "messages": (
        lambda: fp.fedavg(0.1, local_steps=2),
        {"epsilon": 3, "unit": "client", "noise_on": "message"},
        None,
    ),
    "pairs": (lambda: fp.fedavg(0.1), {"epsilon": 3, "trust": fp.Pairwise(colluders=1, ratio=4.0)}, None),
    "svrg": (lambda: fp.svrg(1.0, 3, smoothness=0.25), {"epsilon": 3}, None),
}


def kill_after(run: fp.Training, stop: int) -> None:
    """Makes rounds up to number `stop`, and dies there: nothing is saved at the end."""
    for report in run:
        if report.round == stop:
            run._directory.save = lambda *_: None  # a process that is killed writes nothing more
            break
    assert run.folder is not None
    run.folder.close()


def finished(run: fp.Training) -> fp.Result:
    for _ in run:
        pass
    result = run.result()
    if run.folder is not None:
        run.folder.close()
    return result


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("stops", [(6,), (3,), (5, 9), (2, 3, 7, 11)], ids=str)
def test_killed_run_makes_each_release_once(tmp_path: Path, case: str, stops: tuple[int, ...]) -> None:
    run = training(tmp_path, case)
    planned = run.plan.records
    price = run.plan.spent().epsilon
    for number, stop in enumerate(stops):
        if number:
            run = training(tmp_path, case, resume=True)
        kill_after(run, stop)
    result = finished(training(tmp_path, case, resume=True))
    records = read_ledger(tmp_path / "ledger.jsonl")
    made = Counter((record.round, record.query, record.index) for record in records)
    assert set(made.values()) == {1}
    assert {*made} <= {(record.round, record.query, record.index) for record in planned}
    assert result.rounds == ROUNDS
    assert result.spent.epsilon <= price * (1 + 1e-9)
    assert account(records, N_CLIENTS, 1e-5).epsilon <= price * (1 + 1e-9)


@pytest.mark.parametrize("case", ["poisson", "allocation", "correlated noise", "messages"])
def test_lost_rounds_make_no_release_and_keep_model(tmp_path: Path, case: str) -> None:
    kill_after(training(tmp_path, case), 7)
    resumed = training(tmp_path, case, resume=True)
    last = resumed._release_path.first_round  # with random allocation the rest of its epoch is lost, too
    assert any(f"rounds 5 to {last} were released" in warning for warning in resumed.warnings)
    before = resumed.progress.models.clone()
    reports = iter(resumed)
    for _ in range(3):
        next(reports)
        torch.testing.assert_close(resumed.progress.models, before)
    for _ in range(resumed._release_path.first_round - 7):
        next(reports)  # the rest of the epoch of random allocation
    n_records = len(resumed.ledger.records)
    next(reports)
    assert len(resumed.ledger.records) > n_records
    assert not torch.equal(resumed.progress.models, before)


def test_killed_non_private_run_matches_uninterrupted(tmp_path: Path) -> None:
    options = {"noise_on": "none", "sampling": fp.Poisson(0.5)}
    CASES["none"] = (lambda: fp.fedavg(0.1, local_steps=2), options, None)
    try:
        whole = finished(training(tmp_path / "whole", "none"))
        kill_after(training(tmp_path / "killed", "none"), 6)
        resumed = finished(training(tmp_path / "killed", "none", resume=True))
    finally:
        del CASES["none"]
    assert torch.equal(whole.params, resumed.params)


def test_abandoned_run_saves_last_round(tmp_path: Path) -> None:
    run = training(tmp_path, "poisson")
    reports = iter(run)
    for _ in range(6):
        next(reports)
    reports.close()
    assert run.folder is not None
    run.folder.close()
    resumed = training(tmp_path, "poisson", resume=True)
    assert resumed.progress.round == 6
    assert not any("were released before" in warning for warning in resumed.warnings)


def test_files_contain_no_noise_key(tmp_path: Path) -> None:
    run = training(tmp_path, "allocation")
    secret = run._identity.randomness
    reports = iter(run)
    for _ in range(7):
        next(reports)
    reports.close()
    forbidden = [f"{secret.secret_seed:x}", str(secret.secret_seed), secret._secret.hex()]
    forbidden += [key.hex() for index in range(8) for key in secret.key_bytes("noise", index, 0, range(N_CLIENTS))]
    held = [text.encode() for text in forbidden] + [bytes.fromhex(text) for text in forbidden if len(text) == 64]
    held.append(secret.secret_seed.to_bytes(16, "big"))
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        content = path.read_bytes()
        assert not any(text in content for text in held), path.name


def test_checkpoint_holds_epoch_key_only(tmp_path: Path) -> None:
    run = training(tmp_path, "allocation")
    first = run._identity.randomness
    kill_after(run, 7)  # the checkpoint is of round 4, in epoch 0; round 5 began epoch 1
    saved = Checkpoint.load(tmp_path / "checkpoint.pt", torch.device("cpu"))
    assert saved.epoch_keys == {0: first.epoch_key(0)}
    key = saved.epoch_keys[0]
    derived = [first._key("noise", 0, 0, client) for client in range(N_CLIENTS)]
    assert key not in (first._secret, *derived)


def batches(population: Population, randomness: Randomness, rounds: range) -> list[tuple[int, int]]:
    """The (client, position) of all examples in the batches of some rounds."""
    sampler = BatchSampler(population, randomness, 1.0)
    drawn = list[tuple[int, int]]()
    for round_index in rounds:
        sampler.begin_round(round_index, torch.arange(N_CLIENTS))
        chosen = sampler.positions(fp.Allocation(5), 0)
        owners = [client for client, length in enumerate(chosen.lengths.tolist()) for _ in range(length)]
        drawn += zip(owners, chosen.positions.tolist(), strict=True)
    return drawn


@pytest.mark.parametrize("stop", [5, 6, 7, 9])
def test_killed_run_draws_example_once_per_epoch(tmp_path: Path, stop: int) -> None:
    run = training(tmp_path, "allocation")
    population, first = run.population, run._identity.randomness
    kill_after(run, stop)
    resumed = training(tmp_path, "allocation", resume=True)
    path, second = resumed._release_path, resumed._identity.randomness
    # epoch 1 began after the checkpoint of round 4, and that of round 8 knows its draw
    assert path.first_round == {5: 5, 6: 10, 7: 10, 9: 9}[stop]
    for epoch in range(3):
        whole = range(5 * epoch, min(5 * epoch + 5, ROUNDS))
        before = batches(population, first, range(whole.start, max(min(whole.stop, stop), whole.start)))
        after = batches(population, second, range(max(whole.start, path.first_round), whole.stop))
        assert len({*before, *after}) == len(before) + len(after)


def test_saved_epoch_draw_completes_after_resume(tmp_path: Path) -> None:
    run = training(tmp_path, "allocation", checkpoint_every=2)
    population, first = run.population, run._identity.randomness
    kill_after(run, 8)  # the checkpoint is of round 8, in epoch 1
    resumed = training(tmp_path, "allocation", resume=True, checkpoint_every=2)
    assert resumed._release_path.first_round == 8
    second = resumed._identity.randomness
    drawn = batches(population, first, range(5, 8)) + batches(population, second, range(8, 10))
    assert sorted(drawn) == [(client, position) for client in range(N_CLIENTS) for position in range(15)]
    assert first.key_bytes("noise", 8, 0, [0]) != second.key_bytes("noise", 8, 0, [0])


@pytest.mark.parametrize("left", [6, 7, 8, 9])
@pytest.mark.parametrize("case", ["allocation", "cohorts"])
def test_lost_epoch_draw_not_replaced(tmp_path: Path, case: str, left: int) -> None:
    """A checkpoint within the lost rounds of an epoch must not hold a new draw under the old name."""
    run = training(tmp_path, case)
    length = run.plan.privacy.allocation_rounds
    assert length is not None
    kill_after(run, 7)  # the checkpoint is of round 4; the epoch of round 7 began after it
    end = -(-7 // length) * length
    second = training(tmp_path, case, resume=True)
    assert second._release_path.first_round == end
    for report in second:
        if report.round == left:
            break
    assert second.folder is not None
    second.folder.close()
    third = training(tmp_path, case, resume=True)
    assert third._release_path.first_round >= min(end, ROUNDS)
    finished(third)
    rounds = [record.round for record in read_ledger(tmp_path / "ledger.jsonl")]
    assert not {*range(7, end)} & {*rounds}


def test_run_ended_by_limit_keeps_model(tmp_path: Path) -> None:
    CASES["limit"] = (lambda: fp.fedavg(0.1), {"noise_multiplier": 5.0, "epsilon": 1.5}, None)
    try:
        first = finished(training(tmp_path, "limit"))
        assert first.ended == "budget"
        (tmp_path / "result.json").unlink()  # as if it was killed before the end was written
        again = finished(training(tmp_path, "limit", resume=True))
    finally:
        del CASES["limit"]
    assert torch.equal(again.params, first.params)
    assert again.spent.epsilon == first.spent.epsilon


def test_run_with_published_noise_resumes(tmp_path: Path) -> None:
    published = {"published": fp.Published(epsilon_bar=0.5), "clip": fp.Clip(1.0)}
    CASES["published"] = (lambda: fp.inexact_admm(), published, None)
    try:
        whole = finished(training(tmp_path / "whole", "published"))
        kill_after(training(tmp_path / "killed", "published"), 6)
        again = finished(training(tmp_path / "killed", "published", resume=True))
    finally:
        del CASES["published"]
    assert torch.equal(whole.params, again.params)


def test_copies_of_a_folder_have_independent_noise(tmp_path: Path) -> None:
    """With shared noise, the difference of the models would be that of their gradients, which is small here."""
    CASES["loud"] = (lambda: fp.fedavg(0.1), {"noise_multiplier": 1000.0}, None)
    try:
        kill_after(training(tmp_path / "run", "loud"), 4)
        shutil.copytree(tmp_path / "run", tmp_path / "copy")
        first = finished(training(tmp_path / "run", "loud", resume=True))
        second = finished(training(tmp_path / "copy", "loud", resume=True, scale=-1.0))
    finally:
        del CASES["loud"]
    difference = float((first.params - second.params).norm())
    assert difference > 0.5 * float(first.params.norm())
    both = fp.total([first, second])
    assert both.epsilon > max(first.spent.epsilon, second.spent.epsilon)


def test_resume_changed_data_raises_or_warns(tmp_path: Path) -> None:
    """Raises if the privacy cost depends on the order of examples; otherwise warns."""
    for case in ("allocation", "correlated noise", "cohorts"):
        kill_after(training(tmp_path / case, case), 6)
        with pytest.raises(DataError, match="client 0: its examples changed since the run began"):
            training(tmp_path / case, case, resume=True, scale=2.0)
    kill_after(training(tmp_path / "poisson", "poisson"), 6)
    with pytest.warns(UserWarning, match="from now on, the run trains on the changed examples"):
        resumed = training(tmp_path / "poisson", "poisson", resume=True, scale=2.0)
    assert finished(resumed).spent.epsilon <= 3


# --- with a lifetime budget


def budgeted(tmp_path: Path, folder: str, **options: Any) -> fp.Training:
    privacy = {"noise_multiplier": 8.0, "budget": str(tmp_path / "b.jsonl")}
    CASES["budget"] = (lambda: fp.fedavg(0.1), privacy, None)
    try:
        return training(tmp_path / folder, "budget", **options)
    finally:
        del CASES["budget"]


@pytest.fixture
def budget(tmp_path: Path) -> Budget:
    return Budget.create(tmp_path / "b.jsonl", epsilon=50.0, delta=1e-5)


def released(folder: Path) -> set[int]:
    return {record.round for record in read_ledger(folder / "ledger.jsonl")}


def test_restored_backup_repeats_no_release(tmp_path: Path, budget: Budget) -> None:
    run = budgeted(tmp_path, "run")
    seen = dict[int, set[int]]()
    for report in run:
        if report.round == 2:
            shutil.copytree(tmp_path / "run", tmp_path / "backup")
        if report.round == 7:
            run._directory.save = lambda *_: None
            break
    assert run.folder is not None
    run.folder.close()
    seen[0] = released(tmp_path / "run")
    spent = budget.balance().spent.epsilon
    again = budgeted(tmp_path, "backup", resume=True)
    # up to round 8 the first process may have released: its checkpoint of round 4 said so
    assert again._release_path.first_round == 8
    finished(again)
    assert released(tmp_path / "backup") == {*range(ROUNDS)}  # what others may have released counts here, too
    assert budget.balance().spent.epsilon == spent
    assert max(seen[0]) < 8


def test_started_copy_stops_earlier_process(tmp_path: Path, budget: Budget) -> None:
    run = budgeted(tmp_path, "run")
    reports = iter(run)
    for _ in range(5):
        next(reports)
    shutil.copytree(tmp_path / "run", tmp_path / "copy", ignore=shutil.ignore_patterns(".lock"))
    copy = budgeted(tmp_path, "copy", resume=True)
    assert copy._release_path.first_round == 8
    with pytest.raises(LedgerError, match="another process trains this run now"):
        for _ in reports:
            pass
    assert max(released(tmp_path / "run")) < 8
    finished(copy)
    assert len(budget.balance().entries) == 1


def test_possible_releases_of_copy_within_limit(tmp_path: Path, budget: Budget) -> None:
    privacy = {"noise_multiplier": 5.0, "epsilon": 1.5, "budget": str(tmp_path / "b.jsonl")}
    CASES["limit"] = (lambda: fp.fedavg(0.1), privacy, None)
    try:
        kill_after(training(tmp_path / "run", "limit", checkpoint_every=ROUNDS), 1)
        result = finished(training(tmp_path / "run", "limit", checkpoint_every=ROUNDS, resume=True))
    finally:
        del CASES["limit"]
    assert result.spent.epsilon <= 1.5
    assert find_problems(RunFiles.read(tmp_path / "run")) == []


def test_extended_allocation_run_with_budget_resumes(tmp_path: Path, budget: Budget) -> None:
    privacy = {"epsilon": 1.0, "sampling": fp.Allocation(3), "budget": str(tmp_path / "b.jsonl")}
    CASES["first"] = (lambda: fp.fedavg(0.1), privacy, None)
    CASES["second"] = (lambda: fp.fedavg(0.1), {**privacy, "epsilon": 2.0}, None)
    try:
        finished(training(tmp_path / "first", "first", rounds=3))
        kill_after(training(tmp_path / "second", "second", extend=tmp_path / "first"), 5)
        result = finished(training(tmp_path / "second", "second", resume=True))
    finally:
        del CASES["first"], CASES["second"]
    assert result.rounds == ROUNDS
    assert result.spent.epsilon <= 2.0
    assert len(budget.balance().entries) == 2


def test_missing_budget_mark_raises(tmp_path: Path, budget: Budget) -> None:
    kill_after(budgeted(tmp_path, "run"), 5)
    (tmp_path / "b.jsonl.marks").unlink()
    with pytest.raises(LedgerError, match="unknown how many of its rounds were released"):
        budgeted(tmp_path, "run", resume=True)


def test_budget_with_given_secret_seed_raises(tmp_path: Path, budget: Budget) -> None:
    with pytest.raises(ConfigError, match="a budget accepts only runs with secret noise"):
        budgeted(tmp_path, "run", secret_seed=5)


def test_given_secret_seed_stated_with_epsilon(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="secret_seed is set: anyone who knows the seed can subtract the noise"):
        run = training(tmp_path, "fixed noise", secret_seed=5)
    result = finished(run)
    assert "secret_seed of this test run" in str(result.spent)
    assert "secret_seed of this test run" in (tmp_path / "ledger.jsonl").read_text().splitlines()[0]
