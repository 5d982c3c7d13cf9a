"""Short rounds share a sync of the ledger, and no output of a round appears before its line is on the disk."""

from __future__ import annotations

import math
import subprocess
import sys
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from faulty_disk import RecordingDisk, restore
from torch import nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.models.known_code import is_known
from fedpriv.privacy.ledger_file import LedgerFile, read_ledger
from fedpriv.reports.sinks import Jsonl
from fedpriv.runs import report_groups
from fedpriv.storage import files

ROUNDS, EVERY = 7, 3


class SyncedDisk(files.Disk):
    """Counts how often a folder's ledger is synced, and how many of its records are on the disk."""

    def __init__(self, folder: Path) -> None:
        self.syncs, self.records, self._ledger = 0, 0, folder / "ledger.jsonl"

    def sync(self, fd: int) -> None:
        super().sync(fd)
        if self._ledger.exists() and files.os.fstat(fd).st_ino == self._ledger.stat().st_ino:
            self.syncs += 1
            self.records = self._ledger.read_bytes().count(b"\n") - 1


class OwnModel(nn.Sequential):
    """A class of the user's own, which may do anything with its parameters."""


class OwnStep(type(fp.fedavg(0.1).local_step)):
    """A local step of the user's own."""


class CheckingSink:
    """A sink that compares what it is shown with what is on the disk."""

    def __init__(self, disk: SyncedDisk) -> None:
        self.rounds, self._disk = list[int](), disk

    def write(self, report: fp.RoundReport) -> None:
        assert self._disk.records >= report.releases, f"round {report.round} was shown before it was on the disk"
        self.rounds.append(report.round)

    def close(self) -> None:
        pass


def arguments(folder: Path | None, model: nn.Module | None = None, strategy: fp.Strategy | None = None) -> dict:
    torch.manual_seed(0)
    data = [TensorDataset(torch.randn(8, 3), torch.arange(8) % 2) for _ in range(2)]
    model = model or nn.Sequential(nn.Linear(3, 2))
    return {
        "clients": fp.make_clients(model, nn.CrossEntropyLoss(), data),
        "strategy": strategy or fp.fedavg(0.1),
        "privacy": fp.Privacy(noise_multiplier=9.0),
        "rounds": ROUNDS,
        "seed": 0,
        "secret_seed": 1,
        "checkpoint_every": EVERY,
        "folder": folder,
    }


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SyncedDisk:
    disk = SyncedDisk(tmp_path / "run")
    monkeypatch.setattr(files, "disk", disk)
    monkeypatch.setattr(report_groups, "GROUP_SECONDS", math.inf)
    return disk


def test_rounds_share_sync_until_checkpoint(disk: SyncedDisk, tmp_path: Path) -> None:
    seen = CheckingSink(disk)
    fp.train(**arguments(tmp_path / "run"), sinks=[seen])
    assert seen.rounds == [*range(1, ROUNDS + 1)]
    assert disk.syncs == 1 + math.ceil(ROUNDS / EVERY), "one before the first round, and one a checkpoint"
    assert disk.records == ROUNDS


def test_iterated_round_synced_before_report(disk: SyncedDisk, tmp_path: Path) -> None:
    for report in fp.Training(**arguments(tmp_path / "run")):
        assert disk.records == report.releases
    assert disk.syncs == 1 + ROUNDS


def test_report_delay_bounded(disk: SyncedDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_groups, "GROUP_SECONDS", 1e-9)
    fp.train(**arguments(tmp_path / "run"), sinks=[CheckingSink(disk)])
    assert disk.syncs == 1 + ROUNDS


def hooked() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 2))
    model[0].register_forward_hook(lambda *_: None)
    return model


@pytest.mark.parametrize(
    "changes",
    [
        {"model": OwnModel(nn.Linear(3, 2))},
        {"model": hooked()},
        {"strategy": fp.fedavg(lambda t: 0.1)},
        {"strategy": replace(fp.fedavg(0.1), local_step=OwnStep(0.1))},
    ],
    ids=["own model", "hook", "own rate", "own step"],
)
def test_custom_code_called_after_sync(disk: SyncedDisk, tmp_path: Path, changes: dict) -> None:
    fp.train(**arguments(tmp_path / "run", **changes), sinks=[CheckingSink(disk)])
    assert disk.syncs == 1 + ROUNDS


def test_disk_state_written_after_ledger(disk: SyncedDisk, tmp_path: Path) -> None:
    strategy = fp.fedavg(0.1, 2, optimizer=fp.Momentum(), optimizer_state="keep")
    network = fp.Star(2, fp.FixedCohort(1))
    compute = fp.Compute(client_state="disk")
    fp.train(
        **arguments(tmp_path / "run", strategy=strategy), network=network, compute=compute, sinks=[CheckingSink(disk)]
    )
    assert disk.syncs == 1 + ROUNDS


def test_paced_rounds_sync_each_round(disk: SyncedDisk, tmp_path: Path) -> None:
    fp.train(**arguments(tmp_path / "run"), compute=fp.Compute(pad_seconds=1e-3), sinks=[CheckingSink(disk)])
    assert disk.syncs == 1 + ROUNDS


def test_custom_metric_called_after_sync(disk: SyncedDisk, tmp_path: Path) -> None:
    def metric(outputs: torch.Tensor, targets: torch.Tensor) -> float:
        ledger = tmp_path / "run" / "ledger.jsonl"
        if ledger.exists():  # the metric is tried out before
            assert disk.records == ledger.read_bytes().count(b"\n") - 1
        return 0.0

    test = TensorDataset(torch.randn(8, 3), torch.arange(8) % 2)
    fp.train(**arguments(tmp_path / "run"), test=test, metrics={"own": metric}, sinks=[CheckingSink(disk)])
    assert disk.syncs == 1 + ROUNDS


def test_model_warning_after_sync(disk: SyncedDisk, tmp_path: Path) -> None:
    given = arguments(tmp_path / "run", strategy=fp.fedavg(1e38))
    records = list[int]()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_: (
            records.append(disk.records) if "not finite" in str(message) else None
        )
        fp.train(**given, stop_on="nothing")
    assert records, "the model never broke"
    assert records[0] > 0
    assert records[0] % EVERY, "it broke at a checkpoint, which syncs anyway"


class Broken(Exception):
    pass


def test_error_raised_after_sync(disk: SyncedDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = fp.Training(**arguments(tmp_path / "run"))
    answer = training.oracle.engine.gradients

    def gradients(*given: object) -> torch.Tensor:
        if training.progress.round == 2:
            raise Broken
        return answer(*given)

    monkeypatch.setattr(training.oracle.engine, "gradients", gradients)
    with pytest.raises(Broken):
        list(training.in_groups())
    assert disk.records == len(training.ledger.records) > 0


def test_power_cut_loses_no_shown_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cuts the ledger after each line from the last synced one on; a resume makes each release once."""
    monkeypatch.setattr(report_groups, "GROUP_SECONDS", math.inf)
    folder = tmp_path / "run"
    folder.mkdir()
    recorder = RecordingDisk(folder)
    with monkeypatch.context() as patched:
        patched.setattr(files, "disk", recorder)
        whole = fp.train(**arguments(folder), sinks=[Jsonl(folder / "metrics.jsonl")])
    states = dict[tuple[bytes, bytes], dict[str, bytes]]()
    most_lost = 0
    for moment in recorder.moments:
        after_cut = moment.power_cuts[0]  # what was synced, and nothing else
        if "checkpoint.pt" not in after_cut:
            continue
        written = moment.killed["ledger.jsonl"].splitlines(keepends=True)
        n_synced = after_cut["ledger.jsonl"].count(b"\n")
        assert n_synced - 1 >= moment.visible
        most_lost = max(most_lost, len(written) - n_synced)
        for kept in range(n_synced, len(written) + 1):
            ledger = b"".join(written[:kept])
            states[ledger, after_cut["checkpoint.pt"]] = {**after_cut, "ledger.jsonl": ledger}
    assert most_lost == EVERY, "no group had several lines"
    for number, state in enumerate(states.values()):
        again = tmp_path / f"again{number}"
        restore(again, state)
        resumed = fp.train(**{**arguments(again), "resume": True})
        rounds = [record.round for record in read_ledger(again / "ledger.jsonl")]
        assert rounds == [*range(whole.rounds)]
        assert resumed.spent.epsilon == whole.spent.epsilon


def test_is_known_recognises_library_code() -> None:
    assert is_known(fp.fedavg(0.1))
    assert is_known(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    assert is_known(partial(nn.functional.cross_entropy, label_smoothing=0.1))
    assert not is_known(partial(lambda x: x, 1))
    assert not is_known({"a": [len, lambda: None]})
    assert not is_known(fp.models.Loss(lambda outputs, targets: outputs.sum()))
    linear = nn.Linear(2, 2)
    linear.weight.register_hook(lambda gradient: gradient)
    assert not is_known(linear)


def test_print_hook_is_not_known() -> None:
    """As a hook, `print` shows a round's values before its ledger line is on the disk."""
    linear = nn.Linear(2, 2)
    linear.register_forward_hook(print)
    assert not is_known(linear)
    assert not is_known(partial(print, "values"))


def test_global_module_hook_is_not_known() -> None:
    hook = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert not is_known(nn.Linear(2, 2))
    finally:
        hook.remove()
    assert is_known(nn.Linear(2, 2))


def test_error_in_first_round_of_group_after_sync() -> None:
    """The query result is in the ledger, and the error may depend on it, although no report waits."""
    synced = list[bool]()
    group = report_groups.ReportGroup(1.0, lambda: synced.append(True))
    with pytest.raises(ZeroDivisionError), group.synced():
        raise ZeroDivisionError
    assert synced


LEFT_OPEN = """
import sys
import torch, fedpriv
data = torch.utils.data.TensorDataset(torch.randn(20, 4), torch.arange(20) % 2)
clients = fedpriv.make_clients(torch.nn.Linear(4, 2), torch.nn.CrossEntropyLoss(), [data])
training = fedpriv.Training(clients, fedpriv.fedavg(0.1), fedpriv.Privacy(epsilon=3.0), rounds=5, folder=sys.argv[1])
rounds = getattr(training, sys.argv[2])()
next(rounds)
"""


@pytest.mark.parametrize("iteration", ["__iter__", "in_groups"])
def test_iteration_left_open_at_exit_is_silent(iteration: str, tmp_path: Path) -> None:
    """Python closed it among modules without contents: a traceback of os.getpid."""
    command = [sys.executable, "-W", "ignore", "-c", LEFT_OPEN, str(tmp_path / "run"), iteration]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert LedgerFile.read(tmp_path / "run" / "ledger.jsonl").records
