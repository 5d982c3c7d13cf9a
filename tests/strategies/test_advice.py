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


def test_the_ratio_that_tracking_is_proved_for_has_a_closed_form_where_one_exchange_is_the_mean() -> None:
    """W = 11'/n: s = 0 and ||W - I|| = 1, so q1 = 1 / sqrt(96 * 2 * 3)."""
    assert proven_ratio(fp.Graph(nx.complete_graph(5))) == pytest.approx(1 / 24, rel=1e-9)
    ring = fp.Graph(nx.cycle_graph(4), mixing.lazy_metropolis)
    eigenvalues = np.sort(np.linalg.eigvalsh(ring.weights.toarray()))
    square, away = eigenvalues[-2] ** 2, 1 - eigenvalues[0]
    expected = (1 - square) ** 2 / np.sqrt(96 * (2 + square) * (3 + square)) / away
    assert proven_ratio(ring) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("ratio", "said"), [(1.0, 0), (1 / 25, 0), (1 / 23, 1)])
def test_tracking_speaks_of_steps_that_its_proof_does_not_cover(ratio: float, said: int) -> None:
    strategy = gradient_tracking(fp.StepSize(0.1, ratio=ratio))
    assert len(strategy.advice(RunInfo(9, fp.Graph(nx.complete_graph(5))))) == said
    assert strategy.advice(RunInfo(9)) == []


@pytest.mark.parametrize(
    ("rounds", "words"),
    [(4, "the first epoch ends after 5"), (10, None), (12, "after 10 and after 15, so the last 2 rounds")],
)
def test_variance_reduction_speaks_of_rounds_that_end_no_epoch(rounds: int, words: str | None) -> None:
    said = svrg(0.1, 5).advice(RunInfo(rounds))
    assert [words in note for note in said if words] == ([] if words is None else [True])


def test_multipliers_that_drown_are_told_with_the_beta_that_would_not() -> None:
    noise = ConstraintNoise(deviation=2.0)
    assert private_al(9, beta=0.25, largest=5.0).advice(RunInfo(9, constraints=noise)) == []
    (said,) = private_al(9, beta=0.26, largest=5.0).advice(RunInfo(9, constraints=noise))
    assert "beta = 0.26 drowns" in said and "a beta of at most 0.25" in said


def test_a_step_that_has_nothing_to_say_says_nothing() -> None:
    assert fp.fedavg(1.0).advice(RunInfo(9)) == []
