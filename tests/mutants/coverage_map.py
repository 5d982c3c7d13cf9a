"""Which tests run which lines, and how long each takes: made once and kept, one entry for each file of tests.

Lines are known by their text, so that the map outlives changes elsewhere in a file.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from forks import ROOT, TestRun
from mutations import Mutant

Entry = dict[str, Any]
_MOST_CPU = 3600.0


class _Contexts:
    """A pytest plug-in: what is executed is put down to the test that is running."""

    def __init__(self, folder: Path, targets: list[str], path: Path) -> None:
        import coverage

        self._folder, self._targets, self._path = folder, targets, path
        self._coverage = coverage.Coverage(
            data_file=None, config_file=False, include=[str(folder / target) for target in targets]
        )
        self._coverage.start()

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        _forget()  # what an earlier test has computed is not looked up: this one may run alone
        self._coverage.switch_context(item.nodeid)
        yield

    def pytest_unconfigure(self) -> None:
        self._coverage.stop()
        data, lines = self._coverage.get_data(), dict[str, dict[str, list[str]]]()
        for target in self._targets:
            source = (self._folder / target).read_text().splitlines()
            found: dict[str, set[str]] = {}
            for number, contexts in data.contexts_by_lineno(str(self._folder / target)).items():
                text = "".join(source[number - 1 : number]).strip()  # an empty file has a line all the same
                found.setdefault(text, set()).update(filter(None, contexts))
            lines[target] = {text: sorted(tests) for text, tests in found.items() if tests}
        self._path.write_text(json.dumps(lines))


@dataclass
class Map:
    """The map, kept in a file.

    Args:
        path: The file.
        targets: The files that mutants are made of.
    """

    path: Path
    targets: list[str]

    def __post_init__(self) -> None:
        self._entries: dict[str, Entry] = json.loads(self.path.read_text()) if self.path.exists() else {}
        self._by_line: dict[tuple[str, str], dict[str, float]] = {}
        self._by_file: dict[str, dict[str, float]] = {}
        self._breadth: Counter[str] = Counter()

    def update(self, files: Iterable[str], folder: Path, say: Callable[[str], None]) -> None:
        """Run the files of tests that changed since, in a copy of the project."""
        files = list(files)
        self._entries = {name: entry for name, entry in self._entries.items() if name in files}
        stale = [name for name in files if self._entries.get(name, {}).get("digest") != _digest(name)]
        for count, name in enumerate(stale, start=1):
            say(f"map {count}/{len(stale)}: {name}")
            self._entries[name] = self._measured(name, folder, say)
            self.path.parent.mkdir(exist_ok=True)
            beside = self.path.with_suffix(".new")
            beside.write_text(json.dumps(self._entries))
            os.replace(beside, self.path)
        self._index()

    def _measured(self, name: str, folder: Path, say: Callable[[str], None]) -> Entry:
        lines = folder / ".lines.json"
        lines.unlink(missing_ok=True)

        def plugins() -> list[Any]:  # made in the fork
            return [_Contexts(folder, self.targets, lines)]

        run = TestRun(folder, ["-m", "not slow", name], _MOST_CPU, plugins)
        while not run.poll():
            time.sleep(0.05)
        seen = run.report()
        if run.result not in ("passed", "nothing"):
            say(f"  {run.result}: {', '.join(seen['failed']) or (folder / '.log').read_text()[-400:]}; not used")
        usable = sorted(set(seen["seconds"]) - {*seen["failed"], *seen["skipped"]})
        number = {test: index for index, test in enumerate(usable)}
        executed: dict[str, dict[str, list[str]]] = json.loads(lines.read_text()) if lines.exists() else {}
        return {
            "digest": _digest(name),
            "tests": usable,
            "seconds": [round(seen["seconds"][test], 4) for test in usable],
            "lines": {
                target: {text: [number[test] for test in tests if test in number] for text, tests in texts.items()}
                for target, texts in executed.items()
            },
        }

    def _index(self) -> None:
        for entry in self._entries.values():
            tests = list(zip(entry["tests"], entry["seconds"], strict=True))
            for target, lines in entry["lines"].items():
                for text, places in lines.items():
                    known = dict(tests[place] for place in places)
                    self._by_line.setdefault((target, text), {}).update(known)
                    self._by_file.setdefault(target, {}).update(known)
                    self._breadth.update(known.keys())

    def tests_of(self, mutant: Mutant, source: list[str]) -> list[tuple[str, float]]:
        """Tests that run a mutant's lines, with their seconds.

        First those that are quick and run little else, and of each function one before its other parameters.
        """
        found: dict[str, float] = {}
        for line in mutant.lines:
            text = source[line - 1].strip()
            if any(map(str.isalnum, text)):
                found.update(self._by_line.get((mutant.path, text), {}))
        # code that runs at import runs in whichever test comes first: any test of the file may use what it makes
        if mutant.at_import or not found:
            found = {**self._by_file.get(mutant.path, {}), **found}
        ordered, nth = sorted(found, key=lambda name: found[name] * self._breadth[name]), Counter[str]()
        place: dict[str, int] = {}
        for name in ordered:
            function = name.split("[")[0]
            place[name] = nth[function] = nth[function] + 1
        return [(name, found[name]) for name in sorted(ordered, key=lambda name: place[name])]


def _forget() -> None:
    """Empty the project's caches of function results."""
    for name, module in list(sys.modules.items()):
        if name.startswith("fedpriv"):
            for one in list(vars(module).values()):
                if hasattr(one, "cache_clear"):
                    one.cache_clear()


def _digest(name: str) -> str:
    return hashlib.blake2b((ROOT / name).read_bytes(), digest_size=8).hexdigest()
