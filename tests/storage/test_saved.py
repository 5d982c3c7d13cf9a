"""Files of a run: the allowed range of each field, and the error for a damaged one."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fedpriv.errors import FedprivError
from fedpriv.storage.file_schemas import CONFIG, RESULT, ROUND, validate_fields

ROW: dict[str, Any] = {"round": 3}
DONE: dict[str, Any] = {
    "rounds": 3,
    "planned_rounds": 3,
    "ended": "rounds",
    "releases": 3,
    "epsilon": 1.0,
    "per_client_epsilon": [1.0],
    "accountant": "rdp",
    "not_covered": [],
    "float64_noise": [],
}
SETTINGS: dict[str, Any] = {
    "data": {"name": "digits"},
    "model": {"name": "softmax"},
    "strategy": {"name": "iadmm", "variant": "default"},
    "privacy": {"epsilon": 3.0},
    "network": {"topology": {"name": "star"}},
}


@pytest.mark.parametrize("count", [0, 1, 10**12])
def test_valid_counts_accepted(count: int) -> None:
    assert validate_fields(ROUND, ROW | {"releases": count}, "x", "") == ROW | {"releases": count}


@pytest.mark.parametrize("count", [-1, 10**12 + 1, 1.0, "1", True, None])
def test_invalid_count_raises(count: object) -> None:
    with pytest.raises(FedprivError, match=r"^x is damaged \(releases = .*; take another$"):
        validate_fields(ROUND, ROW | {"releases": count}, "x", "take another")


@pytest.mark.parametrize("epsilon", [0, 0.0, 2.5, 10, "inf", math.inf])
def test_valid_epsilons_accepted(epsilon: object) -> None:
    validate_fields(ROUND, ROW | {"epsilon": epsilon}, "x", "")


@pytest.mark.parametrize("epsilon", [-1e-300, -math.inf, math.nan, "nan", "0.5", "Infinity", True, None])
def test_invalid_epsilon_raises(epsilon: object) -> None:
    with pytest.raises(FedprivError, match=r"^x is damaged \(epsilon = "):
        validate_fields(ROUND, ROW | {"epsilon": epsilon}, "x", "")


@pytest.mark.parametrize("number", [-3.5, 4, "inf", math.inf, -math.inf, math.nan, None])
def test_valid_metrics_accepted(number: object) -> None:
    validate_fields(ROUND, ROW | {"test_loss": number}, "x", "", ["test_loss"])


@pytest.mark.parametrize("number", ["-inf", "1", True, [1.0]])
def test_invalid_metric_raises(number: object) -> None:
    with pytest.raises(FedprivError, match=r"^x is damaged \(test_loss"):
        validate_fields(ROUND, ROW | {"test_loss": number}, "x", "", ["test_loss"])


@pytest.mark.parametrize("noise", [math.inf, math.nan, "inf", "1", True])
def test_nonfinite_noise_multiplier_raises(noise: object) -> None:
    with pytest.raises(FedprivError, match=r"^x is damaged \(noise_multiplier = "):
        validate_fields(RESULT, DONE | {"noise_multiplier": noise}, "x", "")
    validate_fields(RESULT, DONE | {"noise_multiplier": 1.5}, "x", "")


@pytest.mark.parametrize("text", [1, None, b"rounds", ["rounds"]])
def test_non_text_raises(text: object) -> None:
    with pytest.raises(FedprivError, match=r"^x is damaged \(ended = "):
        validate_fields(RESULT, DONE | {"ended": text}, "x", "")


@pytest.mark.parametrize("field", [*DONE])
def test_result_missing_field_raises(field: str) -> None:
    """Unknown fields are accepted: a later fedpriv may write more."""
    validate_fields(RESULT, DONE | {"of a later version": 1}, "x", "")
    missing = {name: value for name, value in DONE.items() if name != field}
    with pytest.raises(
        FedprivError, match=rf"^x is damaged or was written by an earlier fedpriv \(it has no {field}\)"
    ):
        validate_fields(RESULT, missing, "x", "")


@pytest.mark.parametrize("place", [("data", "name"), ("strategy", "variant"), ("network", "topology")])
def test_configuration_missing_field_raises(place: tuple[str, str]) -> None:
    section, name = place
    validate_fields(CONFIG, SETTINGS, "x", "")
    missing = {key: value for key, value in SETTINGS[section].items() if key != name}
    with pytest.raises(FedprivError, match=rf"it has no {section}\.{name}\)"):
        validate_fields(CONFIG, SETTINGS | {section: missing}, "x", "")


def test_error_names_nested_position() -> None:
    widths = {"half_width": [[1.0, "x"]]}
    with pytest.raises(FedprivError, match=r"^x is damaged \(constraint_confidence\.half_width\.0\.1 = 'x': "):
        validate_fields(RESULT, DONE | {"constraint_confidence": widths}, "x", "")
    with pytest.raises(FedprivError, match=r"^x is damaged \(\[\]: "):
        validate_fields(RESULT, [], "x", "")
