"""Bounds on membership attacks: randomised response reaches them, and no test against Gaussian noise passes them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from fedpriv.errors import ConfigError
from fedpriv.privacy.accounting.gaussian import compute_ratio
from fedpriv.tuning.membership import compute_detection_rate, compute_guess_rate

DELTA = 1e-5


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0, 4.0])
@pytest.mark.parametrize("delta", [0.0, 0.05])
def test_randomized_response_attains_attack_bound(epsilon: float, delta: float):
    """The truth leaks with probability delta, else it is given with e^eps / (1 + e^eps) (Kairouz et al. 2015)."""
    truth_rate = math.exp(epsilon) / (1 + math.exp(epsilon))
    right = delta + (1 - delta) * truth_rate
    assert compute_guess_rate(epsilon, delta) == pytest.approx(right)
    # guess "member" if the answer says so: misses and false alarms are equal, without a leak
    false_alarms = (1 - delta) * (1 - truth_rate)
    assert compute_detection_rate(false_alarms, epsilon, delta) == pytest.approx(right)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_gaussian_attacks_within_bound(epsilon: float):
    shift = compute_ratio(epsilon, DELTA)
    for threshold in np.linspace(-4, 8, 200):
        false_alarms, found = norm.sf(threshold), norm.sf(threshold - shift)
        assert found <= compute_detection_rate(float(false_alarms), epsilon, DELTA) + 1e-12
        assert (1 - false_alarms + found) / 2 <= compute_guess_rate(epsilon, DELTA) + 1e-12


def test_attack_bounds_at_limits():
    assert compute_guess_rate(0.0, 0.0) == 0.5 and compute_detection_rate(0.01, 0.0, 0.0) == pytest.approx(0.01)
    assert compute_guess_rate(math.inf, 0.0) == 1.0 and compute_detection_rate(0.0, 1e4, 0.0) == 1.0
    assert compute_detection_rate(0.0, 1.0, 1e-5) == pytest.approx(1e-5)
    for wrong in ((-1.0, 0.0), (math.nan, 0.0), (1.0, 1.0), (1.0, -0.1)):
        with pytest.raises(ConfigError):
            compute_guess_rate(*wrong)
    with pytest.raises(ConfigError):
        compute_detection_rate(1.5, 1.0, 0.0)
