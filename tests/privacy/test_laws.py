"""A mechanism is its law and its curve: what has no curve has no price, least of all another law's."""

from __future__ import annotations

import math
from typing import Any, get_args

import numpy as np
import pytest

from fedpriv.network.engines import MESHES, ParallelismName
from fedpriv.oracle.backends import BACKENDS, BackendName
from fedpriv.privacy.accounting import bounds, rdp
from fedpriv.privacy.accounting.events import Event
from fedpriv.privacy.mechanisms import NOISE_DISTRIBUTIONS
from fedpriv.privacy.record import MechanismName, NoiseDistributionName
from fedpriv.randomness.streams import Randomness


def test_registered_names_have_entries() -> None:
    assert (
        set(get_args(NoiseDistributionName))
        == {*NOISE_DISTRIBUTIONS}
        == {law.mechanism.name for law in NOISE_DISTRIBUTIONS.values()}
    )
    assert set(get_args(MechanismName)) == {*NOISE_DISTRIBUTIONS, "none"}
    assert set(get_args(BackendName)) == {"auto", *BACKENDS}
    assert set(get_args(ParallelismName)) == {*MESHES}


@pytest.mark.parametrize("name", NOISE_DISTRIBUTIONS)
def test_noise_distribution_facts_equal_draws(name: Any) -> None:
    law = NOISE_DISTRIBUTIONS[name]
    draws = law.mechanism.draw(Randomness(0, 1).keys("noise", 0, 0, [0]), 200_000)[0].numpy()
    assert draws.std() == pytest.approx(law.mechanism.deviation, rel=0.01)
    reach = law.within_95 * law.mechanism.deviation
    for answers in (1, 2, 8):
        means = draws.reshape(-1, answers).mean(1)
        assert (np.abs(means) <= reach / math.sqrt(answers)).mean() >= 0.945
    assert math.isfinite(rdp.compute_pure_epsilon(Event(name, 2.0))) == law.pure


def test_distribution_without_curve_raises() -> None:
    unheard: Any = "unheard of"
    with pytest.raises(KeyError):
        bounds.compute_quick_epsilons({Event(unheard, 1.0): 3}, 1e-5)


def test_curve_only_distribution_not_amplified(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reach of its tails is unknown, so sampling does not reduce epsilon, and no loss distribution exists."""
    new: Any = "new"
    monkeypatch.setattr(rdp, "_CURVES", rdp._CURVES | {new: rdp._CURVES["laplace"]})
    rdp.compute_divergences.cache_clear()
    plain, sampled = (
        bounds.compute_tight_epsilons({Event(new, 2.0, *how): 3}, 1e-5) for how in ((), ("poisson", 0.01))
    )
    assert sampled == plain
    assert plain["pure"] == plain["pld"] == math.inf
    assert plain["rdp"] == bounds.compute_quick_epsilons({Event("laplace", 2.0): 3}, 1e-5)["rdp"]
