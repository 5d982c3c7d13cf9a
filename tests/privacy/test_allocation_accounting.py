"""The price of random allocation, against Monte Carlo estimates, closed forms and published figures."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray
from PLD_accounting.random_allocation_api import gaussian_allocation_epsilon_range

from fedpriv.errors import ConfigError
from fedpriv.privacy.accounting import allocation, convolution, gaussian
from fedpriv.privacy.accounting.allocation import delta_bounds, epsilon_bounds, privacy_loss, replace_epsilon
from fedpriv.privacy.accounting.likelihood_ratio import Operation, Ratio, Side, combine, gaussian_ratio, power

Array = NDArray[np.float64]

# batches, noise, epochs, delta, number of samples: what the estimates are made at
SETTINGS = [
    (2, 0.4, 1, 1e-5, 200_000),
    (2, 4.0, 100, 1e-5, 20_000),
    (3, 1.0, 5, 1e-8, 200_000),
    (5, 0.7, 1, 1e-10, 200_000),
    (10, 0.5, 1, 1e-5, 200_000),
    (20, 0.5, 1, 1e-5, 100_000),
    (20, 2.0, 30, 1e-4, 50_000),
    (50, 0.8, 3, 1e-5, 100_000),
    (100, 0.6, 1, 1e-5, 100_000),
    (100, 1.0, 20, 1e-2, 10_000),
    (100, 1.0, 2, 1e-5, 60_000),
    (300, 0.6, 1, 1e-4, 40_000),
    (1000, 0.4, 1, 1e-3, 20_000),
    (1000, 1.0, 5, 3e-2, 4_000),
    (10, 3.0, 100, 1e-4, 20_000),
]
REMOVE = ["remove-{}x{}x{}".format(*setting[:3]) for setting in SETTINGS]


def ratios(x: Array, noise: float, shift: float) -> Array:
    """Of N(shift) to N(0), mean over the batches (last axis) and product over the epochs (axis 1)."""
    return np.exp(shift * x / noise**2 - shift**2 / (2 * noise**2)).mean(2).prod(1)


def sampled(
    batches: int,
    noise: float,
    epochs: int,
    samples: int,
    draw: Callable[[np.random.Generator, Array], Array],
    seed: int,
) -> Array:
    """Samples of what is averaged, in blocks."""
    rng = np.random.default_rng(seed)
    block = max(1, 2_000_000 // (batches * epochs))
    sizes = [min(block, samples - start) for start in range(0, samples, block)]
    return np.concatenate([draw(rng, noise * rng.standard_normal((size, epochs, batches))) for size in sizes])


def removed(batches: int, noise: float, epochs: int, epsilon: float, samples: int, shift: float, seed: int) -> Array:
    """Samples whose mean is ``E (S - e^epsilon)_+``: drawn where the example's batch is moved by `shift`."""

    def draw(rng: np.random.Generator, x: Array) -> Array:
        places = rng.integers(batches, size=(len(x), epochs, 1))
        np.put_along_axis(x, places, np.take_along_axis(x, places, 2) + shift, 2)
        return np.maximum(ratios(x, noise, 1.0) - math.exp(epsilon), 0.0) / ratios(x, noise, shift)

    return sampled(batches, noise, epochs, samples, draw, seed)


def added(batches: int, noise: float, epochs: int, epsilon: float, samples: int, shift: float, seed: int) -> Array:
    """Samples whose mean is ``E (1 - e^epsilon S)_+``: drawn where all batches are moved down by `shift`."""

    def draw(rng: np.random.Generator, x: Array) -> Array:
        moved = x - shift
        weights = np.exp((shift * moved.sum((1, 2)) + batches * epochs * shift**2 / 2) / noise**2)
        return np.maximum(1 - math.exp(epsilon) * ratios(moved, noise, 1.0), 0.0) * weights

    return sampled(batches, noise, epochs, samples, draw, seed)


def estimate(
    sample: Callable[..., Array], setting: tuple[int, float, int], epsilon: float, samples: int, shifts: list[float]
) -> tuple[float, float]:
    """Mean and its standard error. Every shift is unbiased; a tenth of the samples chooses the best one."""

    def relative_error(shift: float) -> float:
        pilot = sample(*setting, epsilon, samples // 10, shift, 1)
        if pilot.mean() == 0:
            return math.inf
        return float(pilot.std() / pilot.mean())

    found = sample(*setting, epsilon, samples, min(shifts, key=relative_error), 2)
    return float(found.mean()), float(found.std() / math.sqrt(len(found)))


@pytest.mark.parametrize("batches, noise, epochs, delta, samples", SETTINGS, ids=REMOVE)
def test_delta_bounds_enclose_monte_carlo(batches: int, noise: float, epochs: int, delta: float, samples: int):
    setting = (batches, noise, epochs)
    epsilon = epsilon_bounds(*setting, delta).upper
    lower, upper = (allocation._ratio_of_epochs(*setting, side, 0.02) for side in ("lower", "upper"))
    mean, error = estimate(removed, setting, epsilon, samples, [1.0, 1.25, 1.5, 2.0, 2.5, 3.0])
    assert error < 0.1 * mean
    assert lower.delta_remove(epsilon) <= mean + 4 * error
    assert upper.delta_remove(epsilon) >= mean - 4 * error
    # the other direction has a smaller delta: it is asked where its own is what was asked for, or hardly less
    epsilon = next(e for e in np.linspace(epsilon, 0.0, 41).tolist() if upper.delta_add(e) > delta / 2)
    shifts = [strength * noise / math.sqrt(batches * epochs) for strength in (0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)]
    mean, error = estimate(added, setting, epsilon, samples, shifts)
    assert error < 0.1 * mean
    assert lower.delta_add(epsilon) <= mean + 4 * error
    assert upper.delta_add(epsilon) >= mean - 4 * error


@pytest.mark.parametrize(
    "batches, noise, epochs, lower, upper",
    [(100, 0.6, 1, 3.43, 3.44), (20, 0.5, 1, 7.0, 7.01), (100, 1.0, 20, 2.41, 2.50)],
)
def test_epsilon_bounds_equal_published(batches: int, noise: float, epochs: int, lower: float, upper: float):
    found = epsilon_bounds(batches, noise, epochs, 1e-5, accuracy=0.002)
    assert lower <= found.lower <= found.upper <= upper


@pytest.mark.parametrize(
    ("batches", "noise", "epochs", "accuracy"),
    [
        (10, 1.0, 1, 0.05),
        (10, 0.6, 1, 0.1),
        pytest.param(20, 1.0, 2, 0.05, marks=pytest.mark.slow),
        pytest.param(50, 2.0, 1, 0.02, marks=pytest.mark.slow),
    ],
)
def test_epsilon_bounds_overlap_pld_accounting(batches: int, noise: float, epochs: int, accuracy: float):
    """PLD_accounting (Feldman and Shenfeld 2026) certifies both of its bounds, too, by another computation."""
    upper, lower = gaussian_allocation_epsilon_range(
        delta=1e-5, sigma=noise, num_steps=batches, num_epochs=epochs, epsilon_accuracy=accuracy
    )
    found = epsilon_bounds(batches, noise, epochs, 1e-5)
    assert lower <= found.upper
    assert found.lower <= upper
    assert max(upper, found.upper) - min(lower, found.lower) < 2 * accuracy


@pytest.mark.parametrize("noise", [0.3, 1.0, 10.0])
@pytest.mark.parametrize("epochs", [1, 7, 100])
@pytest.mark.parametrize("delta", [1e-3, 1e-10])
def test_one_batch_equals_gaussian(noise: float, epochs: int, delta: float):
    exact = gaussian.compute_epsilon(math.sqrt(epochs) / noise, delta)
    found = epsilon_bounds(1, noise, epochs, delta)
    assert found.upper == pytest.approx(exact, rel=1e-12)
    assert found.lower <= exact


@pytest.mark.parametrize("noise, epochs", [(0.5, 1), (1.0, 1), (10.0, 1), (1.0, 20), (3.0, 100), (10.0, 1000)])
@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-10])
def test_numeric_bounds_enclose_gaussian(noise: float, epochs: int, delta: float):
    """Without the closed form, which `epsilon_bounds` would take."""
    exact = gaussian.compute_epsilon(math.sqrt(epochs) / noise, delta)
    lower, upper = (
        allocation._ratio_of_epochs(1, noise, epochs, side, 0.01).epsilon(delta) for side in ("lower", "upper")
    )
    assert lower <= exact * (1 + 1e-9)
    assert exact <= upper * (1 + 1e-9)
    assert upper <= 1.005 * lower


@pytest.mark.parametrize(
    "batches, noise, epochs, delta",
    [
        (2, 0.3, 1, 1e-10),
        (2, 10.0, 1000, 1e-5),
        (1000, 1.0, 20, 1e-5),
        (1000, 10.0, 1, 1e-5),
        (20_000, 0.3, 1, 1e-5),
        (20_000, 10.0, 1000, 1e-10),
        (20_000, 0.5, 1000, 1e-10),
        (17, 0.4, 100, 1e-6),
        (2, 0.3, 1000, 1e-5),  # an epsilon of five thousand
    ],
)
def test_epsilon_bounds_within_one_percent(batches: int, noise: float, epochs: int, delta: float):
    found = epsilon_bounds(batches, noise, epochs, delta)
    assert 0 < found.lower <= found.upper <= 1.01 * found.lower * (1 + 1e-3)
    assert found.upper <= gaussian.compute_epsilon(math.sqrt(epochs) / noise, delta)


def test_epsilon_bounds_meet_given_accuracy():
    bounds = epsilon_bounds(20, 2.0, 1, 1e-5, accuracy=5e-4)
    assert 0 < bounds.upper - bounds.lower <= 5e-4 * bounds.upper


def test_thousand_batches_under_five_seconds():
    allocation._ratio_of_epoch.cache_clear()
    allocation._ratio_of_epochs.cache_clear()
    start = time.process_time()
    epsilon_bounds(1000, 1.01, 20, 1e-5)
    assert time.process_time() - start < 5.0


@pytest.mark.parametrize("noise", [0.05, 1e-3, 1e3])
def test_extreme_noise_epsilon_below_gaussian(noise: float):
    found = epsilon_bounds(100, noise, 10, 1e-5)
    assert 0 <= found.lower <= found.upper <= gaussian.compute_epsilon(math.sqrt(10) / noise, 1e-5)
    assert replace_epsilon(100, noise, 10, 1e-5) <= gaussian.compute_epsilon(2 * math.sqrt(10) / noise, 1e-5)
    deltas = delta_bounds(100, noise, 10, 3.0)
    assert 0 <= deltas.lower <= deltas.upper <= 1


def test_epsilon_monotone_in_all_settings():
    """All three are theorems: post-processing, Jensen's inequality, and an epoch less to see."""

    def uppers(settings: list[tuple[int, float, int]]) -> list[float]:
        return [epsilon_bounds(*setting, 1e-5, accuracy=0.002).upper for setting in settings]

    for found in (
        uppers([(30, noise, 4) for noise in (3.0, 1.5, 1.0, 0.7, 0.5)]),
        uppers([(batches, 0.8, 4) for batches in (3000, 300, 100, 50, 20, 5, 2, 1)]),
        uppers([(30, 0.8, epochs) for epochs in (1, 2, 4, 8, 20)]),
    ):
        assert all(smaller < larger for smaller, larger in itertools.pairwise(found))


def test_delta_and_epsilon_inverse():
    for epsilon in (0.5, 2.0, 5.0):
        deltas = delta_bounds(40, 0.7, 3, epsilon)
        assert deltas.lower <= deltas.upper <= 1.05 * deltas.lower
        assert (
            epsilon_bounds(40, 0.7, 3, deltas.upper).lower <= epsilon <= epsilon_bounds(40, 0.7, 3, deltas.lower).upper
        )


@pytest.mark.parametrize("batches, noise, epochs", [(100, 1.0, 20), (20, 0.5, 1), (1000, 0.6, 3)])
def test_epoch_loss_composes_on_grid(batches: int, noise: float, epochs: int):
    known = epsilon_bounds(batches, noise, epochs, 1e-5, accuracy=0.002)
    one = privacy_loss(batches, noise, 1e-3)
    upper = convolution.epsilon([(one, epochs)], 1e-3, 1e-5)
    assert known.lower <= upper <= 1.01 * known.upper
    assert one.self_compose(epochs).get_epsilon_for_delta(1e-5) == pytest.approx(upper, rel=1e-3)
    optimistic = privacy_loss(batches, noise, 1e-4, "lower").self_compose(epochs)
    assert optimistic.get_epsilon_for_delta(1e-5) <= known.upper


def test_privacy_loss_deltas_equal_ratio():
    law = allocation._ratio_of_epoch(10, 0.6, "upper", 0.02)
    loss = privacy_loss(10, 0.6, 1e-3)
    for epsilon in (0.1, 1.0, 3.0):
        remove = loss._pmf_remove.get_delta_for_epsilon(epsilon)
        add = loss._pmf_add.get_delta_for_epsilon(epsilon)
        assert law.delta_remove(epsilon) <= remove * (1 + 1e-9)
        assert remove <= 1.001 * law.delta_remove(epsilon)
        assert law.delta_add(epsilon) <= add * (1 + 1e-9) + 1e-15
        assert add <= 1.001 * law.delta_add(epsilon) + 1e-15


def test_partial_epoch_delta_below_whole_epoch():
    """After j of k batches an example is with probability (k - j) / k in none of them: a ratio of 1."""
    batches, seen, noise, samples = 20, 8, 0.6, 200_000
    x = noise * np.random.default_rng(3).standard_normal((samples, seen))
    terms = np.exp(x / noise**2 - 1 / (2 * noise**2)).sum(1)
    part = (terms + batches - seen) / batches
    for epsilon in (0.0, 0.5, 1.0):
        excess = np.maximum(part - math.exp(epsilon), 0.0)
        whole = delta_bounds(batches, noise, 1, epsilon).upper
        assert excess.mean() - 4 * excess.std() / math.sqrt(samples) <= whole


@pytest.mark.parametrize("batches, noise, epochs", [(2, 1.0, 1), (20, 0.7, 1), (10, 2.0, 5), (50, 0.6, 1)])
def test_replace_epsilon_covers_monte_carlo(batches: int, noise: float, epochs: int):
    """An estimate for the worst pair, +1 against -1 in the same batch; the bound is at most that without sampling."""
    epsilon = replace_epsilon(batches, noise, epochs, 1e-3)

    def draw(rng: np.random.Generator, x: Array) -> Array:
        places = rng.integers(batches, size=(len(x), epochs, 1))
        np.put_along_axis(x, places, np.take_along_axis(x, places, 2) + 1.0, 2)
        return np.maximum(1 - math.exp(epsilon) * ratios(x, noise, -1.0) / ratios(x, noise, 1.0), 0.0)

    found = sampled(batches, noise, epochs, 100_000, draw, 4)
    assert found.mean() - 4 * found.std() / math.sqrt(len(found)) <= 1e-3
    assert epsilon <= gaussian.compute_epsilon(2 * math.sqrt(epochs) / noise, 1e-3)
    assert epsilon >= epsilon_bounds(batches, noise, epochs, 1e-3).lower  # a content that moves nothing is allowed


def test_replace_epsilon_about_twice_remove():
    assert replace_epsilon(1000, 1.0, 20, 1e-5) < 2.3 * epsilon_bounds(1000, 1.0, 20, 1e-5).upper
    assert replace_epsilon(1, 1.0, 1, 1e-5) == gaussian.compute_epsilon(2.0, 1e-5)


def tiny(side: Side, seed: int) -> Ratio:
    rng = np.random.default_rng(seed)
    masses = rng.dirichlet(np.ones(6))
    values = np.sort(rng.lognormal(size=6))
    return Ratio(side, values / (masses * values).sum(), masses, 0.0, 1.0, 0.0, 0.0)


@pytest.mark.parametrize("operation", ["sum", "product"])
@pytest.mark.parametrize("resolution", [0.5, 0.05])
@pytest.mark.parametrize("seed", range(5))
def test_combined_ratios_enclose_all_pairs(operation: Operation, resolution: float, seed: int):
    one, other = tiny("upper", seed), tiny("upper", seed + 100)
    lower_one, lower_other = tiny("lower", seed), tiny("lower", seed + 100)
    upper = combine(one, other, operation, resolution)
    lower = combine(lower_one, lower_other, operation, resolution)
    pairs = {"sum": np.add, "product": np.multiply}[operation].outer(one.values, other.values)
    masses = np.outer(one.masses, other.masses)
    for threshold in (0.0, 0.3, 1.0, 2.0, 5.0):
        exact_above = float((masses * np.maximum(pairs - math.exp(threshold), 0.0)).sum())
        exact_below = float((masses * np.maximum(1 - math.exp(threshold) * pairs, 0.0)).sum())
        assert lower.delta_remove(threshold) <= exact_above <= upper.delta_remove(threshold)
        assert lower.delta_add(threshold) <= exact_below <= upper.delta_add(threshold)
    for law in (lower, upper):
        assert (law.masses >= 0).all()
        assert law.masses.sum() == pytest.approx(1.0, rel=1e-12)
        assert (law.masses * law.values).sum() + law.singular == pytest.approx(upper.mean, rel=1e-12)


@pytest.mark.parametrize("noise", [0.1, 0.5, 1.0, 10.0])
def test_normal_probability_errors_within_bound(noise: float):
    mpmath = pytest.importorskip("mpmath")
    law = gaussian_ratio(noise, "lower", 0.02)
    points = np.linspace(-14.0, 10.0 + 1 / noise, math.ceil((24.0 + 1 / noise) / 0.02) + 1)
    with mpmath.workdps(150):
        for cell in range(0, len(points) - 1, 97):
            left, right = mpmath.mpf(points[cell]), mpmath.mpf(points[cell + 1])

            shift = 1 / mpmath.mpf(noise)
            exact = mpmath.ncdf(-left) - mpmath.ncdf(-right)
            value = (mpmath.ncdf(shift - left) - mpmath.ncdf(shift - right)) / exact
            assert abs(law.masses[cell + 1] / exact - 1) < law.rounding
            assert abs(law.values[cell + 1] / value - 1) < law.drift


def test_power_equals_repeated_combine():
    one = gaussian_ratio(1.0, "upper", 0.02)
    by_doubling = power(one, 5, "sum", 0.02)
    in_turn = one
    for _ in range(4):
        in_turn = combine(in_turn, one, "sum", 0.02)
    for epsilon in (0.1, 1.0, 2.0):
        assert by_doubling.scaled(0.2).delta(epsilon) == pytest.approx(in_turn.scaled(0.2).delta(epsilon), rel=1e-2)


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
    for function in (epsilon_bounds, replace_epsilon):
        with pytest.raises(ConfigError, match=field):
            function(*arguments)


def test_negative_epsilon_raises():
    with pytest.raises(ConfigError, match="epsilon"):
        delta_bounds(1, 1.0, 1, -1.0)


def test_epsilon_below_infinite_mass_is_infinite():
    assert gaussian_ratio(1.0, "upper", 0.05).epsilon(1e-60) == math.inf


@pytest.mark.parametrize("noise", [0.3, 1.0, 5.0])
def test_tail_beyond_last_cell_in_infinite_mass(noise: float):
    """E (S - c)_+ at the last value c, which the masses do not hold: a difference of two normal tails, in 50 digits."""
    law = gaussian_ratio(noise, "upper", 0.05)
    with mpmath.workdps(50):
        mu, c = 1 / mpmath.mpf(noise), mpmath.mpf(float(law.values[-1]))
        z = mpmath.log(c) / mu + mu / 2
        beyond = mpmath.ncdf(mu - z) - c * mpmath.ncdf(-z)
        assert 0 < beyond <= law.singular <= beyond * (1 + mpmath.mpf("1e-6"))
