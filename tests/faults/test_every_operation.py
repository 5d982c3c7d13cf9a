"""A run that is killed, or cut off from power, or out of disk at any of its file operations can be resumed.

Nothing that was released is forgotten, each release of the plan is made once, epsilon is that of the plan, and one
command is enough. A run without privacy ends as if it had not been stopped, to the bit.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from faulty_disk import CrashPoint, Files, FullDisk, RecordingDisk, restore
from typer.testing import CliRunner

from fedpriv.cli import app
from fedpriv.storage import files

CONFIG = str(Path(__file__).parents[1] / "run.yaml")
COMPARED = ("metrics.csv", "model.pt", "node_models.pt", "config.yaml")
GRAPH = "network.topology=ring"
STRATEGIES = {
    "iadmm_prox": (),
    "iadmm_prox, state on disk": ("compute.client_state=disk", "network.cohort={poisson: 0.6}"),
    "fedavg": ("strategy={name: fedavg, learning_rate: 0.5, local_steps: 2}",),
    "scaffold": ("strategy={name: scaffold, learning_rate: 0.5, local_steps: 2}",),
    "dp_svrg": ("strategy={name: dp_svrg, epoch_length: 2}",),
    "no privacy": ("strategy={name: fedavg, learning_rate: 0.5, local_steps: 2}", "privacy={noise_on: none}"),
    "gradient_tracking": ("strategy=gradient_tracking", GRAPH),
    "dual_averaging": ("strategy=dual_averaging", GRAPH),
    "private_al": (
        "strategy=private_al",
        "problem={constraints: [{name: class_loss_at_most, label: 1, bound: 0.3, fraction: 0.1}]}",
    ),
}
SHORT = (
    "data.partition.n_clients=3",
    "rounds=4",
    "seed=1",
    "compute.threads=1",
    "privacy={noise_multiplier: 20}",
    "log={checkpoint_every: 2, csv: true, tensorboard: false, save_node_models: true}",
)


def fedpriv(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(words))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
    return done.exit_code, done.stderr


def start(folder: Path, name: str, *more: str) -> tuple[int, str]:
    return fedpriv("train", CONFIG, "--out", str(folder), *SHORT, *STRATEGIES[name], *more)


def contents(folder: Path) -> dict[str, bytes]:
    """What must be the same to the byte in a run without privacy."""
    return {name: (folder / name).read_bytes() for name in COMPARED}


def releases(folder: Path) -> list[tuple[int, str, int]]:
    """What was released, by round, query and number of the answer."""
    lines = [json.loads(line) for line in (folder / "ledger.jsonl").read_bytes().splitlines()]
    return [(line["round"], line["query"], line["index"]) for line in lines[1:]]


def epsilon(folder: Path) -> float:
    return json.loads((folder / "result.json").read_bytes())["epsilon"]


def records(ledger: bytes) -> int:
    return max(ledger.count(b"\n") - 1, 0)


class UninterruptedRun:
    """One strategy's unbroken run, with every moment of it."""

    def __init__(self, folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.name, self._folder, self._monkeypatch, self._seen = name, folder, monkeypatch, set[int]()
        whole = folder / "whole"
        whole.mkdir()
        self.moments, self.operations = self.recorded(whole, lambda: start(whole, name))
        self.wanted, self.releases, self.epsilon = contents(whole), releases(whole), epsilon(whole)

    def recorded(self, folder: Path, go) -> tuple[list[CrashPoint], list[str]]:
        """Let a run go to its end, and return what it was at every moment."""
        recorder = RecordingDisk(folder)
        with self._monkeypatch.context() as patched:
            patched.setattr(files, "disk", recorder)
            code, said = go()
        assert code == 0, said
        recorder.end()
        return recorder.moments, recorder.operations

    def is_new(self, found: Files) -> bool:
        """Whether no run has gone on from these files so far."""
        key = hash(tuple(sorted((name, content) for name, content in found.items() if not name.endswith(".new"))))
        new = key not in self._seen
        self._seen.add(key)
        return new

    def check_resume(self, found: Files, at: str) -> None:
        """One command resumes from these files, and keeps the promises of the plan."""
        folder = self._folder / "broken"
        restore(folder, found)
        before = records(found.get("ledger.jsonl", b""))
        if "result.json" in found:
            assert fedpriv("resume", str(folder))[1].count(f"fedpriv show {folder}") == 1
            code, said = fedpriv("show", str(folder))
        elif "config.yaml" in found:
            code, said = fedpriv("resume", str(folder))
        else:
            assert set(found) <= {name for name in found if name.endswith(".new")}, "the configuration comes first"
            assert f"fedpriv train CONFIG --out {folder}" in fedpriv("resume", str(folder))[1]
            code, said = start(folder, self.name)
        assert code == 0, f"{self.name}, {at}: stuck: {said}"
        made = releases(folder)
        assert len(made) >= before, f"{self.name}, {at}: forgotten"
        if self.name == "no privacy":
            assert contents(folder) == self.wanted, f"{self.name}, {at}"
        else:
            assert len({*made}) == len(made), f"{self.name}, {at}: released twice"
            assert {*made} <= {*self.releases}, f"{self.name}, {at}"
            assert epsilon(folder) <= self.epsilon, f"{self.name}, {at}"
        rows = [json.loads(line)["round"] for line in (folder / "metrics.jsonl").read_bytes().splitlines()]
        assert rows == [*range(1, 5)], f"{self.name}, {at}"
        assert not list(folder.glob(".*")), "nothing is left beside"
        shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def _short_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take three quarters of the time, and is not compared; only its file operations are of interest."""
    monkeypatch.setattr("fedpriv.reports.picture.draw", lambda run, path: files.write_whole(path, b"a picture"))


@pytest.fixture
def uninterrupted(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> UninterruptedRun:
    return UninterruptedRun(tmp_path, request.param, monkeypatch)


first, *others = STRATEGIES
every_strategy = pytest.mark.parametrize(
    "uninterrupted", [first, *(pytest.param(name, marks=pytest.mark.slow) for name in others)], indirect=True
)


@every_strategy
def test_run_killed_at_each_operation_resumes(uninterrupted: UninterruptedRun) -> None:
    assert len(uninterrupted.operations) > 40
    for moment in uninterrupted.moments:
        assert records(moment.killed.get("ledger.jsonl", b"")) >= moment.visible
        if uninterrupted.is_new(moment.killed):
            uninterrupted.check_resume(moment.killed, f"killed {moment.at}")


@pytest.mark.slow
@every_strategy
def test_power_cut_at_each_operation_resumes(uninterrupted: UninterruptedRun) -> None:
    for moment in uninterrupted.moments:
        for way, found in enumerate(moment.power_cuts):
            kept = records(found.get("ledger.jsonl", b""))
            assert kept >= moment.visible, f"forgotten: {kept} of {moment.visible} releases, way {way}, {moment.at}"
            if uninterrupted.is_new(found):
                uninterrupted.check_resume(found, f"power cut in way {way} {moment.at}")


@pytest.mark.slow
@every_strategy
def test_full_disk_at_each_operation_resumes(
    uninterrupted: UninterruptedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture = next(i for i, operation in enumerate(uninterrupted.operations) if "report.png" in operation)
    for last in range(picture):
        folder = tmp_path / "full"
        with monkeypatch.context() as patched:
            patched.setattr(files, "disk", FullDisk(last))
            code, said = start(folder, uninterrupted.name)
        assert code == 2, uninterrupted.operations[last]
        assert said.count("error: ") == 1 and "No space left on device" in said, said
        found = {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}
        assert not [name for name in found if name.startswith(".")], "nothing is left beside"
        if folder.exists():
            shutil.rmtree(folder)
        if uninterrupted.is_new(found):
            uninterrupted.check_resume(found, f"disk full at {uninterrupted.operations[last]}")


@pytest.mark.parametrize("uninterrupted", [pytest.param("iadmm_prox", marks=pytest.mark.slow)], indirect=True)
def test_resume_killed_at_each_operation_resumes(uninterrupted: UninterruptedRun, tmp_path: Path) -> None:
    """The resumed run is killed too."""
    places = ["before open .ledger.jsonl.new", "before write .checkpoint.pt.new", "half of write metrics.jsonl"]
    moments = [next(moment for moment in uninterrupted.moments if moment.at == place) for place in places]
    folder = tmp_path / "again"
    for first in moments:
        restore(folder, first.killed)
        for moment in uninterrupted.recorded(folder, lambda: fedpriv("resume", str(folder)))[0]:
            for found in (moment.killed, *moment.power_cuts):
                if uninterrupted.is_new(found):
                    uninterrupted.check_resume(found, f"killed {first.at}, and on resume {moment.at}")
        shutil.rmtree(folder)
