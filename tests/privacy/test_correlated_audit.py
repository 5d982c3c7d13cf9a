"""Audits of runs with noise that is correlated between rounds: what one example can change, from outside."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from correlated_runs import NOISES, Mean, dense, training_of
from scipy.stats import beta
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.errors import PrivacyError
from fedpriv.oracle.sampler import BatchSampler
from fedpriv.privacy.accounting.gaussian import compute_epsilon
from fedpriv.privacy.correlated import compute_sensitivity
from fedpriv.privacy.matrices import Matrix
from fedpriv.privacy.settings import Noise


def released_rows(
    inputs: Tensor, noise: Noise, blocks: int, rounds: int, multiplier: float, seed: int = 1
) -> np.ndarray:
    """All released rows `[rounds, n]` of clients `[n, m]` with one parameter each."""
    data = [TensorDataset(own.unsqueeze(1), torch.zeros(len(own))) for own in inputs]
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)  # noise follows from the seed and from where models begin
    privacy = fp.Privacy(
        noise_multiplier=multiplier, relation="add_remove", sampling=fp.Cyclic(blocks), noise=noise, delta=1e-4
    )
    training = fp.Training(
        fp.make_clients(model, Mean(), data), fp.fedavg(1e-9), privacy, rounds=rounds, seed=1, secret_seed=seed
    )
    points = training.population.params.clone()
    rows = []
    for t in range(rounds):
        training.oracle.begin_round(t, torch.arange(len(data)))
        rows.append(training.oracle.gradient(points)[:, 0].double().numpy())
    return np.stack(rows) * inputs.shape[1] / blocks  # sums, not means


def lower_bound(scores: np.ndarray, present: np.ndarray, delta: float) -> float:
    """Epsilon below which the scores cannot be explained, at 95 % (Clopper and Pearson), at the best of few cuts."""
    best, cuts = 0.0, np.quantile(scores, [0.5, 0.7, 0.8, 0.9, 0.95])
    for cut in cuts:
        caught, called = int((scores[present] > cut).sum()), int((scores[~present] > cut).sum())
        level = 0.05 / len(cuts) / 2
        hits = beta.ppf(level, caught, present.sum() - caught + 1) if caught else 0.0
        false = beta.ppf(1 - level, called + 1, (~present).sum() - called)
        best = max(best, math.log(max((hits - delta) / false, 1e-9)))
    return best


@pytest.mark.parametrize("broken", [False, True])
def test_audit_exceeds_epsilon_only_if_block_repeats(broken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every client is a trial: half of them hold a canary in block 0, whose gradient is as long as the clip allows."""
    blocks, rounds, multiplier, n = 4, 8, 3.0, 4000
    present = np.arange(n) % 2 == 0
    inputs = torch.zeros(n, blocks)
    inputs[present, 0] = 1.0
    if broken:  # block 0 in every round, and the ledger is told what it should have been
        honest = BatchSampler._draw_batches
        monkeypatch.setattr(
            BatchSampler, "_draw_batches", lambda self, *asked: _at_round(self, 0, lambda: honest(self, *asked))
        )
    factor = fp.BSR(3).factor(rounds, blocks)
    found = released_rows(inputs, fp.BSR(3), blocks, rounds, multiplier)
    takes_part = np.ones(rounds) if broken else np.arange(rounds) % blocks == 0
    matrix = dense(factor, rounds)
    scores = (matrix @ takes_part) @ (matrix @ found)  # the best test between Gaussians
    claim = compute_epsilon(compute_sensitivity(factor, rounds, blocks) / multiplier, 1e-4)
    empirical = lower_bound(scores, present, 1e-4)
    assert (empirical > claim) if broken else (0.2 * claim < empirical <= claim)


def _at_round(draws: BatchSampler, round_index: int, call: Callable[[], Any]) -> Any:
    real, draws._round = draws._round, round_index
    try:
        return call()
    finally:
        draws._round = real


@pytest.mark.parametrize("noise", NOISES, ids=str)
@pytest.mark.parametrize("block", range(4))
def test_example_moves_releases_within_sensitivity(noise: Matrix, block: int) -> None:
    """Two neighbours with the same noise: the difference of what they release has none."""
    blocks, rounds = 4, 10
    without = torch.zeros(1, blocks)
    inputs = without.clone()
    inputs[0, block] = 1.0
    both = [released_rows(data, noise, blocks, rounds, 1.0, seed=7) for data in (inputs, without)]
    factor = noise.factor(rounds, blocks)
    moved, claim = (
        np.linalg.norm(dense(factor, rounds) @ (both[0] - both[1])),
        compute_sensitivity(factor, rounds, blocks),
    )
    assert moved <= claim * (1 + 1e-4)
    if block == 0:
        assert moved == pytest.approx(claim, rel=1e-4)


def test_repeated_block_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BatchSampler, "block", lambda self, sampling: min(self._round, 2) % sampling.blocks)
    training = training_of()
    with pytest.raises(PrivacyError, match="uses the examples of block 2, but it is the turn of block 3"):
        list(training)
    assert len(training.ledger.records) == 3
