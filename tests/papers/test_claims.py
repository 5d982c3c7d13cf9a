"""Papers' claims, completed."""

from __future__ import annotations

import math

import pytest
from scipy.stats import norm

from fedpriv.errors import ConfigError
from fedpriv.papers.claims import erm, inexact_admm, output_perturbed_admm
from fedpriv.privacy.accounting import gaussian


@pytest.mark.parametrize(("epsilon_bar", "basic", "tight"), [(0.05, 1000, 53.7), (1.0, 20000, 7845)])
def test_inexact_admm_claim(epsilon_bar: float, basic: float, tight: float) -> None:
    claim = inexact_admm(epsilon_bar, 20000)
    assert claim.stated_epsilon == epsilon_bar
    assert claim.basic_total == pytest.approx(basic)
    assert claim.tight_total == pytest.approx(tight, rel=1e-3)
    assert "client's own gradients" in claim.why_not
    assert f"{epsilon_bar:g}" in claim.stated


def test_inexact_admm_zero_delta_equals_basic() -> None:
    assert inexact_admm(0.05, 100, 0.0).tight_total == pytest.approx(5.0)


@pytest.mark.parametrize(("epsilon_bar", "rounds"), [(0.0, 10), (1.0, 0)])
def test_inexact_admm_invalid_settings_raise(epsilon_bar: float, rounds: int) -> None:
    with pytest.raises(ConfigError):
        inexact_admm(epsilon_bar, rounds)


def test_output_perturbed_admm_composes_gaussians() -> None:
    """eps_bar = .05, delta_bar = 1e-6: sigma/sensitivity = 106; 20 000 rounds compose to mu = 1.335."""
    found = output_perturbed_admm(0.05, 20_000)
    noise = math.sqrt(2 * math.log(1.25e6)) / 0.05
    mu = math.sqrt(20_000) / noise
    assert mu == pytest.approx(1.335, abs=1e-3)
    delta = norm.cdf(-found.tight_total / mu + mu / 2) - math.exp(found.tight_total) * norm.cdf(
        -found.tight_total / mu - mu / 2
    )
    assert delta == pytest.approx(1e-5, rel=1e-3)
    assert found.basic_total == pytest.approx(1000)
    assert "assumed" in found.why_not


@pytest.mark.parametrize("field", ["epsilon", "n_examples", "epochs", "epoch_length"])
def test_svrg_claim_not_positive_raises(field: str) -> None:
    given = {"epsilon": 1.0, "n_examples": 100, "epochs": 3, "epoch_length": 50}
    for value in (0, -1):
        with pytest.raises(ConfigError, match=rf"{field} = {value}: must be a positive, finite number"):
            erm.svrg(**{**given, field: value})


def test_svrg_plus_plus_claim_doubles_epochs() -> None:
    """50 (2 + 4 + 8) steps, with sigma of equation 6."""
    claim = erm.svrg(1.0, 100, 3, 50, doubling=True)
    sigma = math.sqrt(50 * 8 * math.log(2 / 1e-3)) / 100
    assert claim.basic_total == pytest.approx(700 * gaussian.compute_epsilon(2 / sigma, 1e-3))


@pytest.mark.parametrize(("epsilon", "rounds", "field"), [(0.0, 10, "epsilon"), (1.0, 0, "rounds")])
def test_mirror_descent_claim_not_positive_raises(epsilon: float, rounds: int, field: str) -> None:
    with pytest.raises(ConfigError, match=f"{field} = 0"):
        erm.accelerated_mirror_descent(epsilon, rounds)
