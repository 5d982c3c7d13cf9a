"""Mutation testing: change one thing in the code, run the tests that execute it, and see whether one of them fails.

    python tests/mutants --count 400 --seed 0

Mutants are made of what a guarantee rests on: privacy/, the oracle and its sums, and what keeps a run's folder. Each is
tried in a fork, in a copy of the project, with the tests that execute its line, quick ones first, until one fails. What
survives is printed with its change; changes that change nothing that could be observed stand in `equivalent.toml` with
the reason.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import tomllib
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path

from coverage_map import Map
from forks import ROOT, TestRun, copy_of_project, import_libraries
from mutations import Mutant, mutants_of
from patches import NOT_PATCHED, Job, Loop, in_session

HERE = Path(__file__).parent
KEPT = ROOT / ".mutants"
TARGETS = (
    "fedpriv/privacy/**/*.py",
    "fedpriv/randomness/*.py",
    "fedpriv/oracle/**/*.py",
    "fedpriv/storage/files.py",
    "fedpriv/storage/folder.py",
    "fedpriv/storage/file_schemas.py",
    "fedpriv/storage/strict_json.py",
    "fedpriv/runs/checkpoint.py",
)
MOST_TESTS = 1000  # that a mutant is tried with


@dataclass
class Session:
    """Tries mutants and keeps what became of them.

    Args:
        sources: The files that mutants are made of.
        tests: The map.
        folders: Copies of the project, one for each mutant that is tried at the same time.
        seconds: How long the tests of one mutant may take.
        first: Parts of the names of tests that are tried first.
        results: What is known already: the test that killed a mutant, or "", by the mutant's key.
    """

    sources: dict[str, bytes]
    tests: Map
    folders: list[Path]
    seconds: float
    first: list[str] = field(default_factory=list)
    results: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._began, self._results = time.monotonic(), KEPT / "results.json"

    def run(self, mutants: list[Mutant]) -> None:
        """Try them all; prints each result."""
        jobs = [job for mutant in mutants if (job := self._job(mutant)).names or self._note(job, "")]
        patched = [job for job in jobs if not job.mutant.at_import]
        files = sorted({name.split("::")[0] for job in patched for name in job.names})
        if patched:
            self._save()
            in_session(self.folders[0], files, Loop(self.folders[0], patched, len(self.folders), self._note))
            self.results = json.loads(self._results.read_text())
        self._run_files([job for job in jobs if self.results.get(job.mutant.key, NOT_PATCHED) == NOT_PATCHED])

    def _job(self, mutant: Mutant) -> Job:
        """Its tests: first those that were named, then those that killed others of the file."""
        names, total = list[str](), 0.0
        known = Counter(by for key, by in self.results.items() if key.startswith(f"{mutant.path}:"))
        tests = self.tests.tests_of(mutant, self.sources[mutant.path].decode().splitlines())
        named = {name for name, _ in tests if any(word in name for word in self.first)}
        for name, seconds in sorted(tests, key=lambda test: (test[0] not in named, -known[test[0]])):
            if total + seconds > self.seconds or len(names) == MOST_TESTS:
                break
            names, total = [*names, name], total + seconds
        return Job(mutant, mutant.applied(self.sources[mutant.path]), names, total)

    def _run_files(self, jobs: list[Job]) -> None:
        """Each on a changed file, in a fork that imports the project anew."""
        waiting, at_work = deque(jobs), dict[Path, tuple[Job, TestRun]]()
        while waiting or at_work:
            for folder in self.folders:
                if folder not in at_work and waiting:
                    job = waiting.popleft()
                    self._write(folder, job.mutant.path, job.changed)
                    # without their parameters, whose names may change with what is imported
                    names = dict.fromkeys(name.split("[")[0] for name in job.names)
                    at_work[folder] = job, TestRun(folder, ["-x", *names], 30 + 5 * job.seconds)
            for folder, (job, run) in list(at_work.items()):
                if run.poll():
                    del at_work[folder]
                    self._write(folder, job.mutant.path, self.sources[job.mutant.path])
                    log = (folder / ".log").read_text()
                    if run.result == "exit 4" and "ImportError while loading conftest" in log:
                        run.result = "not imported"
                    if run.result == "nothing" or str(run.result).startswith("exit"):
                        raise SystemExit(f"{' '.join(run.words)}\n{log[-2000:]}")
                    failed = next(iter(run.report()["failed"]), str(run.result))
                    self._note(job, "" if run.result == "passed" else failed)
            time.sleep(0.02)

    def _write(self, folder: Path, path: str, content: bytes) -> None:
        (folder / path).write_bytes(content)
        for old in (folder / path).parent.glob(f"__pycache__/{Path(path).stem}.*.pyc"):
            old.unlink()

    def _note(self, job: Job, killed_by: str) -> None:
        mutant = job.mutant
        self.results[mutant.key] = killed_by
        self._save()
        word = f"killed by {killed_by}" if killed_by else f"SURVIVED {len(job.names)} tests"
        seconds = time.monotonic() - self._began
        print(
            f"{len(self.results):4} {seconds:5.0f} s {mutant.path}:{mutant.line} {_short(mutant)}: {word}", flush=True
        )

    def _save(self) -> None:
        self._results.write_text(json.dumps(self.results, indent=1))


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
    parser.add_argument("--seconds", type=float, default=40.0, help="of tests that each is tried with")
    parser.add_argument(
        "--first", nargs="*", default=[], help="parts of the names of tests to begin with, e.g. new ones"
    )
    parser.add_argument("--only", default="", help="a part of the file names to look at")
    parser.add_argument(
        "--tests", nargs="*", default=[""], help="beginnings of the paths of tests to try, e.g. tests/privacy; all"
    )
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
        names = [name for name in names if name.startswith(tuple(chosen.tests))]
        tests.update(sorted(names, key=lambda n: ("privacy/" not in n, "oracle/" not in n, n)), folders[0], print)
        session, old = Session(sources, tests, folders, chosen.seconds, chosen.first), dict[str, str]()
        if chosen.again and (KEPT / "results.json").exists():
            old = json.loads((KEPT / "results.json").read_text())
            session.results = {
                m.key: old[m.key] for m in picked if old.get(m.key, NOT_PATCHED) not in ("", NOT_PATCHED)
            }
        left = [m for m in picked if m.key not in session.results and m.key not in reasons]
        session.run(sorted(left, key=lambda mutant: mutant.key in old))
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
