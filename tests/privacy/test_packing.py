"""A ledger's lines hold long cohorts in few bytes, and say the same."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from forging import rewrite
from hypothesis import given, settings
from hypothesis import strategies as st

import fedpriv as fp
from fedpriv.privacy.accounting.accountant import Accountant
from fedpriv.privacy.ledger import Ledger, Release
from fedpriv.privacy.ledger_file import FORMAT, LedgerFile, read_ledger
from fedpriv.privacy.record import Record

RECORD = Record(0, "message", 0, "gaussian", 5.0, "client", "replace_one")
N = 10_000
HALF = tuple(np.random.default_rng(0).random(N).__lt__(0.5).nonzero()[0].tolist())


@settings(max_examples=100)
@given(
    clients=st.one_of(
        st.sets(st.integers(0, 10**6), max_size=300).map(sorted),
        st.sets(st.integers(0, 400), min_size=60).map(sorted),
        st.lists(st.integers(0, 10**12), max_size=100),
    ),
    data=st.data(),
)
def test_packed_record_round_trip(clients: list[int], data: st.DataObject) -> None:
    record = replace(RECORD, clients=tuple(clients))
    if clients:
        values = data.draw(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=5))
        each = tuple(values[i % len(values)] for i in range(len(clients)))
        record = replace(record, noise_multiplier=each, rate=tuple(1 / (1 + value) for value in each))
    assert Record.from_json(record.to_json()) == record


@pytest.mark.parametrize(
    ("n", "rate", "most"), [(10_000, 0.5, 2300), (10**6, 1e-3, 2600), (10**6, 0.5, 200_000), (10**6, 1 - 1e-4, 6000)]
)
def test_packed_random_cohort_near_entropy(n: int, rate: float, most: int) -> None:
    cohort = (np.random.default_rng(1).random(n) < rate).nonzero()[0]
    assert len(replace(RECORD, clients=tuple(cohort.tolist())).to_json()) < most


def test_packed_noise_of_few_levels_is_small() -> None:
    sizes = np.random.default_rng(2).integers(10, 30, len(HALF))
    each = tuple((5.0 / sizes).tolist())
    record = replace(RECORD, clients=HALF, noise_multiplier=each)
    assert len(record.to_json()) < 8000 < len(json.dumps(vars(record), default=str)) / 10


def test_short_or_unordered_lists_not_packed() -> None:
    for clients in ((0, 2, 5), (*range(100, 0, -1),), (*range(50), *range(50)), (*range(-100, 0),)):
        assert json.loads(replace(RECORD, clients=clients).to_json())["clients"] == list(clients)


def text(numbers: list[int]) -> str:
    """Packed by hand."""
    planes = np.array(numbers, "<u4").view(np.uint8).reshape(-1, 4).T.tobytes()
    return base64.b64encode(zlib.compress(planes)).decode()


def test_packed_format_equals_documented() -> None:
    clients = (3, 4, 70_000, *range(80_000, 80_100))
    gaps = [3, 0, 69_995, 9999, *[0] * 99]
    line = json.loads(replace(RECORD, clients=clients).to_json())
    assert Record.from_json(json.dumps(line | {"clients": text(gaps)})).clients == clients
    assert zlib.decompress(base64.b64decode(line["clients"])) == zlib.decompress(base64.b64decode(text(gaps)))


@pytest.mark.parametrize(
    "changed",
    [
        {"clients": "%%%"},
        {"clients": base64.b64encode(b"no zlib").decode()},
        {"clients": text([1, 2])[:-8]},
        {"clients": base64.b64encode(zlib.compress(b"123")).decode()},
        {"clients": base64.b64encode(zlib.compress(b"1234") + b"more").decode()},
        {"clients": base64.b64encode(zlib.compress(bytes(10**8))).decode()},
        {"noise_multiplier": text([1, 2])},
        {"noise_multiplier": {"levels": [5.0], "of": text([0, 1])}},
        {"noise_multiplier": {"levels": ["5.0"], "of": text([0, 0])}},
        {"noise_multiplier": {"levels": [5.0], "of": text([0, 0]), "more": 1}},
        {"rate": {"levels": [True], "of": text([0, 0])}},
        {"rate": {"levels": [1.0]}},
    ],
)
def test_damaged_packed_list_raises(tmp_path: Path, changed: dict[str, object]) -> None:
    path = tmp_path / "ledger.jsonl"
    raw = json.loads(RECORD.to_json()) | changed
    rewrite(path, [{"fedpriv_ledger": FORMAT, "n_clients": 3, "delta": 1e-5}, raw])
    with pytest.raises(fp.LedgerError, match="line 2 is damaged"):
        read_ledger(path)


def test_resumed_ledger_packs_lists(tmp_path: Path) -> None:
    path, header = tmp_path / "ledger.jsonl", {"n_clients": N, "delta": 1e-5}
    first = Ledger(Accountant(N, 1e-5), path, header)
    first.open(Release(RECORD, torch.zeros(2)))
    ledger = Ledger.resume(path, Accountant(N, 1e-5), 1)
    ledger.open(Release(replace(RECORD, round=1, clients=HALF), torch.zeros(2)))
    found = LedgerFile.read(path)
    assert found.altered is None
    assert found.records == ledger.records
    assert isinstance(json.loads(found.texts[1])["clients"], str)
    again = Ledger.resume(path, Accountant(N, 1e-5), 1)
    with pytest.raises(fp.PrivacyError, match="was already released and recorded"):
        again.open(Release(replace(RECORD, round=1, clients=HALF), torch.zeros(2)))
