"""What a search costs: closed forms, an independent numerical PLD, and true divergences of small searches."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as dpa
from scipy.optimize import minimize
from scipy.stats import logser, poisson

from fedpriv.errors import ConfigError
from fedpriv.privacy.accounting import gaussian, rdp
from fedpriv.privacy.accounting.events import Event
from fedpriv.privacy.accounting.orders import ORDERS
from fedpriv.privacy.accounting.search import NegativeBinomial, NumberOfTrials, PoissonTrials, compute_hidden_epsilon
from fedpriv.privacy.composition import RunCost, compose
from fedpriv.privacy.record import Record

DELTA = 1e-5
NUMBERS = [NegativeBinomial(20.0), NegativeBinomial(20.0, 1.0), PoissonTrials(20.0), NegativeBinomial(2.0)]


def cost_of_visible_trials(trials: int, **made: object) -> float:
    records = [Record(t, "gradient", 0, "gaussian", 2.0, "sample", "add_remove", **made) for t in range(30)]
    return compose([RunCost(str(k), records, 3, "same") for k in range(trials)], DELTA).epsilon


def test_visible_trials_cost_all_releases():
    assert cost_of_visible_trials(20) == pytest.approx(
        gaussian.compute_epsilon(math.sqrt(30 * 20) / 2, DELTA), rel=1e-9
    )
    grid = {"value_discretization_interval": 2e-4, "sampling_prob": 0.02}
    other = dpa.from_gaussian_mechanism(2.0, **grid).self_compose(30 * 20)
    assert cost_of_visible_trials(20, sampling="poisson", rate=0.02) == pytest.approx(
        other.get_epsilon_for_delta(DELTA), rel=1e-3
    )


def best_of(chances: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Law of the best of K trials, each a score from 0; `weights[k]` is P(K = k), and no trial is outcome 0."""
    below = np.concatenate([[0.0], np.cumsum(chances)])
    at_most = np.array([float(weights @ total ** np.arange(len(weights))) for total in below])
    return np.append(at_most[0], np.diff(at_most))


def renyi(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    ratio = np.log(one) - np.log(other)
    terms = np.log(other) + ORDERS[:, None] * ratio
    top = terms.max(axis=1)
    return (top + np.log(np.exp(terms - top[:, None]).sum(axis=1))) / (ORDERS - 1)


def weights_of(number: NumberOfTrials) -> np.ndarray:
    k = np.arange(4000)
    if isinstance(number, PoissonTrials):
        return poisson.pmf(k, number.mean)
    if number.shape == 0:
        return np.where(k > 0, logser.pmf(k, 1 - number.gamma), 0.0)
    return np.where(k > 0, number.gamma * (1 - number.gamma) ** (k - 1.0), 0.0)


@pytest.mark.parametrize("number", NUMBERS, ids=str)
@pytest.mark.parametrize("rare", [0.3, 1e-3])
def test_hidden_search_divergence_within_bound(number: NumberOfTrials, rare: float):
    """Scores of three values; the best one is rare, and more or less so with one more example."""
    one, other = np.array([0.6 - rare, 0.4, rare]), np.array([0.65 - 2 * rare, 0.35, 2 * rare])
    bound = number.curve(np.maximum(renyi(one, other), renyi(other, one)))
    weights = weights_of(number)
    assert weights.sum() == pytest.approx(1, abs=1e-6)
    drawn = [best_of(chances, weights)[isinstance(number, NegativeBinomial) :] for chances in (one, other)]
    true = np.maximum(renyi(*drawn), renyi(*drawn[::-1]))
    assert (true <= bound + 1e-9).all()
    assert (true > np.maximum(renyi(one, other), renyi(other, one))).any(), "trying often reveals more than trying once"


@pytest.mark.parametrize("shape", [0.0, 1.0])
def test_hidden_search_gaussian_equals_formula(shape: float):
    """For `r(a) = a rho` all orders are known: the best ones, found by another hand."""
    rho, number = 0.05, NegativeBinomial(30.0, shape)

    def epsilon(logs: np.ndarray) -> float:
        a, b = 1 + np.exp(logs)
        curve = a * rho + (1 + shape) * ((1 - 1 / b) * b * rho + math.log(1 / number.gamma) / b)
        curve += math.log(30) / (a - 1)
        return float(curve + math.log1p(-1 / a) - (math.log(DELTA) + math.log(a)) / (a - 1))

    best = minimize(epsilon, np.log([10.0, 10.0]), method="Nelder-Mead", options={"xatol": 1e-6, "fatol": 1e-9})
    found = compute_hidden_epsilon(number, [{Event("gaussian", rho**-0.5 / math.sqrt(2)): 1}], DELTA)
    assert best.fun <= found <= best.fun * (1 + 1e-3)


def test_poisson_trials_gaussian_equals_formula():
    """With so much noise that the whole extra cost is that of drawing, `log(mu) / (a - 1)`."""
    history = {Event("gaussian", 50.0): 4}
    one = rdp.compute_total(history)
    curve = PoissonTrials(20.0).curve(one)
    small = ORDERS < 3
    assert curve[small] == pytest.approx((one + math.log(20) / (ORDERS - 1))[small], rel=1e-6)
    assert (curve >= one).all()


def test_hidden_search_cost_between_one_and_all():
    history = {Event("gaussian", 1.0): 2}
    one, all_of_them = (gaussian.compute_epsilon(math.sqrt(2 * trials), DELTA) for trials in (1, 100))
    for number in (NegativeBinomial(100.0), NegativeBinomial(100.0, 1.0)):
        assert one < compute_hidden_epsilon(number, [history], DELTA) < all_of_them / 4


@pytest.mark.parametrize("number", NUMBERS, ids=str)
def test_trial_numbers_follow_distribution(number: NumberOfTrials):
    weights = weights_of(number)
    drawn = [number.draw((i + 0.5) / 4000) for i in range(4000)]
    for k in range(0, 60, 7):
        assert np.mean([one <= k for one in drawn]) == pytest.approx(weights[: k + 1].sum(), abs=1e-3)
    assert weights @ np.arange(len(weights)) == pytest.approx(number.mean, rel=1e-4)


@pytest.mark.parametrize("shape", [0.0, 1.0])
@pytest.mark.parametrize("mean", [2.0, 5.0, 100.0])
def test_largest_trial_number_drawn(mean: float, shape: float):
    """Floating-point probabilities add up to a little less than 1, and never to more, however many are added."""
    number = NegativeBinomial(mean, shape)
    most = number.draw(1 - 2.0**-53)
    # probabilities fall at least as fast as (1 - gamma)^k, and one that changes no sum is below 2^-53
    assert 1e-20 < (1 - number.gamma) ** most < 1e-10


def test_poisson_smallest_draw_is_zero_trials():
    assert PoissonTrials(3.0).draw(0.0) == 0


@pytest.mark.parametrize(
    "made", [lambda: NegativeBinomial(1.0), lambda: NegativeBinomial(5.0, 2.0), lambda: PoissonTrials(-1.0)]
)
def test_trial_distribution_out_of_range_raises(made: object):
    with pytest.raises(ConfigError):
        made()


@pytest.mark.parametrize("number", NUMBERS, ids=str)
def test_tiny_noise_trials_cost_without_overflow(number: NumberOfTrials):
    """Divergences near the largest float: the price is finite as long as they are, and not below that of a trial."""
    one = np.full(ORDERS.shape, 1e306)
    with np.errstate(over="raise"):
        curve = number.curve(one)
    assert (curve >= one).all() and np.isfinite(curve).all()


@pytest.mark.parametrize("mean", [1.001, 20.0, 10_000.0])
@pytest.mark.parametrize("shape", [0.0, 1.0])
def test_gamma_gives_mean_trial_number(mean: float, shape: float):
    """Of the logarithmic law: (1 - g) / (g log(1 / g)), up to the largest number of trials that is allowed."""
    g = NegativeBinomial(mean, shape).gamma
    found = 1 / g if shape == 1 else (1 - g) / (g * -math.log(g))
    assert found == pytest.approx(mean, rel=1e-6)
