"""Computes the privacy cost of random allocation, in which each example is in exactly one of the k batches of an epoch,
drawn in secret.

With sensitivity 1 and noise of standard deviation s, a dominating pair of distributions of one epoch, for an example
added or removed, is

    P = 1/k sum_i N(e_i, s^2 I)    against    Q = N(0, s^2 I)    on R^k,

also if later steps depend on earlier releases. The likelihood ratio under Q is the mean of k independent log-normal
variables; for several epochs it is a product of independent ratios. `likelihood_ratio` computes both with certified
errors. An epoch that ended early costs at most as much as a whole epoch, because its releases are a function of the
releases of a whole epoch.

Source of the mechanism and the pair: Chua, Ghazi, Harrison, Leeman, Kamath, Kumar, Manurangsi, Sinha, Zhang 2025
(balls-and-bins sampling); Feldman, Shenfeld 2025 and 2026 (random allocation, its privacy loss). The proofs for
adaptive steps, and for replace_one, are in docs/design/0010-allocation.md.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from fedpriv.errors import ConfigError
from fedpriv.privacy.accounting import convolution, gaussian
from fedpriv.privacy.accounting.dp_accounting_pld import dpa, pld_pmf
from fedpriv.privacy.accounting.likelihood_ratio import Direction, Ratio, Side, gaussian_ratio, power

_COARSE = 0.06  # first resolution that is tried
_FINE = 0.004  # last one: some seconds
_EPOCH_RESOLUTION = 0.02  # of the privacy loss distribution of one epoch
_LOSS_STEP = 0.004  # spacing of the losses over 1 / noise, where ratios leave the range of floating-point numbers
_LOSS_SHARE = 0.003  # spacing of the losses that are rounded down, over the epsilon of an epoch
_LARGEST_EPSILON = 600.0  # e to the power of it is a floating-point number
_TRANSFORM = 1e-11  # more than the errors of a Fourier transform can add to delta
_SPLITS = 65  # ways in which an epsilon is shared between removing and adding


class Bounds(NamedTuple):
    """A lower and an upper bound on a number.

    Attributes:
        lower: A number that is at most the true one.
        upper: A number that is at least the true one.
    """

    lower: float
    upper: float


def epsilon_bounds(batches: int, noise: float, epochs: int, delta: float, accuracy: float = 0.01) -> Bounds:
    """Returns bounds on the smallest epsilon of random allocation, for an example added or removed.

    Guarantee: `upper` is an upper bound on the epsilon of any adaptive algorithm with random allocation, including
    errors of arithmetic, and is at most the epsilon of one Gaussian release in each epoch. `lower` is a lower bound on
    the epsilon of the worst algorithm.

    Args:
        batches: Number of batches of an epoch; at least 1.
        noise: Standard deviation of the noise of each step, over the largest change of the sum by an example; positive.
        epochs: Number of epochs, each with fresh assignments; at least 1.
        delta: Failure probability in (0, 1).
        accuracy: Relative difference of the two bounds at which the computation stops. It is reached unless epsilon is
            close to 0 or in the hundreds; the bounds hold in any case.

    Raises:
        ConfigError: If an argument is out of range.
    """
    _check(batches, noise, epochs)
    if not 0 < delta < 1:
        raise ConfigError("delta", delta, "must be a failure probability between 0 and 1, such as 1e-5")
    lower, upper = _simple_epsilons(batches, noise, epochs, delta)
    resolution = _COARSE
    while resolution >= _FINE and upper - lower > accuracy * upper:
        try:
            lower = max(lower, _ratio_of_epochs(batches, noise, epochs, "lower", resolution).epsilon(delta))
            upper = min(upper, _ratio_of_epochs(batches, noise, epochs, "upper", resolution).epsilon(delta))
        except OverflowError:
            transformed = _epsilons_by_transform(batches, noise, epochs, delta)
            return Bounds(max(lower, transformed.lower), min(upper, transformed.upper))
        # both bounds err by the square of the resolution
        resolution *= min(0.7, max(0.25, math.sqrt(0.6 * accuracy * upper / max(upper - lower, 1e-300))))
    return Bounds(lower, upper)


def delta_bounds(batches: int, noise: float, epochs: int, epsilon: float, resolution: float = 0.015) -> Bounds:
    """Returns bounds on the smallest delta of random allocation at `epsilon`, for an example added or removed.

    Args:
        batches: Number of batches of an epoch; at least 1.
        noise: Standard deviation of the noise of each step, over the largest change of the sum by an example; positive.
        epochs: Number of epochs, each with fresh assignments; at least 1.
        epsilon: Epsilon at which delta is bounded; at least 0.
        resolution: Width of the cells of the computation, in standard deviations. The error of both bounds is
            proportional to its square.

    Raises:
        ConfigError: If an argument is out of range.
    """
    _check(batches, noise, epochs)
    if not epsilon >= 0:
        raise ConfigError("epsilon", epsilon, "must be at least 0")
    # bounds from one Gaussian release in each epoch; see `_simple_epsilons`
    mu = math.sqrt(epochs) / noise
    without_amplification = math.exp(float(gaussian.log_delta(mu, np.asarray(epsilon)))) * (1 + 1e-9)
    shifted = np.asarray(epsilon + epochs * math.log(batches))
    lower = math.exp(float(gaussian.log_delta(mu, shifted))) * (1 - 1e-9)
    try:
        lower = max(lower, _ratio_of_epochs(batches, noise, epochs, "lower", resolution).delta(epsilon))
        upper = _ratio_of_epochs(batches, noise, epochs, "upper", resolution).delta(epsilon)
    except OverflowError:
        return Bounds(lower, min(1.0, without_amplification))
    return Bounds(lower, min(1.0, upper, without_amplification))


def replace_epsilon(batches: int, noise: float, epochs: int, delta: float, resolution: float = 0.03) -> float:
    """Returns an upper bound on epsilon for neighbours in which the content of one example is replaced.

    It is the smaller of two bounds. The first treats a replacement as the removal of one example and the addition of
    another: ``delta(a + b) <= delta_remove(a) + e^a delta_add(b)``, for the best a and b. The second has no
    amplification: if the assignments of examples to batches are known, an epoch is one Gaussian release of sensitivity
    2.

    Args:
        batches: Number of batches of an epoch; at least 1.
        noise: Standard deviation of the noise of each step, divided by the *clip bound*. The clip bound is the largest
            change of the sum by one example, not by a replacement of one example by another. Positive.
        epochs: Number of epochs, each with fresh assignments; at least 1.
        delta: Failure probability in (0, 1).
        resolution: See `delta_bounds`.

    Raises:
        ConfigError: If an argument is out of range.
    """
    _check(batches, noise, epochs)
    if not 0 < delta < 1:
        raise ConfigError("delta", delta, "must be a failure probability between 0 and 1, such as 1e-5")
    unamplified = gaussian.compute_epsilon(2 * math.sqrt(epochs) / noise, delta)
    try:
        ratio = _ratio_of_epochs(batches, noise, epochs, "upper", resolution)
    except OverflowError:
        return unamplified
    low, high = 0.0, min(unamplified, _LARGEST_EPSILON)
    if _replace_delta(ratio, high) > delta:
        return unamplified
    while high - low > 1e-5 * high:
        middle = (low + high) / 2
        if _replace_delta(ratio, middle) > delta:
            low = middle
        else:
            high = middle
    return high


def privacy_loss(batches: int, noise: float, interval: float, side: Side = "upper") -> dpa.PrivacyLossDistribution:
    """Returns the privacy loss distribution of one epoch, for an example added or removed.

    It composes with every other distribution on the same grid.

    Args:
        batches: Number of batches of an epoch; at least 1.
        noise: Standard deviation of the noise of each step, over the largest change of the sum by an example; positive.
        interval: Spacing of the losses; positive.
        side: `"upper"` for a pessimistic distribution, `"lower"` for an optimistic one.

    Raises:
        ConfigError: If an argument is out of range.
        OverflowError: If the noise is below about 0.07, so that likelihood ratios overflow. In this case use one
            Gaussian release for each epoch as an upper bound.
    """
    _check(batches, noise, 1)
    ratio = _ratio_of_epoch(batches, noise, side, _EPOCH_RESOLUTION)
    return dpa.PrivacyLossDistribution(_pmf(ratio, interval, "remove"), _pmf(ratio, interval, "add"))


def _check(batches: int, noise: float, epochs: int) -> None:
    if batches < 1:
        raise ConfigError("batches", batches, "must be at least 1")
    if epochs < 1:
        raise ConfigError("epochs", epochs, "must be at least 1")
    if not 0 < noise < math.inf:
        raise ConfigError("noise", noise, "must be positive and finite: the noise scale divided by the sensitivity")


def _simple_epsilons(batches: int, noise: float, epochs: int, delta: float) -> Bounds:
    """Returns two simple bounds on epsilon from Gaussian releases: an upper bound for known assignments, and a lower
    bound with a privacy loss that is smaller by log k.

    If the assignment is known, each epoch is one Gaussian release, and deltas are jointly convex, which proves the
    upper bound. The lower bound holds because the mean of k nonnegative ratios is at least each of them divided by k.
    """
    unamplified = gaussian.compute_epsilon(math.sqrt(epochs) / noise, delta)
    return Bounds(max(0.0, unamplified * (1 - 1e-9) - epochs * math.log(batches)), unamplified)


@lru_cache(maxsize=64)
def _ratio_of_epoch(batches: int, noise: float, side: Side, resolution: float) -> Ratio:
    """Returns a bounding distribution of the likelihood ratio of one epoch, which is the mean of one Gaussian ratio for
    each batch.
    """
    batch_ratio = gaussian_ratio(noise, side, resolution)
    return power(batch_ratio, batches, "sum", resolution).scaled(1 / batches)


@lru_cache(maxsize=64)
def _ratio_of_epochs(batches: int, noise: float, epochs: int, side: Side, resolution: float) -> Ratio:
    """Returns a bounding distribution of the likelihood ratio of all epochs, which is the product of the independent
    ratios of the epochs.
    """
    return power(_ratio_of_epoch(batches, noise, side, resolution), epochs, "product", resolution)


def _epsilons_by_transform(batches: int, noise: float, epochs: int, delta: float) -> Bounds:
    """Returns bounds from privacy loss distributions, for epsilons in the hundreds; 0 and infinity if the distributions
    cannot be computed.
    """
    interval = _LOSS_STEP / noise
    try:
        upper = convolution.epsilon([(privacy_loss(batches, noise, interval), epochs)], interval, delta)
        # losses that are rounded down err by the spacing itself in each epoch, so the grid is finer there
        fine_interval = min(interval, max(_LOSS_SHARE * upper / epochs, interval / 100))
        optimistic = privacy_loss(batches, noise, fine_interval, "lower").self_compose(epochs)
    except OverflowError:
        return Bounds(0.0, math.inf)
    return Bounds(float(optimistic.get_epsilon_for_delta(delta + _TRANSFORM)), upper)


def _replace_delta(ratio: Ratio, epsilon: float) -> float:
    """Returns the best bound on delta for a replacement that is treated as a removal followed by an addition."""
    shares = np.linspace(0.0, epsilon, _SPLITS)
    return min(ratio.delta_remove(a) + math.exp(a) * ratio.delta_add(epsilon - a) for a in shares.tolist())


def _pmf(ratio: Ratio, interval: float, direction: Direction) -> pld_pmf.PLDPmf:
    """Returns the privacy losses of one direction as dp-accounting's probability mass function."""
    lowest, probabilities, infinite = ratio.loss_masses(interval, direction)
    return pld_pmf.DensePLDPmf(interval, lowest, probabilities, infinite, ratio.side == "upper")
