"""What absences that nobody announced leave of the noise of pairs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedpriv.forecast.pair_absences import RATIOS, compute_noise_with_absences, find_best_ratio
from fedpriv.privacy.accounting.pairwise import compute_complete_exposure


def test_no_absence_leaves_individual_noise() -> None:
    # four honest sites with ratio 3: own noise of variance 1 / (1 + 3 * 9 / 10)
    assert compute_noise_with_absences(5, 3.0, 1, 0.0) == pytest.approx(math.sqrt(1 / 3.7))
    assert compute_noise_with_absences(5, 0.0, 1, 0.0) == pytest.approx(1.0)


def test_noise_with_absences_of_two_sites() -> None:
    # both answer with probability .81, one with .18: then its pair's noise stays, and there is one row
    own = compute_complete_exposure(2, 2.0, 0)
    by_hand = (0.81 * own / 2 + 0.18 * own * (1 + 4)) / 0.99
    assert compute_noise_with_absences(2, 2.0, 0, 0.1) == pytest.approx(math.sqrt(2 * by_hand))


def test_noise_with_absences_matches_simulation() -> None:
    """Rows get the noise of each pair, sites leave, and the mean of the remaining rows is measured."""
    n, ratio, absent = 6, 2.0, 0.2
    random = np.random.default_rng(0)
    own = math.sqrt(compute_complete_exposure(n, ratio, 1))
    means = []
    while len(means) < 20_000:
        shared = np.triu(random.normal(size=(n, n)) * ratio * own, 1)
        rows = random.normal(size=n) * own + shared.sum(1) - shared.sum(0)
        present = random.random(n) >= absent
        if present.any():
            means.append(rows[present].mean())
    assert np.std(means) * math.sqrt(n) == pytest.approx(compute_noise_with_absences(n, ratio, 1, absent), rel=0.03)


def test_best_ratio_falls_with_absences() -> None:
    ratios = [find_best_ratio(100, 1, absent) for absent in (0.0, 0.01, 0.05, 0.3)]
    assert ratios[0] == RATIOS[-1]
    assert ratios == sorted(ratios, reverse=True)
    assert len({*ratios}) == 4
