"""Inexact ADMM on all of MNIST against the error rates measured independently of this library."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import Subset

import fedpriv as fp
from fedpriv.data import labels_of, load, partition
from fedpriv.models import SoftmaxRegression
from fedpriv.papers.admm import published_trust


def errors(strategy: fp.Strategy, privacy: fp.Privacy, rounds: tuple[int, ...], root: Path) -> list[float]:
    """Test error in percent of the w that round t computes, for each t of `rounds`; ten clients in file order."""
    split = load("mnist", root=str(root / "mnist"), flat=True)
    parts = partition("in_order", labels_of(split.train), 10, torch.Generator())
    clients = fp.make_clients(
        SoftmaxRegression(784, 10), nn.CrossEntropyLoss(), [Subset(split.train, p.tolist()) for p in parts]
    )
    compute = fp.Compute(max_physical_batch_size=60_000)
    training = fp.Training(clients, strategy, privacy, rounds=max(rounds) - 1, seed=0, compute=compute)
    inputs, labels = split.test[:]
    found: list[float] = []
    for report in training:
        if report.round + 1 in rounds:
            weight = training.progress.received[0].view(10, 784)
            found.append(100 * float(((inputs @ weight.T).argmax(1) != labels).float().mean()))
    return found


@pytest.mark.parametrize(
    "rounds",
    [pytest.param((100,), id="100 rounds"), pytest.param((100, 500, 1000), id="1000 rounds", marks=pytest.mark.slow)],
)
@pytest.mark.parametrize(
    ("step", "expected"),
    [
        pytest.param(fp.Trust(), (15.01, 11.08, 10.00), id="trust"),
        pytest.param(fp.Prox(fp.Decay(1.0, 0.5)), (19.95, 16.26, 14.93), id="prox", marks=pytest.mark.slow),
    ],
)
def test_mnist_admm_error_without_noise(
    step: fp.Prox | fp.Trust, expected: tuple[float, ...], rounds: tuple[int, ...], data_root: Path
) -> None:
    strategy = fp.inexact_admm(step, fp.Penalty(2.0, 0.0, 1.2, 1e4))
    found = errors(strategy, fp.Privacy(noise_on="none"), rounds, data_root)
    assert found == pytest.approx(expected[: len(rounds)], abs=0.1)


@pytest.mark.slow
def test_mnist_admm_error_published_noise(data_root: Path) -> None:
    """Noise of eq 20 at eps_bar = .05. 26.3 % is of one seed elsewhere; five here gave 27.7 to 32.7 (sd 2.3)."""
    recipe = published_trust(0.05, 1)
    (found,) = errors(recipe.strategy, fp.Privacy(published=recipe.published), (500,), data_root)
    assert found == pytest.approx(26.3, abs=3 * 2.3)
