"""The bounds themselves: known values, sandwiches, and agreement with other libraries."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Literal

import numpy as np
import pytest
import torch
from dp_accounting import NeighboringRelation
from dp_accounting.pld import privacy_loss_distribution as dpa
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.signal import fftconvolve
from scipy.special import gammaln, logsumexp
from scipy.stats import norm
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.models import SoftmaxRegression
from fedpriv.privacy.accounting import bounds, gaussian, pld, rdp
from fedpriv.privacy.accounting.events import Event, bucketed, cost_of, covers, histories

Law = Literal["gaussian", "laplace"]

DELTA = 1e-5
events = (
    st.builds(
        Event,
        st.sampled_from(["gaussian", "laplace"]),
        st.floats(0.5, 20),
        st.just("full"),
        st.just(1.0),
    )
    | st.builds(
        Event,
        st.sampled_from(["gaussian", "laplace"]),
        st.floats(0.5, 20),
        st.sampled_from(["poisson", "amplified"]),
        st.floats(1e-3, 0.5),
    )
    | st.builds(Event, st.just("gaussian"), st.floats(0.3, 20), st.just("poisson_replace"), st.floats(1e-3, 0.5))
)
few = settings(max_examples=12)


def rdp_epsilon(history: dict[Event, int]) -> float:
    return float(rdp.epsilons(rdp.total(history), DELTA))


def test_gaussian_matches_the_exact_value() -> None:
    assert gaussian.epsilon_of(1.0, DELTA) == pytest.approx(4.3772, abs=5e-5)
    assert pld.epsilon({Event("gaussian", 1.0): 1}, DELTA) == pytest.approx(4.3772, abs=5e-4)
    assert rdp_epsilon({Event("gaussian", 1.0): 1}) == pytest.approx(4.7285, abs=1e-3)
    assert bounds.tight({Event("gaussian", 10.0): 100}, DELTA)["gaussian"] == pytest.approx(4.3772, abs=5e-5)


def test_gaussian_ratio_and_epsilon_are_inverse_and_err_on_the_safe_side() -> None:
    for epsilon, delta in itertools.product([1e-3, 0.1, 3.0, 500.0], [1e-12, 1e-5, 0.1]):
        mu = gaussian.ratio_of(epsilon, delta)
        found = gaussian.epsilon_of(mu, delta)
        assert epsilon * (1 - 1e-6) < found <= epsilon
        assert gaussian.log_delta(mu, np.array(found)) <= math.log(delta)
        assert gaussian.log_delta(mu, np.array(found * (1 - 1e-6))) > math.log(delta)


@pytest.mark.parametrize(
    ("sigma", "rate", "steps", "tight", "renyi", "replaced"),
    [
        (1.0, 0.01, 1000, 1.8282, 2.1014, 2.8434),
        (1.1, 256 / 60000, 14063, 2.3818, 2.5967, 4.2215),
        (0.8, 0.001, 20000, 1.1004, 1.5683, 1.6752),
        (2.0, 0.1, 500, 5.5555, 6.03, 11.385),
    ],
)
def test_subsampled_gaussian_table(
    sigma: float, rate: float, steps: int, tight: float, renyi: float, replaced: float
) -> None:
    added = {Event("gaussian", sigma, "poisson", rate): steps}
    assert pld.epsilon(added, DELTA) == pytest.approx(tight, rel=3e-4)
    assert rdp_epsilon(added) == pytest.approx(renyi, rel=2e-3)
    # the noise multiplier of a replaced record counts 2C as the sensitivity
    moved = {Event("gaussian", sigma / 2, "poisson_replace", rate): steps}
    assert pld.epsilon(moved, DELTA) == pytest.approx(replaced, rel=3e-4)
    assert replaced < rdp_epsilon(moved) < 1.25 * replaced


@pytest.mark.parametrize(
    ("epsilon", "count", "tight", "renyi"),
    [
        (1.0, 1, 0.99998, 1.0028),
        (1.0, 10, 9.98996, 9.9903),
        (0.1, 100, 4.2204, 4.5327),
        (0.01, 20000, 6.5593, 7.0625),
        (0.001, 20000, 0.4969, 0.5457),
        (1e-5, 20000, 0.00292, 0.0045),
    ],
)
def test_laplace_table(epsilon: float, count: int, tight: float, renyi: float) -> None:
    history = {Event("laplace", 1 / epsilon): count}
    assert pld.epsilon(history, DELTA) == pytest.approx(tight, rel=5e-4, abs=6e-6)
    assert rdp_epsilon(history) <= renyi * 1.001
    assert min(bounds.tight(history, DELTA).values()) <= epsilon * count


def test_hundred_laplace_scales() -> None:
    # round by round, on the finest grid, is the reference: only the cost differs
    scales = np.geomspace(5, 30, 100)
    history = {Event("laplace", float(b)): 1 for b in scales}
    plain = _composed([dpa.from_laplace_mechanism(float(b)) for b in scales]).get_epsilon_for_delta(DELTA)
    assert pld.epsilon(history, DELTA) == pytest.approx(plain, rel=1e-3)


def _composed(distributions: list[dpa.PrivacyLossDistribution]) -> dpa.PrivacyLossDistribution:
    whole = distributions[0]
    for other in distributions[1:]:
        whole = whole.compose(other)
    return whole


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "tight", "renyi", "pure"),
    [
        (1, 0.01, 1000, 1.1238, 1.2302, 17.0),
        (10, 0.1, 1000, 1.1795, 1.2871, 10.46),
        (2, 0.001, 20000, 0.2193, 0.2425, 12.97),
    ],
)
def test_poisson_laplace_table(noise: float, rate: float, steps: int, tight: float, renyi: float, pure: float) -> None:
    found = bounds.tight({Event("laplace", noise, "poisson", rate): steps}, DELTA)
    assert found["pld"] == pytest.approx(tight, rel=3e-4)
    assert found["rdp"] == pytest.approx(renyi, rel=1e-3)
    assert found["pure"] == pytest.approx(pure, rel=3e-3)


@pytest.mark.parametrize(
    ("sigma", "rate", "steps", "fixed", "replaced", "added", "earlier"),
    [
        (2, 1 / 600, 2000, 0.450, 0.249, 0.127, 0.932),
        (2, 1 / 600, 20000, 1.565, 0.873, 0.441, 2.446),
        (4, 1 / 600, 20000, 0.522, 0.408, 0.196, 1.025),
        (1, 1 / 600, 20000, 11.88, 2.04, 1.20, 16.19),
        (1.1, 256 / 60000, 14063, 18.45, 4.22, 2.38, 24.08),
    ],
)
def test_fixed_size_table(
    sigma: float, rate: float, steps: int, fixed: float, replaced: float, added: float, earlier: float
) -> None:
    found = bounds.tight({Event("gaussian", sigma / 2, "amplified", rate): steps}, DELTA)
    assert found["pld"] == pytest.approx(fixed, rel=2e-3)
    assert found["pld"] < found["rdp"] < earlier  # the general Rényi bound is looser than ours
    assert pld.epsilon({Event("gaussian", sigma / 2, "poisson_replace", rate): steps}, DELTA) == pytest.approx(
        replaced, rel=3e-3
    )
    assert pld.epsilon({Event("gaussian", sigma, "poisson", rate): steps}, DELTA) == pytest.approx(added, rel=4e-3)


def test_fixed_size_laplace() -> None:
    assert pld.epsilon({Event("laplace", 1.0, "amplified", 1 / 600): 2000}, DELTA) == pytest.approx(0.278, abs=5e-4)
    assert pld.epsilon({Event("laplace", 2.0, "poisson", 1 / 600): 2000}, DELTA) == pytest.approx(0.109, abs=5e-4)


def test_twenty_thousand_laplace_scales() -> None:
    history = {Event("laplace", 1 / (0.05 * 0.9998**t + 1e-4)): 1 for t in range(20000)}
    assert rdp_epsilon(history) == pytest.approx(14.093, rel=1e-3)
    assert 13.175 < pld.epsilon(history, DELTA) < 13.6


def test_laplace_under_an_l2_clip_costs_no_more_than_a_gaussian_in_renyi_terms() -> None:
    assert rdp.curves([Event("zcdp", 3.0)])[0] == pytest.approx(rdp.ORDERS / 18)
    assert (rdp.curves([Event("laplace", 3.0)])[0] <= rdp.ORDERS / 18 + 1e-12).all()
    assert math.isinf(pld.epsilon({Event("zcdp", 3.0): 1}, DELTA))
    sampled = rdp.renyi(Event("zcdp", 3.0, "amplified", 0.01))
    assert (rdp.renyi(Event("gaussian", 3.0, "amplified", 0.01)) <= sampled).all()
    assert (sampled <= rdp.ORDERS / 18).all()
    assert sampled[10] < 0.01 * rdp.ORDERS[10] / 18


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
@pytest.mark.parametrize(("noise", "rate"), [(1.0, 0.01), (0.4, 0.2), (10.0, 0.1), (0.8, 1e-4)])
def test_sampled_divergences_match_the_binomial_formula(
    law: Literal["gaussian", "laplace"], noise: float, rate: float
) -> None:
    """Mironov, Talwar, Zhang 2019, for integer orders."""
    found = rdp.renyi(Event(law, noise, "poisson", rate))
    for order in (2, 5, 16):
        k = np.arange(order + 1)
        if law == "gaussian":
            moments = (k * k - k) / (2 * noise**2)
        else:
            with np.errstate(divide="ignore", invalid="ignore"):
                terms = np.logaddexp(
                    np.log(k / (2 * k - 1)) + (k - 1) / noise, np.log((k - 1) / (2 * k - 1)) - k / noise
                )
            moments = np.where(k < 2, 0.0, terms)
        log_binomial = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
        exact = logsumexp(log_binomial + k * math.log(rate) + (order - k) * math.log1p(-rate) + moments) / (order - 1)
        assert found[list(rdp.ORDERS).index(order)] == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize(("noise", "rate"), [(0.5, 0.01), (1.0, 1 / 600), (0.3, 0.2)])
def test_replaced_record_matches_direct_integration(noise: float, rate: float) -> None:
    """Curve and divergences of the dominating pair, by brute force."""
    sigma = 2 * noise
    x = np.linspace(-2 - 14 * sigma, 40 + 14 * sigma, 400_001)

    def density(mean: float) -> np.ndarray:

        def normal(m: float) -> np.ndarray:
            return np.exp(-((x - m) ** 2) / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi))

        return (1 - rate) * normal(0.0) + rate * normal(mean)

    p, q = density(1.0), density(-1.0)
    event = Event("gaussian", noise, "poisson_replace", rate)
    ours = pld._distribution(event, 2.0**-10)
    for epsilon in (0.0, 0.01, 0.1, 0.5, 1.0):
        direct = np.trapezoid(np.maximum(p - math.exp(epsilon) * q, 0.0), x)
        bound = float(ours.get_delta_for_epsilon(epsilon))
        assert direct * (1 - 1e-6) - 1e-12 <= bound <= 1.05 * direct + 1e-5
        wide = rate * math.exp(float(gaussian.log_delta(1 / noise, np.log1p(np.expm1(np.array(epsilon)) / rate))))
        assert direct * (1 - 1e-6) <= wide  # the general amplification bound is looser
    order = rdp.ORDERS[13]
    seen = q > 1e-150  # beyond, powers of the densities leave the range of floats
    divergence = math.log(np.trapezoid(p[seen] ** order * q[seen] ** (1 - order), x[seen])) / (order - 1)
    assert rdp.renyi(event)[13] == pytest.approx(divergence, rel=1e-4)


@pytest.mark.parametrize("noise", [0.4, 1.0, 5.0])
@pytest.mark.parametrize("rate", [0.001, 0.3])
def test_closed_form_curves_match_dp_accounting(noise: float, rate: float) -> None:
    grid = {"value_discretization_interval": 2.0**-10, "sampling_prob": rate}
    pairs = [
        (Event("gaussian", noise, "poisson", rate), dpa.from_gaussian_mechanism(noise, **grid)),
        (Event("laplace", noise, "poisson", rate), dpa.from_laplace_mechanism(noise, **grid)),
        (
            Event("gaussian", noise, "poisson_replace", rate),
            dpa.from_gaussian_mechanism(2 * noise, neighboring_relation=NeighboringRelation.REPLACE_ONE, **grid),
        ),
    ]
    for event, theirs in pairs:
        ours = pld._distribution(event, 2.0**-10)
        for epsilon in (0.0, 0.05, 0.5, 2.0):
            assert ours.get_delta_for_epsilon(epsilon) == pytest.approx(
                theirs.get_delta_for_epsilon(epsilon), rel=1e-4, abs=1e-12
            )


@few
@given(events, st.integers(1, 200))
def test_tighter_bounds_are_smaller(event: Event, count: int) -> None:
    found = bounds.tight({event: count}, DELTA)
    tight = found.get("pld", found.get("gaussian", math.nan))
    # the grid of the losses is pessimistic by a fraction of its spacing
    assert tight <= found["rdp"] * 1.002 + 1e-3
    assert tight <= found["pure"] * 1.002 + 1e-3


@few
@given(events, st.integers(1, 100), st.floats(1.05, 3))
def test_more_noise_costs_less(event: Event, count: int, factor: float) -> None:
    more = event._replace(noise=event.noise * factor)
    assert covers(event, more)
    assert (rdp.curves([more]) <= rdp.curves([event]) * (1 + 1e-9)).all()
    assert rdp.pure(more) <= rdp.pure(event)
    assert min(bounds.tight({more: count}, DELTA).values()) <= min(bounds.tight({event: count}, DELTA).values()) + 1e-4


@few
@given(events, st.floats(0.1, 0.95))
def test_rarer_sampling_costs_less(event: Event, factor: float) -> None:
    if event.selection != "full":
        rarer = event._replace(rate=event.rate * factor)
        assert (rdp.renyi(rarer) <= rdp.renyi(event) * (1 + 1e-9)).all()


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_a_few_answers_that_rarely_hold_a_record_have_a_tight_epsilon(rounds: int) -> None:
    """Large losses are rare there: the tilt of the best Renyi bound left out the window that has the answer."""
    event = Event("gaussian", 1.0, "poisson_replace", 1 / 64)
    x = np.linspace(-30, 30, 600_001)
    rows = [(1 - event.rate) * norm.pdf(x) + event.rate * norm.pdf(x - shift) for shift in (0.5, -0.5)]
    losses, mass = np.log(rows[0] / rows[1]), rows[0] * (x[1] - x[0])
    grid = np.round(losses / 1e-4).astype(int)
    one = np.bincount(grid - grid.min(), mass)
    total, lowest = one, int(grid.min()) * rounds
    for _ in range(rounds - 1):
        total = fftconvolve(total, one)
    values = (np.arange(len(total)) + lowest) * 1e-4
    true = brentq(lambda e: float(np.maximum(1 - np.exp(e - values), 0) @ total) - DELTA, 0, 3)
    assert true <= bounds.tight({event: rounds}, DELTA)["pld"] * 1.001
    assert bounds.tight({event: rounds}, DELTA)["pld"] <= true * 1.01


@few
@given(st.lists(events, min_size=1, max_size=4), events)
def test_one_more_event_never_lowers_epsilon(history: list[Event], event: Event) -> None:
    before = {one: history.count(one) for one in history}
    after = {**before, event: before.get(event, 0) + 1}
    assert rdp_epsilon(before) <= rdp_epsilon(after)
    least = {
        name: min(f(h, DELTA).values()) for name, f, h in [("a", bounds.tight, before), ("b", bounds.tight, after)]
    }
    assert least["a"] <= least["b"] * 1.002 + 1e-3
    assert bounds.dominated(before, after)


def test_bucketing_only_lowers_the_noise() -> None:
    history = {Event("laplace", 10 + k / 100): 2 for k in range(600)}
    coarse = bucketed(history)
    assert len(coarse) <= 250
    assert sum(coarse.values()) == 1200
    assert pld.epsilon(history, DELTA) >= pld.epsilon({Event("laplace", 16.0): 1200}, DELTA)
    assert rdp_epsilon(history) <= rdp_epsilon(coarse) <= 1.03 * rdp_epsilon(history)


def test_hardly_any_noise_costs_what_its_tail_does() -> None:
    """Where rounding hides the curve: mu^2 / 2 + 4.265 mu at delta = 1e-5."""
    mu = 2e6
    assert 0 < gaussian.epsilon_of(mu, DELTA) / (mu**2 / 2 + 4.265 * mu) - 1 < 1e-6


def test_extreme_rates_and_scales_stay_finite() -> None:
    for event in (
        Event("gaussian", 0.01, "poisson", 1e-6),
        Event("gaussian", 0.05, "poisson_replace", 0.5),
        Event("gaussian", 0.02, "amplified", 0.9),
        Event("laplace", 0.001, "amplified", 0.01),
        Event("gaussian", 500.0, "poisson_replace", 1e-6),
        Event("gaussian", 500.0, "poisson", 1e-6),
    ):
        curve = rdp.renyi(event)
        assert np.isfinite(curve).all()
        assert (curve >= 0).all()
        assert np.isfinite(pld.epsilon({event: 3}, DELTA))


def test_a_rate_may_end_the_backward_losses_on_the_grid() -> None:
    """-log(1 - rate) is exactly 1, a multiple of every spacing."""
    least, on, most = (
        pld.epsilon({Event("gaussian", 1.0, "poisson", factor * -math.expm1(-1)): 3}, DELTA)
        for factor in (0.999, 1.0, 1.001)
    )
    assert least < on < most


@pytest.mark.parametrize(
    ("event", "count"), [(Event("laplace", 1.0), 10), (Event("laplace", 0.05, "poisson", 0.9), 30)]
)
def test_a_finer_spacing_gains_nothing(event: Event, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = pld.epsilon({event: count}, DELTA)
    monkeypatch.setattr(pld, "_WIDEST", 2.0**-13)
    pld._epsilon.cache_clear()
    assert found == pytest.approx(pld.epsilon({event: count}, DELTA), rel=1e-6)
    pld._epsilon.cache_clear()


def test_the_coarsest_spacing_that_can_be_computed_is_used() -> None:
    """0.05 (0.25 / 0.00125)^2 / 4 = 500: e^500 is a number, twice its spacing is not tried."""
    assert math.isfinite(pld.rare_large(0.00125, 1e-3, 1, 1e-5))
    assert math.isinf(pld.rare_large(0.00124, 1e-3, 1, 1e-5))


def test_pld_steps_aside_where_it_cannot_be_trusted() -> None:
    assert math.isinf(pld.epsilon({Event("laplace", 1.0): 1}, 1e-12))
    assert pld.epsilon({Event("laplace", math.inf): 5}, DELTA) == 0


def test_dominated_histories_cost_nothing_to_compare(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    real = bounds.tight

    def counted(history: dict[Event, int], delta: float) -> dict[str, float]:
        calls.append(history)
        return real(history, delta)

    monkeypatch.setattr(bounds, "tight", counted)
    many = [{Event("laplace", 5.0 + k, "poisson", 0.1 / (k + 1)): 50} for k in range(20)]
    assert bounds.largest(many, DELTA) == min(real(many[0], DELTA).values())
    assert len(calls) == 1
    assert bounds.largest(many, DELTA, enough=100.0) <= 100
    assert len(calls) == 1
    assert not bounds.dominated({Event("laplace", 1.0): 1}, {Event("laplace", 2.0): 1})
    assert not bounds.dominated({Event("laplace", 1.0): 1, Event("laplace", 3.0): 1}, {Event("laplace", 1.0): 2})


def test_parity_with_opacus() -> None:
    analysis = pytest.importorskip("opacus.accountants")
    for sigma, rate, steps in [(1.0, 0.01, 1000), (2.0, 0.1, 500)]:
        event = Event("gaussian", sigma, "poisson", rate)
        # what PRV reports is its estimate plus its own error bound, .01 unless a smaller one is asked for
        for name, ours, options in [
            ("RDPAccountant", rdp_epsilon({event: steps}), {}),
            ("PRVAccountant", pld.epsilon({event: steps}, DELTA), {"eps_error": 0.002}),
        ]:
            theirs = getattr(analysis, name)()
            theirs.history = [(sigma, rate, steps)]
            assert ours == pytest.approx(theirs.get_epsilon(DELTA, **options), abs=0.01)


@pytest.mark.parametrize(("sigma", "rate", "rounds"), [(1.0, 0.05, 40), (2.0, 0.2, 60)])
def test_a_run_of_dp_sgd_costs_what_opacus_says(sigma: float, rate: float, rounds: int) -> None:
    """Poisson batches from one owner, add-remove: what the run's ledger is priced at, against both accountants."""
    accountants = pytest.importorskip("opacus.accountants")
    x = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    clients = fp.make_clients(
        SoftmaxRegression(4, 2), torch.nn.CrossEntropyLoss(), [TensorDataset(x, torch.arange(30) % 2)]
    )
    privacy = fp.Privacy(noise_multiplier=sigma, delta=DELTA, relation="add_remove", sampling=fp.Poisson(rate))
    training = fp.Training(clients, fp.fedavg(0.1), privacy, rounds=rounds, seed=0, secret_seed=0)
    assert len(list(training)) == rounds
    spent = training.spent()
    assert spent.accountant == "pld"
    theirs = {name: getattr(accountants, name)() for name in ("PRVAccountant", "RDPAccountant")}
    for accountant in theirs.values():
        for _ in range(rounds):
            accountant.step(noise_multiplier=sigma, sample_rate=rate)
    assert spent.epsilon == pytest.approx(theirs["PRVAccountant"].get_epsilon(DELTA, eps_error=0.002), abs=0.01)
    [(_, history)] = histories(Counter(cost_of(record, 1) for record in training.ledger.records), 1)
    assert rdp_epsilon(history) == pytest.approx(theirs["RDPAccountant"].get_epsilon(DELTA), abs=0.01)
