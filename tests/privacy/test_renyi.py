"""Rényi divergences of sampled events against plain integrals of the densities, at every order that matters."""

from __future__ import annotations

import math

import numpy as np
import pytest
from mpmath import mp, mpf
from scipy import optimize, stats
from scipy.special import logsumexp

from fedpriv.privacy.accounting import rdp
from fedpriv.privacy.accounting.events import Event

LAWS = {"gaussian": stats.norm, "laplace": stats.laplace}
NOISES = (0.1, 0.25, 0.6, 1.0, 3.0, 40.0)
RATES = (1e-3, 0.2, 0.9)
SELECTIONS = (
    ("gaussian", "poisson"),
    ("gaussian", "poisson_replace"),
    ("gaussian", "amplified"),
    ("laplace", "amplified"),
)


def log_densities(event: Event, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of the pair that the event stands for, without what the general theorem adds."""
    replaced = event.selection == "poisson_replace"
    law = LAWS[event.law](scale=event.noise * (2 if replaced else 1))
    outside, inside = math.log1p(-event.rate) + law.logpdf(x), math.log(event.rate)
    other = np.logaddexp(outside, inside + law.logpdf(x + 1)) if replaced else law.logpdf(x)
    return np.logaddexp(outside, inside + law.logpdf(x - 1)), other


def direct(event: Event, order: float) -> float:
    scale = event.noise * (2 if event.selection == "poisson_replace" else 1)
    tail, far, most = (12 * scale, order, 20_001) if event.law == "gaussian" else (60 * scale, 1.0, 200_001)
    x = np.linspace(-1 - tail, far + 1 + tail, int(20 * (far + 2 + 2 * tail) / scale) + most)
    p, q = log_densities(event, x)
    loss, log_q = p - q, q + math.log(x[1] - x[0])
    if event.selection == "amplified":
        # one curve for both directions: what lies below zero mirrors what lies above, and the rest is zero
        loss, log_q = loss[loss > 0], log_q[loss > 0]
        loss, log_q = np.concatenate([loss, -loss]), np.concatenate([log_q, log_q + loss])
    return float(np.logaddexp(0.0, logsumexp(log_q + log_excess(order, loss)))) / (order - 1)


def log_excess(order: float, loss: np.ndarray) -> np.ndarray:
    """log(r^a - 1 - a (r - 1)) for r = e^loss, whose mean is that of r^a - 1."""
    power = order * loss
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        plain = np.log(np.maximum(np.expm1(power) - order * np.expm1(loss), 0.0))
        large = power + np.log1p(-order * np.exp(loss - power))
        small = np.log(order * (order - 1) / 2) + 2 * np.log(np.abs(loss))
    return np.where(power > 600, large, np.where(np.abs(power) < 1e-5, small, plain))


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize(("law", "selection"), SELECTIONS)
def test_sampled_renyi_equals_integral(law: str, selection: str, rate: float, noise: float) -> None:
    event = Event(law, noise, selection, rate)  # pyright: ignore[reportArgumentType]
    found, without = rdp.compute_divergences(event), rdp.compute_unsampled(event)
    for place in (0, 5, 13, 22, 30, 50, 62, 75):
        exact = direct(event, rdp.ORDERS[place])
        assert found[place] >= exact * (1 - 1e-6)
        if found[place] < without[place]:  # of losses beyond 30 a part is counted that belongs to no order near 1
            assert found[place] <= exact * (1 + (0.01 if noise < 0.25 else 1e-4))
    # where losses are moderate the orders that decide are all reached
    if noise >= 0.6:
        assert (found[:50] < without[:50]).all()


@pytest.mark.parametrize("loss", [1e-9, -1e-7, 3e-6, -2e-5])
def test_small_losses_keep_precision(loss: float) -> None:
    """r^a - 1 - a (r - 1), where both differences cancel."""
    orders = np.array([1.02, 3.0, 31.0])
    mp.dps = 60
    exact = [float(mp.e ** (mpf(a) * loss) - 1 - mpf(a) * (mp.e**loss - 1)) for a in orders]
    assert np.exp(rdp._log_excess(orders, np.array(loss))).tolist() == pytest.approx(exact, rel=1e-10, abs=0)


@pytest.mark.parametrize("u", [0.0, 0.3, 1.0, 4.0])
@pytest.mark.parametrize("noise", [0.5, 2.0, 10.0])
def test_zcdp_profile_equals_best_order(noise: float, u: float) -> None:
    """Canonne, Kamath and Steinke (2020): delta = exp((a-1)(a rho - u)) (1 - 1/a)^(a-1) / a, over all a > 1."""
    rho = 1 / (2 * noise**2)

    def log_delta(log_order: float) -> float:
        a = 1 + math.exp(log_order)
        return (a - 1) * (a * rho - u) + (a - 1) * math.log1p(-1 / a) - math.log(a)

    best = min(optimize.minimize_scalar(log_delta, bounds=(-4, 9), method="bounded").fun, 0.0)
    (found,) = rdp.log_profile(Event("zcdp", noise), np.array([u]))
    assert best - 1e-9 <= found <= best + 0.02 * max(1, abs(best))


@pytest.mark.parametrize("noise", [1e-3, 0.3, 1.0, 7.0, 1e3, 1e7])
def test_laplace_renyi_equals_formula(noise: float) -> None:
    """Mironov (2017), table II, in sixty digits."""
    mp.dps = 60
    found = rdp.compute_curves([Event("laplace", noise)])[0]
    for place in (0, 13, 40, 70, len(rdp.ORDERS) - 1):
        a, shift = mpf(rdp.ORDERS[place]), 1 / mpf(noise)
        exact = mp.log(a / (2 * a - 1) * mp.e ** ((a - 1) * shift) + (a - 1) / (2 * a - 1) * mp.e ** (-a * shift))
        assert found[place] == pytest.approx(float(exact / (a - 1)), rel=2e-4)
        assert found[place] >= float(exact / (a - 1)) * (1 - 1e-9)


@pytest.mark.parametrize("noise", [0.045, 0.06, 0.08, 300.0, 2000.0])
def test_renyi_integral_covers_peak(noise: float) -> None:
    """Losses in the hundreds at the orders next to 1, and orders in the ten thousands of tiny ones."""
    event = Event("gaussian", noise, "poisson", 0.9)
    found = rdp.compute_divergences(event)
    for place in range(len(rdp.ORDERS)) if noise > 1 else range(20):
        assert found[place] >= direct(event, rdp.ORDERS[place]) * (1 - 1e-6)


def _noise(event: Event) -> float:
    return event.noise


def test_many_noise_levels_bucketed_upper_bound() -> None:
    history = {Event("gaussian", 20 + level / 1500, "poisson", 0.013): 1 + level % 3 for level in range(3000)}
    before = rdp.compute_divergences.cache_info().misses
    found = rdp.compute_total(history)
    assert rdp.compute_divergences.cache_info().misses - before < 110  # log(22 / 20) / log(1.001) = 95
    some = list(history)[::30]
    for event in some:  # each is rounded to at most .1 % less noise
        near = rdp.compute_divergences(event._replace(noise=event.noise / 1.001))
        assert (rdp.compute_divergences(event) <= near).all()
    counts = sum(history.values())
    most, least = (
        rdp.compute_divergences(event) * counts for event in (min(history, key=_noise), max(history, key=_noise))
    )
    assert (found <= most).all() and (found >= least).all()
    exact = (
        sum(history[event] * rdp.compute_divergences(event) for event in some)
        / sum(history[event] for event in some)
        * counts
    )
    np.testing.assert_allclose(found[10:60], exact[10:60], rtol=5e-3)


def test_delta_zero_epsilon_finite_only_without_events() -> None:
    curves = np.stack([rdp.compute_total({}), rdp.compute_total({Event("gaussian", 5.0): 1})])
    assert rdp.compute_epsilons(curves, 0.0).tolist() == [0.0, math.inf]


def test_long_history_events_counted_once() -> None:
    history = {Event("laplace", 1 + level / 100): 1 + level % 3 for level in range(2500)}
    each = np.array([count * rdp.compute_unsampled(event) for event, count in history.items()])
    np.testing.assert_allclose(rdp.compute_total(history), each.sum(0), rtol=1e-12)
