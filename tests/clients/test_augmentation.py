"""Augmentation: views of examples, drawn anew in each answer from numbers of the example's own."""

from __future__ import annotations

import random
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from augmented import EVERYTHING, X, Y, model, noisy, population, tables, v2, views
from resuming import assert_resumes_exactly
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

import fedpriv as fp
from fedpriv.clients.augmentation import Augmentation
from fedpriv.clients.population import Population
from fedpriv.oracle.backends.loop import LoopBackend
from fedpriv.oracle.clipped_sums import ClippedSums
from fedpriv.oracle.sampler import BatchSampler
from fedpriv.privacy.settings import FixedSize, FullBatch, Poisson
from fedpriv.randomness.streams import Randomness


def train(people_or_data=None, augmentation=None, **options):
    clients = fp.make_clients(model(), nn.CrossEntropyLoss(), people_or_data or tables(), augmentation=augmentation)
    return run(clients, **options)


def run(clients, *, local_steps: int = 1, privacy: fp.Privacy | None = None, rounds: int = 3, **options) -> fp.Result:
    privacy = privacy or fp.Privacy(noise_multiplier=1.0, sampling=Poisson(0.5), clip=fp.Clip(0.1))
    strategy = fp.fedavg(0.5, local_steps=local_steps)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fp.train(clients, strategy, privacy, rounds=rounds, seed=0, secret_seed=1, **options)


@pytest.mark.parametrize(
    "transforms",
    [EVERYTHING, (noisy,), (v2.RandomCrop(6, padding=2), fp.Flip())],
    ids=["built in", "function", "torchvision"],
)
@pytest.mark.parametrize("multiplicity", [1, 3])
def test_views_differ_per_query_and_repeat_exactly(transforms, multiplicity: int) -> None:
    people = population(Augmentation(transforms, multiplicity))
    first, again, next_round, next_question = (views(people, *at) for at in ((0, 0), (0, 0), (1, 0), (0, 1)))
    assert len(first) == 24
    for place in first:
        assert first[place].shape == ((multiplicity, 1, 6, 6) if multiplicity > 1 else (1, 6, 6))
        assert torch.equal(first[place], again[place])
    for other in (next_round, next_question):
        assert sum(torch.equal(first[place], other[place]) for place in first) <= (20 if multiplicity == 1 else 4)
    if multiplicity > 1:  # views of one example are different ones
        assert sum(torch.equal(view[0], view[1]) for view in first.values()) <= 20


@pytest.mark.parametrize("transforms", [EVERYTHING, (noisy,)], ids=["built in", "function"])
def test_views_independent_of_other_examples(transforms) -> None:
    other = X.clone()
    other[5] = 1 - X[5]
    for sampling in (FullBatch(), Poisson(0.4), FixedSize(3)):
        one, two = (views(population(Augmentation(transforms, 2), x), sampling=sampling) for x in (X, other))
        assert one.keys() == two.keys()
        assert [place for place in one if not torch.equal(one[place], two[place])] == ([5] if 5 in one else [])


@pytest.mark.parametrize("transforms", [EVERYTHING, (noisy,)], ids=["built in", "function"])
def test_views_independent_of_cohort_batch_and_chunk(transforms) -> None:
    """Views depend on the other clients, the batch and the chunk size in no way."""
    augmentation = Augmentation(transforms, 2)
    everything = views(population(augmentation))
    for found in (
        views(population(augmentation), sampling=Poisson(0.3)),
        views(population(augmentation), cohort=(1,)),
        views(population(augmentation, chunk=4)),
    ):
        assert 0 < len(found) <= 24
        for place, view in found.items():
            torch.testing.assert_close(view, everything[place], rtol=0, atol=0)


def test_views_keep_global_generator_state() -> None:
    people = population(Augmentation([noisy], 2))
    torch.manual_seed(3), np.random.seed(3), random.seed(3)  # noqa: NPY002
    wanted = torch.rand(1), np.random.rand(), random.random()  # noqa: NPY002
    torch.manual_seed(3), np.random.seed(3), random.seed(3)  # noqa: NPY002
    views(people)
    assert (torch.rand(1), np.random.rand(), random.random()) == wanted  # noqa: NPY002


@pytest.mark.parametrize("multiplicity", [1, 4])
def test_augmented_sum_sensitivity_bounded_by_clip(multiplicity: int) -> None:
    clip, other = fp.Clip(0.05), X.clone()
    other[2] = 100.0
    rows: list[Tensor] = []
    for x in (X, other):
        people = population(Augmentation(EVERYTHING, multiplicity), x)
        draws = BatchSampler(people, Randomness(0, 1), 1.0)
        draws.begin_round(0, torch.arange(3))
        sums = ClippedSums(LoopBackend(people.model, people.loss), 3, people.device)
        rows.append(sums.gradients(draws.views(FullBatch(), 0), torch.arange(3), people.params, clip=clip))
    assert 1e-3 < float((rows[0] - rows[1])[0].norm()) <= 2 * clip.bound + 1e-9
    assert torch.equal(rows[0][1:], rows[1][1:])


class Turned(Dataset):
    """A data set with a random transform, as torchvision's are."""

    def __init__(self, first: int) -> None:
        self.first = first

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        at = self.first + index
        return noisy(X[at]), Y[at]


def test_data_set_transform_drawn_per_query() -> None:
    datasets = [Turned(0), TensorDataset(X[8:16], Y[8:16]), Turned(16)]
    people = population(None, datasets=datasets)
    first, again, later = (views(people, *at) for at in ((0,), (0,), (1,)))
    changes = [place for place in first if not torch.equal(first[place], later[place])]
    assert changes == [*range(8), *range(16, 24)]
    assert all(torch.equal(first[place], again[place]) for place in first)
    assert all(torch.equal(first[place], X[place]) for place in range(8, 16))
    several = views(population(Augmentation((), 2), datasets=datasets))
    assert all((several[place][0] == several[place][1]).all() == (8 <= place < 16) for place in several)


def test_lazy_clients_have_same_views() -> None:
    for load in (lambda i: Turned(8 * i), lambda i: tables()[i]):
        augmentation = Augmentation([fp.Crop(1), noisy], 2)
        lazy = fp.lazy_clients(model(), nn.CrossEntropyLoss(), load, [8] * 3, augmentation=augmentation)
        wanted = views(population(augmentation, datasets=[load(i) for i in range(3)]))
        found = views(Population(lazy))
        assert all(torch.equal(found[place], wanted[place]) for place in wanted)


def test_statistics_and_test_data_unaugmented() -> None:
    def dark(x: Tensor) -> Tensor:
        return 0 * x

    people = population(Augmentation([dark]))
    draws = BatchSampler(people, Randomness(0, 1), 1.0)
    draws.begin_round(0, torch.arange(3))
    assert all(bool((batch.inputs > 0).any()) for batch in draws.batches(FullBatch(), 0))
    data, seen = TensorDataset(torch.rand(9, 1, 6, 6), torch.arange(9) % 3), list[Tensor]()

    def look(outputs: Tensor, targets: Tensor) -> float:
        seen.append(outputs)
        return 0.0

    result = train(None, Augmentation([dark], 2), test=data, metrics={"look": look}, rounds=1)
    with torch.no_grad():
        torch.testing.assert_close(seen[-1], result.model(data.tensors[0]))
    assert not torch.allclose(seen[-1][0], seen[-1][1])


def test_empty_augmentation_changes_nothing() -> None:
    result = train()
    same = train(None, Augmentation())
    assert torch.equal(same.params, result.params)
    assert not torch.equal(train(None, Augmentation([fp.Crop(1)])).params, result.params)


@pytest.mark.parametrize("backend", ["loop", "vmap", "ghost"])
@pytest.mark.parametrize("privacy", ["sample", "client", "message"])
def test_augmented_run_same_with_every_backend(backend: str, privacy: str) -> None:
    settings = {
        "sample": fp.Privacy(noise_multiplier=1.0, clip=fp.Clip(0.1), sampling=Poisson(0.5)),
        "client": fp.Privacy(noise_multiplier=1.0, clip=fp.Clip(0.1), unit="client"),
        "message": fp.Privacy(noise_multiplier=1.0, clip=fp.Clip(0.1), unit="client", noise_on="message"),
    }[privacy]
    steps = 3 if privacy == "message" else 1
    augmentation = Augmentation([fp.Crop(1), noisy], 2)
    found = [
        train(None, augmentation, privacy=settings, local_steps=steps, compute=compute)
        for compute in (fp.Compute("loop"), fp.Compute(backend, max_physical_batch_size=5))
    ]
    torch.testing.assert_close(found[0].params, found[1].params, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "augmentation", [Augmentation(EVERYTHING, 2), Augmentation([noisy], 2), None], ids=["built in", "function", "none"]
)
def test_resumed_run_has_same_views(augmentation, tmp_path: Path) -> None:
    def training(folder: Path, *, resume: bool = False) -> fp.Training:
        data = [Turned(0), Turned(8)] if augmentation is None else tables()
        clients = fp.make_clients(model(), nn.CrossEntropyLoss(), data, augmentation=augmentation)
        privacy = fp.Privacy(noise_multiplier=1.0, sampling=Poisson(0.5))
        options = {"rounds": 5, "seed": 0, "secret_seed": 1, "checkpoint_every": 1, "resume": resume}
        return fp.Training(clients, fp.fedavg(0.5), privacy, folder=folder, **options)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_resumes_exactly(training, tmp_path)


def test_resume_with_other_augmentation_raises(tmp_path: Path) -> None:
    def training(padding: int, *, resume: bool) -> fp.Training:
        clients = fp.make_clients(
            model(), nn.CrossEntropyLoss(), tables(), augmentation=Augmentation([fp.Crop(padding)])
        )
        return fp.Training(clients, fp.fedavg(0.5), fp.Privacy(epsilon=3), rounds=2, folder=tmp_path, resume=resume)

    run = training(1, resume=False)
    next(iter(run))
    run.folder.close()
    with pytest.raises(fp.FedprivError, match=r"has other settings, .*; resume with its own config\.yaml"):
        training(2, resume=True)
