"""Batches are drawn anew for every answer, from all of a client's examples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from counting_calls import count_calls
from hypothesis import given
from hypothesis import settings as tried
from hypothesis import strategies as st
from privacy_worlds import clients_of, digits_of, oracle_of

import fedpriv as fp
from fedpriv.clients.index_batches import IndexBatches
from fedpriv.clients.population import Population
from fedpriv.oracle.sampler import BatchSampler
from fedpriv.privacy.settings import Sampling
from fedpriv.randomness.streams import Randomness

SIZES = (30, 20, 7)
SAMPLINGS: dict[str, Sampling] = {"poisson": fp.Poisson(0.3), "fixed size": fp.FixedSize(8)}


def drawn(population: Population, sampling: Sampling, rounds: int, answers: int) -> Iterator[list[tuple[int, int]]]:
    """Which examples (client, place) each answer uses."""
    draws = BatchSampler(population, Randomness(secret_seed=1), 1.0)
    place = {
        int(i): (c, int(i - population.starts[c]))
        for c, m in enumerate(SIZES)
        for i in population.starts[c] + torch.arange(m)
    }
    for round_index in range(rounds):
        draws.begin_round(round_index, torch.arange(len(SIZES)))
        for index in range(answers):
            found = [batch.examples[batch.mask] for batch in draws.batches(sampling, index)]
            yield sorted(place[int(i)] for part in found for i in part)


@pytest.mark.parametrize("name", SAMPLINGS)
def test_each_query_draws_new_batch(name: str) -> None:
    sampling, population = SAMPLINGS[name], Population(clients_of(digits_of(SIZES)))
    batches = list(drawn(population, sampling, rounds=200, answers=2))
    assert len({tuple(batch) for batch in batches}) == len(batches)
    chosen = np.array([[(c, i) in batch for c, m in enumerate(SIZES) for i in range(m)] for batch in map(set, batches)])
    rates = np.concatenate([np.full(m, 0.3 if name == "poisson" else min(8 / m, 1)) for m in SIZES])
    np.testing.assert_allclose(chosen.mean(0), rates, atol=4.5 * (0.25 / len(batches)) ** 0.5)
    # the two answers of a round have no more in common than those of different rounds
    varied = chosen[:, rates < 1] - rates[rates < 1]
    together = (varied[0::2] * varied[1::2]).mean()
    assert abs(together) < 5 * 0.25 / np.sqrt(varied.size / 2)
    if name == "fixed size":
        assert {tuple(np.split(row, np.cumsum(SIZES)[:-1])[c].sum() for c in range(3)) for row in chosen} == {(8, 8, 7)}


@pytest.mark.parametrize("name", SAMPLINGS)
def test_queries_in_round_use_different_batches(name: str) -> None:
    """The noise is negligible, so two query results at one point differ only by their batches."""
    privacy = fp.Privacy(noise_multiplier=1e-7, sampling=SAMPLINGS[name])
    moved = {}
    for kind, settings in {"drawn": privacy, "whole": replace(privacy, sampling=fp.FullBatch())}.items():
        oracle = oracle_of(digits_of(SIZES[:2]), settings)
        params = torch.zeros(2, 640, dtype=torch.float64)
        oracle.begin_round(0, torch.arange(2))
        moved[kind] = (oracle.gradient(params) - oracle.gradient(params)).norm(dim=1)
    assert (moved["drawn"] > 0.05).all()
    assert (moved["whole"] < 1e-4).all()


@pytest.mark.parametrize("rate", [1.0, 0.4])
@pytest.mark.parametrize("sampling", [*SAMPLINGS.values(), fp.FullBatch()])
def test_draws_match_named_client_stream(sampling: Sampling, rate: float) -> None:
    """A resumed run draws the same batches in any version and process."""
    population, randomness = Population(clients_of(digits_of(SIZES)), chunk=16), Randomness(secret_seed=4)
    draws, seen = BatchSampler(population, randomness, rate), set[bool]()
    for round_index, cohort in enumerate([[0, 1, 2], [1, 2], [0], []] * 4):
        draws.begin_round(round_index, torch.tensor(cohort, dtype=torch.long))
        inside = randomness.stream("secret_cohort", round_index).below(rate, 3) if rate < 1 else np.ones(3, bool)
        seen |= set(inside.tolist())
        expected = list[int]()
        for client in (client for client in cohort if inside[client]):
            stream, size = randomness.stream("batch", round_index, 1, client), SIZES[client]
            order = stream.permutation(size)[: sampling.size] if isinstance(sampling, fp.FixedSize) else np.arange(size)
            mine = stream.below(0.3, size).nonzero()[0] if isinstance(sampling, fp.Poisson) else order
            expected += (mine + int(population.starts[client])).tolist()
        batches = list(draws.batches(sampling, 1))
        found = [int(i) for batch in batches for i in batch.examples[batch.mask]]
        assert sorted(found) == sorted(expected)
        owners = [int(i) for batch in batches for i in batch.rows.repeat_interleave(batch.mask.sum(1))]
        assert [int(population.starts[cohort[row]]) <= i for row, i in zip(owners, found, strict=True)] == [True] * len(
            found
        )
        inputs = torch.cat([population.examples.inputs[:0], *(batch.inputs[batch.mask] for batch in batches)])
        assert torch.equal(inputs, population.examples.inputs[found])
    assert seen == ({True} if rate == 1 else {True, False})


@tried(max_examples=200)
@given(lengths=st.lists(st.integers(0, 40), max_size=12), chunk=st.integers(1, 50))
def test_index_blocks_cover_examples_once(lengths: list[int], chunk: int) -> None:
    places = [np.arange(length) * 3 + row for row, length in enumerate(lengths)]
    found: list[list[int]] = [[] for _ in lengths]
    for rows, block, mask in IndexBatches.listed(places).blocks(chunk):
        assert block.shape == mask.shape == (len(rows), block.shape[1])
        assert block.size <= chunk
        assert len(rows) == 1 or 4 * mask.sum(1).min() >= 3 * block.shape[1]
        assert (np.diff(rows) > 0).all()
        assert not block[~mask].any()
        for row, line, kept in zip(rows, block, mask, strict=True):
            found[row] += line[kept].tolist()
    assert found == [part.tolist() for part in places]


@pytest.mark.parametrize("sampling", [fp.Poisson(0.5), fp.FixedSize(2), fp.FullBatch()])
def test_calls_per_drawn_client_bounded(sampling: Sampling) -> None:
    found = []
    for size in (40, 80):
        draws = BatchSampler(Population(clients_of(digits_of([5] * 100))), Randomness(secret_seed=4), 1.0)
        draws.begin_round(0, torch.arange(size))
        found.append(count_calls(lambda draws=draws: list(draws.batches(sampling, 0))))
    assert (found[1] - found[0]) / 40 < 45  # most of them make the cipher
