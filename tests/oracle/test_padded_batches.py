"""`compute.pad_batches`: how much is computed does not depend on what was drawn, and no value changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.clients.population import Population
from fedpriv.errors import ConfigError
from fedpriv.oracle import sampler
from fedpriv.oracle.sampler import BatchSampler, bound_batch_sizes
from fedpriv.randomness.streams import Randomness

SIZES = [200, 60, 0, 7]
SAMPLINGS: dict[str, Any] = {
    "poisson": fp.Poisson(0.1),
    "cyclic": fp.Cyclic(3, rate=0.2),
    "allocation": fp.Allocation(10),
    "fixed size": fp.FixedSize(9),
}


def clients_of(sizes: list[int], broken: bool = False) -> Any:
    draw = torch.Generator().manual_seed(0)
    data = []
    for size in sizes:
        inputs = torch.randn(size, 5, generator=draw)
        if broken:
            inputs[:3] = 3e38  # overflows
        data.append(TensorDataset(inputs, torch.randint(3, (size,), generator=draw)))
    torch.manual_seed(0)
    return fp.make_clients(nn.Linear(5, 3), nn.CrossEntropyLoss(), data)


def shapes(sampling: Any, *, pad: bool, rounds: int = 25) -> set[tuple[tuple[int, ...], ...]]:
    """The shapes of the blocks of a round, of all rounds."""
    population = Population(clients_of([200, 60, 7]), chunk=64, pad_batches=pad)
    draws = BatchSampler(population, Randomness(secret_seed=3), 1.0)
    seen = set()
    for round_index in range(rounds):
        draws.begin_round(round_index, torch.arange(3))
        seen.add(tuple(tuple(batch.mask.shape) for batch in draws.batches(sampling, 0)))
    return seen


@pytest.mark.parametrize("name", SAMPLINGS)
def test_padded_block_shapes_independent_of_draw(name: str) -> None:
    # blocks of other sizes are public, and so are the shapes that they have
    blocks = 3 if name == "cyclic" else 1
    assert len(shapes(SAMPLINGS[name], pad=True)) <= blocks
    assert (len(shapes(SAMPLINGS[name], pad=False)) > blocks) == (name != "fixed size")


@pytest.mark.parametrize("name", SAMPLINGS)
@pytest.mark.parametrize("exceeded", [1e-12, 0.5])
def test_padded_batch_has_drawn_examples_only(name: str, exceeded: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `exceeded` 0.5, about half of the batches are larger than their padded size."""
    monkeypatch.setattr(sampler, "EXCEEDED", exceeded)
    bound_batch_sizes.cache_clear()

    def chosen(pad: bool) -> list[list[int]]:
        population = Population(clients_of([200, 60, 7]), chunk=64, pad_batches=pad)
        draws = BatchSampler(population, Randomness(secret_seed=3), 1.0)
        rounds = []
        for round_index in range(12):
            draws.begin_round(round_index, torch.arange(3))
            examples = []
            for batch in draws.batches(SAMPLINGS[name], 0):
                assert batch.examples is not None
                examples += batch.examples[batch.mask].tolist()
                assert int(batch.examples.max()) < 267
            rounds.append(sorted(examples))
        return rounds

    assert chosen(True) == chosen(False)
    bound_batch_sizes.cache_clear()


def run(pad: bool, model: str = "linear", **options: Any) -> fp.Training:
    privacy = fp.Privacy(noise_multiplier=1.0, sampling=fp.Poisson(0.1))
    clients = clients_of([200, 60, 7], **options)
    compute = fp.Compute(pad_batches=pad, backend=model)  # type: ignore[arg-type]
    return fp.Training(clients, fp.fedavg(0.1), privacy, rounds=6, seed=0, secret_seed=0, compute=compute)


@pytest.mark.parametrize("backend", ["linear", "vmap", "loop"])
def test_padded_run_matches_unpadded(backend: str) -> None:
    plain, padded = ([report.epsilon for report in made] for made in (run(False, backend), run(True, backend)))
    assert plain == padded
    first, second = run(False, backend), run(True, backend)
    for _ in zip(first, second, strict=True):
        assert torch.allclose(first.progress.models, second.progress.models, rtol=0, atol=2e-6)


def test_padding_example_does_not_change_sum() -> None:
    """The first three examples of each client have non-finite gradients."""
    plain, padded = run(False, broken=True), run(True, broken=True)
    for _ in zip(plain, padded, strict=True):
        assert torch.allclose(plain.progress.models, padded.progress.models, rtol=0, atol=2e-6)
        assert torch.isfinite(padded.progress.models).all()


def test_client_without_examples_has_no_block() -> None:
    population = Population(clients_of([50, 3]), pad_batches=True)
    draws = BatchSampler(population, Randomness(secret_seed=3), 1.0)
    draws.begin_round(0, torch.arange(2))
    chosen = draws._draw_batches(fp.Poisson(0.001), 0, torch.arange(2))
    assert chosen.counts.tolist() == [0, 0] and chosen.lengths.tolist() == [6, 3]
    assert chosen.padding is not None
    empty = replace(chosen, padding=chosen.padding._replace(sizes=chosen.padding.sizes * [1, 0]))
    assert empty.lengths.tolist() == [6, 0]
    assert [block.mask.shape for block in empty.blocks(64)] == [(1, 6)]


def test_padded_sizes_match_binomial_tail() -> None:
    from scipy.stats import binom

    assert bound_batch_sizes(fp.Poisson(0.1), (1000, 0)) == (173, 0)
    assert binom.sf(173, 1000, 0.1) <= 1e-12 < binom.sf(172, 1000, 0.1)
    assert bound_batch_sizes(fp.Allocation(10), (1000,)) == (173,)
    assert bound_batch_sizes(fp.FixedSize(9), (1000, 4)) == (9, 4)
    assert bound_batch_sizes(fp.Cyclic(2, rate=0.1), (1999,)) == (173,)


def test_padding_with_secret_cohorts_or_views_raises() -> None:
    secret = fp.Privacy(
        noise_multiplier=1.0,
        unit="client",
        noise_on="message",
        relation="add_remove",
        trust=fp.Central(cohort_rate=0.5),
    )
    compute = fp.Compute(pad_batches=True)
    with pytest.raises(ConfigError, match=r"compute\.pad_batches.*a secret cohort"):
        fp.Training(clients_of([20] * 4), fp.fedavg(0.1), secret, rounds=1, compute=compute)
    population = Population(clients_of([20]), pad_batches=True)
    population.views = object()  # type: ignore[assignment]
    with pytest.raises(ConfigError, match=r"compute\.pad_batches.*random views"):
        BatchSampler(population, Randomness(secret_seed=3), 1.0)
