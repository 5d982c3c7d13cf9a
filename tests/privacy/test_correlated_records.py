"""Records of noise that is correlated between rounds: read back, priced together, and refused where they do not fit."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from correlated_runs import ROUNDS, training_of

import fedpriv as fp
from fedpriv.errors import ConfigError, PrivacyError
from fedpriv.privacy.accounting.accountant import Accountant, account
from fedpriv.privacy.accounting.gaussian import compute_epsilon
from fedpriv.privacy.correlated import CorrelatedNoise, Factor, compute_sensitivity
from fedpriv.privacy.record import Record


def records_of(**changes: Any) -> list[Record]:
    return [replace(record, **changes) for record in training_of().plan.records]


def test_record_round_trip_needs_matrix() -> None:
    (record, *_), time = records_of(), CorrelatedNoise(fp.BSR(4).factor(ROUNDS, 4), 4)
    assert record.time == time
    assert Record.from_json(record.to_json(), factor=time.factor) == record
    for factor in (None, fp.BSR(3).factor(ROUNDS, 4)):
        with pytest.raises(ValueError, match="matrix"):
            Record.from_json(record.to_json(), factor=factor)
    for wrong in ({"separation": 0}, {"separation": 4.0}, {"separation": True}, {"block": 4}, {"more": 1}):
        line = json.loads(record.to_json())
        line["time"] |= wrong
        with pytest.raises(ValueError):
            Record.from_json(json.dumps(line), factor=time.factor)


@pytest.mark.parametrize(
    ("order", "said"),
    [
        ([1, 2], "round 0 must be released next"),
        ([0, 2], "round 1 must be released next"),
        ([0, 1, 1], "round 2 must be released next"),
        ([0, 1, 0], "round 2 must be released next"),
    ],
)
def test_missing_or_repeated_round_raises(order: list[int], said: str) -> None:
    records = records_of()
    with pytest.raises(PrivacyError, match=said):
        account([records[t] for t in order], 4, 1e-5)


@pytest.mark.parametrize(
    "change",
    [
        {"noise_multiplier": 9.0},
        {"bound": 0.5},
        {"attempt": 1},
        {"index": 1},
        {"query": "message"},
        {"time": CorrelatedNoise(Factor(), 4, 1)},
        {"time": CorrelatedNoise(fp.BSR(4).factor(ROUNDS, 4), 5, 1)},
    ],
    ids=str,
)
def test_changed_noise_between_rounds_raises(change: dict[str, Any]) -> None:
    first, second, *_ = records_of()
    accountant = Accountant(4, 1e-5)
    accountant.admit(first)
    with pytest.raises(PrivacyError, match="its noise, query, bound or matrix differs from those of earlier rounds"):
        accountant.admit(replace(second, **change))
    accountant.admit(second)


@pytest.mark.parametrize("change", [{"mechanism": "laplace"}, {"clients": (0,)}, {"sampling": "without_replacement"}])
def test_unsupported_correlated_record_raises(change: dict[str, Any]) -> None:
    with pytest.raises(
        ConfigError, match="Gaussian, all clients take part in every round, and batches contain all examples or are"
    ):
        account(records_of(**change)[:1], 4, 1e-5)


def test_independent_releases_added_to_epsilon() -> None:
    records, multiplier = records_of(), records_of()[0].noise_multiplier
    assert isinstance(multiplier, float)
    other = replace(records[0], time=None, query="statistic:constraints", index=1, noise_multiplier=2.0)
    mu2 = (compute_sensitivity(fp.BSR(4).factor(ROUNDS, 4), ROUNDS, 4) / multiplier) ** 2 + 2 / 4
    found = account([*records, other, replace(other, round=1)], 4, 1e-5)
    assert found.epsilon == pytest.approx(compute_epsilon(math.sqrt(mu2), 1e-5), rel=1e-9)
