"""Lower bounds on epsilon are valid on runs that are right, and exceed what is promised on those that are not."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from audit_targets import audit_target, run_check
from scipy import stats
from test_audit_planted_bugs import Less

import fedpriv as fp
from fedpriv.audit import AuditTarget
from fedpriv.audit.bounds import bounds_from_scores, clopper_pearson, compute_one_run_bound, largest_mu
from fedpriv.audit.canaries import CONFIDENCE, Game, check_canaries, compute_reach, run_game
from fedpriv.privacy.accounting.gaussian import compute_epsilon

DELTA = 1e-5


def test_audit_ceilings_match_literature() -> None:
    """At perfect separation; by the formulas that the module names."""
    for n, wanted in ((100, 3.3), (500, 4.9), (1000, 5.6), (10_000, 7.9)):
        assert clopper_pearson(n, n, 0, n, DELTA, 0.95) == pytest.approx(wanted, abs=0.06)
    for guesses, wanted in ((50, 2.78), (250, 4.40), (500, 5.09), (2500, 6.59)):
        assert compute_one_run_bound(guesses, guesses, 2 * guesses, DELTA, 0.95) == pytest.approx(wanted, abs=0.01)
    # without delta the chance of n right guesses is (e^eps / (1 + e^eps))^n
    p = 0.05 ** (1 / 80)
    assert compute_one_run_bound(80, 80, 80, 0.0, 0.95) == pytest.approx(math.log(p / (1 - p)), rel=1e-6)


def test_chance_guesses_give_zero_bound() -> None:
    assert compute_one_run_bound(50, 100, 100, DELTA, 0.95) == 0
    assert compute_one_run_bound(0, 0, 100, DELTA, 0.95) == 0
    assert clopper_pearson(50, 100, 50, 100, DELTA, 0.95) == 0
    assert clopper_pearson(0, 100, 0, 100, DELTA, 0.95) == 0


def gaussian_scores(mu: float, count: int, draw: np.random.Generator) -> tuple[Any, Any]:
    """Of the Gaussian mechanism itself."""
    took_part = draw.random(count) < 0.5
    return draw.standard_normal(count) + mu * took_part, took_part


@pytest.mark.parametrize("mu", [0.25, 1.0])
def test_canary_bounds_valid_in_95_percent(mu: float) -> None:
    """300 games of the mechanism itself; a library's bound was wrong in all of its games at mu 0.25."""
    draw, epsilon, wrong = np.random.default_rng(0), compute_epsilon(mu, DELTA), np.zeros(3)
    for _ in range(300):
        found = bounds_from_scores(*gaussian_scores(mu, 200, draw), DELTA, CONFIDENCE, normal=True)
        wrong += np.array([found.clopper_pearson, found.one_run, found.of_mu]) > epsilon
    for count in wrong:
        assert stats.binomtest(int(count), 300, 1 - CONFIDENCE, alternative="greater").pvalue > 0.01, wrong
    assert wrong[2] > 0  # the interval of mu is exact, not wide


def test_bounds_tighten_with_more_canaries() -> None:
    draw = np.random.default_rng(0)
    found = [largest_mu(*split(gaussian_scores(1.0, n, draw)), CONFIDENCE) for n in (50, 500, 5000)]
    assert found == sorted(found) and 0.85 < found[-1] < 1.02
    many = bounds_from_scores(*gaussian_scores(1.0, 10_000, draw), DELTA, CONFIDENCE, normal=True)
    assert 1.5 < many.clopper_pearson < many.one_run < many.of_mu < compute_epsilon(1.0, DELTA)


def split(game: tuple[Any, Any]) -> tuple[Any, Any]:
    scores, took_part = game
    return scores[took_part], scores[~took_part]


def noisy(made: AuditTarget) -> AuditTarget:
    """The run with its noise known, as the check plays it."""
    noise = made.plan().privacy.noise_multiplier
    return replace(made, privacy=replace(made.privacy, noise_multiplier=noise, epsilon=None))


PROMISES: dict[str, dict[str, Any]] = {
    "local": {},
    "add_remove": {"relation": "add_remove"},
    "laplace": {"mechanism": fp.Laplace(), "clip": fp.Clip(1.0, "l1")},
    "messages": {"unit": "client", "noise_on": "message"},
    "messages, there or not": {"unit": "client", "noise_on": "message", "relation": "add_remove"},
    "secure aggregation": {"trust": fp.SecureAggregation(2)},
    "pairs": {"trust": fp.Pairwise(0, 3.0)},
    "poisson": {"sampling": fp.Poisson(0.3)},
    "over time": {"noise": fp.BSR(4)},
    "pairs over time": {"trust": fp.Pairwise(0, 3.0), "noise": fp.BSR(4), "sampling": fp.Cyclic(2)},
}


@pytest.mark.parametrize("promise", PROMISES)
def test_canary_statistic_matches_theory(promise: str) -> None:
    """Canaries of a right run: normal scores of the ledger's own mu, where noise is Gaussian and nothing is drawn."""
    made = noisy(audit_target(fp.fedavg(0.5), rounds=6, **PROMISES[promise]))
    each = 1 if promise.startswith("messages") else 200
    reached = compute_reach(made, each, 6)
    games = [run_game(made, each, 6, reached) for _ in range(60 if each == 1 else 1)]
    scores, took_part = (np.concatenate([getattr(game, name) for game in games]) for name in ("scores", "took_part"))
    assert max(bounds_from_scores(scores, took_part, DELTA, 0.9999, normal=games[0].normal)) <= games[0].promised
    assert games[0].normal == (promise not in ("laplace", "poisson"))
    mu = theory(games[0])
    inside, outside = scores[took_part], scores[~took_part]
    apart = (inside.mean() - outside.mean()) / math.sqrt((inside.var() + outside.var()) / 2)
    error = math.sqrt(4 / len(scores) + mu**2 / (2 * len(scores)))
    if games[0].normal:
        assert apart == pytest.approx(mu, abs=4 * error)
    else:
        assert apart > 0.3 * mu - 4 * error


def test_absent_canary_scores_symmetric() -> None:
    """Its score is the same function of what was released: without a signal it is as often positive as negative."""
    made = noisy(audit_target(fp.fedavg(0.5), rounds=3, relation="add_remove", epsilon=1e-3))
    games = [run_game(made, 1, 3) for _ in range(40)]
    absent = np.concatenate([game.scores[~game.took_part] for game in games])
    assert (absent != 0).all() and stats.binomtest(int((absent > 0).sum()), len(absent)).pvalue > 1e-5


def theory(game: Game) -> float:
    """The mu that the promised epsilon stands for."""
    from fedpriv.privacy.accounting.gaussian import compute_ratio

    return compute_ratio(game.promised, game.delta)


def test_canaries_detect_half_noise() -> None:
    made = audit_target(fp.fedavg(0.5), rounds=6)
    right, wrong = (
        run_check(check_canaries, made),
        run_check(check_canaries, audit_target(fp.fedavg(0.5), rounds=6, mechanism=Less(part=0.5))),
    )
    assert right.verdict == "held" and right.evidence.endswith("; claimed 3"), right
    assert wrong.verdict == "found" and "one run: guesses prove epsilon above" in wrong.evidence, wrong
    assert right.numbers["one run: mu"] < right.numbers["promised"] < wrong.numbers["one run: of_mu"]
    assert "normal scores" in right.power and "noise below about 0." in right.power


@pytest.mark.slow
@pytest.mark.parametrize("promise", ["local", "laplace", "secure aggregation"])
def test_canary_bounds_hold_over_300_runs(promise: str) -> None:
    made, wrong = noisy(audit_target(fp.fedavg(0.5), rounds=3, **PROMISES[promise])), np.zeros(3)
    for _ in range(300):
        game = run_game(made, 40, 3)
        found = game.bounds()
        wrong += np.array([found.clopper_pearson, found.one_run, found.of_mu]) > game.promised
    for count in wrong:
        assert stats.binomtest(int(count), 300, 1 - CONFIDENCE, alternative="greater").pvalue > 0.01, wrong
