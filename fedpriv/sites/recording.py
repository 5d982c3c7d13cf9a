"""Files of a federation's folder: a line for each round, and the result. Released values and public facts only."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from fedpriv.clients import Layout, copy_trainable
from fedpriv.config import load_config
from fedpriv.config.building import load_data
from fedpriv.sites.federation import Federation, SiteRound
from fedpriv.sites.federation_plan import FederationPlan
from fedpriv.statistics import Description
from fedpriv.storage import files, strict_json

PLAN, CONFIG, ROUNDS, RESULT, MODEL = "plan.yaml", "config.yaml", "rounds.jsonl", "result.json", "model.pt"
STATISTICS = "statistics.json"


def load_test_data(proposal: FederationPlan, folder: Path) -> Dataset[Any] | None:
    """Loads the server's test data; None for statistics."""
    if proposal.statistics is not None:
        return None
    return load_data(load_config(folder / CONFIG)).test


def write_model(model: nn.Module, row: Tensor, folder: Path) -> None:
    """Writes a model with these parameters, `[dim]`, to a folder."""
    trained = copy_trainable(model)
    content = io.BytesIO()
    Layout.of(trained).write(row, trained)
    torch.save(trained.state_dict(), content)
    files.write_whole(folder / MODEL, content.getvalue())


def write_description(description: Description | None, folder: Path) -> None:
    """Writes statistics to a folder, unless there are none because a site is missing."""
    if description is not None:
        content = strict_json.dumps(description.to_json(), indent=2)
        files.write_whole(folder / STATISTICS, content.encode() + b"\n")


def record_federation(federation: Federation, folder: Path) -> Iterator[SiteRound]:
    """Trains a federation, yields each round's report, and writes the rounds, the model and the result to its folder.

    Args:
        federation: The server's side.
        folder: Its folder.
    """
    path = folder / ROUNDS
    if path.exists():
        earlier_lines = path.read_bytes().splitlines(keepends=True)
    else:
        earlier_lines = []
    # a round that was stopped before its state was saved is repeated, so its line is removed
    files.write_whole(path, b"".join(earlier_lines[: federation.progress.round]))
    lines = files.Appender(path)
    last: dict[str, Any] = {}
    for report in federation:
        last = asdict(report)
        lines.append(strict_json.dumps(last).encode() + b"\n")
        yield report
    if federation.resolved_plan.statistics is None:
        write_model(federation.resolved_plan.model, federation.model, folder)
    else:
        write_description(federation.describe(), folder)
    result = {
        "rounds": federation.progress.round,
        "ended": federation.ended,
        "metrics": last.get("metrics", {}),
        "absent": last.get("absent", {}),  # for the last round: each absent site, and the reason in one word
        "noticed": last.get("noticed", ()),
        "plan": federation.resolved_plan.hash,
        "at_most": str(federation.spent()),
    }
    files.write_whole(folder / RESULT, strict_json.dumps(result, indent=2).encode() + b"\n")
