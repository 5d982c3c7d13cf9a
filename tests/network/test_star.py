"""Means on a star divide by a public number, whoever took part."""

from __future__ import annotations

import pytest
import torch

import fedpriv as fp
from fedpriv.network.rounds import initial_state, run_rounds
from fedpriv.randomness.streams import Randomness
from fedpriv.strategies.fedavg import AddMeanUpdate


def test_poisson_cohort_mean_divides_by_expected_size() -> None:
    """The true cohort size does not enter; over many rounds the average is the mean of all clients."""
    star, rows, means = fp.Star(8, fp.PoissonCohort(0.5)), torch.arange(8.0).unsqueeze(1), []
    sizes = set()
    for index in range(400):
        cohort = star.participants(index, Randomness(3))
        sizes.add(len(cohort))
        mean = star.mean(rows[cohort])
        assert mean.shape == (8, 1)
        torch.testing.assert_close(mean, (rows[cohort].sum(0) / 4).expand(8, 1))
        means.append(float(mean[0]))
    assert len(sizes) > 3
    assert sum(means) / len(means) == pytest.approx(3.5, abs=0.35)


@pytest.mark.parametrize("size", [1, 3, 8])
def test_fixed_cohort_mean_divides_by_size(size: int) -> None:
    star, rows = fp.Star(8, fp.FixedCohort(size)), torch.arange(8.0).unsqueeze(1)
    cohort = star.participants(0, Randomness(3))
    assert len(set(cohort.tolist())) == size
    assert float(star.mean(rows[cohort])[0]) == pytest.approx(float(rows[cohort].mean()))


class RecordingStep:
    """Notes whether what it receives is one row of memory."""

    receives, sends, memory, linear = ("model",), ("update",), "none", True

    def __init__(self) -> None:
        self.steps = list[tuple[int, bool]]()

    def init(self, params: torch.Tensor) -> None:
        """Nothing is kept."""

    def __call__(self, received: torch.Tensor, state: None, oracle: object) -> tuple[torch.Tensor, None]:
        self.steps.append((len(received), received.stride(0) == 0))
        return received * 0 + 1, state


@pytest.mark.parametrize("cohort", [fp.Everyone(), fp.PoissonCohort(0.5), fp.FixedCohort(3)])
def test_shared_row_not_expanded_for_cohort(cohort) -> None:
    step, start = RecordingStep(), torch.randn(1, 3)
    strategy = fp.Strategy(step, AddMeanUpdate())
    progress = initial_state(strategy, start.expand(8, -1))
    for done in run_rounds(strategy, UnusedOracle(), fp.Star(8, cohort), progress, Randomness(3), rounds=4):
        assert done.progress.received.stride(0) == 0
    assert len(step.steps) == 4
    assert all(one for _, one in step.steps)
    assert cohort == fp.Everyone() or {size for size, _ in step.steps} != {8}


class UnusedOracle:
    """Nobody asks it."""

    is_aggregate = False

    def begin_round(self, *_: object) -> None:
        """Nothing."""

    def release_message(self, message: torch.Tensor) -> torch.Tensor:
        return message


def test_mean_of_equal_rows_is_exact() -> None:
    row = torch.randn(1, 5, generator=torch.Generator().manual_seed(0))
    star, rows = fp.Star(10**6), row.expand(10**6, -1)
    assert torch.equal(star.mean(rows)[:1], row)  # added up one by one they give another, in the last bits
    assert torch.equal(star.mix(rows)[:1], row)
