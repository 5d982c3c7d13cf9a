"""Bounds of epsilon against known values."""

from __future__ import annotations

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as dpa
from renyi_epsilon import DELTA, rdp_epsilon

from fedpriv.privacy.accounting import allocation, bounds, gaussian, pld
from fedpriv.privacy.accounting.events import Event


def test_gaussian_epsilon_equals_exact() -> None:
    assert gaussian.compute_epsilon(1.0, DELTA) == pytest.approx(4.3772, abs=5e-5)
    assert pld.epsilon({Event("gaussian", 1.0): 1}, DELTA) == pytest.approx(4.3772, abs=5e-4)
    assert rdp_epsilon({Event("gaussian", 1.0): 1}) == pytest.approx(4.7285, abs=1e-3)
    assert bounds.compute_tight_epsilons({Event("gaussian", 10.0): 100}, DELTA)["gaussian"] == pytest.approx(
        4.3772, abs=5e-5
    )


@pytest.mark.parametrize(
    ("sigma", "rate", "steps", "tight", "renyi", "replaced"),
    [
        (1.0, 0.01, 1000, 1.8282, 2.1014, 2.8434),
        (1.1, 256 / 60000, 14063, 2.3818, 2.5967, 4.2215),
        (0.8, 0.001, 20000, 1.1004, 1.5683, 1.6752),
        (2.0, 0.1, 500, 5.5555, 6.03, 11.385),
    ],
)
def test_sampled_gaussian_known_epsilon(
    sigma: float, rate: float, steps: int, tight: float, renyi: float, replaced: float
) -> None:
    added = {Event("gaussian", sigma, "poisson", rate): steps}
    assert pld.epsilon(added, DELTA) == pytest.approx(tight, rel=3e-4)
    assert rdp_epsilon(added) == pytest.approx(renyi, rel=2e-3)
    # the noise multiplier of a replaced record counts 2C as the sensitivity
    moved = {Event("gaussian", sigma / 2, "poisson_replace", rate): steps}
    assert pld.epsilon(moved, DELTA) == pytest.approx(replaced, rel=3e-4)
    assert replaced < rdp_epsilon(moved) < 1.25 * replaced


@pytest.mark.parametrize(
    ("epsilon", "count", "tight", "renyi"),
    [
        (1.0, 1, 0.99998, 1.0028),
        (1.0, 10, 9.98996, 9.9903),
        (0.1, 100, 4.2204, 4.5327),
        (0.01, 20000, 6.5593, 7.0625),
        (0.001, 20000, 0.4969, 0.5457),
        (1e-5, 20000, 0.00292, 0.0045),
    ],
)
def test_laplace_known_epsilon(epsilon: float, count: int, tight: float, renyi: float) -> None:
    history = {Event("laplace", 1 / epsilon): count}
    assert pld.epsilon(history, DELTA) == pytest.approx(tight, rel=5e-4, abs=6e-6)
    assert rdp_epsilon(history) <= renyi * 1.001
    assert min(bounds.compute_tight_epsilons(history, DELTA).values()) <= epsilon * count


@pytest.mark.parametrize(
    "event",
    [
        Event("gaussian", 1.0, "poisson_replace", 0.0064),
        Event("gaussian", 1.0, "poisson", 0.01),
        Event("gaussian", 4.0, "poisson", 0.5),
        Event("laplace", 100.0),
        Event("laplace", 2.0, "amplified", 0.01),
    ],
)
@pytest.mark.parametrize("count", [3, 25, 400])
def test_rough_bound_slightly_above_tight(event: Event, count: int) -> None:
    tight = bounds.compute_largest_epsilon([{event: count}], DELTA)
    rough = bounds.compute_largest_epsilon([{event: count}], DELTA, rough=True)
    slack = 1.03 if event.law == "laplace" else 1.01
    assert tight * (1 - 1e-6) <= rough <= slack * tight
    assert (tight < rough) == (bounds.compute_tight_epsilons({event: count}, DELTA)["pld"] == tight)


def test_hundred_laplace_scales_equal_composition() -> None:
    # round by round, on the finest grid, is the reference: only the cost differs
    scales = np.geomspace(5, 30, 100)
    history = {Event("laplace", float(b)): 1 for b in scales}
    plain = _composed([dpa.from_laplace_mechanism(float(b)) for b in scales]).get_epsilon_for_delta(DELTA)
    assert pld.epsilon(history, DELTA) == pytest.approx(plain, rel=1e-3)


def _composed(distributions: list[dpa.PrivacyLossDistribution]) -> dpa.PrivacyLossDistribution:
    whole = distributions[0]
    for other in distributions[1:]:
        whole = whole.compose(other)
    return whole


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "tight", "renyi", "pure"),
    [
        (1, 0.01, 1000, 1.1238, 1.2302, 17.0),
        (10, 0.1, 1000, 1.1795, 1.2871, 10.46),
        (2, 0.001, 20000, 0.2193, 0.2425, 12.97),
    ],
)
def test_sampled_laplace_known_epsilon(
    noise: float, rate: float, steps: int, tight: float, renyi: float, pure: float
) -> None:
    found = bounds.compute_tight_epsilons({Event("laplace", noise, "poisson", rate): steps}, DELTA)
    assert found["pld"] == pytest.approx(tight, rel=3e-4)
    assert found["rdp"] == pytest.approx(renyi, rel=1e-3)
    assert found["pure"] == pytest.approx(pure, rel=3e-3)


@pytest.mark.parametrize(
    ("sigma", "rate", "steps", "fixed", "replaced", "added", "earlier"),
    [
        (2, 1 / 600, 2000, 0.450, 0.249, 0.127, 0.932),
        (2, 1 / 600, 20000, 1.565, 0.873, 0.441, 2.446),
        (4, 1 / 600, 20000, 0.522, 0.408, 0.196, 1.025),
        (1, 1 / 600, 20000, 11.88, 2.04, 1.20, 16.19),
        (1.1, 256 / 60000, 14063, 18.45, 4.22, 2.38, 24.08),
    ],
)
def test_fixed_size_gaussian_known_epsilon(
    sigma: float, rate: float, steps: int, fixed: float, replaced: float, added: float, earlier: float
) -> None:
    found = bounds.compute_tight_epsilons({Event("gaussian", sigma / 2, "amplified", rate): steps}, DELTA)
    assert found["pld"] == pytest.approx(fixed, rel=2e-3)
    assert found["pld"] < found["rdp"] < earlier  # the general Rényi bound is looser than ours
    assert pld.epsilon({Event("gaussian", sigma / 2, "poisson_replace", rate): steps}, DELTA) == pytest.approx(
        replaced, rel=3e-3
    )
    assert pld.epsilon({Event("gaussian", sigma, "poisson", rate): steps}, DELTA) == pytest.approx(added, rel=4e-3)


def test_fixed_size_laplace_known_epsilon() -> None:
    assert pld.epsilon({Event("laplace", 1.0, "amplified", 1 / 600): 2000}, DELTA) == pytest.approx(0.278, abs=5e-4)
    assert pld.epsilon({Event("laplace", 2.0, "poisson", 1 / 600): 2000}, DELTA) == pytest.approx(0.109, abs=5e-4)


@pytest.mark.parametrize("noise", [0.7, 1.3])
def test_epoch_epsilon_ignores_last_bits_of_noise(noise: float) -> None:
    """Noise is rounded down, by less than 1.1e-5 of it: what differs in its last bits has one price."""
    epsilon = bounds.compute_quick_epsilons({Event("gaussian", noise, "allocation", 1 / 5): 1}, DELTA)["pld"]
    near = bounds.compute_quick_epsilons({Event("gaussian", noise * (1 + 1e-13), "allocation", 1 / 5): 1}, DELTA)["pld"]
    assert epsilon == near
    least, most = (allocation.epsilon_bounds(5, noise * shrunk, 1, DELTA).upper for shrunk in (1, 1 - 2e-5))
    assert least < epsilon < most


def test_twenty_thousand_laplace_scales_known_epsilon() -> None:
    history = {Event("laplace", 1 / (0.05 * 0.9998**t + 1e-4)): 1 for t in range(20000)}
    assert rdp_epsilon(history) == pytest.approx(14.093, rel=1e-3)
    assert 13.175 < pld.epsilon(history, DELTA) < 13.6
