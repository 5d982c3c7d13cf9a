"""The bound of benchmarks/audit/lower_bounds.py that knows the release's law: tight, and hardly ever too large."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fedpriv.audit.canaries import Game
from fedpriv.privacy.accounting.gaussian import compute_epsilon, compute_ratio

SCRIPT: dict[str, Any] = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "audit" / "lower_bounds.py"))
DELTA = 1e-5


def game_of(mu: float, count: int, draw: np.random.Generator) -> Game:
    """Scores of the Gaussian mechanism itself."""
    took_part = draw.random(count) < 0.5
    return Game(
        draw.standard_normal(count) + mu * took_part, took_part, compute_epsilon(mu, DELTA), DELTA, normal=False
    )


def bound(game: Game) -> float:
    mu = compute_ratio(game.promised, DELTA)
    return SCRIPT["epsilon_by_curve"](game, lambda factor, delta: compute_epsilon(mu / factor, delta))


def test_curve_bound_valid_in_95_percent() -> None:
    draw = np.random.default_rng(0)
    games = [game_of(1.0, 400, draw) for _ in range(200)]
    wrong = sum(bound(game) > game.promised for game in games)
    assert stats.binomtest(wrong, 200, 0.05, alternative="greater").pvalue > 0.01, wrong


def test_curve_bound_tight_and_detects_half_noise() -> None:
    draw = np.random.default_rng(1)
    game = game_of(1.0, 20_000, draw)
    assert 0.85 < bound(game) / game.promised < 1
    # the same scores under a claim of half the epsilon
    claimed = compute_epsilon(0.5, DELTA)
    below = SCRIPT["epsilon_by_curve"](game, lambda factor, delta: compute_epsilon(0.5 / factor, delta))
    assert below > claimed


def test_curve_bound_small_for_chance_scores() -> None:
    draw = np.random.default_rng(2)
    game = game_of(0.0, 2000, draw)
    assert SCRIPT["epsilon_by_curve"](game, lambda factor, delta: compute_epsilon(1.0 / factor, delta)) < 0.6


@pytest.mark.parametrize(("hits", "alarms", "possible"), [(0.5, 0.5, True), (0.99, 0.001, False)])
def test_error_rates_possible_within_privacy_curve(hits: float, alarms: float, possible: bool) -> None:
    epsilons = [compute_epsilon(1.0, delta) for delta in SCRIPT["DELTAS"]]
    assert SCRIPT["is_possible"](hits, alarms, epsilons) == possible
    if possible:
        return
    # the best test of mu 1 touches the curve and does not cross it
    for cut in np.linspace(-2, 3, 41):
        assert SCRIPT["is_possible"](stats.norm.sf(cut - 1), stats.norm.sf(cut), epsilons)
