"""A site with a stateful model stops answering, and its epsilon is infinite."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sites_in_memory import party

import fedpriv as fp
from fedpriv.privacy.ledger import VOID

CODE = """
import torch
from torch import nn

class Remembers(nn.Module):
    kept = []

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x):
        x = x.flatten(1)
        Remembers.kept.append(float(x.detach().mean()))
        return self.layer(x) * (1.0 + (len(Remembers.kept) > 9000))
"""


def test_site_with_stateful_model_infinite_epsilon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_model_of_sites.py").write_text(CODE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with fp.allow_plugins():
        made = party(tmp_path, "model={name: 'own_model_of_sites:Remembers'}", "rounds=12")
        try:
            list(made.federation)
            assert all(site.spent().epsilon == float("inf") for site in made.sites.values())
            for ledger in tmp_path.glob("north/**/ledger.jsonl"):
                assert json.loads(ledger.read_text().splitlines()[-1])["query"] == VOID
        finally:
            made.close()
