"""The tight price of a replaced example under random allocation, against Monte Carlo estimates and closed forms."""

from __future__ import annotations

import itertools
import math
import time

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import norm

from fedpriv.errors import ConfigError
from fedpriv.privacy.accounting import allocation, allocation_replace, convolution, gaussian, signed_sums
from fedpriv.privacy.accounting.allocation_replace import COARSE, epsilon, epsilon_bounds, privacy_loss
from fedpriv.privacy.accounting.signed_sums import Difference, combine, lower_line, make_single_law, upper_delta

Array = NDArray[np.float64]

# batches, noise, epochs, delta, number of samples: what the estimates are made at
SETTINGS = [
    (2, 0.5, 1, 1e-3, 100_000),
    (2, 4.0, 100, 1e-2, 10_000),
    (3, 1.0, 5, 1e-3, 100_000),
    (5, 0.7, 1, 1e-5, 200_000),
    (10, 0.5, 1, 1e-3, 100_000),
    (20, 1.0, 1, 1e-4, 100_000),
    (20, 2.0, 30, 1e-2, 8_000),
    (50, 0.8, 3, 1e-3, 50_000),
    (100, 1.0, 20, 1e-2, 4_000),
    (300, 0.6, 1, 1e-3, 30_000),
    (1000, 0.7, 1, 1e-2, 8_000),
    (1000, 1.0, 5, 3e-2, 3_000),
    (10, 3.0, 100, 1e-2, 8_000),
]


def estimated_delta(
    setting: tuple[int, float, int], epsilon: float, samples: int, shift: float, seed: int
) -> tuple[float, float]:
    """Estimates ``E_P* (1 - e^epsilon dQ*/dP*)_+``, where the example's batches are moved by `shift` instead of 1.

    Returns:
        The mean and its standard error.
    """
    batches, noise, epochs = setting
    rng = np.random.default_rng(seed)
    block = max(1, 1_000_000 // (batches * epochs))
    found = list[Array]()
    for start in range(0, samples, block):
        size = min(block, samples - start)
        x = noise * rng.standard_normal((size, epochs, batches))
        places = rng.integers(batches, size=(size, epochs, 1))
        np.put_along_axis(x, places, np.take_along_axis(x, places, 2) + shift, 2)
        # densities over that of N(0)
        plus = np.exp(x / noise**2 - 1 / (2 * noise**2)).mean(2).prod(1)
        minus = np.exp(-x / noise**2 - 1 / (2 * noise**2)).mean(2).prod(1)
        drawn = np.exp(shift * x / noise**2 - shift**2 / (2 * noise**2)).mean(2).prod(1)
        found.append(np.maximum(plus - math.exp(epsilon) * minus, 0.0) / drawn)
    values = np.concatenate(found)
    return float(values.mean()), float(values.std() / math.sqrt(samples))


def best_estimate(setting: tuple[int, float, int], epsilon: float, samples: int) -> tuple[float, float]:
    """An estimate with the best of some shifts, chosen with a tenth of the samples; each of them is unbiased."""

    def relative_error(shift: float) -> float:
        mean, error = estimated_delta(setting, epsilon, samples // 10, shift, 1)
        if mean == 0:
            return math.inf
        return error / mean

    return estimated_delta(setting, epsilon, samples, min([1.0, 1.3, 1.7, 2.2], key=relative_error), 2)


@pytest.mark.parametrize(
    "batches, noise, epochs, delta, samples", SETTINGS, ids=["{}x{}x{}".format(*setting[:3]) for setting in SETTINGS]
)
def test_delta_bounds_enclose_monte_carlo(batches: int, noise: float, epochs: int, delta: float, samples: int):
    upper, lower = (allocation_replace._composed(batches, noise, epochs, side, COARSE) for side in ("upper", "lower"))
    at = upper.epsilon(delta)
    mean, error = best_estimate((batches, noise, epochs), at, samples)
    assert error < 0.1 * mean
    assert lower.delta_remove(at) <= mean + 4 * error
    assert upper.delta_remove(at) >= mean - 4 * error
    # tight enough to notice what is wrong by a few per cent of epsilon
    assert mean > 0.5 * delta


@pytest.mark.parametrize("noise", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("epochs", [1, 30])
@pytest.mark.parametrize("delta", [1e-2, 1e-8])
def test_one_batch_equals_gaussian_sensitivity_two(noise: float, epochs: int, delta: float):
    exact = gaussian.compute_epsilon(2 * math.sqrt(epochs) / noise, delta)
    assert epsilon(1, noise, epochs, delta) == exact
    if exact < 200:
        # without the closed form
        lower, upper = (
            allocation_replace._composed(1, noise, epochs, side, 0.05).epsilon(delta) for side in ("lower", "upper")
        )
        assert lower <= exact * (1 + 1e-9)
        assert exact <= upper * (1 + 1e-9)
        assert upper <= 1.015 * lower


@pytest.mark.parametrize("batches", [2, 3])
@pytest.mark.parametrize("noise, losses", [(0.5, [0.0, 3.0, 12.0]), (2.0, [0.0, 0.5, 2.0])])
def test_delta_bounds_enclose_integral(batches: int, noise: float, losses: list[float]):
    """Two batches: an integral over Z_1, of the exact mean over Z_2. Three: below two, by Jensen."""
    mu = 1 / noise
    z = np.linspace(-9, 9 + mu, 40_001)
    for loss in losses:
        c = math.exp(loss)
        first = np.exp(mu * z - mu**2 / 2) - c * np.exp(-mu * z - mu**2 / 2)
        # W_2 > -W_1 where e^{mu Z} exceeds the root of a quadratic equation
        b = -first * math.exp(mu**2 / 2) / 2
        root = np.where(b > 0, b + np.sqrt(b**2 + c), c / (np.sqrt(b**2 + c) - np.minimum(b, 0.0)))
        z0 = np.log(root) / mu
        inner = norm.sf(z0 - mu) - c * norm.sf(z0 + mu) + first * norm.sf(z0)
        exact = float((norm.pdf(z) * inner).sum() * (z[1] - z[0])) / 2
        upper = upper_delta(batches, mu, c, 0.05)
        value, slope = lower_line(batches, mu, c, 0.05)
        assert value <= upper <= 1.03 * value
        assert slope < 0
        assert value <= exact * (1 + 1e-6)
        if batches == 2:
            assert exact <= upper * (1 + 1e-6)


def test_lower_line_below_delta_everywhere():
    for c in (1.0, 2.0, 10.0):
        value, slope = lower_line(10, 1.0, c, 0.05)
        for other in (1.0, 1.5, 2.5, 8.0, 30.0):
            assert value + slope * (other - c) <= upper_delta(10, 1.0, other, 0.05)


@pytest.mark.parametrize(
    "batches, noise, epochs, delta, accuracy",
    [
        (20, 1.0, 10, 1e-5, 0.01),
        (2, 4.0, 100, 1e-5, 0.01),
        (3, 1.0, 5, 1e-6, 0.01),
        (10, 0.5, 1, 1e-5, 0.01),
        (8, 0.8, 3, 1e-8, 0.015),
    ],
)
def test_epsilon_bounds_within_given_accuracy(batches: int, noise: float, epochs: int, delta: float, accuracy: float):
    found = epsilon_bounds(batches, noise, epochs, delta)
    assert 0 < found.lower <= found.upper <= (1 + accuracy) * found.lower
    quick = epsilon(batches, noise, epochs, delta, COARSE)
    assert found.upper * (1 - 1e-9) <= quick <= 1.035 * found.lower  # 3 % too large


@pytest.mark.parametrize("batches, noise, epochs", [(1000, 1.0, 20), (100, 0.7, 1), (20, 0.5, 3), (5, 1.0, 10)])
def test_replace_epsilon_between_remove_and_split(batches: int, noise: float, epochs: int):
    found = epsilon(batches, noise, epochs, 1e-5, COARSE)
    assert found >= allocation.epsilon_bounds(batches, noise, epochs, 1e-5).lower
    assert found < 0.95 * allocation.replace_epsilon(batches, noise, epochs, 1e-5)
    assert found <= gaussian.compute_epsilon(2 * math.sqrt(epochs) / noise, 1e-5)


def test_thousand_batches_under_five_seconds():
    start = time.process_time()
    found = epsilon(1000, 1.01, 20, 1e-5)
    assert time.process_time() - start < 5.0
    assert found < 1.8 * allocation.epsilon_bounds(1000, 1.01, 20, 1e-5).upper


def test_epsilon_monotone_in_all_settings():
    def is_rising(settings: list[tuple[int, float, int]]) -> bool:
        found = [epsilon(*setting, 1e-5, COARSE) for setting in settings]
        return all(smaller < larger for smaller, larger in itertools.pairwise(found))

    assert is_rising([(30, noise, 4) for noise in (3.0, 1.5, 1.0, 0.7)])
    assert is_rising([(batches, 0.8, 4) for batches in (1000, 100, 20, 5, 2, 1)])
    assert is_rising([(30, 0.8, epochs) for epochs in (1, 2, 4, 8, 20)])


@pytest.mark.parametrize("batches, noise, epochs", [(100, 1.0, 20), (20, 0.5, 1), (5, 2.0, 50)])
def test_epoch_loss_composes_on_grid(batches: int, noise: float, epochs: int):
    known = epsilon_bounds(batches, noise, epochs, 1e-5, COARSE)
    one = privacy_loss(batches, noise, 1e-3, resolution=COARSE)
    upper = convolution.epsilon([(one, epochs)], 1e-3, 1e-5)
    assert known.lower <= upper <= 1.01 * known.upper
    assert one.self_compose(epochs).get_epsilon_for_delta(1e-5) == pytest.approx(upper, rel=1e-3)
    optimistic = privacy_loss(batches, noise, 1e-4, "lower", COARSE).self_compose(epochs)
    assert optimistic.get_epsilon_for_delta(1e-5) <= known.upper


def test_loss_composes_with_other_release():
    """As a release in plain sight of a mechanism that is worse than either."""
    interval = 1e-3
    one = privacy_loss(50, 1.0, interval, resolution=COARSE)
    other = allocation_replace.privacy_loss(1, 4.0, interval, resolution=COARSE)
    both = convolution.epsilon([(one, 3), (other, 1)], interval, 1e-5)
    assert both > max(epsilon(50, 1.0, 3, 1e-5, COARSE), 0.98 * epsilon(1, 4.0, 1, 1e-5, COARSE))
    assert both < epsilon(50, 1.0, 3, 5e-6, COARSE) + epsilon(1, 4.0, 1, 5e-6, COARSE)


def test_delta_same_in_both_directions():
    law = allocation_replace._epoch(20, 0.8, "upper", COARSE)
    for loss in (0.0, 0.3, 1.0, 3.0):
        assert law.delta_remove(loss) == pytest.approx(law.delta_add(loss), rel=1e-9)
        # the curve is nowhere below what is computed for this epsilon alone, at the same resolution
        assert law.delta_remove(loss) >= lower_line(20, 1.25, math.exp(loss), 0.03)[0]
    assert law.masses.sum() == pytest.approx(1.0, rel=1e-9)
    assert (law.masses * law.values).sum() + law.singular == pytest.approx(1.0, rel=1e-9)


@pytest.mark.parametrize("factor", [1.0, 3.0, 50.0])
def test_combined_cells_keep_mean_and_order(factor: float):
    """The mean of a sum of m is m (1 - c); the upper law is larger in the convex order than the lower one."""
    laws = {}
    for side in ("upper", "lower"):
        difference = Difference(1.5, factor, side, 0.1)
        one = make_single_law(difference, 0.1)
        both = combine(one, one, difference)
        laws[side] = combine(both, one, difference)
        mean = (laws[side].masses * laws[side].values).sum() + laws[side].excess
        assert laws[side].masses.sum() == pytest.approx(1.0, rel=1e-9)
        assert mean == pytest.approx(3 * (1 - factor), abs=1e-7 * factor)
    for threshold in np.linspace(-3 * factor, 20 * factor, 30).tolist():
        lower, upper = (
            float((laws[side].masses * np.maximum(laws[side].values - threshold, 0.0)).sum())
            for side in ("lower", "upper")
        )
        assert lower <= upper * (1 + 1e-9) + 1e-12


def test_split_values_rounded_up_in_tiny_cells():
    """A value at the end of a cell belongs to it or to the next one: neither way may it fall."""
    edges = np.array([1.0, 1.0 + 2**-52, 1.0 + 2**-51, 2.0])
    values = np.array([1.0, 1.0 + 2**-52, 1.5])
    masses = np.array([0.25, 0.25, 0.5])
    found = signed_sums._split(values, masses, edges)
    assert found.sum() == 1.0
    assert (found * (edges - 1)).sum() >= (masses * (values - 1)).sum()


@pytest.mark.parametrize("factor", [1.0, 3.0, 50.0])
def test_upper_law_shift_exceeds_rounding(factor: float):
    """Ends and means of cells err by a rounding of ``U + c V`` each, whose mean is 1 + c; the mean of W is 1 - c."""
    law = make_single_law(Difference(0.5, factor, "upper", 0.1), 0.1)
    mean = math.fsum(law.masses * law.values) + law.excess
    assert mean - (1 - factor) >= 2 * law.rounding * (1 + factor)


def test_trimmed_tail_kept_as_excess():
    """What is above the last value that matters moves to it, and what it loses is kept as the excess."""
    values, masses = np.array([-1.0, 0.5, 2.0, 4.5]), np.array([0.5, 0.5, 2e-20, 1e-20])
    law = signed_sums._trimmed(signed_sums.SignedLaw(values, masses, 0.0, 0.0, 1, np.zeros(0)))
    assert law.values.tolist() == [-1.0, 0.5]
    # moved by 1.5 and by 4
    assert 7e-20 <= law.excess <= 7.01e-20


def test_combined_rounding_errors_add():
    """A sum over p pairs errs by up to p - 1 roundings more than the products that are summed."""
    difference = Difference(1.5, 3.0, "lower", 0.1)
    for count in (2, 5, 300):
        values, masses = np.arange(float(count)), np.full(count, 1 / count)
        law = signed_sums.SignedLaw(values, masses, 0.0, 1e-14, 1, np.ones(count))
        pairs = count * (count + 1) // 2
        assert combine(law, law, difference).rounding >= 2e-14 + (pairs + 2) * 2.0**-53


@pytest.mark.parametrize("noise", [0.05, 0.15, 1e3, 1e7])
def test_extreme_noise_epsilon_below_gaussian(noise: float):
    found = epsilon(10, noise, 10, 1e-5, COARSE)
    assert 0 <= found <= gaussian.compute_epsilon(2 * math.sqrt(10) / noise, 1e-5)


@pytest.mark.parametrize(
    "field, arguments",
    [
        ("batches", (0, 1.0, 1, 1e-5)),
        ("noise", (1, 0.0, 1, 1e-5)),
        ("noise", (1, math.nan, 1, 1e-5)),
        ("epochs", (1, 1.0, 0, 1e-5)),
        ("delta", (1, 1.0, 1, 0.0)),
    ],
)
def test_settings_out_of_range_raise(field: str, arguments: tuple[int, float, int, float]):
    with pytest.raises(ConfigError, match=field):
        epsilon(*arguments)


@pytest.mark.parametrize(("batches", "noise"), [(0, 1.0), (5, 0.0), (5, -1.0), (5, math.nan)])
def test_privacy_loss_with_invalid_arguments_raises(batches, noise):
    with pytest.raises(ConfigError):
        privacy_loss(batches, noise, 0.01, "upper")
