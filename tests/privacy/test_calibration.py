"""Calibration: as little noise as the target allows, and never less."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import privacy_worlds
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.errors import ConfigError, PrivacyError
from fedpriv.privacy.accounting import calibration
from fedpriv.privacy.accounting.accountant import account
from fedpriv.privacy.accounting.calibration import calibrate, calibrate_rest, delta_warning
from fedpriv.privacy.record import Record

DELTA = 1e-5
record = partial(privacy_worlds.record, noise_multiplier=1.0)


def scaled(plan: list[Record], factor: float) -> list[Record]:
    def times(noise: Any) -> Any:
        return tuple(factor * one for one in noise) if isinstance(noise, tuple) else factor * noise

    return [replace(one, noise_multiplier=times(one.noise_multiplier)) for one in plan]


LAPLACE = {"mechanism": "laplace", "norm": "l1"}
PLANS = {
    "gaussian": [record(k) for k in range(50)],
    "laplace": [record(k, **LAPLACE) for k in range(50)],
    "one laplace": [record(0, **LAPLACE)],
    "l2 laplace": [record(k, mechanism="laplace") for k in range(50)],
    "poisson": [record(k, sampling="poisson", rate=0.02, relation="add_remove") for k in range(50)],
    "poisson replaced": [record(k, sampling="poisson", rate=0.02) for k in range(50)],
    "fixed size": [record(k, sampling="without_replacement", rate=0.02) for k in range(50)],
    "geometric": [record(k, **LAPLACE, noise_multiplier=0.95**-k) for k in range(50)],
    "mixed": [record(k, **(LAPLACE if k % 2 else {})) for k in range(50)],
    "cohorts": [record(k, **LAPLACE, clients=(0, 1 + k % 2), noise_multiplier=(1.0, 1.5)) for k in range(50)],
    "rates": [record(k, sampling="poisson", rate=(0.01, 0.02, 0.05)) for k in range(50)],
}


@pytest.mark.parametrize("epsilon", [0.3, 6.0])
@pytest.mark.parametrize("name", PLANS)
def test_calibration_meets_target_within_0_1_percent(name: str, epsilon: float) -> None:
    plan = PLANS[name]
    factor = calibrate(plan, 3, epsilon, DELTA)
    assert account(scaled(plan, factor), 3, DELTA).epsilon <= epsilon
    assert account(scaled(plan, factor * (1 - 1.1e-3)), 3, DELTA).epsilon > epsilon


@settings(max_examples=15)
@given(st.floats(0.01, 50), st.lists(st.floats(0.1, 10), min_size=1, max_size=5))
def test_gaussian_calibration_meets_target(epsilon: float, shares: list[float]) -> None:
    plan = [record(k, noise_multiplier=1 / share) for k, share in enumerate(shares)]
    factor = calibrate(plan, 1, epsilon, DELTA)
    assert epsilon * (1 - 1e-4) < account(scaled(plan, factor), 1, DELTA).epsilon <= epsilon


def test_pure_laplace_calibration_closed_form() -> None:
    plan = [record(k, **LAPLACE, noise_multiplier=0.9**-k) for k in range(20)]
    total = sum(0.9**k for k in range(20))
    assert calibrate(plan, 2, 1.5, 0.0) == pytest.approx(total / 1.5, rel=3e-4)
    assert account(scaled(plan, calibrate(plan, 2, 1.5, 0.0)), 2, 0.0).epsilon <= 1.5
    sampled = [replace(one, sampling="poisson", rate=0.1) for one in plan]
    assert account(scaled(sampled, calibrate(sampled, 2, 1.5, 0.0)), 2, 0.0).epsilon == pytest.approx(1.5, rel=1e-3)


def test_pure_calibration_many_levels_exact() -> None:
    """More noise levels than a tight bound keeps separate."""
    plan = [record(k, **LAPLACE, noise_multiplier=1.001**-k) for k in range(300)]
    plan[0] = replace(plan[0], sampling="poisson", rate=0.1)
    assert account(scaled(plan, calibrate(plan, 1, 1.5, 0.0)), 1, 0.0).epsilon == pytest.approx(1.5, rel=1e-3)


def test_calibration_few_tight_bound_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    real = calibration.bounds.compute_largest_epsilon

    def counted(histories: Any, delta: float) -> float:
        calls.append(len(histories[0]))
        return real(histories, delta)

    monkeypatch.setattr(calibration.bounds, "compute_largest_epsilon", counted)
    for name in ("laplace", "poisson", "geometric"):
        calls.clear()
        calibrate(PLANS[name], 100, 3.0, DELTA)
        assert len(calls) <= 5
        assert calls[0] == (50 if name == "geometric" else 1)  # equal events are priced together


POISSON, FIXED = {"sampling": "poisson"}, {"sampling": "without_replacement"}


@pytest.mark.parametrize(
    ("sampling", "epsilon", "delta"),
    [
        ({**POISSON, "rate": 0.3}, 1e-5, DELTA),
        ({**POISSON, "rate": 0.01}, 1e-5, DELTA),
        ({**POISSON, "rate": 0.01}, 1e-3, DELTA),
        ({**POISSON, "rate": 0.1}, 1e-20, DELTA),
        ({**POISSON, "rate": 0.1}, 1e20, DELTA),
        ({**POISSON, "rate": 0.1}, 1.0, 0.5),
        ({**FIXED, "rate": 0.1}, 1.0, 0.5),
        ({**FIXED, "rate": 0.1}, 1e-20, DELTA),
        ({}, 1e-20, DELTA),
        ({}, 1e20, DELTA),
    ],
)
def test_extreme_targets_met_in_few_steps(
    sampling: dict[str, Any], epsilon: float, delta: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where delta alone pays for everything epsilon is 0, and no power of the noise."""
    steps: list[float] = []
    real = calibration.bounds.compute_largest_epsilon
    monkeypatch.setattr(calibration.bounds, "compute_largest_epsilon", lambda *given: steps.append(1) or real(*given))
    plan = [record(k, **sampling) for k in range(20)]
    factor = calibrate(plan, 2, epsilon, delta)
    assert len(steps) <= 25
    monkeypatch.undo()
    assert account(scaled(plan, factor), 2, delta).epsilon <= epsilon
    if epsilon < 1e10:  # where quick bounds are all there is, a few percent are given away
        assert account(scaled(plan, factor / 1.002), 2, delta).epsilon > epsilon


@pytest.mark.parametrize("noise", [1e-100, 1e-20, 1e-7, 1e-5, 1e5, 1e7, 1e20])
@pytest.mark.parametrize("sampling", [{}, {**POISSON, "rate": 0.1}, {**FIXED, "rate": 0.1}])
def test_extreme_noise_epsilon_consistent(noise: float, sampling: dict[str, Any]) -> None:
    """No less than at a hundredth more noise, and no more than without sampling."""
    priced, dearer = (
        account([record(k, noise_multiplier=factor * noise, **sampling) for k in range(20)], 2, DELTA).epsilon
        for factor in (1.01, 1.0)
    )
    plain = account([record(k, noise_multiplier=noise) for k in range(20)], 2, DELTA).epsilon
    assert 0 <= priced <= dearer <= 1.05 * plain
    if noise < 1:
        assert dearer > 1e4


@pytest.mark.parametrize(
    ("plan", "epsilon", "delta"),
    [
        ([record()], 0.0, DELTA),
        ([record()], -1.0, DELTA),
        ([record()], math.nan, DELTA),
        ([record()], 1.0, 1.0),
        ([record()], 1.0, -1e-5),
        ([record()], 1.0, 0.0),
        ([record(mechanism="laplace")], 1.0, 0.0),
        ([record(mechanism="none", non_private="exact")], 1.0, DELTA),
        ([record(noise_multiplier=0.0)], 1.0, DELTA),
        ([record(**LAPLACE)], 1e-14, 0.0),
    ],
)
def test_impossible_target_raises(plan: list[Record], epsilon: float, delta: float) -> None:
    with pytest.raises(ConfigError):
        calibrate(plan, 1, epsilon, delta)


def test_calibrate_exact_release_error_text() -> None:
    with pytest.raises(ConfigError, match="add noise to every query result"):
        calibrate([record(), record(1, mechanism="none", non_private="exact")], 1, 1.0, DELTA)


def test_calibrate_mixed_units_raises() -> None:
    with pytest.raises(PrivacyError):
        calibrate([record(), record(unit="client")], 1, 1.0, DELTA)


def test_calibrate_without_releases_returns_one() -> None:
    assert calibrate([], 1, 1.0, DELTA) == 1.0
    assert calibrate([record(sampling="poisson", rate=0.0)], 1, 1.0, DELTA) == 1.0


def test_large_delta_warning() -> None:
    assert delta_warning(1e-5, 60000) is None
    assert "below 1/1000" in (delta_warning(1e-3, 1000) or "")


@pytest.mark.parametrize("changes", [{"unit": "client"}, {"relation": "add_remove"}])
def test_rest_of_run_with_other_guarantee_raises(changes) -> None:
    spent = [record(0)]
    assert calibrate_rest(spent, [record(1)], 1, 30.0, DELTA) > 0
    with pytest.raises(PrivacyError, match="unit or neighbouring relation"):
        calibrate_rest(spent, [replace(record(1), **changes)], 1, 30.0, DELTA)
