"""What of a loader a run does not use, it says: its settings, samplers, random transforms and collate functions."""

from __future__ import annotations

import pytest
import torch
from loader_runs import Flipped, X, Y, table, training
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import fedpriv as fp
from fedpriv.models import SoftmaxRegression


def test_unused_loader_settings_warn_once() -> None:
    loaders = [DataLoader(table(4 * i, 4 * i + 4), batch_size=2, shuffle=True, drop_last=True) for i in range(4)]
    weighted = DataLoader(table(16), sampler=WeightedRandomSampler([1.0] * 4, 4))
    for privacy in (fp.Privacy(epsilon=3), fp.Privacy(noise_on="none")):
        (message,) = training(*loaders, weighted, privacy=privacy).warnings
        named = "batch_size=2, shuffle=True, drop_last=True, sampler=WeightedRandomSampler. fedpriv draws the batches"
        assert named in message
        assert "Poisson(rate)" in message
    own = DataLoader(table(), batch_sampler=BatchSampler(SequentialSampler(range(20)), 5, drop_last=False))
    assert "batch_sampler=BatchSampler" in training(own).warnings[0]
    with pytest.warns(UserWarning, match="settings of the clients' loaders are ignored: batch_size=7"):
        client = fp.Client(SoftmaxRegression(3, 2), nn.CrossEntropyLoss(), DataLoader(table(), batch_size=7))
        fp.train([client], fp.fedavg(1.0), fp.Privacy(epsilon=3), rounds=1)


def test_plain_loader_gives_no_warning() -> None:
    assert training(DataLoader(table(0, 10)), DataLoader(Subset(table(), range(10, 20)), num_workers=0)).warnings == []
    clients = fp.make_clients(SoftmaxRegression(3, 2), nn.CrossEntropyLoss(), [table(), Flipped(0.0)])
    assert fp.Training(clients, fp.fedavg(1.0), fp.Privacy(epsilon=3), rounds=1).warnings == []


def test_loader_subset_sampler_raises() -> None:
    """The run would have trained on the omitted examples, perhaps the owner's own test data."""
    with pytest.raises(fp.DataError, match=r"draws from only 5 examples.*Subset\(dataset, indices\)"):
        training(DataLoader(table(), sampler=SubsetRandomSampler(range(5))))
    with pytest.raises(fp.DataError, match="only 15 examples"):
        training(DataLoader(table(), sampler=WeightedRandomSampler([0.0] * 5 + [1.0] * 15, num_samples=20)))
    with pytest.raises(fp.DataError, match="only 10 examples"):
        training(DataLoader(table(), sampler=DistributedSampler(table(), num_replicas=2, rank=1)))


class OwnGenerator(Flipped):
    """Draws from a generator of its own, which nobody can seed."""

    def __init__(self) -> None:
        super().__init__(1.0)
        self.generator = torch.Generator().manual_seed(0)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return X[index] + torch.rand((), generator=self.generator), Y[index]


def test_random_transform_with_private_generator_raises() -> None:
    with pytest.raises(fp.DataError, match=r"client 2: example .* global generator"):
        training(DataLoader(table()), DataLoader(Flipped(0.0)), DataLoader(OwnGenerator()))
    assert training(DataLoader(table()), DataLoader(Flipped(0.5))).warnings == []


def test_warnings_reread_few_examples() -> None:
    """The first and the last example are read twice, to check that the data set keeps no state of its reads."""
    data = [Flipped(0.0, n) for n in (20, 1, 1)] + [Flipped(0.0, 2) for _ in range(40)]
    run = training(*map(DataLoader, data))
    assert run.warnings == []
    assert sum(dataset.reads - dataset.n for dataset in data) <= 8 + 2 * len(data)


def test_random_collate_function_gives_no_warning() -> None:
    """It is called again for every example that is drawn."""

    def noisy(pairs: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        x, y = map(torch.stack, zip(*pairs, strict=True))
        return x + torch.randn_like(x), y

    run = training(DataLoader(table(), collate_fn=noisy))
    assert run.warnings == []
    assert run.population.examples.random
    assert not torch.allclose(run.population.examples.inputs, X)


def test_random_transform_with_constraints_warns() -> None:
    problem = fp.Problem(constraints=(fp.LossAtMost(1.0),))
    clients = fp.make_clients(SoftmaxRegression(3, 2), nn.CrossEntropyLoss(), [Flipped(0.5)], problem)
    run = fp.Training(clients, fp.proximal_al(fp.Outer(beta=1.0), rho=0.1), fp.Privacy(noise_on="none"), rounds=1)
    assert "because constraints need fixed examples" in run.warnings[0]


def centred(pairs: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Takes the mean of the batch away: each example changes all others."""
    x, y = map(torch.stack, zip(*pairs, strict=True))
    return x - x.mean(0), y


def test_collate_function_gets_single_examples() -> None:
    other = TensorDataset(torch.cat([X[:19], 100 * torch.ones(1, 3)]), Y)
    runs = [training(DataLoader(data, collate_fn=centred)) for data in (table(), other)]
    assert torch.equal(runs[0].population.examples.inputs[:19], runs[1].population.examples.inputs[:19])
    assert (
        "collate_fn of client 0 returns other values for two examples together than for each alone"
        in runs[0].warnings[0]
    )


def test_differing_example_shapes_raise() -> None:
    def padless(pairs: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        ((x, y),) = pairs
        return x[None, : 2 + int(y)], y[None]

    with pytest.raises(
        fp.DataError, match=r"inputs of different examples have different shapes, e.g. \[\(2,\), \(3,\)\]"
    ):
        training(DataLoader(table(), collate_fn=padless))


def test_data_set_subclass_and_collate_applied() -> None:
    """The raw tensors of a subclass of TensorDataset or Subset, or of a collate function, are not read directly."""

    class Doubled(TensorDataset):
        def __getitem__(self, index: int) -> tuple[Tensor, ...]:
            x, y = super().__getitem__(index)
            return 2 * x, y

    class Tripled(Subset):
        def __getitem__(self, index: int) -> tuple[Tensor, ...]:
            x, y = super().__getitem__(index)
            return 3 * x, y

        def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, ...]]:
            return [self[index] for index in indices]

    def negative(pairs: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        x, y = map(torch.stack, zip(*pairs, strict=True))
        return -x, y

    loaders = (
        DataLoader(Doubled(X[:5], Y[:5])),
        DataLoader(Subset(Doubled(X[5:10], Y[5:10]), range(5))),
        DataLoader(Tripled(table(10, 15), range(5))),
        DataLoader(table(15), collate_fn=negative),
    )
    factors = torch.tensor([2.0, 2, 3, -1]).repeat_interleave(5)
    torch.testing.assert_close(training(*loaders).population.examples.inputs, X * factors[:, None])
    split = fp.data.Split(Doubled(X, Y), table(), 2, None, "doubled")
    with pytest.raises(fp.DataError, match=r"train\[1\] has an input that is NaN"):
        fp.data.Split(Broken(X, Y), split.test, 2, None, "broken")


class Broken(TensorDataset):
    """Good tensors, and a class that breaks one."""

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        x, y = super().__getitem__(index)
        return (x * torch.nan if index == 1 else x), y
