"""What has no price is refused: no noise, no share of a budget, no record, no target that noise could reach."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from privacy_worlds import record

import fedpriv as fp
from fedpriv.papers.claims import erm
from fedpriv.papers.published import Published
from fedpriv.privacy.accounting.calibration import calibrate
from fedpriv.privacy.mechanisms import add_noise
from fedpriv.privacy.pairwise import Topology
from fedpriv.privacy.record import Record
from fedpriv.privacy.release import Answer, release_scheme
from fedpriv.privacy.schedules import Custom
from fedpriv.randomness.streams import Randomness


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf])
def test_add_noise_invalid_scale_raises(scale: float) -> None:
    with pytest.raises(fp.ConfigError, match=r"noise scale = .*: must be positive and finite"):
        add_noise(torch.ones(2, 3), [1.0, scale], fp.Gaussian(), record(), Randomness(0, 1), [0, 1])


def test_price_without_multiplier_raises() -> None:
    with pytest.raises(fp.ConfigError, match="the noise is not calibrated yet"):
        release_scheme(fp.Privacy(epsilon=1.0), [5]).price(Answer(0, 0, "gradient", [0], fp.Clip(1.0)), [1.0])


@pytest.mark.parametrize("round_index", [2000, 10**6])
def test_underflowing_schedule_share_raises(round_index: int) -> None:
    """A share that underflows would mean infinite noise, and an infinite multiplier has zero privacy cost."""
    scheme = release_scheme(fp.Privacy(noise_multiplier=1.0, schedule=fp.Geometric(0.5)), [5])
    scheme.price(Answer(3, 0, "gradient", [0], fp.Clip(1.0)), [1.0])
    with pytest.raises(fp.ConfigError, match=rf"the share of round {round_index} must be"):
        scheme.price(Answer(round_index, 0, "gradient", [0], fp.Clip(1.0)), [1.0])


@pytest.mark.parametrize("given", [0.0, -1.0, math.nan, math.inf, True, "1", None])
def test_custom_share_not_positive_raises(given: Any) -> None:
    with pytest.raises(fp.ConfigError, match=r"privacy\.schedule\.function.* round 4"):
        Custom(lambda round_index: given if round_index == 4 else 1.0).share(4)
    assert Custom(lambda round_index: 2.0).share(4) == 2.0


def test_failing_custom_share_error_names_round() -> None:
    with pytest.raises(fp.ConfigError, match=r"raises an error in round 0 \(ZeroDivisionError"):
        Custom(lambda round_index: 1 / round_index).share(0)


@pytest.mark.parametrize("options", [{"epsilon": 1e-30}, {"epsilon": 1e30}, {"noise_multiplier": 1e-30}])
def test_extreme_privacy_settings_raise(options: dict[str, float]) -> None:
    with pytest.raises(fp.ConfigError, match="in which privacy costs are computed"):
        fp.Privacy(**options)


@pytest.mark.parametrize("how", [{}, {"mechanism": "laplace"}, {"sampling": "poisson", "rate": 0.5}])
def test_unreachable_target_raises(how: dict[str, Any]) -> None:
    with pytest.raises(fp.ConfigError, match="no amount of noise reaches"):
        calibrate([record(k, noise_multiplier=1e-9, **how) for k in range(10)], 2, 1e-19, 1e-300)


def test_record_with_other_fields_raises() -> None:
    raw = json.loads(record().to_json())
    assert Record.from_json(json.dumps(raw)) == record()
    for line in ({**raw, "more": 1}, {key: raw[key] for key in raw if key != "noise_multiplier"}, [raw], 3):
        with pytest.raises(ValueError, match="not a ledger record"):
            Record.from_json(json.dumps(line))


def test_published_without_noise_reason() -> None:
    with pytest.raises(fp.ConfigError, match="must be positive; for no noise, set epsilon_bar to infinity"):
        Published(1.0, scale=0.0)
    assert Published(math.inf, scale=0.0).why_not == "exact query results, no noise"


def test_claim_epsilon_zero_raises() -> None:
    claim = erm.accelerated_mirror_descent(1.0, 10)
    assert (claim.stated_epsilon, claim.basic_total, claim.tight_total) == (1.0, math.inf, math.inf)
    with pytest.raises(fp.ConfigError, match="epsilon"):
        erm.accelerated_mirror_descent(0.0, 10)


def test_topology_secrets_without_network_raise() -> None:
    with pytest.raises(fp.ConfigError, match="the run has no network"):
        Topology().edges(5)
