"""Upper bounds on the success of an attacker who guesses if a unit is in the data and observes everything.

For (epsilon, delta)-differential privacy, false alarms a and misses b of any test obey `b >= 1 - delta - e^epsilon a`
and the same with a and b swapped (Kairouz, Oh, Viswanath 2015, theorem 2.1). Hence, from even odds,

    right guesses            (e^epsilon + delta) / (1 + e^epsilon)
    found, at false alarms a min(1, e^epsilon a + delta, 1 - e^-epsilon (1 - delta - a))

They hold for an attacker with full knowledge of all other units, and for `replace_one` between two values of the unit.
"""

from __future__ import annotations

import math

from fedpriv.errors import ConfigError


def compute_guess_rate(epsilon: float, delta: float) -> float:
    """Returns the largest probability of a right guess, from even odds."""
    _check(epsilon, delta)
    # e^epsilon / (1 + e^epsilon), without overflow
    likely = 1.0
    if epsilon < 700:
        likely = 1 / (1 + math.exp(-epsilon))
    return min(1.0, likely + delta * (1 - likely))


def compute_detection_rate(false_alarms: float, epsilon: float, delta: float) -> float:
    """Returns the largest probability that a member is found by a test with this rate of false alarms.

    Raises:
        ConfigError: If a number is out of range.
    """
    _check(epsilon, delta)
    if not 0 <= false_alarms <= 1:
        raise ConfigError("false_alarms", false_alarms, "must be a probability between 0 and 1, e.g. 0.01")
    if epsilon > 700:
        return 1.0
    few = math.exp(epsilon) * false_alarms + delta
    many = 1 - math.exp(-epsilon) * (1 - delta - false_alarms)
    return max(false_alarms, min(1.0, few, many))


def _check(epsilon: float, delta: float) -> None:
    if not epsilon >= 0:
        raise ConfigError("epsilon", epsilon, "must be at least 0")
    if not 0 <= delta < 1:
        raise ConfigError("delta", delta, "must be a probability in [0, 1)")
