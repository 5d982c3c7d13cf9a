"""The folder of a run, and damage to one of its files."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from fuzz_harness import Case

from fedpriv.config import build, load_config, to_yaml
from fedpriv.reports.sinks import Jsonl

RUN = {
    "data": {"name": "breast_cancer", "variant": "diagnostic", "partition": {"kind": "iid", "n_clients": 3}},
    "model": "softmax",
    "strategy": {"name": "fedavg", "learning_rate": 0.5},
    "privacy": {"epsilon": 3},
    "rounds": 5,
    "log": {"checkpoint_every": 2, "tensorboard": False},
}
FILES = ("config.yaml", "ledger.jsonl", "checkpoint.pt", "metrics.jsonl", "result.json")
OTHER = [None, True, False, "", "a", "3", [], {}, [1], {"a": 1}, -1, 0, 1.5, 10**30, float("nan"), float("inf"), "inf"]


def half_a_run(folder: Path, text: dict[str, Any] = RUN) -> Path:
    """A run that was killed after three of five rounds; its checkpoint is of the second."""
    config_file = folder.with_suffix(".yaml")
    config_file.write_text(yaml.safe_dump(text))
    config = load_config(config_file)
    folder.mkdir()
    (folder / "config.yaml").write_text(to_yaml(config))
    sink = Jsonl(folder / "metrics.jsonl")
    training = build(config, folder)
    checkpoint = b""
    for report in training:
        sink.write(report)
        if report.round == 3:
            checkpoint = (folder / "checkpoint.pt").read_bytes()
            break
    sink.close()
    assert training.folder is not None
    training.folder.close()
    (folder / "checkpoint.pt").write_bytes(checkpoint)
    return folder


def draw(rng: random.Random, runs: tuple[Path, ...], folder: Path) -> Case:
    """A copy of one of the runs, with a file damaged; nonsense where a changed ledger or a value of another kind is."""
    whole = rng.choice(runs)
    shutil.copytree(whole, folder)
    path = folder / rng.choice([name for name in FILES if (folder / name).exists()])
    damages: list[Callable[[Path, random.Random], tuple[str, bool]]] = [_cut, _flip, _gone, _swapped]
    if path.suffix in (".json", ".jsonl"):
        damages += [_edited] * 6
    what, nonsense = rng.choice(damages)(path, rng)
    return Case(f"{whole.name}, {path.name}: {what}", nonsense)


def _cut(path: Path, rng: random.Random) -> tuple[str, bool]:
    content = path.read_bytes()
    at = rng.randrange(len(content))
    path.write_bytes(content[:at])
    return f"cut after {at} of {len(content)} bytes", False


def _flip(path: Path, rng: random.Random) -> tuple[str, bool]:
    content = bytearray(path.read_bytes())
    at = rng.randrange(len(content))
    content[at] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    return f"a bit of byte {at}", path.name == "ledger.jsonl" and at < content.rfind(b"\n")


def _gone(path: Path, _: random.Random) -> tuple[str, bool]:
    path.unlink()
    return "gone", path.name == "ledger.jsonl"


def _swapped(path: Path, rng: random.Random) -> tuple[str, bool]:
    other = path.with_name(rng.choice([name for name in FILES if (path.parent / name).exists()]))
    one, two = path.read_bytes(), other.read_bytes()
    path.write_bytes(two)
    other.write_bytes(one)
    return f"swapped with {other.name}", "ledger.jsonl" in (path.name, other.name) and path != other


def _edited(path: Path, rng: random.Random) -> tuple[str, bool]:
    """A value of a JSON object becomes one of another kind, goes, or is joined by a field that nobody knows."""
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    at = rng.randrange(len(lines))
    facts = json.loads(lines[at])
    key = rng.choice([*facts])
    before, linked = facts[key], path.name == "ledger.jsonl" or (path.name == "result.json" and key != "seconds")
    match rng.choice(("value", "value", "gone", "added")):
        case "value":
            facts[key] = rng.choice([other for other in OTHER if repr(other) != repr(before)])
            what = f"line {at}: {key} = {facts[key]!r}"
        case "gone":
            del facts[key]
            what = f"line {at} without {key}"
        case _:
            facts["more"] = 1
            what = f"line {at} with more"
    lines[at] = json.dumps(facts)
    path.write_text("\n".join(lines) + "\n")
    return what, linked
