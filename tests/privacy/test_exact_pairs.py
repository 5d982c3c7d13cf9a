"""Noise of pairs is rounded as the real numbers that pairs' streams determine, in one process as at every site."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mpmath
import networkx as nx
import numpy as np
import pytest
import torch

import fedpriv as fp
from fedpriv.privacy import exact_rounding
from fedpriv.privacy.correlated import Factor
from fedpriv.privacy.exact_rounding import add_and_round
from fedpriv.privacy.mechanisms import add_noise
from fedpriv.privacy.noise_history import NoiseHistory
from fedpriv.privacy.normal_combinations import NormalCombinations
from fedpriv.privacy.pair_noise import MOST_BY_PAIRS, draw_pair_noise, tree_terms
from fedpriv.privacy.pairwise import Complete, Links, Pairs, Pairwise, RandomRegular, name_pairs, sort_pairs
from fedpriv.privacy.real_noise import GaussianRows, RealNoise, SumOfNoise
from fedpriv.privacy.record import Record
from fedpriv.privacy.release import Answer, PlannedRelease
from fedpriv.privacy.release.pairwise import PairwiseRelease
from fedpriv.privacy.release.scheme import NoiseStreams
from fedpriv.randomness import extended_draws
from fedpriv.randomness.keystream import NARROW, normal_error
from fedpriv.randomness.real_draws import real_normal
from fedpriv.randomness.short_rows import BoundedRows
from fedpriv.randomness.streams import Randomness

RANDOM, DIM, RATIO, SCALE = Randomness(0, 11, run="pairs"), 150, 3.0, 0.7
RING = sort_pairs(nx.cycle_graph(6).edges)
GRAPHS = {"complete": (5, None), "ring": (6, RING), "many": (MOST_BY_PAIRS + 5, None)}


def pairs_of(name: str) -> Pairs:
    edges = GRAPHS[name][1]
    return Pairs(RATIO, 1, name_pairs(edges), edges)


def noise_of(name: str, round_index: int = 0, dim: int = DIM) -> NormalCombinations:
    everyone = range(GRAPHS[name][0])
    noise = draw_pair_noise(pairs_of(name), RANDOM, round_index, 0, everyone, everyone, dim)
    assert noise is not None
    return noise


def draw_of(key: bytes, dim: int, column: int) -> mpmath.mpf:
    interval = real_normal(key, dim, column, 3)
    assert interval is not None
    return +mpmath.mpf(interval[0])


def pairs_by_definition(name: str, row: int, column: int, round_index: int = 0, dim: int = DIM) -> mpmath.mpf:
    """What pairs add to one number, over the deviation of a client's own noise."""
    count, edges = GRAPHS[name]
    total = mpmath.mpf(0)
    if count > MOST_BY_PAIRS:
        keys = RANDOM.keys("spread", round_index, 0, range(1, count)).numpy()
        for term in tree_terms(count)[row]:
            draw = draw_of(keys[term.draw].tobytes(), dim, column)
            total += term.multiple * mpmath.mpf(term.weight) * draw
        return RATIO * total
    for other in range(count):
        if other == row or (edges is not None and tuple(sorted((row, other))) not in edges):
            continue
        draw = draw_of(RANDOM.pair_key(row, other, round_index, 0), dim, column)
        total += draw if row < other else -draw
    return RATIO * total


def own_by_definition(row: int, column: int, round_index: int = 0, dim: int = DIM) -> mpmath.mpf:
    return draw_of(RANDOM.key("noise", round_index, 0, row), dim, column)


@pytest.mark.parametrize("name", GRAPHS)
def test_float64_pair_noise_error_within_bound(name: str) -> None:
    noise = noise_of(name).times(SCALE)
    draws, errors, largest = noise.approximate(slice(0, None))
    ratios = []
    with mpmath.workprec(300):
        for row in range(len(draws)):
            for column in range(0, DIM, 7):
                exact = pairs_by_definition(name, row, column) / RATIO * mpmath.mpf(RATIO * SCALE)
                ratios.append(float(abs(exact - float(draws[row, column]))) / errors[row, 0])
    assert 1e-3 < max(ratios) <= 1
    assert np.abs(draws).max() <= largest


def test_large_draw_bound_of_other_rows_unchanged() -> None:
    """Otherwise many other sums would be undecided: pairwise noise is large compared with the grid."""
    noise = noise_of("many", dim=400_000)
    draws, errors, _ = noise.approximate(slice(0, None))
    sizes = [sum(abs(term.multiple * term.weight) for term in terms) * RATIO for terms in noise.terms]
    error = normal_error(NARROW.largest)  # of eight million draws some are larger
    assert (errors[:, 0] < 1.5 * error * np.array(sizes)).all()
    large = np.argwhere(
        np.isnan(GaussianRows(noise.keys, [1.0] * len(noise.keys), 400_000, NARROW).approximate(slice(0, None)).draws)
    )
    assert len(large) > 20
    with mpmath.workprec(300):
        for draw, column in large[:20].tolist():
            for row in [row for row, terms in enumerate(noise.terms) if any(term.draw == draw for term in terms)]:
                exact = pairs_by_definition("many", row, column, dim=400_000)
                assert abs(exact - float(draws[row, column])) <= errors[row, 0]


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("fineness", [20, 37])
def test_values_equal_rounded_real_sum(name: str, fineness: int) -> None:
    """With a grid that is far finer than the usual one, float64 leaves many numbers open."""
    count = GRAPHS[name][0]
    own = [RANDOM.key("noise", 0, 0, client) for client in range(count)]
    noise = SumOfNoise(GaussianRows(own, [SCALE] * count, DIM), noise_of(name).times(SCALE))
    values = np.random.default_rng(1).normal(size=(count, DIM))
    grids, result = np.full((count, 1), 2.0**-fineness), np.empty_like(values)
    repaired = add_and_round(values, noise, slice(0, count), grids, result)
    grid = mpmath.mpf(2) ** -fineness
    with mpmath.workprec(300):
        for row, column in np.ndindex(count, DIM):
            of_pairs = pairs_by_definition(name, row, column) / RATIO * mpmath.mpf(RATIO * SCALE)
            total = own_by_definition(row, column) * mpmath.mpf(SCALE) + of_pairs + float(values[row, column])
            assert result[row, column] == float(mpmath.floor(total / grid + 0.5) * grid)
    assert (repaired > 10) == (fineness == 37)


@pytest.mark.parametrize("factor", [Factor((0.5, 0.25)), Factor((), (0.3, 0.2), (0.9, 0.1))], ids=["band", "buffers"])
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("fineness", [None, 36])
def test_correlated_releases_equal_rounded_real_sum(
    name: str, factor: Factor, fineness: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Own noise and that of pairs go through one filter. The fine grid is that of a scale that is so much smaller."""
    count, dim, rounds = GRAPHS[name][0], 16, 4
    if fineness is not None:
        monkeypatch.setattr("fedpriv.privacy.mechanisms.FINE_GRID_BITS", fineness)
    history = NoiseHistory(factor)
    column = inverse_by_definition(factor, rounds)
    values = torch.from_numpy(np.random.default_rng(2).normal(size=(count, dim)))

    def noise_of_pairs(round_index: int, clients: Sequence[int]) -> NormalCombinations | None:
        return draw_pair_noise(pairs_of(name), RANDOM, round_index, 0, range(count), clients, dim)

    bits = 20 if fineness is None else fineness
    grid = mpmath.mpf(2) ** (math.ceil(math.log2(SCALE)) - bits)
    for t in range(rounds):
        record = Record(t, "gradient", 0, "gaussian", 1.0, "sample", "replace_one")
        released = add_noise(
            values,
            [SCALE] * count,
            fp.Gaussian(),
            record,
            RANDOM,
            range(count),
            past=history,
            pair_noise=noise_of_pairs,
        )._value
    with mpmath.workprec(300):
        for row, place in np.ndindex(count, dim):
            unit = [
                own_by_definition(row, place, s, dim) + pairs_by_definition(name, row, place, s, dim)
                for s in range(rounds)
            ]
            noise = mpmath.fsum(column[rounds - 1 - s] * unit[s] for s in range(rounds))
            total = mpmath.mpf(SCALE) * noise + float(values[row, place])
            assert released[row, place] == float(mpmath.floor(total / grid + 0.5) * grid)


def inverse_by_definition(factor: Factor, rounds: int) -> list[mpmath.mpf]:
    """The first column of C^-1."""
    column = [mpmath.mpf(1)]
    with mpmath.workprec(300):
        for t in range(1, rounds):
            column.append(-mpmath.fsum(number_of_c(factor, back) * column[t - back] for back in range(1, t + 1)))
    return column


def number_of_c(factor: Factor, back: int) -> mpmath.mpf:
    """A number of C below its diagonal."""
    if factor.band:
        return mpmath.mpf(factor.band[back - 1]) if back <= len(factor.band) else mpmath.mpf(0)
    terms = zip(factor.scales, factor.decays, strict=True)
    return mpmath.fsum(mpmath.mpf(scale) * mpmath.mpf(decay) ** (back - 1) for scale, decay in terms)


@dataclass(frozen=True)
class UnderstatedError:
    """Promises a smaller error than its draws have."""

    noise: RealNoise

    def approximate(self, rows: slice) -> BoundedRows:
        draws, errors, _ = self.noise.approximate(rows)
        return BoundedRows(draws, errors * 2.0**-12, 0.0)

    def interval(self, row: int, column: int, extra: int) -> Any:
        return self.noise.interval(row, column, extra)

    def weighted_draws(self, row: int) -> Any:
        return self.noise.weighted_draws(row)


def rounded(noise: RealNoise, grid: float) -> np.ndarray:
    """Five rows of 40 numbers."""
    result = np.empty((5, 40))
    add_and_round(np.zeros((5, 40)), noise, slice(0, 5), np.full((5, 1), grid), result)
    return result


@pytest.mark.parametrize("name", GRAPHS)
def test_pair_bound_too_small_detected(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of float64, and that of extended precision on a grid that is finer still."""
    noise = noise_of(name, dim=40)
    exact = rounded(noise, 2.0**-49)
    assert not np.array_equal(rounded(UnderstatedError(noise), 2.0**-49), exact)
    fine = rounded(noise, 2.0**-56)
    promised = exact_rounding.compute_extended_sum

    def understated(*arguments: Any) -> Any:
        value, error = promised(*arguments)  # pyright: ignore[reportGeneralTypeIssues]
        return value, error * 2.0**-12

    with monkeypatch.context() as patch:
        patch.setattr(exact_rounding, "compute_extended_sum", understated)
        assert not np.array_equal(rounded(noise, 2.0**-56), fine)
    # without extended precision, as on some machines, the same is released
    monkeypatch.setattr(extended_draws, "is_available", lambda: False)
    assert np.array_equal(rounded(noise, 2.0**-49), exact)
    assert np.array_equal(rounded(noise, 2.0**-56), fine)


TRUSTS = {
    "complete": (5, Complete()),
    "ring": (6, Links(RING)),
    "regular": (30, RandomRegular(4)),
    "most": (MOST_BY_PAIRS, Complete()),
}


@pytest.mark.parametrize("name", TRUSTS)
def test_simulation_and_sites_release_same_bits(name: str) -> None:
    """Each site knows the secrets that it shares, and its own noise; a simulation knows all of them."""
    count, secrets = TRUSTS[name]
    privacy = fp.Privacy(noise_multiplier=2.0, trust=Pairwise(1, RATIO, secrets))
    rows = torch.randn(count, 2000, generator=torch.Generator().manual_seed(1))
    answer = Answer(0, 0, "gradient", range(count), privacy.clip)

    def scheme_of(streams: NoiseStreams) -> tuple[PairwiseRelease, PlannedRelease]:
        scheme = PairwiseRelease(privacy, [10] * count)
        scheme.with_noise_from(streams)
        return scheme, scheme.price(answer, [1.0] * count)

    simulated, planned = scheme_of(NoiseStreams(RANDOM))
    factors = [1.0] * count
    together = simulated.add_noise(planned, rows, factors, range(count))._value
    for client in range(count):
        site, planned = scheme_of(NoiseStreams(RANDOM, pair_secrets=Partners(client)))
        alone = site.add_noise(planned, rows[client : client + 1], factors, [client])._value
        assert torch.equal(alone[0], together[client])


@dataclass(frozen=True)
class Partners:
    """The secrets of one client, and nobody else's."""

    client: int

    def pair_secret(self, i: int, j: int, purpose: str) -> bytes:
        assert self.client in (i, j)
        return RANDOM.pair_secret(i, j, purpose)
