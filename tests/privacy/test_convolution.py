"""Sums of many losses by one product of transforms, against sums one after another."""

from __future__ import annotations

import math
from functools import reduce

import numpy as np
import pytest

from fedpriv.privacy.accounting import convolution, pld
from fedpriv.privacy.accounting.events import Event, bucketed

HISTORIES = [
    {Event("laplace", 20.0): 300, Event("laplace", 35.0): 50},
    {Event("gaussian", 1.0, "poisson", 0.01): 400, Event("gaussian", 2.0, "poisson", 0.1): 7, Event("laplace", 3.0): 2},
    {Event("gaussian", 0.4, "poisson", 1e-4): 3000},  # losses that are rare and large
    {Event("gaussian", 1.5, "poisson_replace", 0.02): 200, Event("gaussian", 3.0, "amplified", 0.1): 20},
]


@pytest.mark.parametrize("history", HISTORIES, ids=range(4))
@pytest.mark.parametrize("delta", [1e-3, 1e-7])
def test_one_product_is_the_same_as_one_sum_after_another(history: dict[Event, int], delta: float):
    parts = [(pld._distribution(event, 2.0**-9), count) for event, count in history.items()]
    whole = reduce(lambda one, other: one.compose(other), (one.self_compose(count) for one, count in parts))
    assert convolution.epsilon(parts, 2.0**-9, delta) == pytest.approx(whole.get_epsilon_for_delta(delta), rel=1e-6)


def test_the_window_holds_all_but_the_tail():
    """Where most of a loss is in one step, and what matters is rare."""
    rare = np.zeros(4000)
    rare[0], rare[-1] = 1 - 1e-6, 1e-6
    first, last = convolution._window([convolution.Part(0, rare, 0.0, 1000)])
    assert first == 0 and last >= 3999 * 3  # three of a thousand: 1e9 / 6 * 1e-18, far more than 1e-15


def test_many_levels_over_powers_of_ten_become_a_hundred_that_cost_little_more():
    history = {Event("gaussian", 1.001**k): 1 for k in range(9000)}
    few = bucketed(history)
    assert sum(few.values()) == 9000 and len(few) < 200
    exact, rounded = (math.fsum(count / event.noise**2 for event, count in one.items()) for one in (history, few))
    assert exact <= rounded <= 1.02 * exact
