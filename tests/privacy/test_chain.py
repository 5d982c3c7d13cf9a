"""A ledger's lines are a chain that anybody can check."""

from __future__ import annotations

import hashlib
import json
from functools import partial
from pathlib import Path

import pytest
import torch
from edits import FIELDS
from forging import lines_of, rewrite
from privacy_worlds import record

import fedpriv as fp
from fedpriv.privacy import chain
from fedpriv.privacy.accounting.accountant import Accountant
from fedpriv.privacy.ledger import Ledger, LedgerPosition, Release
from fedpriv.privacy.ledger_file import LedgerFile, read_ledger

record_of = partial(record, noise_multiplier=5.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    ledger = Ledger(Accountant(2, 1e-5), tmp_path / "ledger.jsonl", {"n_clients": 2, "delta": 1e-5})
    for index in range(6):
        ledger.open(Release(record_of(index), torch.full((2,), index / 2)))
    return tmp_path / "ledger.jsonl"


def test_chain_equals_documented_hash(path: Path) -> None:
    before = "0" * 64
    for line in path.read_text().splitlines():
        text, rest = line.split(',"chain":')
        before = hashlib.sha256((before + text).encode()).hexdigest()
        assert json.loads('{"chain":' + rest) == {"chain": before}
    assert [record.round for record in read_ledger(path)] == list(range(6))
    assert json.loads(path.read_text().splitlines()[0])["fedpriv_ledger"] == 9


def test_edits_cover_all_record_fields() -> None:
    assert {*FIELDS} == {*vars(record_of(0))}


@pytest.mark.parametrize("number", [1, 3, 6], ids=["first", "middle", "last"])
@pytest.mark.parametrize("field", FIELDS)
def test_changed_field_breaks_chain(path: Path, field: str, number: int) -> None:
    lines = path.read_bytes().split(b"\n")
    raw = json.loads(lines[number])
    assert raw.get(field) != FIELDS[field]
    lines[number] = json.dumps(raw | {field: FIELDS[field]}, separators=(",", ":")).encode()
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(fp.LedgerError, match=rf"line {number + 1} does not match the lines before it: it was altered"):
        read_ledger(path)


EDITS = {
    "first record deleted": (lambda lines: lines[:1] + lines[2:], 2),
    "deleted": (lambda lines: lines[:3] + lines[4:], 4),
    "duplicated": (lambda lines: [*lines[:4], *lines[3:]], 5),
    "last duplicated": (lambda lines: [*lines, lines[-1]], 8),
    "swapped": (lambda lines: [*lines[:3], lines[4], lines[3], *lines[5:]], 4),
    "inserted without links": (lambda lines: [*lines[:3], record_of(9).to_json().encode(), *lines[3:]], 4),
    "garbage": (lambda lines: [*lines[:3], b"garbage", *lines[4:]], 4),
    "empty line": (lambda lines: [*lines[:3], b"", *lines[3:]], 4),
    "space": (lambda lines: [*lines[:3], lines[3].replace(b'":', b'": ', 1), *lines[4:]], 4),
    "header": (lambda lines: [lines[0].replace(b'"n_clients": 2', b'"n_clients": 3'), *lines[1:]], 1),
    "no links": (lambda lines: [json.dumps({"fedpriv_ledger": 9}).encode(), *lines[1:]], 1),
}


@pytest.mark.parametrize("name", EDITS)
def test_edited_file_breaks_chain(path: Path, name: str) -> None:
    edit, number = EDITS[name]
    lines = path.read_bytes().split(b"\n")[:-1]
    path.write_bytes(b"\n".join(edit(lines)) + b"\n")
    with pytest.raises(fp.LedgerError, match=rf"line {number} does not match the lines before it"):
        read_ledger(path)
    with pytest.raises(fp.LedgerError, match="altered"):
        Ledger.resume(path, Accountant(2, 1e-5), 0)


def test_chain_allows_truncation_and_rewrite(path: Path) -> None:
    """Missing last lines and a rewritten file: other files detect these."""
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))
    assert len(read_ledger(path)) == 2
    header, first, second = lines_of(path)
    rewrite(path, [header, first | {"noise_multiplier": 5000.0}, second])
    forge_ledger = LedgerFile.read(path)
    assert forge_ledger.records[0].noise_multiplier == 5000
    assert forge_ledger.altered is None


def test_resume_drops_torn_line_continues_chain(path: Path) -> None:
    whole, complete = path.read_bytes(), LedgerFile.read(path)
    path.write_bytes(b"\n".join(whole.split(b"\n")[:4]) + b"\n" + whole.split(b"\n")[4][:-9])
    ledger = Ledger.resume(path, Accountant(2, 1e-5), 1)
    assert ledger.mark == LedgerPosition(3, complete.head(3))
    assert ledger.next_round == 3
    for index in range(3, 6):
        ledger.open(Release(record_of(index), torch.full((2,), index / 2)))
        assert ledger.mark == LedgerPosition(index + 1, complete.head(index + 1))
    assert path.read_bytes() == whole


def test_linked_facts_independent_of_layout() -> None:
    facts = {"b": 1.5, "a": [1e-5, "inf"], "seconds": 3.0}
    made = chain.with_chain(facts, "f" * 64)
    # as anybody can hash it: names in order, without spaces, without the clock
    by_hand = hashlib.sha256(b"f" * 64 + b'{"a":[1e-05,"inf"],"b":1.5}').hexdigest()
    assert made["chain"] == by_hand
    again = json.loads(json.dumps(made, indent=2, sort_keys=True))
    assert chain.is_linked(again | {"seconds": 4.0}, "f" * 64)
    for wrong in ({"b": 1.25}, {"c": 0}, {"chain": "0" * 64}, {"chain": None}):
        assert not chain.is_linked(again | wrong, "f" * 64)
    assert not chain.is_linked(again, "e" * 64)
