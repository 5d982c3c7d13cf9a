"""Edits of a run's folder: by hand, of one file, of several that then fit each other."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import yaml
from forging import lines_of, plain, rewrite

from fedpriv.privacy.chain import with_chain
from fedpriv.runs.checkpoint import Checkpoint

Edit = Callable[[Path], None]


def in_ledger(edit: Callable[[list[bytes]], list[bytes]]) -> Edit:
    def apply(folder: Path) -> None:
        path = folder / "ledger.jsonl"
        path.write_bytes(b"\n".join(edit(path.read_bytes().split(b"\n")[:-1])) + b"\n")

    return apply


def in_line(number: int, **changes: object) -> Edit:
    def changed(line: bytes) -> bytes:
        raw = json.loads(line)
        assert all(raw.get(name) != value for name, value in changes.items())
        return json.dumps(raw | changes, separators=None if number == 0 else (",", ":")).encode()

    return in_ledger(lambda lines: [changed(line) if at == number else line for at, line in enumerate(lines)])


def in_json(name: str, line: int | None = None, **changes: object) -> Edit:
    """In `result.json`, or in a line of `metrics.jsonl`; `...` takes a field out."""

    def apply(folder: Path) -> None:
        texts = [(folder / name).read_text()] if line is None else (folder / name).read_text().splitlines()
        raw = json.loads(texts[line or 0])
        assert all(raw[field] != value for field, value in changes.items())
        texts[line or 0] = json.dumps({k: v for k, v in (raw | changes).items() if v is not ...})
        (folder / name).write_text("\n".join(texts) + "\n")

    return apply


def in_config(section: str | None, **changes: object) -> Edit:
    def apply(folder: Path) -> None:
        raw = yaml.safe_load((folder / "config.yaml").read_text())
        (raw if section is None else raw[section]).update(changes)
        (folder / "config.yaml").write_text(yaml.safe_dump(raw, sort_keys=False))

    return apply


def in_metrics(edit: Callable[[list[str]], list[str]]) -> Edit:
    def apply(folder: Path) -> None:
        path = folder / "metrics.jsonl"
        path.write_text("".join(edit(path.read_text().splitlines(keepends=True))))

    return apply


def forge_ledger(folder: Path, **changes: object) -> list[str]:
    """A whole new ledger whose chain fits; what is changed is changed in each line that has it."""
    path = folder / "ledger.jsonl"
    return rewrite(path, [line | {k: v for k, v in changes.items() if k in line} for line in lines_of(path)])


def forge_with_new_chain(**changes: object) -> Edit:
    return lambda folder: discard(forge_ledger(folder, **changes))


def discard(_: object) -> None:
    """Of an edit."""


def downgrade_ledger(folder: Path) -> None:
    """A ledger without a chain, with more noise."""
    header, *records = lines_of(folder / "ledger.jsonl")
    lines = [header, *(record | {"noise_multiplier": 1e3} for record in records)]
    (folder / "ledger.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def forge_all_files(folder: Path, **changes: object) -> list[str]:
    """The ledger, and its hash in metrics and result."""
    heads = forge_ledger(folder, **changes)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows = [row | {"head": heads[row["releases"]]} for row in rows]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if (folder / "result.json").exists():
        result = plain(json.loads((folder / "result.json").read_text())) | {"head": heads[-1]}
        (folder / "result.json").write_text(json.dumps(with_chain(result, heads[-1])))
    return heads


def overstate_noise(folder: Path) -> None:
    """A thousand times the noise, and no checkpoint that would know better."""
    forge_all_files(folder, noise_multiplier=1e3)
    (folder / "checkpoint.pt").unlink()


def truncate_to(folder: Path, rounds: int) -> None:
    """As if there had been so many rounds."""
    in_ledger(lambda lines: lines[: 1 + rounds])(folder)
    in_metrics(lambda rows: rows[:rounds])(folder)


FIELDS: dict[str, Any] = {
    "pairs": {"ratio": 3.0, "colluders": 1, "secrets": "complete"},  # which nobody added: it would cost less
    "time": {"factor": "0" * 16, "separation": 4, "block": 1},  # likewise
    "batches": 5,  # likewise: later answers of an epoch are free
    "round": 9,
    "query": "message",
    "index": 1,
    "mechanism": "banana",
    "noise_multiplier": 5000.0,
    "unit": "client",
    "relation": "add_remove",
    "clients": [0],
    "norm": "l1",
    "bound": 0.5,
    "sampling": "poisson",
    "rate": 0.5,
    "shared": "sizes public",
    "trust": "central",
    "non_private": "because",
    "attempt": 1,
}
ALTERED: dict[str, Edit] = {
    **{f"record {name}": in_line(3, **{name: value}) for name, value in FIELDS.items()},
    "noise of the last record": in_line(5, noise_multiplier=5000.0),
    "deleted": in_ledger(lambda lines: lines[:2] + lines[3:]),
    "duplicated": in_ledger(lambda lines: [*lines[:3], *lines[2:]]),
    "last duplicated": in_ledger(lambda lines: [*lines, lines[-1]]),
    "swapped": in_ledger(lambda lines: [*lines[:2], lines[3], lines[2], *lines[4:]]),
    "inserted": in_ledger(lambda lines: [*lines[:3], lines[1], *lines[3:]]),
    "garbage": in_ledger(lambda lines: [*lines[:3], b"garbage", *lines[4:]]),
    "header n_clients": in_line(0, n_clients=30),
    "header delta": in_line(0, delta=0.1),
    "header config": in_line(0, config="00"),
    "header planned": in_line(0, planned=2),
    "header run": in_line(0, run="0" * 32),
    "config epsilon": in_config("privacy", epsilon=1.0),
    "config larger epsilon": in_config("privacy", epsilon=30.0),
    "config noise": in_config("privacy", noise_multiplier=50.0),
    "config rounds": in_config(None, rounds=60),
    "metrics head": in_json("metrics.jsonl", 1, head="0" * 64),
    "metrics without head": in_json("metrics.jsonl", 1, head=...),
    "metrics releases": in_json("metrics.jsonl", 1, releases=1),
    "a new chain": forge_with_new_chain(noise_multiplier=1e3),
    "a new chain, banana": forge_with_new_chain(mechanism="banana"),
    "a new chain in all files but the checkpoint": lambda folder: discard(
        forge_all_files(folder, noise_multiplier=1e3)
    ),
    "no chain": downgrade_ledger,
}
INCOMPLETE: dict[str, Edit] = {
    "last record": in_ledger(lambda lines: lines[:-1]),
    "most records": in_ledger(lambda lines: lines[:2]),
    "all records": in_ledger(lambda lines: lines[:1]),
    "ledger and metrics": lambda folder: (in_ledger(lambda lines: lines[:3])(folder), in_metrics(lambda _: [])(folder))[
        0
    ],
    "metrics but the first rounds": in_metrics(lambda rows: rows[:2]),
    "first round": in_metrics(lambda rows: rows[1:]),
    "a round in the middle": in_metrics(lambda rows: rows[:1] + rows[2:]),
    "metrics": lambda folder: (folder / "metrics.jsonl").unlink(),
    "checkpoint cut": lambda folder: discard((folder / "checkpoint.pt").write_bytes(b"PK")),
}
OF_RESULTS: dict[str, tuple[Edit, str]] = {
    "epsilon": (in_json("result.json", epsilon=0.02), "altered"),
    "larger epsilon": (in_json("result.json", epsilon=30.0), "altered"),
    "delta": (in_json("result.json", delta=1e-9), "altered"),
    "unit": (in_json("result.json", unit="client"), "altered"),
    "per client": (in_json("result.json", per_client_epsilon=[0.1, 0.1, 0.1]), "altered"),
    "not covered": (in_json("result.json", not_covered=["nothing"]), "altered"),
    "accuracy": (in_json("result.json", test_accuracy=1.0), "altered"),
    "fewer releases": (in_json("result.json", releases=3), "altered"),
    "more releases": (in_json("result.json", releases=30), "altered"),
    "ended": (in_json("result.json", ended="strategy"), "altered"),
    "hash in result": (in_json("result.json", chain=...), "altered"),
    "last round": (in_metrics(lambda rows: rows[:-1]), "incomplete"),
    "a round more": (in_metrics(lambda rows: [*rows, rows[-1].replace('"round": 6', '"round": 7')]), "altered"),
    "all files, without the checkpoint": (overstate_noise, "altered"),
}


def with_plan_of(folder: Path, other: Path | None) -> None:
    """Writes the plan of another run into a checkpoint; None removes the plan, which earlier versions did not write."""
    path = folder / "checkpoint.pt"
    plan = ""
    if other is not None:
        plan = Checkpoint.load(other / "checkpoint.pt", torch.device("cpu")).plan
    replace(Checkpoint.load(path, torch.device("cpu")), plan=plan).save(path)
