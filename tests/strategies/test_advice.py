"""What strategies say of their settings before a run."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

import fedpriv as fp
from fedpriv.algorithms.private_augmented_lagrangian import private_al
from fedpriv.algorithms.svrg import svrg
from fedpriv.algorithms.tracking import gradient_tracking, proven_ratio
from fedpriv.network import mixing
from fedpriv.strategies.advice import ConstraintNoise, RunInfo


def test_proven_ratio_matches_closed_form() -> None:
    """W = 11'/n: s = 0 and ||W - I|| = 1, so q1 = 1 / sqrt(96 * 2 * 3)."""
    assert proven_ratio(fp.Graph(nx.complete_graph(5))) == pytest.approx(1 / 24, rel=1e-9)
    ring = fp.Graph(nx.cycle_graph(4), mixing.lazy_metropolis)
    eigenvalues = np.sort(np.linalg.eigvalsh(ring.weights.toarray()))
    square, away = eigenvalues[-2] ** 2, 1 - eigenvalues[0]
    expected = (1 - square) ** 2 / np.sqrt(96 * (2 + square) * (3 + square)) / away
    assert proven_ratio(ring) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("ratio", "message"), [(1.0, 0), (1 / 25, 0), (1 / 23, 1)])
def test_tracking_advises_on_unproven_steps(ratio: float, message: int) -> None:
    strategy = gradient_tracking(fp.StepSize(0.1, ratio=ratio))
    assert len(strategy.advice(RunInfo(9, fp.Graph(nx.complete_graph(5))))) == message
    assert strategy.advice(RunInfo(9)) == []


@pytest.mark.parametrize(
    ("rounds", "words"),
    [
        (4, "the first epoch ends after round 5"),
        (10, None),
        (12, "after round 10 and after round 15, so the last 2 rounds"),
    ],
)
def test_svrg_advises_on_incomplete_epochs(rounds: int, words: str | None) -> None:
    notes = svrg(0.1, 5).advice(RunInfo(rounds))
    assert [words in note for note in notes if words] == ([] if words is None else [True])


def test_private_al_advises_on_beta() -> None:
    noise = ConstraintNoise(deviation=2.0)
    assert private_al(9, beta=0.25, max_multiplier=5.0).advice(RunInfo(9, constraints=noise)) == []
    (message,) = private_al(9, beta=0.26, max_multiplier=5.0).advice(RunInfo(9, constraints=noise))
    assert "beta = 0.26 makes the multipliers mostly noise" in message and "a beta of at most 0.25" in message


def test_fedavg_gives_no_advice() -> None:
    assert fp.fedavg(1.0).advice(RunInfo(9)) == []
