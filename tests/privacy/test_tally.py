"""Running totals: what they cost and that they are what each client would pay alone."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence

import numpy as np
import pytest

from fedpriv.privacy.accounting import rdp
from fedpriv.privacy.accounting.accountant import Accountant
from fedpriv.privacy.accounting.events import Event
from fedpriv.privacy.accounting.running_totals import RunningTotals, Totals, compute_quick_costs
from fedpriv.privacy.record import Record

DELTA = 1e-5
Release = tuple[Sequence[int] | None, list[Event]]


def drawn(seed: int, n: int) -> list[Release]:
    """Releases to everyone and to cohorts, alike and each with noise of its own, some of them sampled."""
    draws, releases = np.random.default_rng(seed), list[Release]()
    for _ in range(12):
        cohort = None if draws.random() < 0.4 else draws.choice(n, draws.integers(1, n), replace=False).tolist()
        count = 1 if draws.random() < 0.5 else n if cohort is None else len(cohort)
        laws = draws.choice(["gaussian", "laplace"]), draws.choice(["full", "poisson"])
        levels = draws.choice([3.0, 5.0, 8.0], count).tolist()
        rate = 1.0 if laws[1] == "full" else 0.1
        releases.append((cohort, [Event(laws[0], level, laws[1], rate) for level in levels]))
    return releases


@pytest.mark.parametrize("seed", range(5))
def test_running_totals_equal_client_totals(seed: int) -> None:
    n = 7
    tally, alone = RunningTotals(n, DELTA), [Totals.zeros(1) for _ in range(n)]
    for cohort, events in drawn(seed, n):
        price = compute_quick_costs(tuple(events))
        clients = range(n) if cohort is None else cohort
        after = tally.after(cohort, price)
        tally.take(cohort, price)
        for place, client in enumerate(clients):
            own = np.array([place if len(events) > 1 else 0])
            alone[client] = alone[client].plus(price.at(own))
        expected = np.array([float(one.epsilon(DELTA)[0]) for one in alone])
        np.testing.assert_allclose(tally.epsilon(), expected, rtol=1e-12)
        assert tally.largest() == tally.epsilon().max()
        # what was asked before it was counted is what was counted
        assert after.epsilon(DELTA).max() == pytest.approx(expected[list(clients)].max(), rel=1e-12)
    assert tally.is_exact == all(np.isfinite(one.mu2).all() for one in alone)


def test_release_memory_scales_with_cohort() -> None:
    accountant, n = Accountant(200_000, DELTA), 200_000
    cohorts = [tuple(range(k, n, 20_011)) for k in range(40)]
    records = [Record(k, "gradient", 0, "gaussian", 9.0, "sample", "replace_one", who) for k, who in enumerate(cohorts)]
    accountant.admit(records[0])
    tracemalloc.start()
    for record in records[1:]:
        accountant.admit(record)
        accountant.quick_epsilon()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * 400 * len(rdp.ORDERS) * 8 < 2e6  # ten clients a cohort, 400 in all


def test_previewed_release_not_counted() -> None:
    tally, price = RunningTotals(5, DELTA), compute_quick_costs((Event("gaussian", 2.0),))
    tally.after((1, 2), price)
    tally.after(None, price)
    assert (tally.epsilon() == 0).all() and tally.largest() == 0


def test_round_without_participants_costs_nothing() -> None:
    accountant = Accountant(3, DELTA)
    accountant.admit(Record(0, "gradient", 0, "gaussian", 9.0, "sample", "replace_one", (0, 2)))
    before = accountant.quick_epsilon()
    accountant.admit(Record(1, "gradient", 0, "gaussian", 9.0, "sample", "replace_one", ()))
    assert accountant.quick_epsilon() == before > 0


def test_many_levels_round_noise_down_one_percent() -> None:
    accountant = Accountant(1, DELTA)
    levels = [1.7 + level / 1000 for level in range(400)]
    rounded = [accountant._rounded(Event("gaussian", level, "poisson", 0.1)).noise for level in levels]
    assert rounded[:256] == levels[:256]
    assert all(level / 1.0101 <= noise <= level for level, noise in zip(levels[256:], rounded[256:], strict=True))
    assert len(set(rounded[256:])) < 12
