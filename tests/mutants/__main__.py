"""Mutation testing: change one thing in the code, run the tests that execute it, and see whether one of them fails.

    python tests/mutants --count 400 --seed 0

Mutants are made of what a guarantee rests on: privacy/, the oracle and its sums, and what keeps a run's folder. Each is
tried in a fork of a process that has the libraries in memory, in a copy of the project, with the tests that execute its
line, quick ones first, until one fails. What survives is printed with its change; changes that change nothing that
could be observed stand in `equivalent.toml` with the reason.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import tomllib
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from coverage_map import Map
from forks import ROOT, TestRun, copy_of_project, import_libraries
from mutations import Mutant, mutants_of

HERE = Path(__file__).parent
KEPT = ROOT / ".mutants"
TARGETS = (
    "fedpriv/privacy/**/*.py",
    "fedpriv/randomness/*.py",
    "fedpriv/oracle/**/*.py",
    "fedpriv/storage/files.py",
    "fedpriv/storage/folder.py",
    "fedpriv/storage/saved.py",
    "fedpriv/storage/strict_json.py",
    "fedpriv/runs/checkpoint.py",
)
FIRST, LATER, MOST = 6.0, 90.0, 400  # seconds of tests in a first and a second try, and tests in one try


@dataclass
class Trial:
    """A mutant that is being tried.

    Attributes:
        mutant: Which.
        left: Tries that are left: the tests and the seconds that they take.
        run: The one that is going on.
        killed_by: The test that failed, or what else became of it.
        tests: How many tests were run.
    """

    mutant: Mutant
    left: deque[tuple[list[str], float]]
    run: TestRun | None = None
    killed_by: str = ""
    tests: int = 0

    def go_on(self, folder: Path) -> None:
        """Start the next try."""
        names, seconds = self.left.popleft()
        self.tests += len(names)
        self.run = TestRun(folder, ["-x", *names], 30 + 5 * seconds)

    def ended(self) -> bool:
        """Whether nothing is left to do."""
        if self.run is None:
            return not self.left
        if not self.run.poll():
            return False
        if self.run.result == "nothing" or self.run.result == "exit 4":
            names = ", ".join(self.run.words)
            raise SystemExit(f"tests were not found: {names}\n{(self.run.folder / '.log').read_text()[-2000:]}")
        if self.run.result != "passed":
            self.killed_by = next(iter(self.run.report()["failed"]), str(self.run.result))
        self.run = None
        return bool(self.killed_by) or not self.left


@dataclass
class Session:
    """Tries mutants in copies of the project.

    Args:
        sources: The files that mutants are made of.
        tests: The map.
        folders: Copies of the project, one for each mutant that is tried at the same time.
        known: Results of an earlier session that hold, by the mutant's key.
    """

    sources: dict[str, bytes]
    tests: Map
    folders: list[Path]
    results: dict[str, str] = field(default_factory=dict)

    def tries(self, mutant: Mutant) -> deque[tuple[list[str], float]]:
        """Quick tests first; what takes longer only if they all pass."""
        found = self.tests.tests_of(mutant, self.sources[mutant.path].decode().splitlines())
        found = [pair for pair in found if pair[1] <= LATER]
        parts: deque[tuple[list[str], float]] = deque()
        budget, names, total = FIRST, list[str](), 0.0
        for name, seconds in found:
            if names and (total + seconds > budget or len(names) == MOST):
                parts.append((names, total))
                if len(parts) == 2:
                    return parts
                budget, names, total = LATER, [], 0.0
            names, total = [*names, name], total + seconds
        return parts + deque([(names, total)] if names else [])

    def run(self, mutants: list[Mutant]) -> None:
        """Try them all; prints each result."""
        waiting, at_work, began = deque(mutants), dict[Path, Trial](), time.monotonic()
        while waiting or at_work:
            for folder in self.folders:
                if folder not in at_work and waiting:
                    mutant = waiting.popleft()
                    self._write(folder, mutant.path, mutant.applied(self.sources[mutant.path]))
                    at_work[folder] = Trial(mutant, self.tries(mutant))
            for folder, trial in list(at_work.items()):
                if trial.ended():
                    del at_work[folder]
                    self._write(folder, trial.mutant.path, self.sources[trial.mutant.path])
                    self._note(trial, time.monotonic() - began)
                elif trial.run is None:
                    trial.go_on(folder)
            time.sleep(0.02)

    def _write(self, folder: Path, path: str, content: bytes) -> None:
        (folder / path).write_bytes(content)
        for old in (folder / path).parent.glob(f"__pycache__/{Path(path).stem}.*.pyc"):
            old.unlink()

    def _note(self, trial: Trial, seconds: float) -> None:
        mutant = trial.mutant
        self.results[mutant.key] = trial.killed_by
        word = f"killed by {trial.killed_by}" if trial.killed_by else f"SURVIVED {trial.tests} tests"
        print(
            f"{len(self.results):4} {seconds:6.0f} s {mutant.path}:{mutant.line} {_short(mutant)}: {word}", flush=True
        )
        (KEPT / "results.json").write_text(json.dumps(self.results, indent=1))


def equivalents(mutants: list[Mutant]) -> dict[str, str]:
    """Reasons for changes that no test can see, by the mutant's key."""
    rows = tomllib.loads((HERE / "equivalent.toml").read_text()).get("equivalent", [])
    known = {(row["file"], " ".join(row["old"].split()), " ".join(row["new"].split())): row["reason"] for row in rows}
    found = {m.key: (m.path, " ".join(m.old.split()), " ".join(m.new.split())) for m in mutants}
    return {key: known[change] for key, change in found.items() if change in known}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=400, help="how many mutants")
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    parser.add_argument("--jobs", type=int, default=1, help="how many at the same time")
    parser.add_argument("--only", default="", help="a part of the file names to look at")
    parser.add_argument("--again", action="store_true", help="keep what the last session killed, try what it did not")
    chosen = parser.parse_args()

    paths = sorted({path for pattern in TARGETS for path in ROOT.glob(pattern)})
    sources = {path.relative_to(ROOT).as_posix(): path.read_bytes() for path in paths}
    everything = [mutant for path, source in sources.items() for mutant in mutants_of(path, source)]
    picked = sorted((m for m in everything if chosen.only in m.path), key=lambda mutant: mutant.rank(chosen.seed))[
        : chosen.count
    ]
    reasons = equivalents(picked)

    KEPT.mkdir(exist_ok=True)
    import_libraries()
    sys.dont_write_bytecode = True
    with tempfile.TemporaryDirectory(prefix="fedpriv-mutants-") as place:
        folders = [Path(place) / str(number) for number in range(chosen.jobs)]
        for folder in folders:
            copy_of_project(folder)
        tests = Map(KEPT / "map.json", list(sources))
        files = [p for p in [*ROOT.glob("tests/**/test_*.py"), *ROOT.glob("fedpriv/**/*.py")] if HERE not in p.parents]
        names = [p.relative_to(ROOT).as_posix() for p in files if p.name.startswith("test_") or ">>> " in p.read_text()]
        tests.update(sorted(names, key=lambda n: ("privacy/" not in n, "backends" not in n, n)), folders[0], print)
        session = Session(sources, tests, folders)
        if chosen.again and (KEPT / "results.json").exists():
            old = json.loads((KEPT / "results.json").read_text())
            session.results = {m.key: old[m.key] for m in picked if old.get(m.key)}
        session.run([m for m in picked if m.key not in session.results and m.key not in reasons])
    raise SystemExit(_summary(picked, session.results, reasons))


def _summary(picked: list[Mutant], results: dict[str, str], reasons: dict[str, str]) -> int:
    survivors = [m for m in picked if m.key not in reasons and not results[m.key]]
    killed = len(picked) - len(reasons) - len(survivors)
    for mutant in sorted(survivors, key=lambda m: (m.path, m.line)):
        print(f"survived: {mutant.path}:{mutant.line} {_short(mutant, 200)}")
    for mutant in sorted((m for m in picked if m.key in reasons), key=lambda m: (m.path, m.line)):
        print(f"equivalent: {mutant.path}:{mutant.line} {_short(mutant, 200)}: {reasons[mutant.key]}")
    score = killed / max(killed + len(survivors), 1)
    print(
        f"{len(picked)} mutants: {killed} killed, {len(survivors)} survived, {len(reasons)} equivalent; "
        f"score {score:.1%} of those that are not equivalent, {killed / max(len(picked), 1):.1%} of all"
    )
    return 0 if score >= 0.95 else 1


def _short(mutant: Mutant, width: int = 90) -> str:
    old, new = (" ".join(text.split()) for text in (mutant.old, mutant.new))
    return " -> ".join(text if len(text) <= width else f"{text[: width - 3]}..." for text in (old, new))


if __name__ == "__main__":
    main()
