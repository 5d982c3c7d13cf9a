"""What a federation's folder tells while it trains, and when it is over: released values and public facts only."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from fedpriv.clients.layout import Layout, copy_trainable
from fedpriv.sites.federation import Federation, SiteRound
from fedpriv.storage import files, strict_json

PLAN, CONFIG, ROUNDS, RESULT, MODEL = "plan.yaml", "config.yaml", "rounds.jsonl", "result.json", "model.pt"


def follow(federation: Federation, folder: Path) -> Iterator[SiteRound]:
    """Train, and write down each round and the result.

    Args:
        federation: The server's side.
        folder: Its folder.
    """
    path = folder / ROUNDS
    if path.exists():
        before = path.read_bytes().splitlines(keepends=True)
    else:
        before = []
    files.write_whole(path, b"".join(before[: federation.progress.round]))
    lines = files.Appender(path)
    last: dict[str, Any] = {}
    for report in federation:
        last = asdict(report)
        lines.append(strict_json.dumps(last).encode() + b"\n")
        yield report
    model, content = copy_trainable(federation.terms.model), io.BytesIO()
    Layout.of(model).write(federation.model, model)
    torch.save(model.state_dict(), content)
    files.write_whole(folder / MODEL, content.getvalue())
    told = {"rounds": federation.progress.round, "ended": federation.ended, "metrics": last.get("metrics", {})}
    told |= {"absent": last.get("absent", {}), "noticed": last.get("noticed", ())}  # at the end: who, and why in a word
    spent = {"plan": federation.terms.hash, "at_most": str(federation.spent())}
    files.write_whole(folder / RESULT, strict_json.dumps({**told, **spent}, indent=2).encode() + b"\n")
