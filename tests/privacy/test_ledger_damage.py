"""The file of a ledger, read back: what is torn, damaged or of another kind is told apart."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from forging import rewrite
from ledger_runs import record_of, run_until, stopped, training_in

import fedpriv as fp
from fedpriv.privacy.ledger_file import FORMAT, read_ledger
from fedpriv.privacy.record import Record


def test_torn_last_line_dropped_on_resume(tmp_path: Path) -> None:
    path = stopped(tmp_path / "torn")
    whole = path.read_bytes()
    path.write_bytes(whole[:-17])
    metrics = path.with_name("metrics.jsonl")  # a row is written after the round's line in the ledger
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:-1]))
    run_until(training_in(tmp_path / "torn", resume=True), 8)
    assert [record.round for record in read_ledger(path)] == [*range(8)]


def test_reading_torn_ledger_leaves_file_unchanged(tmp_path: Path) -> None:
    path = stopped(tmp_path)
    torn = path.read_bytes()[:-5]
    path.write_bytes(torn)
    assert len(read_ledger(path)) == 4
    assert path.read_bytes() == torn


@pytest.mark.parametrize("damage", ["{}", "not json", '{"round": 1}', "[1]"])
def test_damaged_line_error_names_line(tmp_path: Path, damage: str) -> None:
    path = stopped(tmp_path)
    lines = path.read_text().splitlines()
    lines[2] = damage
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(fp.LedgerError, match="line 3 does not match the lines before it"):
        training_in(tmp_path, resume=True)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("noise_multiplier", "5.0"),
        ("noise_multiplier", True),
        ("noise_multiplier", None),
        ("noise_multiplier", float("inf")),
        ("noise_multiplier", ["a"]),
        ("noise_multiplier", [[5.0]]),
        ("rate", "full"),
        ("rate", {}),
        ("round", 1.5),
        ("round", None),
        ("clients", [0.0, 1.0]),
        ("clients", 3),
        ("attempt", "0"),
        ("trust", 3),
        ("non_private", False),
        ("mechanism", ["gaussian"]),
        ("norm", None),
    ],
)
def test_record_field_of_wrong_type_raises(tmp_path: Path, field: str, value: object) -> None:
    """Such a record would have a wrong privacy cost or break its readers."""
    path = tmp_path / "ledger.jsonl"
    raw = json.loads(record_of(0).to_json()) | {field: value}
    rewrite(path, [{"fedpriv_ledger": FORMAT, "n_clients": 1, "delta": 1e-5}, raw])
    with pytest.raises(fp.LedgerError, match="line 2 is damaged"):
        read_ledger(path)


def test_record_json_round_trip(tmp_path: Path) -> None:
    many = replace(record_of(1), clients=(0, 2), noise_multiplier=(5.0, 4.0), rate=(0.5, 1.0), sampling="poisson")
    exact = replace(record_of(2), mechanism="none", noise_multiplier=0.0, non_private="asked for")
    for one in (record_of(0), many, exact, replace(record_of(3), noise_multiplier=5, attempt=2**61)):
        assert Record.from_json(one.to_json()) == one


@pytest.mark.parametrize(
    "header",
    [
        '{"fedpriv_ledger": "2", "n_clients": 1, "delta": 1e-05}',
        '{"fedpriv_ledger": 9, "n_clients": 1.5, "delta": 1e-05}',
        '{"fedpriv_ledger": 9, "n_clients": 0, "delta": 1e-05}',
        '{"fedpriv_ledger": 9, "n_clients": 1, "delta": 1}',
        '{"fedpriv_ledger": 9, "n_clients": 1, "delta": NaN}',
        '{"fedpriv_ledger": true, "n_clients": 1, "delta": 1e-05}',
    ],
)
def test_invalid_ledger_header_raises(tmp_path: Path, header: str) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_text(f"{header}\n{record_of(0).to_json()}\n")
    with pytest.raises(fp.LedgerError, match="is not the header of a ledger"):
        read_ledger(path)


@pytest.mark.parametrize("number", [1, FORMAT - 1, 99])
def test_ledger_of_other_format_raises(tmp_path: Path, number: int) -> None:
    path = tmp_path / "ledger.jsonl"
    rewrite(path, [{"fedpriv_ledger": number, "n_clients": 1, "delta": 1e-5}, json.loads(record_of(0).to_json())])
    with pytest.raises(
        fp.LedgerError, match=f"has format {number}, but this version of fedpriv reads only format {FORMAT}: "
    ):
        read_ledger(path)


def test_missing_ledger_header_raises(tmp_path: Path) -> None:
    """Otherwise the first record would be skipped as the header, and its round would be free of charge."""
    path = stopped(tmp_path)
    path.write_bytes(path.read_bytes().split(b"\n", 1)[1])
    with pytest.raises(fp.LedgerError, match="line 1"):
        training_in(tmp_path, resume=True)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_record_nan_or_inf_not_written(bad: float):
    """A reader would reject the line and lose the account of the whole run."""
    with pytest.raises(ValueError, match="not JSON compliant"):
        Record(0, "gradient", 0, "gaussian", 1.0, "sample", "replace_one", bound=bad).to_json()
