"""Draws of pairs' noise have the covariance that is paid for, cancel in sums, and serve one answer alone.

Real streams of real pairs are compared with the covariance by formula, and so is the draw that has their law on a
complete graph. Each mistake that would break the price, planted, is seen by the same checks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from pair_draws import DIM, RANDOM, SIGMA, covariance_of, law_holds, pairs_of, release_of, rows_of
from scipy import stats

from fedpriv.errors import ConfigError, PrivacyError
from fedpriv.privacy import pair_noise
from fedpriv.privacy.accounting import pairwise as price
from fedpriv.privacy.accounting.accountant import Accountant
from fedpriv.privacy.ledger import Ledger
from fedpriv.privacy.normal_combinations import Term
from fedpriv.privacy.pairwise import Edges, Links, Pairwise, RandomRegular, sort_pairs
from fedpriv.randomness.streams import Randomness, normal

REAL = pair_noise.pair_terms
GRAPHS: dict[str, tuple[int, Edges | None]] = {
    "complete": (5, None),
    "complete, by pairs": (5, sort_pairs(nx.complete_graph(5).edges)),
    "ring": (6, sort_pairs(nx.cycle_graph(6).edges)),
    "random": (7, sort_pairs(nx.gnp_random_graph(7, 0.4, seed=1).edges)),
    "regular": (8, RandomRegular(4).edges(8)),
}


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("cohort", ["everyone", "some"])
def test_pair_noise_covariance_equals_formula(name: str, cohort: str) -> None:
    n, edges = GRAPHS[name]
    clients = list(range(n)) if cohort == "everyone" else [0, 2, 3, n - 1]
    for ratio in (0.3, 3.0):
        rows = rows_of(pairs_of(edges, ratio), clients)
        assert law_holds(rows, covariance_of(pairs_of(edges, ratio), n, clients))
        assert stats.kstest(rows[0].numpy() / rows[0].std().item(), "norm").pvalue > 1e-4


def test_pair_noise_covariance_two_clients() -> None:
    rows = rows_of(pairs_of(None), [0, 4])
    assert law_holds(rows, covariance_of(pairs_of(None), 5, [0, 4]))


@pytest.mark.parametrize("name", GRAPHS)
def test_pair_noise_cancels_in_sum(name: str) -> None:
    n, edges = GRAPHS[name]
    total = rows_of(pairs_of(edges, ratio=1000.0), range(n)).sum(0)
    own = [normal(RANDOM.stream("noise", 0, 0, client), DIM) for client in range(n)]
    assert float((total - SIGMA * torch.stack(own).sum(0)).abs().max()) < 1e-5 * SIGMA  # a grid's width for each row
    assert float(total.std()) == pytest.approx(SIGMA * math.sqrt(n), rel=0.02)


@pytest.mark.parametrize("count", [2, 3, 17, 100])
def test_tree_terms_covariance_equals_pairs(count: int) -> None:
    """Covariance n I - 1 1', in full; each row has few terms, and their sum over clients is exactly zero."""
    matrix, sums = np.zeros((count, count - 1)), [Fraction(0)] * (count - 1)
    for row, terms in enumerate(pair_noise.tree_terms(count)):
        assert len(terms) <= math.ceil(math.log2(count))
        for term in terms:
            matrix[row, term.draw] += term.multiple * term.weight
            sums[term.draw] += term.multiple * Fraction(term.weight)
    assert np.abs(matrix @ matrix.T - (count * np.eye(count) - 1)).max() < 1e-12 * count
    assert not any(sums)


def test_complete_graph_one_draw_per_client() -> None:
    """Each draw has a separate stream; rows of a subset equal the rows within the whole."""
    count, pairs = pair_noise.MOST_BY_PAIRS + 4, pairs_of(None, ratio=2.0)
    everyone = pair_noise.draw_pair_noise(pairs, RANDOM, 0, 0, range(count), range(count), 500)
    assert everyone is not None and len(set(everyone.keys)) == count - 1
    rows = everyone.in_float64()
    assert law_holds(rows[:6], 4.0 * (count * np.eye(6) - 1))
    assert float(rows.sum(0).abs().max()) < 1e-12 * count**2
    some = pair_noise.draw_pair_noise(pairs, RANDOM, 0, 0, range(count), [7, 2], 500)
    assert some is not None and torch.equal(some.in_float64(), rows[[7, 2]])


def test_pair_noise_rows_on_grid_of_individual_noise() -> None:
    """The grid is 2^-20 of the power of two of the individual noise, however much larger the pairwise noise is."""
    rows = rows_of(pairs_of(None, ratio=1000.0), range(5), dim=2000)
    grid = 2.0 ** (math.ceil(math.log2(SIGMA)) - 20)
    assert torch.equal((rows / grid).round() * grid, rows)
    low_bits = (rows / grid).remainder(64).flatten().numpy()
    assert stats.chisquare(np.bincount(low_bits.astype(int), minlength=64)).pvalue > 1e-4


@dataclass(frozen=True)
class OwnSecrets:
    """What one client holds: secrets that it shares, and nothing else."""

    client: int
    held: dict[int, bytes]

    def pair_secret(self, i: int, j: int, purpose: str) -> bytes:
        assert self.client in (i, j) and purpose == "noise"
        return self.held[i + j - self.client]


@pytest.mark.parametrize("name", ["complete, by pairs", "ring", "random"])
def test_client_row_from_shared_secrets_only(name: str) -> None:
    n, edges = GRAPHS[name]
    assert edges is not None
    pairs = pairs_of(edges)
    together = pair_noise.draw_pair_noise(pairs, RANDOM, 4, 1, range(n), range(n), 100)
    assert together is not None
    for client in range(n):
        partners = [i + j - client for i, j in edges if client in (i, j)]
        held = {other: RANDOM.pair_secret(client, other, "noise") for other in partners}
        public = Randomness(0, 99, run="a run")  # names the run; its secret is another one
        secrets = OwnSecrets(client, held)
        alone = pair_noise.draw_pair_noise(pairs, public, 4, 1, range(n), [client], 100, secrets)
        assert alone is not None and torch.equal(alone.in_float64()[0], together.in_float64()[client])


def test_pair_streams_all_differ() -> None:
    streams = {
        "this": RANDOM.pair_stream(1, 2, 0, 0),
        "another round": RANDOM.pair_stream(1, 2, 1, 0),
        "another answer": RANDOM.pair_stream(1, 2, 0, 1),
        "another pair": RANDOM.pair_stream(1, 3, 0, 0),
        "another attempt": Randomness(0, 3, 1, "a run").pair_stream(1, 2, 0, 0),
        "another run": Randomness(0, 3, 0, "b run").pair_stream(1, 2, 0, 0),
        "another secret": Randomness(0, 4, 0, "a run").pair_stream(1, 2, 0, 0),
        "own noise": RANDOM.stream("noise", 0, 0, 1),
        "spread": RANDOM.stream("spread", 0, 0, 1),
    }
    words = {name: stream.words(4).tobytes() for name, stream in streams.items()}
    assert len(set(words.values())) == len(words)
    assert RANDOM.pair_stream(2, 1, 0, 0).words(4).tobytes() == words["this"]


# --- what goes wrong -----------------------------------------------------------------------------------------


def minus_forgotten(ends: Edges, clients: Sequence[int]) -> list[list[Term]]:
    return [[term._replace(multiple=1) for term in row] for row in REAL(ends, clients)]


def pair_counted_twice(ends: Edges, clients: Sequence[int]) -> list[list[Term]]:
    """At both ends."""
    return [row + [term for term in row if term.draw == 0] for row in REAL(ends, clients)]


def one_end_only(ends: Edges, clients: Sequence[int]) -> list[list[Term]]:
    first, *others = REAL(ends, clients)
    return [[term for term in first if term.draw != 0], *others]


def same_draw_for_all(ends: Edges, clients: Sequence[int]) -> list[list[Term]]:
    return [[term._replace(draw=0) for term in row] for row in REAL(ends, clients)]


@pytest.mark.parametrize("mistake", [minus_forgotten, pair_counted_twice, one_end_only, same_draw_for_all])
def test_covariance_check_detects_planted_mistake(mistake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    n, edges = GRAPHS["ring"]
    joint = covariance_of(pairs_of(edges), n, range(n))
    assert law_holds(rows_of(pairs_of(edges), range(n)), joint)
    monkeypatch.setattr(pair_noise, "pair_terms", mistake)
    assert not law_holds(rows_of(pairs_of(edges), range(n)), joint)


def test_reused_pair_noise_raises() -> None:
    """The difference of two results with the same pairwise noise would contain none of it."""
    pairs = pairs_of(None)
    ledger = Ledger(Accountant(3, 1e-5))
    for attempt, fits in ((0, True), (0, False), (1, True)):
        release = release_of(pairs, range(3), 4, 0, Randomness(0, 3, attempt, "a run"))
        if fits:
            ledger.open(release)
            continue
        with pytest.raises(PrivacyError, match="was already released and recorded"):
            ledger.open(release)


def test_dropped_client_leaves_pair_noise_in_mean() -> None:
    """The other clients already added their part: the mean contains it, and the privacy cost does not increase."""
    n, edges = GRAPHS["complete, by pairs"]
    pairs = pairs_of(edges, ratio=3.0)
    rows = rows_of(pairs, range(n))
    mean = rows[1:].sum(0) / n
    expected = (
        SIGMA**2 * ((n - 1) + 9.0 * (n - 1)) / n**2
    )  # own noise of those left, and the pairs' with the one that went
    assert float(mean.var()) == pytest.approx(expected, rel=0.05)
    joint = covariance_of(pairs, n, range(n))
    seen = np.linalg.inv(joint[1:, 1:]).diagonal().max()
    assert seen <= np.linalg.inv(joint).diagonal().max()


def auditor(rows: np.ndarray, others: np.ndarray, direction: np.ndarray) -> float:
    """mu between two worlds of one coordinate each, by the statistic with this direction."""
    a, b = direction @ rows, direction @ others
    return float(abs(a.mean() - b.mean()) / math.sqrt((a.var() + b.var()) / 2))


def views(n: int, colluders: Sequence[int], moved: int, ratio: float) -> Iterator[np.ndarray]:
    """All messages less what colluders know, in two worlds: a row of the honest client `moved` is 0 or 1.

    Every column is an experiment. Noise is that of real pair streams, and it is new in the second world.
    """
    edges = sort_pairs(nx.complete_graph(n).edges)
    for world in (0, 1):
        rows = rows_of(pairs_of(edges, ratio, len(colluders)), range(n), at=world)
        rows[moved] += world
        for i in colluders:
            for j in range(n):
                if j not in colluders:
                    known = normal(RANDOM.pair_stream(i, j, world, 0), DIM) * ratio * SIGMA
                    rows[j] -= known if j < i else -known
        yield rows[[j for j in range(n) if j not in colluders]].numpy()


@pytest.mark.parametrize("ratio", [1.0, 10.0])
def test_audit_exceeds_claim_only_with_extra_colluder(ratio: float) -> None:
    """Three clients with one colluder, as declared; then two, which leave the third only its individual noise."""
    claimed = math.sqrt(price.compute_complete_exposure(3, ratio, 1)) / SIGMA
    found = {}
    for colluders in ((2,), (1, 2)):
        one, other = views(3, colluders, 0, ratio)
        honest = 3 - len(colluders)
        joint = price.make_covariance(price.make_adjacency(sort_pairs(nx.complete_graph(honest).edges), honest), ratio)
        found[len(colluders)] = auditor(one, other, np.linalg.inv(joint)[0])
    error = 4 * math.sqrt(2 / DIM)
    assert claimed * 0.75 < found[1] < claimed + error
    assert found[2] > claimed * (1.4 if ratio == 10 else 1.15)
    assert found[2] == pytest.approx(1 / SIGMA, abs=error * 2)


# --- who shares secrets --------------------------------------------------------------------------------------


def test_invalid_secret_graph_raises() -> None:
    assert Links(((3, 1), (1, 3), (0, 1))).edges(4) == ((0, 1), (1, 3))
    for wrong in (((0, 0),), ((0, 4),), ((-1, 2),)):
        with pytest.raises(ConfigError, match=r"privacy\.trust\.pairwise\.secrets"):
            Links(wrong).edges(4)
    edges = RandomRegular(3, seed=1).edges(6)
    assert edges is not None and len(edges) == 9
    for n in (3, 5):
        with pytest.raises(ConfigError, match=r"random_regular\.degree"):
            RandomRegular(3).edges(n)


@pytest.mark.parametrize("wrong", [{"colluders": -1}, {"ratio": -0.1}, {"ratio": 1001.0}, {"ratio": math.nan}], ids=str)
def test_pairwise_settings_out_of_range_raise(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=r"privacy\.trust\.pairwise"):
        Pairwise(**{"colluders": 1, "ratio": 1.0, **wrong})  # pyright: ignore[reportArgumentType]
