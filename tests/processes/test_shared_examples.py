"""Processes that share the examples of every batch match one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import split_runs
import torch
from split_runs import Case, outcome
from test_command import BARE, QUICK, assert_same_run, fedpriv
from test_same_run import EXACT, FEDAVG, GOSSIP, STRATEGIES, assert_same, in_one
from workers import Workers

import fedpriv as fp

CASES = [
    Case(FEDAVG),
    Case(STRATEGIES[5], network="fixed"),
    Case(STRATEGIES[10], "sums"),
    Case(STRATEGIES[13], "curator of examples"),
    Case(FEDAVG, "clients", "poisson"),
    Case(GOSSIP, "pairs", "ring"),
    Case("name: private_al", "values", problem="constraints"),
    Case(EXACT[0], "exact", problem="constraints", noise={}, rounds=12),
]


RUNS = [pytest.param(case, 2, id=f"{case}-2") for case in CASES]
RUNS += [
    pytest.param(case, 3, marks=pytest.mark.distributed, id=f"{case}-3")
    for case in CASES
    if case.options not in EXACT  # refused for more processes than pairs of clients
]


@pytest.mark.parametrize(("case", "size"), RUNS)
def test_shared_examples_match_one_process(workers: Workers, case: Case, size: int) -> None:
    found = workers.of(size, outcome, case, "examples")
    assert_same(found[0], in_one(case), 1e-9)
    for other in found[1:]:
        assert other.records is None
        for name, value in other.state.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(found[0].state[name])), name


def drawn() -> tuple[int, float]:
    """How many examples this process has worked on, and their sum."""
    run, seen = split_runs.training(Case(FEDAVG, rounds=1), "examples"), list[torch.Tensor]()
    backend = run._release_path.sums._backend
    inner = backend.clipped_sum

    def watched(params: Any, batch: Any, *more: Any) -> Any:
        seen.append(batch.inputs[batch.mask])
        return inner(params, batch, *more)

    object.__setattr__(backend, "clipped_sum", watched)
    list(run)
    found = torch.cat(seen)
    return len(found), float(found.sum())


def test_each_example_computed_in_one_process(workers: Workers) -> None:
    (one, first), (other, second) = workers.of(2, drawn)
    ((everything, both),) = workers.of(1, drawn)
    assert min(one, other) > 0
    assert one + other == everything
    assert first + second == pytest.approx(both)


def with_other_data() -> str:
    """Set a run up in which each process has read other examples."""
    clients = split_runs.clients()
    rank = torch.distributed.get_rank()
    clients[1] = fp.Client(clients[1].model, clients[1].loss, split_runs.clients(2 + rank)[-1].loader)
    compute = fp.Compute(parallelism="examples", dtype="float64", timeout=60.0)
    try:
        fp.Training(clients, fp.fedavg(0.5), fp.Privacy(noise_multiplier=1.0), rounds=1, compute=compute)
    except fp.FedprivError as error:
        return str(error)
    return "nothing was raised"


def test_different_examples_between_processes_raise(workers: Workers) -> None:
    for text in workers.of(2, with_other_data):
        assert "every process must read the same examples in the same order" in text


@pytest.mark.distributed
def test_train_command_with_examples_engine_matches(tmp_path: Path) -> None:
    words = ["train", str(BARE), *QUICK, "rounds=6", "--out"]
    assert fedpriv(*words, str(tmp_path / "one")).returncode == 0
    found = fedpriv(*words, str(tmp_path / "two"), "--processes", "2", "compute.parallelism=examples")
    assert found.returncode == 0, found.stderr
    assert_same_run(tmp_path / "one", tmp_path / "two")
