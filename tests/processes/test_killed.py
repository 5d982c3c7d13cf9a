"""A process is killed at any point between ledger, exchange, report and checkpoint, over and over, and its run goes on.

Each run has processes of its own, forked from one that has imported everything.
"""

from __future__ import annotations

import importlib
import multiprocessing as mp
import os
import pickle
import signal
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from split_runs import Case, Outcome, finished, training
from test_same_run import FEDAVG, GOSSIP, in_one

import fedpriv as fp
from fedpriv.distributed.process_group import ProcessGroup
from fedpriv.network import engines
from fedpriv.network.sharded_graph import ShardedGraph
from fedpriv.network.sharding import SharedLedger, split_clients, split_examples
from fedpriv.privacy.ledger import Ledger
from fedpriv.runs.training import Training

SIZE, TIMEOUT = 2, 60.0
ALL_RANKS, FIRST = (0, 1), (0,)
GRAPH, STAR = Case(GOSSIP, network="ring", rounds=60), Case(FEDAVG, rounds=60)
Call = Callable[..., Any]


@dataclass(frozen=True)
class Point:
    """Where a process ends: around call number `count` of a method."""

    owner: type | str  # a class, or the name of a module
    method: str
    when: str
    count: int = 2
    ranks: tuple[int, ...] = ALL_RANKS


LEDGER = {
    "before records are compared": Point(SharedLedger, "enter", "before"),
    "before the record is written": Point(Ledger, "_write_record", "before", ranks=FIRST),
    "after the record is written": Point(Ledger, "_write_record", "after", ranks=FIRST),
    "after the value is returned": Point(SharedLedger, "enter", "after"),
}
REPORT = {
    "before the report": Point(Training, "_report_on_main", "before", ranks=FIRST),
    "after the report": Point(Training, "_report_on_main", "after", ranks=FIRST),
}
COMMON_CHECKPOINT = {
    "before a checkpoint": Point(Training, "save", "before", 1),
    "before the checkpoint is written": Point(Training, "_save", "before", 1, ranks=FIRST),
    "after the checkpoint is written": Point(Training, "_save", "after", 1, ranks=FIRST),
    "after the checkpoint": Point(Training, "save", "after", 1),
}
CHECKPOINT = {
    **COMMON_CHECKPOINT,
    "after rows are gathered": Point("fedpriv.network.sharding", "gather_state", "after", 1),
}
ON_A_STAR = {
    "before sums are reduced": Point(ProcessGroup, "all_reduce", "before"),
    "after sums are reduced": Point(ProcessGroup, "all_reduce", "after"),
}
ON_A_GRAPH = {
    "before the exchange": Point(ProcessGroup, "exchange", "before"),
    "within the exchange": Point(ProcessGroup, "exchange", "within"),
    "after the exchange": Point(ShardedGraph, "mix", "after"),
}


def kill_process_at(point: Point) -> None:
    """Kills this process at the point."""
    owner = importlib.import_module(point.owner) if isinstance(point.owner, str) else point.owner
    method, calls = getattr(owner, point.method), [0]

    def now() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    @wraps(method)
    def around(*arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] != point.count or point.when == "within":
            return within(*arguments, **options) if point.when == "within" else method(*arguments, **options)
        if point.when == "before":
            now()
        found = method(*arguments, **options)
        now()
        return found

    @contextmanager
    def within(*arguments: Any, **options: Any) -> Iterator[None]:
        with method(*arguments, **options):
            if calls[0] == point.count:
                now()
            yield

    setattr(owner, point.method, around)


def part(
    rank: int, meeting: Path, pipe: Connection, case: Case, options: dict[str, Any], kill: tuple[Any, ...]
) -> None:
    """One process of a run; sends the outcome, or its error."""
    torch.set_num_threads(1)
    timeout = options.pop("timeout")
    wait = timedelta(seconds=timeout)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=SIZE, timeout=wait)
    engines.MESHES["clients"] = lambda _: split_clients(timeout, ProcessGroup(None, timeout))
    engines.MESHES["examples"] = lambda _: split_examples(timeout, ProcessGroup(None, timeout))
    if kill and kill[0] == rank:
        kill_process_at(*kill[1:])
    try:
        found: Any = finished(training(case, checkpoint_every=2, **options))
    except fp.FedprivError as error:
        found = error
    pipe.send_bytes(pickle.dumps(found))  # not as torch would, whose tensors end with their process


@pytest.fixture(scope="module")
def context() -> Any:
    found = mp.get_context("forkserver")
    found.set_forkserver_preload([__name__])
    return found


def run(context: Any, case: Case, folder: Path, kill: tuple[Any, ...] = (), **options: Any) -> list[Any]:
    """Returns the outcome of each process; for a killed process the number of the signal."""
    meeting = folder.with_name(f"meeting-{uuid.uuid4()}")
    pipes = [context.Pipe() for _ in range(SIZE)]
    options = {"folder": folder, "timeout": TIMEOUT, **options}
    parts = [
        context.Process(target=part, args=(rank, meeting, theirs, case, options, kill))
        for rank, (_, theirs) in enumerate(pipes)
    ]
    for one in parts:
        one.start()
    for _, theirs in pipes:
        theirs.close()
    others = [rank for rank in range(SIZE) if not kill or rank != kill[0]]
    found = {rank: pickle.loads(pipes[rank][0].recv_bytes()) if pipes[rank][0].poll(200) else None for rank in others}
    for one in parts:
        one.join(60)
    return [found.get(rank, -(one.exitcode or 0)) for rank, one in enumerate(parts)]


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("case", "parallelism", "points"),
    [
        (GRAPH, "clients", LEDGER | ON_A_GRAPH | REPORT | CHECKPOINT),
        (STAR, "clients", LEDGER | ON_A_STAR | REPORT | CHECKPOINT),
        (STAR, "examples", LEDGER | ON_A_STAR | REPORT | COMMON_CHECKPOINT),
    ],
    ids=["graph", "star", "examples of a star"],
)
def test_repeatedly_killed_processes_resume(
    context: Any, tmp_path: Path, case: Case, parallelism: str, points: dict[str, Point]
) -> None:
    folder = tmp_path / "run"
    for name, point in points.items():
        for rank in point.ranks:
            found = run(context, case, folder, (rank, point), resume=folder.exists(), parallelism=parallelism)
            assert found[rank] == signal.SIGKILL, f"{name}: process {rank} never came there"
            assert isinstance(found[1 - rank], fp.errors.ProcessError), f"{name}, {rank}: {found[1 - rank]}"
            assert len(str(found[1 - rank]).splitlines()) == 1
    whole = run(context, case, folder, resume=True, parallelism=parallelism)[0]
    assert isinstance(whole, Outcome), whole
    assert whole.records == in_one(case).records
    assert whole.epsilon == in_one(case).epsilon
