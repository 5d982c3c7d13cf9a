"""A search killed with SIGKILL at any point resumes, is charged once, and finds the same best trial."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from processes import COMMAND, forked
from typer.testing import CliRunner

import fedpriv as fp
from fedpriv.cli import app
from fedpriv.config import load_config
from fedpriv.storage import files
from fedpriv.tuning import Outcome, Search, SearchSettings, Space, search

BASE = str(Path(__file__).parents[1] / "run.yaml")
QUICK = [
    *("data.partition.n_clients=2", "rounds=2", "seed=0", "compute.threads=1", "privacy.epsilon=1"),
    "log={checkpoint_every: 1, tensorboard: false}",
]
CENTRAL = ["strategy={name: fedavg, learning_rate: 0.5}", "privacy={epsilon: 1, trust: {central: {}}}"]
SPACE = {"strategy.rho.scale": {"low": 0.01, "high": 10.0, "log": True}}
TRIALS = 3


@dataclass
class Deadly(files.Disk):
    """A disk that kills its process before operation `last`; each write counts as two, of half the data each."""

    last: int
    folder: Path
    done: list[str] = field(default_factory=list)

    def _before(self, name: str) -> None:
        if len(self.done) == self.last:
            os.kill(os.getpid(), signal.SIGKILL)
        self.done.append(name)

    def open(self, path: Path, flags: int) -> int:
        self._before(f"open {path.relative_to(self.folder)}")
        return super().open(path, flags)

    def write(self, fd: int, data: bytes) -> None:
        for part in (data[: len(data) // 2], data[len(data) // 2 :]):
            self._before(f"write to {fd}")
            super().write(fd, part)

    def sync(self, fd: int) -> None:
        self._before(f"sync {fd}")
        super().sync(fd)

    def rename(self, old: Path, new: Path) -> None:
        self._before(f"rename {new.relative_to(self.folder)}")
        super().rename(old, new)


def quiet(number: int, report: object) -> None:
    """Watches nothing."""


def make_search(folder: Path) -> Search:
    """A search with its own lifetime budget."""
    budget = folder / "budget"
    if not budget.exists():
        folder.mkdir(exist_ok=True)
        fp.Budget.create(budget, epsilon=5.0, delta=1e-5)
    config = load_config(BASE, [*QUICK, f"privacy.budget={budget}"])
    return Search(config, Space.of(SPACE), SearchSettings(TRIALS))


def make_secret_search(folder: Path) -> Search:
    """A search that publishes one model only."""
    folder.mkdir(exist_ok=True)
    space = Space.of({"strategy.learning_rate": {"low": 0.1, "high": 1.0}})
    return Search(load_config(BASE, [*QUICK, *CENTRAL]), space, SearchSettings(2, "random", secret_trials="geometric"))


def killed(folder: Path, last: int, make: Callable[[Path], Search] = make_search) -> bool:
    """Starts or resumes a search in a process that is killed before an operation; returns True if it was."""

    def go() -> None:
        files.disk = Deadly(last, folder)
        make(folder).run(folder / "out", quiet)

    make(folder)
    status = os.waitpid(forked(go), 0)[1]
    assert status == 0 or os.WTERMSIG(status) == signal.SIGKILL, status
    return status != 0


def released(folder: Path) -> dict[str, list[str]]:
    """The whole lines of every trial's ledger, but for the first: what was released, with a hash of its noise."""
    ledgers = {path.parent.name: path.read_text() for path in (folder / "out").glob("*/0*/ledger.jsonl")}
    return {name: text[: text.rfind("\n") + 1].splitlines()[1:] for name, text in ledgers.items()}


def chosen(folder: Path) -> list[Any]:
    place = folder / "out" / "trials" / "trials.json"
    return [one["chosen"] for one in json.loads(place.read_text())["trials"]] if place.exists() else []


def check(folder: Path, found: Outcome, before: dict[str, list[str]], tried: list[Any]) -> None:
    """Checks one charge, no release drawn twice, and the best score of all trials."""
    price = make_search(folder).price.spent.epsilon
    names = [f"{number:04d}" for number in range(TRIALS)]
    assert sorted(path.name for path in (folder / "out" / "trials").iterdir() if path.is_dir()) == names
    after = released(folder)
    assert all(after[name][: len(lines)] == lines for name, lines in before.items()), "drawn again"
    assert [len(after[name]) for name in names] == [2] * TRIALS
    assert chosen(folder)[: len(tried)] == tried
    balance = fp.Budget(folder / "budget").balance()
    assert [one.state for one in balance.entries] == ["rounds"]
    assert balance.spent.epsilon == pytest.approx(price, rel=1e-9)
    scores = {
        name: json.loads((folder / "out" / "trials" / name / "result.json").read_text())["test_accuracy"]
        for name in names
    }
    assert found.best is not None and scores[found.best.name] == max(scores.values()) == found.score


def operations(
    folder: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], Search] = make_search
) -> list[str]:
    """All of an unbroken search."""
    whole = make(folder)
    disk = Deadly(-1, folder)
    with monkeypatch.context() as patched:
        patched.setattr(files, "disk", disk)
        whole.run(folder / "out", quiet)
    return disk.done


def trial_list_places(done: list[str]) -> list[int]:
    """Where the list of trials is opened; a half of it is written before the next but one."""
    return [k for k, name in enumerate(done) if name.startswith("open") and "trials.json" in name]


def check_kills(done: list[str], places: Iterable[int], folder: Path) -> None:
    for last in places:
        place = folder / f"killed-{last}"
        assert killed(place, last), done[last]
        before, tried = released(place), chosen(place)
        again = killed(place, 7 + last % 11)  # and whoever comes back is killed too
        # a ledger without a release is removed when its trial starts again
        assert all(released(place).get(name, [])[: len(lines)] == lines for name, lines in before.items())
        before, tried = (released(place), chosen(place)) if again else (before, tried)
        check(place, make_search(place).run(place / "out", quiet), before, tried)


def test_search_killed_during_trial_list_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the list is written after the second trial; the resumed search is killed again in the third trial."""
    done = operations(tmp_path / "whole", monkeypatch)
    assert len(trial_list_places(done)) == 1 + 2 * TRIALS
    check_kills(done, [trial_list_places(done)[4] + 2], tmp_path)


@pytest.mark.slow
def test_search_killed_at_many_operations_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = operations(tmp_path / "whole", monkeypatch)
    places = {k + at for k in trial_list_places(done) for at in range(5)} | {*range(0, len(done), len(done) // 25)}
    check_kills(done, sorted(places), tmp_path)


def test_killed_secret_search_hides_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = operations(tmp_path / "whole", monkeypatch, make_secret_search)
    ends = [k for k, name in enumerate(done) if "best" in name]
    for last in (len(done) // 2, *ends[:1]):
        place, number = tmp_path / f"killed-{last}", None
        if not killed(place, last, make_secret_search):
            continue  # its own number of trials is smaller
        state = place / "out" / "secret" / "trials.json"
        number = json.loads(state.read_text())["number"] if state.exists() else None
        if number is not None:  # it is drawn once
            killed(place, 9, make_secret_search)
            assert not state.exists() or json.loads(state.read_text())["number"] == number
        found = make_secret_search(place).run(place / "out", quiet)
        assert found.trials == () and found.price.spent.epsilon == make_secret_search(place).price.spent.epsilon
        assert {path.name for path in (place / "out").iterdir()} <= {"best", "search.json", ".lock"}


def test_secret_search_killed_during_removal_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(path: Path, **how: object) -> None:
        if path.name == "secret":
            os.kill(os.getpid(), signal.SIGKILL)

    def go() -> None:
        search.shutil.rmtree = dies
        make_secret_search(tmp_path / "a").run(tmp_path / "a" / "out", quiet)

    assert os.WTERMSIG(os.waitpid(forked(go), 0)[1]) == signal.SIGKILL
    assert (tmp_path / "a" / "out" / "secret").exists() and (tmp_path / "a" / "out" / "best").exists()
    kept = json.loads((tmp_path / "a" / "out" / "best" / "best.json").read_text())
    found = make_secret_search(tmp_path / "a").run(tmp_path / "a" / "out", quiet)
    assert not (tmp_path / "a" / "out" / "secret").exists()
    assert (found.chosen, found.score) == (kept["chosen"], kept["score"])


@pytest.mark.slow
def test_tune_command_killed_at_random_resumes(tmp_path: Path) -> None:
    """Killed from outside, like a process on a machine without memory; the same command resumes."""
    make_search(tmp_path)
    (tmp_path / "space.yaml").write_text(yaml.safe_dump(SPACE))
    words = ["tune", BASE, str(tmp_path / "space.yaml"), *QUICK, "rounds=40", f"privacy.budget={tmp_path / 'budget'}"]
    words += ["--trials", str(TRIALS), "--out", str(tmp_path / "out"), "--json"]
    draws, kills = random.Random(), 0
    while True:
        before = released(tmp_path)
        with subprocess.Popen([*COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
            try:
                said, error = run.communicate(timeout=draws.uniform(3, 7) if kills < 8 else None)
            except subprocess.TimeoutExpired:
                run.kill()
                kills += 1
                continue
            finally:
                after = released(tmp_path)
                assert all(after[name][: len(lines)] == lines for name, lines in before.items()), "drawn again"
        assert run.returncode == 0, error
        break
    found = json.loads(said)
    folders = [str(path) for path in sorted((tmp_path / "out" / "trials").glob("0*"))]
    counted = json.loads(CliRunner().invoke(app, ["account", *folders, "--json"]).stdout)
    assert len(folders) == TRIALS and counted["epsilon"] == pytest.approx(found["epsilon"], rel=1e-9)
    assert [len(lines) for lines in released(tmp_path).values()] == [40] * TRIALS
