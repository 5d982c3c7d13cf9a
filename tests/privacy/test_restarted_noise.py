"""Noise over time that begins anew after a stop: it costs no more, and is independent of the noise before."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from fedpriv.privacy.correlated import Factor, compute_shares
from fedpriv.privacy.noise_history import NoiseHistory

FACTORS = {
    "bsr": Factor((0.5, 0.375)),
    "increasing band": Factor((0.2, 0.6)),
    "negative band": Factor((-0.5, 0.25)),
    "buffers": Factor((), (0.4, 0.1), (0.9, 0.3)),
}
ROUNDS = 8


def with_restarts(factor: Factor, starts: tuple[int, ...]) -> np.ndarray:
    """The matrix of all rounds, block diagonal: C begins anew at each start."""
    column = factor.column(ROUNDS)
    matrix = np.zeros((ROUNDS, ROUNDS))
    for first, end in itertools.pairwise((0, *starts, ROUNDS)):
        for row in range(first, end):
            for t in range(first, row + 1):
                matrix[row, t] = column[row - t]
    return matrix


def participations(separation: int) -> list[tuple[int, ...]]:
    """All sets of rounds in which one unit may take part, any two at least `separation` apart."""
    sets: list[tuple[int, ...]] = []
    for size in range(1, ROUNDS + 1):
        for rounds in itertools.combinations(range(ROUNDS), size):
            if all(after - before >= separation for before, after in itertools.pairwise(rounds)):
                sets.append(rounds)
    return sets


def worst(matrix: np.ndarray, separation: int) -> float:
    """The largest squared norm of a change, over all sets of rounds and all signs."""
    largest = 0.0
    for rounds in participations(separation):
        for signs in itertools.product((-1.0, 1.0), repeat=len(rounds) - 1):
            change = matrix[:, rounds] @ np.array([1.0, *signs])
            largest = max(largest, float(change @ change))
    return largest


@pytest.mark.parametrize("name", FACTORS)
@pytest.mark.parametrize("separation", [2, 3, 8])
def test_restart_within_planned_sensitivity(name: str, separation: int) -> None:
    factor = FACTORS[name]
    planned = float(compute_shares(factor, ROUNDS, separation).sum())
    assert worst(with_restarts(factor, ()), separation) <= planned * (1 + 1e-12)
    for starts in [(1,), (3,), (4,), (7,), (2, 3), (3, 6), (1, 2, 5)]:
        assert worst(with_restarts(factor, starts), separation) <= planned * (1 + 1e-12)


def test_two_blocks_cost_more_than_longer_block() -> None:
    """So the releases before a restart do count."""
    factor = FACTORS["bsr"]
    assert worst(with_restarts(factor, (4,)), 2) > 1.5 * float(compute_shares(factor, 4, 2).sum())


def filtered(history: NoiseHistory, unit: torch.Tensor, rounds: range) -> torch.Tensor:
    rows = []
    for number in rounds:
        history.begin(number, 1, unit.shape[1], unit.device)
        rows.append(history.filtered(unit[number : number + 1].clone(), slice(0, 1), number))
        history.finish(number)
    return torch.cat(rows)


@pytest.mark.parametrize("name", FACTORS)
def test_noise_after_restart_independent_of_before(name: str) -> None:
    """C restarts at the first round of the new process: C times the noise is white, independent of earlier rounds."""
    factor = FACTORS[name]
    draw = torch.Generator().manual_seed(0)
    unit = torch.randn(ROUNDS, 2000, generator=draw, dtype=torch.float64)
    before = filtered(NoiseHistory(factor), unit, range(5))
    after = filtered(NoiseHistory(factor), unit, range(5, ROUNDS))
    whole = torch.from_numpy(with_restarts(factor, (5,)))
    torch.testing.assert_close(whole @ torch.cat([before, after]), unit)
    correlations = np.corrcoef(torch.cat([before, after]).numpy())[:5, 5:]
    assert np.abs(correlations).max() < 0.1


def test_skipped_round_restarts_matrix() -> None:
    factor = FACTORS["bsr"]
    history = NoiseHistory(factor)
    unit = torch.randn(ROUNDS, 10, dtype=torch.float64)
    filtered(history, unit, range(3))
    assert torch.equal(filtered(history, unit, range(5, 6)), unit[5:6])
    assert history.first == 5
