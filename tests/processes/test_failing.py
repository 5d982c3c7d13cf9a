"""What goes wrong in one process ends the run in all, with a reason; what they cannot do is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import split_runs
import torch
from split_runs import Case, outcome
from test_same_run import FEDAVG, assert_same, in_one
from torch.utils.data import Dataset, TensorDataset
from workers import Workers

import fedpriv as fp
from fedpriv.network import sharding
from fedpriv.network.engines import MESHES
from fedpriv.privacy.record import Record

CASE = Case(FEDAVG)


class Broken(Dataset[Any]):
    """Cannot be read."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        raise fp.DataError("the disk is gone")


def with_data(numbers: tuple[int, ...], given: Dataset[Any] | None) -> str:
    """Set a run up whose clients of these numbers have these data, by default examples of another shape.

    Says what was raised, and who tells the user.
    """
    clients = split_runs.clients()
    for number in numbers:
        example = clients[number]
        data = TensorDataset(torch.rand(7, 5), torch.randint(3, (7,))) if given is None else given
        clients[number] = fp.Client(example.model, example.loss, torch.utils.data.DataLoader(data))
    try:
        compute = fp.Compute(parallelism="clients", dtype="float64", timeout=60.0)
        fp.Training(clients, fp.fedavg(0.5), fp.Privacy(noise_multiplier=1.0), rounds=1, compute=compute)
    except fp.FedprivError as error:
        return f"{'silent' if error.reported_elsewhere else 'told'}: {error}"
    return "nothing was raised"


def test_unreadable_data_raises_in_all_reported_once(workers: Workers) -> None:
    first, second, third = workers.of(3, with_data, (4,), Broken())
    assert first.startswith("told: process 1: client 4")
    assert "the disk is gone" in first
    assert second.startswith("silent: client 4")
    assert third.startswith("silent: process 1: client 4")


def test_different_shapes_between_processes_raise(workers: Workers) -> None:
    for text in workers.of(2, with_data, (3, 4), None):
        assert "have a different structure from those of process 0" in text


def test_budget_ends_run_in_all_processes(workers: Workers) -> None:
    case = replace(CASE, rounds=6, noise={"noise_multiplier": 2.0, "epsilon": 2.0})
    found = workers.of(3, outcome, case)
    assert found[0].ended == "budget"
    assert 0 < len(found[0].records or ()) < 6
    assert_same(found[0], in_one(case), 1e-9)
    assert [other.ended for other in found] == ["budget"] * 3


def records_differ(rank_of: int) -> str:
    """Opens a release with a different record in one of the processes."""
    mesh = MESHES["clients"](60.0)
    rank = mesh.world.rank
    factor = 0.5 if rank == rank_of else 1.0
    record = Record(0, "gradient", 0, "gaussian", factor, "sample", "replace_one")
    written = list[Record]()
    try:
        sharding.SharedLedger(mesh.world).enter(record, written.append)  # pyright: ignore
    except fp.PrivacyError as error:
        return f"{len(written)} written: {error}"
    return "nothing was raised"


def test_different_records_written_nowhere(workers: Workers) -> None:
    for text in workers.of(2, records_differ, 1):
        assert text.startswith("0 written: round 0, gradient: the processes make different queries")


def refused(what: str) -> str:
    more: dict[str, Any] = {"compute": fp.Compute(parallelism="clients", timeout=60.0)}
    strategy: Any = fp.fedavg(0.5)
    privacy = fp.Privacy(noise_multiplier=1.0)
    if what == "a paper's noise":
        strategy, privacy = fp.inexact_admm(), fp.Privacy(published=fp.Published(epsilon_bar=0.05))
    if what == "state on disk":
        more["compute"] = fp.Compute(parallelism="clients", timeout=60.0, client_state="disk")
        more["network"], strategy = fp.Star(5, fp.FixedCohort(2)), fp.inexact_admm()
    if what == "an optimum":
        more["optimum"] = 0.1
    clients: Any = split_runs.clients()
    if what == "lazy clients":
        model, loss = clients[0].model, clients[0].loss
        data = [client.loader.dataset for client in clients]
        clients = fp.lazy_clients(model, loss, data.__getitem__, split_runs.SIZES[:5])
    if what in ("a comparison", "exact answers"):
        clients, strategy, privacy = split_runs.clients(3, "constraints"), fp.proximal_al(), fp.Privacy(noise_on="none")
        more["compare_centralized"] = what == "a comparison"
    try:
        fp.Training(clients, strategy, privacy, rounds=2, **more)
    except fp.ConfigError as error:
        return str(error)
    return "nothing was raised"


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("state on disk", "compute.client_state = 'disk'"),
        ("a paper's noise", "strategy.variant = 'published'"),
        ("an optimum", "log.optimum = 0.1"),
        ("lazy clients", "clients = 'lazy_clients'"),
        ("a comparison", "problem.compare_centralized = True"),
        (
            "exact answers",
            "processes = 2: exact query results need at least two clients in every process: use at most 1",
        ),
    ],
)
def test_unsupported_in_processes_raises_at_setup(workers: Workers, what: str, words: str) -> None:
    for text in workers.of(2, refused, what):
        assert words in text
        assert "one process" in text or "at most" in text


def test_processes_need_torchrun() -> None:
    compute = fp.Compute(parallelism="clients")
    with pytest.raises(fp.ConfigError, match=r"compute\.parallelism = 'clients': .*--processes 2"):
        fp.Training(split_runs.clients(), fp.fedavg(0.5), fp.Privacy(noise_multiplier=1.0), rounds=1, compute=compute)


def records_here(case: Case) -> str:
    run = split_runs.training(case, "clients")
    try:
        return f"{len(run.ledger.records)} records"
    except fp.errors.LedgerError as error:
        return str(error)


def test_ledger_read_in_first_process_only(workers: Workers) -> None:
    assert workers.of(2, records_here, CASE) == [
        "0 records",
        "the ledger is in process 0 of this run: read records and epsilon there",
    ]
