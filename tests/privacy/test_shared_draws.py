"""Two copies of a run may share the secret draw of an epoch: what that costs at most, by sampling, and in accounts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from privacy_worlds import record

from fedpriv.privacy.composition import RunCost, compose, with_every_round_drawn

BATCHES, NOISE, DRAWS = 4, 1.2, 200_000


def sampled(first: np.ndarray, second: np.ndarray, shift: float, generator: np.random.Generator) -> None:
    """Fills two transcripts of one unit: an epoch, and some of its rounds again with the same draw."""
    batch = generator.integers(BATCHES, size=DRAWS)
    for transcript in (first, second):
        transcript[:] = generator.normal(scale=NOISE, size=transcript.shape)
        rounds = transcript.shape[1]
        taken = batch < rounds
        transcript[np.arange(DRAWS)[taken], batch[taken]] += shift


def mean_ratio(first: np.ndarray, second: np.ndarray, shift: float) -> np.ndarray:
    """Likelihood of both transcripts with shift over that without, the draw averaged out."""
    total = np.zeros(len(first))
    for batch in range(BATCHES):
        exponent = shift * first[:, batch] - shift**2 / 2
        if batch < second.shape[1]:
            exponent = exponent + shift * second[:, batch] - shift**2 / 2
        total += np.exp(exponent / NOISE**2)
    return total / BATCHES


def epoch_ratio(first: np.ndarray, shift: float) -> np.ndarray:
    return np.exp((shift * first - shift**2 / 2) / NOISE**2).mean(1)


@pytest.mark.parametrize("rounds", [1, 2, 4])
@pytest.mark.parametrize("epsilon", [0.2, 0.7, 1.5])
@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
def test_shared_draw_delta_within_sum(relation: str, epsilon: float, rounds: int) -> None:
    """delta(P || Q) of both transcripts is at most that of an epoch and one answer of a unit that is always drawn."""
    generator = np.random.default_rng(rounds)
    first, second = np.empty((DRAWS, BATCHES)), np.empty((DRAWS, rounds))
    sampled(first, second, 1.0, generator)
    alone = generator.normal(loc=1.0, scale=NOISE, size=DRAWS)
    shift = 0.0 if relation == "add_remove" else -1.0

    def delta(ratio: np.ndarray) -> tuple[float, float]:
        values = np.maximum(1 - np.exp(epsilon) / ratio, 0)
        return float(values.mean()), float(values.std() / np.sqrt(DRAWS))

    shared, error = delta(mean_ratio(first, second, 1.0) / mean_ratio(first, second, shift))
    one = np.exp(((1.0 - shift) * alone - (1.0 - shift**2) / 2) / NOISE**2)
    bound, bound_error = delta(epoch_ratio(first, 1.0) / epoch_ratio(first, shift) * one)
    assert shared <= bound + 4 * (error + bound_error)


def allocated(round_index: int):
    return replace(record(round_index, noise_multiplier=2.0), sampling="allocation", rate=1 / 5, batches=5)


def test_copied_run_not_amplified_by_allocation() -> None:
    records = [allocated(number) for number in range(10)]
    run = RunCost("a", records, 3, run_name="same")
    copy = replace(run, name="b")
    other = replace(run, name="b", run_name="another")
    drawn = replace(other, records=[with_every_round_drawn(each) for each in records])
    assert compose([run, copy], 1e-5).epsilon == compose([run, drawn], 1e-5).epsilon
    assert compose([run, copy], 1e-5).epsilon > compose([run, other], 1e-5).epsilon
    assert compose([run, replace(copy, run_name=None)], 1e-5).epsilon == compose([run, other], 1e-5).epsilon


def test_copied_run_without_allocation_is_second_run() -> None:
    run = RunCost("a", [record(number, noise_multiplier=9.0) for number in range(4)], 3, run_name="same")
    assert compose([run, replace(run, name="b")], 1e-5) == compose([run, replace(run, run_name="another")], 1e-5)
