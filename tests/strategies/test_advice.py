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
    """W = 11'/n: s = q1 and ||W - I|| = 1, so q1 is just below 1 / sqrt(96 * 2 * 3)."""
    found = proven_ratio(fp.Graph(nx.complete_graph(5)))
    assert found == pytest.approx((1 - found**2) ** 2 / np.sqrt(96 * (2 + found**2) * (3 + found**2)), rel=1e-9)
    assert 0.041 < found < 1 / 24
    ring = fp.Graph(nx.cycle_graph(4), mixing.lazy_metropolis)
    found = proven_ratio(ring)
    eigenvalues = np.sort(np.linalg.eigvalsh(ring.weights.toarray()))
    square, away = (found + (1 - found) * eigenvalues[-2]) ** 2, 1 - eigenvalues[0]
    assert found == pytest.approx((1 - square) ** 2 / np.sqrt(96 * (2 + square) * (3 + square)) / away, rel=1e-9)


@pytest.mark.parametrize("weights", [mixing.metropolis, mixing.lazy_metropolis])
def test_proven_ratio_covers_proof_matrices(weights) -> None:
    """At the returned ratio, the condition of theorem 5.18 holds with the s of its own proof."""
    graph = fp.Graph(nx.erdos_renyi_graph(12, 0.4, seed=3), weights)
    matrix, identity, mean = graph.weights.toarray(), np.eye(12), np.full((12, 12), 1 / 12)
    ratio = proven_ratio(graph)
    shares = [1 - ratio + gain * ratio**k for gain in (0.01, 0.5, 1.0) for k in range(1, 9)]
    largest = max(np.linalg.norm(c * matrix + (1 - c) * identity - mean, 2) for c in shares)
    away = np.linalg.norm(matrix - identity, 2)
    allowed = (1 - largest**2) ** 2 / np.sqrt(96 * (2 + largest**2) * (3 + largest**2)) / away
    assert ratio <= allowed * (1 + 1e-9)
    assert ratio == pytest.approx(allowed, rel=1e-3)
    deviations = np.random.default_rng(0).standard_normal((12, 5))
    assert np.linalg.norm((matrix - identity) @ deviations) <= away * np.linalg.norm(deviations)


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
