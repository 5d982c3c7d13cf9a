"""What must hold for every bound of epsilon: an order, finite numbers, and an error on the safe side."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from renyi_epsilon import DELTA, rdp_epsilon

from fedpriv.privacy.accounting import bounds, gaussian, pld, rdp
from fedpriv.privacy.accounting.events import Event, covers, round_noise_levels

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


def test_gaussian_ratio_inverts_epsilon_from_below() -> None:
    for epsilon, delta in itertools.product([1e-3, 0.1, 3.0, 500.0], [1e-12, 1e-5, 0.1]):
        mu = gaussian.compute_ratio(epsilon, delta)
        found = gaussian.compute_epsilon(mu, delta)
        assert epsilon * (1 - 1e-6) < found <= epsilon
        assert gaussian.log_delta(mu, np.array(found)) <= math.log(delta)
        assert gaussian.log_delta(mu, np.array(found * (1 - 1e-6))) > math.log(delta)


def test_laplace_l2_clip_renyi_below_zcdp() -> None:
    assert rdp.compute_curves([Event("zcdp", 3.0)])[0] == pytest.approx(rdp.ORDERS / 18)
    assert (rdp.compute_curves([Event("laplace", 3.0)])[0] <= rdp.ORDERS / 18 + 1e-12).all()
    assert math.isinf(pld.epsilon({Event("zcdp", 3.0): 1}, DELTA))
    sampled = rdp.compute_divergences(Event("zcdp", 3.0, "amplified", 0.01))
    assert (rdp.compute_divergences(Event("gaussian", 3.0, "amplified", 0.01)) <= sampled).all()
    assert (sampled <= rdp.ORDERS / 18).all()
    assert sampled[10] < 0.01 * rdp.ORDERS[10] / 18


@few
@given(events, st.integers(1, 200))
def test_pld_epsilon_below_rdp_and_pure(event: Event, count: int) -> None:
    found = bounds.compute_tight_epsilons({event: count}, DELTA)
    tight = found.get("pld", found.get("gaussian", math.nan))
    # the grid of the losses is pessimistic by a fraction of its spacing
    assert tight <= found["rdp"] * 1.002 + 1e-3
    assert tight <= found["pure"] * 1.002 + 1e-3


@few
@given(events, st.integers(1, 100), st.floats(1.05, 3))
def test_more_noise_lowers_epsilon(event: Event, count: int, factor: float) -> None:
    more = event._replace(noise=event.noise * factor)
    assert covers(event, more)
    assert (rdp.compute_curves([more]) <= rdp.compute_curves([event]) * (1 + 1e-9)).all()
    assert rdp.compute_pure_epsilon(more) <= rdp.compute_pure_epsilon(event)
    assert (
        min(bounds.compute_tight_epsilons({more: count}, DELTA).values())
        <= min(bounds.compute_tight_epsilons({event: count}, DELTA).values()) + 1e-4
    )


@few
@given(events, st.floats(0.1, 0.95))
def test_lower_rate_lowers_renyi_curve(event: Event, factor: float) -> None:
    if event.selection != "full":
        rarer = event._replace(rate=event.rate * factor)
        assert (rdp.compute_divergences(rarer) <= rdp.compute_divergences(event) * (1 + 1e-9)).all()


@few
@given(st.lists(events, min_size=1, max_size=4), events)
def test_additional_event_never_lowers_epsilon(history: list[Event], event: Event) -> None:
    before = {one: history.count(one) for one in history}
    after = {**before, event: before.get(event, 0) + 1}
    assert rdp_epsilon(before) <= rdp_epsilon(after)
    least = {
        name: min(f(h, DELTA).values())
        for name, f, h in [("a", bounds.compute_tight_epsilons, before), ("b", bounds.compute_tight_epsilons, after)]
    }
    assert least["a"] <= least["b"] * 1.002 + 1e-3
    assert bounds.is_dominated(before, after)


def test_bucketed_noise_is_upper_bound() -> None:
    history = {Event("laplace", 10 + k / 100): 2 for k in range(600)}
    coarse = round_noise_levels(history)
    assert len(coarse) <= 250
    assert sum(coarse.values()) == 1200
    assert pld.epsilon(history, DELTA) >= pld.epsilon({Event("laplace", 16.0): 1200}, DELTA)
    assert rdp_epsilon(history) <= rdp_epsilon(coarse) <= 1.03 * rdp_epsilon(history)


def test_epsilon_tiny_noise_equals_tail_formula() -> None:
    """Where rounding hides the curve: mu^2 / 2 + 4.265 mu at delta = 1e-5."""
    mu = 2e6
    assert 0 < gaussian.compute_epsilon(mu, DELTA) / (mu**2 / 2 + 4.265 * mu) - 1 < 1e-6


def test_extreme_rates_and_scales_finite() -> None:
    for event in (
        Event("gaussian", 0.01, "poisson", 1e-6),
        Event("gaussian", 0.05, "poisson_replace", 0.5),
        Event("gaussian", 0.02, "amplified", 0.9),
        Event("laplace", 0.001, "amplified", 0.01),
        Event("gaussian", 500.0, "poisson_replace", 1e-6),
        Event("gaussian", 500.0, "poisson", 1e-6),
    ):
        curve = rdp.compute_divergences(event)
        assert np.isfinite(curve).all()
        assert (curve >= 0).all()
        assert np.isfinite(pld.epsilon({event: 3}, DELTA))


def test_pld_backward_loss_end_on_grid() -> None:
    """-log(1 - rate) is exactly 1, a multiple of every spacing."""
    least, on, most = (
        pld.epsilon({Event("gaussian", 1.0, "poisson", factor * -math.expm1(-1)): 3}, DELTA)
        for factor in (0.999, 1.0, 1.001)
    )
    assert least < on < most


@pytest.mark.parametrize(
    ("event", "count"), [(Event("laplace", 1.0), 10), (Event("laplace", 0.05, "poisson", 0.9), 30)]
)
def test_pld_epsilon_equals_finer_grid(event: Event, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = pld.epsilon({event: count}, DELTA)
    monkeypatch.setattr(pld, "_WIDEST", 2.0**-13)
    pld._epsilon.cache_clear()
    assert found == pytest.approx(pld.epsilon({event: count}, DELTA), rel=1e-6)
    pld._epsilon.cache_clear()


@pytest.mark.parametrize("noise", [0.5, 2.0, 30.0])
def test_one_batch_epoch_divergence_equals_gaussian(noise: float) -> None:
    epoch, answer = Event("gaussian", noise, "allocation", 1.0), Event("gaussian", noise)
    assert pld._divergence(epoch) == pytest.approx(pld._divergence(answer), rel=1e-9)


def test_pld_grid_size_limited_for_rare_losses() -> None:
    """The variance alone would need a finer grid."""
    event = Event("laplace", 0.01, "poisson", 1e-8)
    assert pld._reach(event) <= pld._interval({event: 1}) * pld._MAX_POINTS


def test_rare_large_finite_up_to_coarsest_spacing() -> None:
    """0.05 (0.25 / 0.00125)^2 / 4 = 500: e^500 is a number, twice its spacing is not tried."""
    assert math.isfinite(pld.rare_large(0.00125, 1e-3, 1, 1e-5))
    assert math.isinf(pld.rare_large(0.00124, 1e-3, 1, 1e-5))


def test_pld_epsilon_infinite_at_tiny_delta() -> None:
    assert math.isinf(pld.epsilon({Event("laplace", 1.0): 1}, 1e-12))
    assert pld.epsilon({Event("laplace", math.inf): 5}, DELTA) == 0


def test_dominated_histories_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    real = bounds.compute_tight_epsilons

    def counted(history: dict[Event, int], delta: float, *, rough: bool = False) -> dict[str, float]:
        calls.append(history)
        return real(history, delta, rough=rough)

    monkeypatch.setattr(bounds, "compute_tight_epsilons", counted)
    many = [{Event("laplace", 5.0 + k, "poisson", 0.1 / (k + 1)): 50} for k in range(20)]
    assert bounds.compute_largest_epsilon(many, DELTA) == min(real(many[0], DELTA).values())
    assert len(calls) == 1
    assert bounds.compute_largest_epsilon(many, DELTA, enough=100.0) <= 100
    assert len(calls) == 1


def test_history_with_less_noise_not_dominated() -> None:
    assert not bounds.is_dominated({Event("laplace", 1.0): 1}, {Event("laplace", 2.0): 1})
    assert not bounds.is_dominated({Event("laplace", 1.0): 1, Event("laplace", 3.0): 1}, {Event("laplace", 1.0): 2})
