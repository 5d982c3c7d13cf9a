"""Records of noise that cancels between pairs: read back with the pairs of their file, and with no others."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from forging import lines_of, rewrite
from pair_runs import PRIVACY, training_of

import fedpriv as fp
from fedpriv.errors import LedgerError
from fedpriv.privacy.ledger_file import read_ledger
from fedpriv.privacy.pairwise import Pairwise, RandomRegular
from fedpriv.privacy.record import Record


def test_record_round_trip_needs_pairs_of_file(tmp_path: Path) -> None:
    privacy = replace(PRIVACY, trust=Pairwise(1, 3.0, RandomRegular(2)))
    training = training_of(privacy, folder=tmp_path / "run")
    list(training)
    record = training.ledger.records[0]
    assert record.pairs is not None and record.pairs.edges is not None
    line = record.to_json()
    assert "edges" not in line and Record.from_json(line, record.pairs.edges) == record
    for edges in (None, ((0, 1),)):
        with pytest.raises(ValueError, match="pairs"):
            Record.from_json(line, edges)
    for wrong in ({"ratio": 3.0}, {"ratio": 3.0, "colluders": 1, "secrets": "complete", "edges": None}, None, 3):
        with pytest.raises(ValueError):
            Record.from_json(json.dumps({**json.loads(line), "pairs": wrong}), record.pairs.edges)


def test_ledger_of_local_trust_has_no_pair_fields(tmp_path: Path) -> None:
    training = training_of(replace(PRIVACY, trust=fp.Local()), folder=tmp_path / "run")
    list(training)
    header, first, *_ = (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()
    assert "secrets" not in json.loads(header)
    assert "pairs" not in json.loads(first)


def test_header_without_pairs_raises(tmp_path: Path) -> None:
    training = training_of(replace(PRIVACY, trust=Pairwise(1, 3.0, RandomRegular(2))), folder=tmp_path / "run")
    list(training)
    path = tmp_path / "run" / "ledger.jsonl"
    lines = lines_of(path)
    for secrets in (None, [[0, 1]]):
        rewrite(path, [{**lines[0], "secrets": secrets}, *lines[1:]])
        with pytest.raises(LedgerError, match="damaged"):
            read_ledger(path)


def test_resume_with_other_pairs_reported(tmp_path: Path) -> None:
    from fedpriv.runs.integrity import compare_with_plan
    from fedpriv.runs.run_files import RunFiles

    training = training_of(folder=tmp_path / "run")
    list(training)
    files, plan = RunFiles.read(tmp_path / "run"), training.plan
    assert not list(compare_with_plan(files, plan))
    fewer = [replace(record, pairs=replace(record.pairs, colluders=2)) for record in plan.records if record.pairs]
    assert "other pairs" in next(compare_with_plan(files, replace(plan, records=tuple(fewer)))).text
