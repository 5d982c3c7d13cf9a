"""The price of noise that cancels between pairs of clients and over rounds.

The brute force knows no product: it writes down every draw of every round with its sign, filters it by C, takes away
what colluders know, and asks for the best statistic of all releases of all clients and rounds.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from correlated_runs import training_of
from pairs_over_time import PRIVACY, RING, ROUNDS, TRUST, N
from test_correlated_price import drawn, matrix_of, patterns
from test_pairwise_price import graph_of

import fedpriv as fp
from fedpriv.privacy.accounting import pairwise as price
from fedpriv.privacy.accounting.accountant import account
from fedpriv.privacy.accounting.gaussian import compute_epsilon
from fedpriv.privacy.correlated import CorrelatedNoise, Factor, compute_sensitivity
from fedpriv.privacy.ledger_file import LedgerFile
from fedpriv.privacy.pairwise import Edges, Pairs, name_pairs, sort_pairs
from fedpriv.privacy.record import Record
from fedpriv.runs.integrity import find_problems
from fedpriv.runs.run_files import RunFiles


def law_of(n: int, edges: Edges, ratio: float, factor: Factor, rounds: int, colluding: set[int]) -> np.ndarray:
    """Covariance of what is left of the noise on all honest clients' rows, round after round."""
    honest = [i for i in range(n) if i not in colluding]
    draws = [np.eye(n)[i] for i in honest]
    draws += [ratio * (np.eye(n)[i] - np.eye(n)[j]) for i, j in edges if not {i, j} & colluding]
    released = np.linalg.inv(matrix_of(factor.column(rounds)))
    # a draw of round r is in the row of client i and round t as often as C^-1 says
    parts = [np.outer(released[:, r], draw[honest]).ravel() for r in range(rounds) for draw in draws]
    return np.array(parts).T @ np.array(parts)


def worst_shift(n: int, edges: Edges, ratio: float, colluders: int, factor: Factor, rounds: int, blocks: int) -> float:
    """The largest distance, in deviations, over all colluders, victims and rounds in which its unit takes part."""
    found = 0.0
    for colluding in combinations(range(n), min(colluders, n - 1)):
        honest = [i for i in range(n) if i not in colluding]
        weights = np.linalg.inv(law_of(n, edges, ratio, factor, rounds, set(colluding)))
        weights = weights.reshape(rounds, len(honest), rounds, len(honest))
        for at in range(len(honest)):
            own = np.abs(weights[:, at, :, at])  # each answer may move in the direction that is worst
            found = max(found, *(float(own[np.ix_(p, p)].sum()) for p in patterns(rounds, blocks)))
    return math.sqrt(found)


def records_of(pairs: Pairs, factor: Factor, rounds: int, blocks: int, own: float) -> list[Record]:
    plain = Record(0, "gradient", 0, "gaussian", own, "sample", "replace_one", pairs=pairs)
    return [replace(plain, round=t, time=CorrelatedNoise(factor, blocks).for_round(t)) for t in range(rounds)]


@pytest.mark.parametrize("seed", range(40))
def test_epsilon_equals_brute_force_worst_unit(seed: int) -> None:
    draw, (n, edges) = np.random.default_rng(seed), graph_of(seed)
    n, edges = min(n, 5), tuple(pair for pair in edges if max(pair) < 5)
    rounds, blocks, colluders = int(draw.integers(1, 7)), int(draw.integers(1, 4)), int(draw.integers(0, 3))
    within = Factor(tuple(draw.normal(size=blocks - 1).tolist()))
    decreasing = Factor(tuple(sorted(draw.random(5), reverse=True)))
    buffers = Factor((), (0.4, 0.2), (0.9, 0.3))
    ratio = float(draw.choice([0.3, 1.0, 3.0]))
    for factor in (within, decreasing, buffers):
        records = records_of(Pairs(ratio, colluders, name_pairs(edges), edges), factor, rounds, blocks, own=4.0)
        worst = worst_shift(n, edges, ratio, colluders, factor, rounds, blocks) / 4.0
        found = account(records, n, 1e-5).epsilon
        assert found == pytest.approx(compute_epsilon(worst, 1e-5), rel=1e-6)
        assert found >= compute_epsilon(worst, 1e-5) * (1 - 1e-9)


@pytest.mark.parametrize("seed", range(40))
def test_epsilon_upper_bound_for_bands_of_any_sign(seed: int) -> None:
    draw, edges = np.random.default_rng(seed), sort_pairs(nx.path_graph(3).edges)
    factor, rounds, blocks = Factor(tuple(draw.normal(size=4).tolist())), 6, int(draw.integers(1, 4))
    records = records_of(Pairs(2.0, 1, name_pairs(edges), edges), factor, rounds, blocks, own=4.0)
    worst = worst_shift(3, edges, 2.0, 1, factor, rounds, blocks) / 4.0
    assert account(records, 3, 1e-5).epsilon >= compute_epsilon(worst, 1e-5) * (1 - 1e-9)


def test_round_epsilon_is_product_of_both_factors(tmp_path: Path) -> None:
    training = training_of(PRIVACY, folder=tmp_path)
    told = [report.epsilon for report in training]
    factor, exposed = fp.BSR(4).factor(ROUNDS, 4), price.compute_exposure(TRUST.pairs(N), None, N)
    own = training.plan.records[0].noise_multiplier
    assert isinstance(own, float) and exposed < 1
    for rounds, epsilon in enumerate(told, start=1):
        shift = compute_sensitivity(factor, rounds, 4) * math.sqrt(exposed) / own
        assert epsilon == pytest.approx(compute_epsilon(shift, 1e-5), rel=1e-9)
    assert told[-1] == pytest.approx(4.0, rel=1e-4) and told[-1] <= 4.0
    file = LedgerFile.read(tmp_path / "ledger.jsonl")
    assert (file.header.factor, file.header.secrets) == (factor, sort_pairs(RING))
    assert account(file.records, N, 1e-5).epsilon == pytest.approx(told[-1], rel=1e-12)
    assert not find_problems(RunFiles.read(tmp_path))


def test_slot_sampling_epsilon_equals_effective_noise() -> None:
    pairs = Pairs(3.0, 1, "complete")
    worth = 1 / math.sqrt(price.compute_complete_exposure(5, 3.0, 1))
    plain = drawn(fp.BSR(4), 40, 4, 0.2, noise_multiplier=5.0 * worth)
    paired = drawn(fp.BSR(4), 40, 4, 0.2, noise_multiplier=5.0, pairs=pairs)
    assert account(paired, 5, 1e-5).epsilon == pytest.approx(account(plain, 5, 1e-5).epsilon, rel=1e-9)
