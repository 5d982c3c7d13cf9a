"""Sums of many losses by one product of transforms, against sums one after another."""

from __future__ import annotations

import math
from functools import reduce

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as dpa
from scipy.stats import binom

from fedpriv.privacy.accounting import convolution, gaussian, pld
from fedpriv.privacy.accounting.events import Event, round_noise_levels

HISTORIES = [
    {Event("laplace", 16.0): 10},  # the best order of the tail alone would be infinite
    {Event("laplace", 20.0): 300, Event("laplace", 35.0): 50},
    {Event("gaussian", 1.0, "poisson", 0.01): 400, Event("gaussian", 2.0, "poisson", 0.1): 7, Event("laplace", 3.0): 2},
    {Event("gaussian", 0.4, "poisson", 1e-4): 3000},  # losses that are rare and large
    {Event("gaussian", 1.5, "poisson_replace", 0.02): 200, Event("gaussian", 3.0, "amplified", 0.1): 20},
]


@pytest.mark.parametrize("history", HISTORIES, ids=range(len(HISTORIES)))
@pytest.mark.parametrize("delta", [1e-3, 1e-7])
def test_convolution_equals_sequential_composition(history: dict[Event, int], delta: float):
    parts = [(pld._distribution(event, 2.0**-9), count) for event, count in history.items()]
    whole = reduce(lambda one, other: one.compose(other), (one.self_compose(count) for one, count in parts))
    assert convolution.epsilon(parts, 2.0**-9, delta) == pytest.approx(whole.get_epsilon_for_delta(delta), rel=1e-6)


@pytest.mark.parametrize("count, noise", [(20_000, 300.0), (600_000, 1000.0), (100, 5.0)])
@pytest.mark.parametrize("delta", [1e-2, 1e-9, 1e-11, 1e-13])
def test_convolution_epsilon_at_least_exact(count: int, noise: float, delta: float):
    """Many normal losses are one normal loss, whose epsilon has a closed form."""
    one = dpa.from_gaussian_mechanism(noise, value_discretization_interval=1e-4)
    exact = gaussian.compute_epsilon(math.sqrt(count) / noise, delta)
    assert exact <= convolution.epsilon([(one, count)], 1e-4, delta) <= 1.002 * exact


def test_rounding_allowance_covers_binomial():
    """A step up or down, two thousand times: binomial probabilities."""
    count = 2000
    found = convolution._transformed([convolution.RepeatedLoss(0, np.array([0.5, 0.0, 0.5]), 0.0, count)], 0, 2 * count)
    exact = binom.pmf(np.arange(count + 1), count, 0.5)
    assert (found[::2] >= exact * (1 - 1e-11)).all()
    assert found.max() - exact.max() < 1e-9 and found[1::2].max() < 1e-9  # yet it is small


def test_rounding_allowance_covers_cancellation():
    """Of equal probabilities all numbers of the transform but the first are sums that cancel: each may err by eps."""
    size = 64
    sums = convolution._transformed([convolution.RepeatedLoss(0, np.full(size, 1 / size), 0.0, 1)], 0, size - 1)
    eps = 8 * math.log2(size) * 2.0**-53
    assert (sums - 1 / size >= eps).all()


def test_convolution_window_holds_rare_losses():
    """Where most of a loss is in one step, and what matters is rare."""
    rare = np.zeros(4000)
    rare[0], rare[-1] = 1 - 1e-6, 1e-6
    first, last = convolution._window([convolution.RepeatedLoss(0, rare, 0.0, 1000)])
    assert first == 0 and last >= 3999 * 3  # three of a thousand: 1e9 / 6 * 1e-18, far more than 1e-15


def test_bucketed_wide_range_few_levels():
    history = {Event("gaussian", 1.001**k): 1 for k in range(9000)}
    few = round_noise_levels(history)
    assert sum(few.values()) == 9000 and len(few) < 200
    exact, rounded = (math.fsum(count / event.noise**2 for event, count in one.items()) for one in (history, few))
    assert exact <= rounded <= 1.02 * exact
