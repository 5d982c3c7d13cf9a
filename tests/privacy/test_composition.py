"""Several runs together, and groups: against closed forms and numerical integrals that the library has no part in."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as dpa
from scipy import optimize, stats

from fedpriv.errors import ConfigError, PrivacyError
from fedpriv.privacy.accounting import bounds, mixtures
from fedpriv.privacy.accounting.events import Event
from fedpriv.privacy.accounting.groups import scale_to_group
from fedpriv.privacy.accounting.mixtures import log_forward, log_replaced
from fedpriv.privacy.accounting.profiles import log_profile
from fedpriv.privacy.composition import RunCost, basic_composition, compose
from fedpriv.privacy.record import Record

DELTA = 1e-5


def delta_of(mu: float, epsilon: float) -> float:
    return stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)


def epsilon_of(mu: float, delta: float = DELTA) -> float:
    return optimize.brentq(lambda epsilon: delta_of(mu, epsilon) - delta, 0, 400)


def mu_of(epsilon: float, delta: float = DELTA) -> float:
    return optimize.brentq(lambda mu: delta_of(mu, epsilon) - delta, 1e-3, 20)


def run(noise: float, rounds: int = 1, name: str = "run", n_clients: int = 3, data: str | None = "a", **changes):
    base = Record(0, "gradient", 0, "gaussian", noise, "sample", "replace_one")
    return RunCost(name, [replace(base, round=t, **changes) for t in range(rounds)], n_clients, data)


@pytest.mark.parametrize(("epsilon", "count", "known"), [(1.0, 3, 1.84), (3.0, 20, 18.3)])
def test_gaussian_runs_compose_exactly(epsilon, count, known):
    noise = 1 / mu_of(epsilon)
    found = compose([run(noise, name=str(i)) for i in range(count)], DELTA)
    assert found.epsilon == pytest.approx(epsilon_of(math.sqrt(count) / noise), rel=1e-6)
    assert found.epsilon == pytest.approx(known, abs=0.05)
    assert found.accountant == "gaussian" and found.per_client == (found.epsilon,) * 3


def test_sampled_runs_equal_dp_accounting():
    one = run(1.1, 200, "one", sampling="poisson", rate=0.02, relation="add_remove")
    other = run(0.9, 100, "other", sampling="poisson", rate=0.01, relation="add_remove")
    parts = [
        dpa.from_gaussian_mechanism(noise, sampling_prob=rate, value_discretization_interval=2e-4).self_compose(count)
        for noise, rate, count in ((1.1, 0.02, 200), (0.9, 0.01, 100))
    ]
    found = compose([one, other], DELTA)
    assert found.epsilon == pytest.approx(parts[0].compose(parts[1]).get_epsilon_for_delta(DELTA), rel=1e-3)
    assert found.epsilon < compose([one], DELTA).epsilon + compose([other], DELTA).epsilon
    assert compose([one, other], DELTA, "rdp").epsilon > found.epsilon
    assert compose([one, other], 1e-7).epsilon > found.epsilon


def test_basic_composition_adds_epsilons_and_deltas():
    """The only bound for runs with noise that depends on results of earlier runs."""
    one, other = compose([run(1.1, 5, "one")], DELTA), compose([run(0.9, 3, "other")], 2 * DELTA)
    assert basic_composition([one, other]) == (pytest.approx(one.epsilon + other.epsilon), pytest.approx(3 * DELTA))
    assert basic_composition([one, other])[0] > compose([run(1.1, 5, "one"), run(0.9, 3, "other")], 3 * DELTA).epsilon


def test_laplace_runs_pure_epsilon():
    runs = [run(10.0, 5, name, mechanism="laplace", norm="l1") for name in ("one", "other")]
    assert compose(runs, 0.0).epsilon == pytest.approx(1.0)
    assert compose(runs, DELTA, "pure").epsilon == pytest.approx(1.0)
    assert compose(runs, DELTA).epsilon < 1.0


def test_mixed_units_compose_to_common_guarantee():
    sample, client = run(10.0, name="sample"), run(5.0, name="client", unit="client")
    found = compose([sample, client], DELTA)
    assert (found.unit, found.relation) == ("sample", "replace_one")
    assert found.epsilon == pytest.approx(epsilon_of(math.hypot(1 / 10, 1 / 5)), rel=1e-6)
    added = run(10.0, name="added", relation="add_remove", shared="sizes public")
    both = compose([sample, added], DELTA)
    assert both.relation == "replace_one(sizes public)"
    assert both.epsilon == pytest.approx(epsilon_of(math.hypot(1 / 10, 1 / 5)), rel=1e-6)  # twice the sensitivity
    alone = compose([added], DELTA)
    assert (alone.relation, alone.epsilon) == ("add_remove(sizes public)", pytest.approx(epsilon_of(1 / 10), rel=1e-6))


def test_different_data_composes_worst_clients():
    one, other = (run(10.0, name=name, clients=clients) for name, clients in (("one", (0,)), ("other", (1, 2))))
    same = compose([one, other], DELTA)
    assert same.epsilon == pytest.approx(epsilon_of(1 / 10), rel=1e-6)
    for changed in (replace(other, data="b"), replace(other, n_clients=4), replace(other, data=None)):
        apart = compose([one, changed], DELTA)
        assert apart.epsilon == pytest.approx(epsilon_of(math.sqrt(2) / 10), rel=1e-6)
    unknown = [replace(one, data=None), replace(other, data=None)]
    assert compose(unknown, DELTA).epsilon == pytest.approx(epsilon_of(math.sqrt(2) / 10), rel=1e-6)


def test_per_client_epsilon_of_several_runs():
    found = compose([run(10.0, name="one"), run(10.0, 2, name="other", clients=(1,))], DELTA)
    assert found.per_client[0] == found.per_client[2] == pytest.approx(epsilon_of(1 / 10), rel=1e-6)
    assert found.epsilon == found.per_client[1] == pytest.approx(epsilon_of(math.sqrt(3) / 10), rel=1e-6)


def test_compose_incompatible_runs_raises():
    whole = [run(10.0, name="one", unit="client"), run(10.0, name="other", unit="client", n_clients=4, data="b")]
    with pytest.raises(PrivacyError, match="whole clients, but different ones"):
        compose(whole, DELTA)
    mixed = RunCost("mixed", [*run(1.0).records, *run(1.0, unit="client").records], 3)
    with pytest.raises(PrivacyError, match="releases of mixed differ in privacy unit"):
        compose([mixed], DELTA)
    with pytest.raises(ConfigError, match="accountant"):
        compose([run(1.0)], DELTA, "clt")
    with pytest.raises(ConfigError, match="runs"):
        compose([], DELTA)


def test_compose_exact_run_epsilon_infinite():
    exact = run(0.0, name="exact", mechanism="none", non_private="exact query results, no noise")
    found = compose([run(10.0), exact], DELTA)
    assert math.isinf(found.epsilon) and found.non_private == ("exact query results, no noise",)


@pytest.mark.parametrize(("k", "known"), [(2, 3.98), (5, 11.64), (10, 27.9)])
def test_group_epsilon_known_values(k, known):
    assert bounds.compute_largest_epsilon(
        [{scale_to_group(Event("gaussian", 1.0, "poisson", 0.01), k): 1000}], DELTA
    ) == pytest.approx(known, abs=0.006)


@pytest.mark.parametrize("k", [2, 6])
def test_add_remove_group_equals_gaussian_mixture(k):
    """1000 rounds at rate .01 and noise 1, against dp-accounting's own mixtures; k times 1.828 would be wrong."""
    weights = stats.binom.pmf(range(k + 1), k, 0.01)
    one = dpa.from_mixture_gaussian_mechanism(
        1.0, list(range(k + 1)), list(weights), value_discretization_interval=2e-3
    )
    found = bounds.compute_tight_epsilons({scale_to_group(Event("gaussian", 1.0, "poisson", 0.01), k): 1000}, DELTA)
    assert found["pld"] == pytest.approx(one.self_compose(1000).get_epsilon_for_delta(DELTA), rel=1e-3)
    assert found["rdp"] > found["pld"]


@pytest.mark.parametrize("noise", [0.5, 2.0])
def test_large_group_small_noise_equals_mpmath(noise: float):
    """40 members: the densities of the mixture lie too many powers of e apart for one float, and nothing overflows."""
    k, rate, t = 40, 0.1, np.array([0.0, 1.0, 30.0, 200.0])
    event = scale_to_group(Event("gaussian", noise, "poisson", rate), k)
    with mpmath.workdps(60):
        s = mpmath.mpf(event.noise)
        drawn = [
            mpmath.binomial(k, j) * mpmath.mpf(rate) ** j * (1 - mpmath.mpf(rate)) ** (k - j) for j in range(k + 1)
        ]
        some = 1 - drawn[0]

        def loss(x: mpmath.mpf) -> mpmath.mpf:
            terms = (drawn[j] / some * mpmath.exp((j * x - mpmath.mpf(j) ** 2 / 2) / s**2) for j in range(1, k + 1))
            return mpmath.log(mpmath.fsum(terms))

        def forward(u: float) -> float:
            x = mpmath.findroot(lambda x: loss(x) - u, (-500, 500), solver="anderson", tol=1e-60)
            above = mpmath.fsum(drawn[j] / some * mpmath.ncdf((j - x) / s) for j in range(1, k + 1))
            return float(mpmath.log(above - mpmath.exp(u) * mpmath.ncdf(-x / s)))

        expected = [forward(float(u)) for u in t]
    np.testing.assert_allclose(log_forward(event, t), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("k", "rate", "noise"), [(2, 0.01, 1.0), (7, 0.9, 3.0), (10, 0.1, 0.7), (40, 0.05, 2.0)])
def test_group_curves_few_evaluations(k: int, rate: float, noise: float, monkeypatch: pytest.MonkeyPatch):
    """Newton's method takes about ten for a whole curve; halving would take several times as many."""
    calls: list[int] = []
    ratio = mixtures._ratio

    def counted(weights: mixtures.Weights, x: mixtures.Array, s: float):
        calls.append(len(x))
        return ratio(weights, x, s)

    monkeypatch.setattr(mixtures, "_ratio", counted)
    u = np.linspace(0.0, 30.0, 3000)
    added, replaced = (
        scale_to_group(Event("gaussian", noise, kind, rate), k) for kind in ("poisson", "poisson_replace")
    )
    counts = list[int]()
    for curve, event in ((log_forward, added), (mixtures.log_backward, added), (log_replaced, replaced)):
        calls.clear()
        with np.errstate(all="raise", under="ignore"):  # where a curve has fallen to 0, nothing is divided by it
            curve(event, u)
        counts.append(len(calls))
    assert max(counts[:2]) <= 11 and counts[2] <= 20, counts  # the last has two ratios a step


def composed(k: int, rate: float, noise: float, count: int) -> float:
    """Epsilon of ``sum_j w_j N(j)`` against ``sum_j w_j N(-j)``, deviation 2 noise, by a plain table of losses."""
    sigma, grid, cells = 2 * noise, 2.0**-12, 2**18
    weights = stats.binom.pmf(np.arange(k + 1), k, rate)
    edges = np.linspace(-k - 12 * sigma, k + 12 * sigma, 400_001)
    x, width = (edges[1:] + edges[:-1]) / 2, edges[1] - edges[0]
    up, down = (sum(w * stats.norm.pdf(x, s * j, sigma) for j, w in enumerate(weights)) for s in (1, -1))
    cell = np.rint(np.log(up / down) / grid).astype(int) + cells // 2
    masses = np.bincount(cell, up * width, cells)
    whole = np.fft.irfft(np.fft.rfft(np.fft.ifftshift(masses)) ** count, cells)
    losses = np.fft.fftfreq(cells, 1 / cells) * grid

    def delta(epsilon: float) -> float:
        return float(whole[losses > epsilon] @ -np.expm1(epsilon - losses[losses > epsilon]))

    return optimize.brentq(lambda epsilon: delta(epsilon) - DELTA, 0, 20)


@pytest.mark.parametrize(("k", "rate", "noise", "count"), [(2, 0.05, 1.0, 50), (4, 0.02, 1.5, 100), (7, 0.1, 3.0, 20)])
def test_replaced_group_epsilon_equals_integration(k, rate, noise, count):
    found = bounds.compute_tight_epsilons(
        {scale_to_group(Event("gaussian", noise, "poisson_replace", rate), k): count}, DELTA
    )
    assert found["pld"] == pytest.approx(composed(k, rate, noise, count), rel=1e-3)
    assert found["rdp"] > found["pld"]


def test_replaced_group_collinear_shifts_are_worst():
    """Each of three members moves a sum in the plane by a vector of norm 1, in either data set, when it is drawn."""
    draws, rate, noise = np.random.default_rng(0), 0.3, 0.6
    event, sigma = scale_to_group(Event("gaussian", noise, "poisson_replace", rate), 3), 2 * noise
    axis = np.linspace(-10, 10, 401)
    x, y = np.meshgrid(axis, axis)
    cell = (axis[1] - axis[0]) ** 2
    t = np.array([0.0, 0.3, 1.0, 2.0])
    bound = np.exp(log_replaced(event, t))
    for trial in range(20):
        angles = draws.uniform(0, 2 * np.pi, (2, 3)) if trial else np.array([[0.0] * 3, [np.pi] * 3])
        densities = [np.zeros_like(x), np.zeros_like(x)]
        for drawn in product((0, 1), repeat=3):
            weight = rate ** sum(drawn) * (1 - rate) ** (3 - sum(drawn))
            for which in (0, 1):
                mean = np.array(drawn) @ np.column_stack([np.cos(angles[which]), np.sin(angles[which])])
                normal = np.exp(-((x - mean[0]) ** 2 + (y - mean[1]) ** 2) / (2 * sigma**2)) / (2 * np.pi * sigma**2)
                densities[which] += weight * normal
        found = [np.maximum(densities[0] - math.exp(e) * densities[1], 0).sum() * cell for e in t]
        assert (np.array(found) <= bound + 1e-4).all()  # the sum over the plane is as exact as that
        if trial == 0:  # to both sides of one line: the worst
            assert found == pytest.approx(bound, rel=1e-3)


def test_unsampled_group_closed_form():
    assert scale_to_group(Event("gaussian", 10.0), 4) == Event("gaussian", 2.5)
    assert bounds.compute_tight_epsilons({scale_to_group(Event("gaussian", 10.0), 4): 9}, DELTA)[
        "gaussian"
    ] == pytest.approx(epsilon_of(1.2))
    assert bounds.compute_quick_epsilons({scale_to_group(Event("laplace", 10.0), 4): 2}, 0.0)["pure"] == pytest.approx(
        0.8
    )


@pytest.mark.parametrize("event", [Event("laplace", 2.0, "poisson", 0.1), Event("laplace", 2.0, "amplified", 0.1)])
def test_sampled_laplace_group_upper_bound(event):
    """All k at once: with probability 1 - .9^3 something moves, by 3 at most."""
    grouped = scale_to_group(event, 3)
    assert grouped.noise == pytest.approx(2 / 3) and grouped.rate >= 1 - 0.9**3
    # two data sets whose three members move the answer by 1 each when drawn, in one of them only
    x = np.linspace(-40, 40, 400_001)
    with_them = sum(stats.binom.pmf(j, 3, 0.1) * stats.laplace.pdf(x, j, 2) for j in range(4))
    without = stats.laplace.pdf(x, 0, 2)
    for epsilon in (0.0, 0.1, 0.3):
        for first, second in ((with_them, without), (without, with_them)):
            true = np.maximum(first - math.exp(epsilon) * second, 0).sum() * (x[1] - x[0])
            assert true <= math.exp(bounds_of(grouped, epsilon)) + 1e-9


def bounds_of(event: Event, epsilon: float) -> float:
    """Log delta of the event with one draw of its rate."""
    inside = math.log1p(math.expm1(epsilon) / event.rate)
    return math.log(event.rate) + float(log_profile(event._replace(rate=1.0), np.array([inside]))[0])


def test_group_of_one_unchanged():
    for selection in ("full", "poisson", "poisson_replace", "amplified", "allocation", "allocation_replace"):
        event = Event("gaussian", 1.0, selection, 1.0 if selection == "full" else 0.1)
        assert scale_to_group(event, 1) == event


def test_log_difference_of_equal_is_minus_infinity():
    """Without a warning of NumPy's, which is an error in tests."""
    assert mixtures._difference(np.array([0.5, 0.0]), np.array([0.5, -math.inf])).tolist() == [-math.inf, 0.0]
