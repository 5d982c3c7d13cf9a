"""Papers' claims, completed."""

from __future__ import annotations

import pytest

from fedpriv.errors import ConfigError
from fedpriv.privacy.claims import inexact_admm


@pytest.mark.parametrize(("epsilon_bar", "basic", "tight"), [(0.05, 1000, 53.7), (1.0, 20000, 7845)])
def test_inexact_admm(epsilon_bar: float, basic: float, tight: float) -> None:
    claim = inexact_admm(epsilon_bar, 20000)
    assert claim.stated_epsilon == epsilon_bar
    assert claim.basic_total == pytest.approx(basic)
    assert claim.tight_total == pytest.approx(tight, rel=1e-3)
    assert "client's own gradients" in claim.why_not
    assert f"{epsilon_bar:g}" in claim.stated


def test_inexact_admm_without_delta_is_basic_composition() -> None:
    assert inexact_admm(0.05, 100, 0.0).tight_total == pytest.approx(5.0)


@pytest.mark.parametrize(("epsilon_bar", "rounds"), [(0.0, 10), (1.0, 0)])
def test_senseless_settings_are_refused(epsilon_bar: float, rounds: int) -> None:
    with pytest.raises(ConfigError):
        inexact_admm(epsilon_bar, rounds)
