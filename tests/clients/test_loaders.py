"""What of a loader a run does not use, it says; what it cannot use, it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from typer.testing import CliRunner

import fedpriv as fp
from fedpriv.cli import app
from fedpriv.models import SoftmaxRegression

X = torch.arange(60.0).reshape(20, 3) / 60
Y = torch.arange(20) % 2


class Flipped(Dataset):
    """Turns an input round with this chance, as an augmentation does."""

    def __init__(self, chance: float, n: int = 20) -> None:
        self.chance, self.n, self.reads = chance, n, 0

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.reads += 1
        return (X[index].flip(0) if torch.rand(()) < self.chance else X[index]), Y[index]


def training(*loaders: DataLoader, privacy: fp.Privacy | None = None, model: nn.Module | None = None) -> fp.Training:
    clients = [fp.Client(model or SoftmaxRegression(3, 2), nn.CrossEntropyLoss(), loader) for loader in loaders]
    return fp.Training(clients, fp.fedavg(1.0), privacy or fp.Privacy(epsilon=3), rounds=1)


def table(low: int = 0, high: int = 20) -> TensorDataset:
    return TensorDataset(X[low:high], Y[low:high])


def test_settings_of_a_loader_that_are_not_used_are_named_once() -> None:
    loaders = [DataLoader(table(4 * i, 4 * i + 4), batch_size=2, shuffle=True, drop_last=True) for i in range(4)]
    weighted = DataLoader(table(16), sampler=WeightedRandomSampler([1.0] * 4, 4))
    for privacy in (fp.Privacy(epsilon=3), fp.Privacy(at="none")):
        (said,) = training(*loaders, weighted, privacy=privacy).warnings
        named = "batch_size=2, shuffle=True, drop_last=True, sampler=WeightedRandomSampler. fedpriv draws its own"
        assert named in said
        assert "Poisson(rate)" in said
    own = DataLoader(table(), batch_sampler=BatchSampler(SequentialSampler(range(20)), 5, drop_last=False))
    assert "batch_sampler=BatchSampler" in training(own).warnings[0]
    with pytest.warns(UserWarning, match="not used of the clients' loaders: batch_size=7"):
        client = fp.Client(SoftmaxRegression(3, 2), nn.CrossEntropyLoss(), DataLoader(table(), batch_size=7))
        fp.train([client], fp.fedavg(1.0), fp.Privacy(epsilon=3), rounds=1)


def test_a_loader_without_settings_is_no_news() -> None:
    assert training(DataLoader(table(0, 10)), DataLoader(Subset(table(), range(10, 20)), num_workers=0)).warnings == []
    clients = fp.make_clients(SoftmaxRegression(3, 2), nn.CrossEntropyLoss(), [table(), Flipped(0.0)])
    assert fp.Training(clients, fp.fedavg(1.0), fp.Privacy(epsilon=3), rounds=1).warnings == []


def test_a_sampler_that_leaves_examples_out_is_refused() -> None:
    """They would have been trained on, perhaps as the owner's own test data."""
    with pytest.raises(fp.DataError, match=r"5 chosen examples.*Subset\(dataset, indices\)"):
        training(DataLoader(table(), sampler=SubsetRandomSampler(range(5))))


class OwnGenerator(Flipped):
    """Draws from a generator of its own, which nobody can seed."""

    def __init__(self, chance: float) -> None:
        super().__init__(chance)
        self.generator = torch.Generator().manual_seed(0)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        flipped = torch.rand((), generator=self.generator) < self.chance
        return (X[index].flip(0) if flipped else X[index]), Y[index]


@pytest.mark.parametrize("chance", [0.5, 0.8])
def test_a_random_transform_with_a_generator_of_its_own_is_said_to_be_frozen(chance: float) -> None:
    run = training(DataLoader(table()), DataLoader(Flipped(0.0)), DataLoader(OwnGenerator(chance)))
    (said,) = run.warnings
    assert said.startswith("an example of client 2 is another one when it is read again: its random transform has run")
    assert "global generator" in said
    assert training(DataLoader(table()), DataLoader(Flipped(chance))).warnings == []


def test_the_search_for_random_transforms_reads_a_few_examples_only() -> None:
    data = [Flipped(0.0, n) for n in (20, 1, 1)] + [Flipped(0.0, 2) for _ in range(40)]
    run = training(*map(DataLoader, data))
    assert run.warnings == []
    assert sum(dataset.reads - dataset.n for dataset in data) <= 96


def test_a_random_collate_function_is_no_news() -> None:
    """It is called again for every example that is drawn."""

    def noisy(pairs: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        x, y = map(torch.stack, zip(*pairs, strict=True))
        return x + torch.randn_like(x), y

    run = training(DataLoader(table(), collate_fn=noisy))
    assert run.warnings == []
    assert run.population.examples.random
    assert not torch.allclose(run.population.examples.inputs, X)


def test_under_constraints_a_random_transform_is_frozen_which_is_said() -> None:
    problem = fp.Problem(constraints=(fp.LossAtMost(1.0),))
    clients = fp.make_clients(SoftmaxRegression(3, 2), nn.CrossEntropyLoss(), [Flipped(0.5)], problem)
    run = fp.Training(clients, fp.proximal_al(fp.Outer(beta=1.0), rho=0.1), fp.Privacy(at="none"), rounds=1)
    assert "is frozen, for constraints are about examples as they are" in run.warnings[0]


def centred(pairs: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Takes the mean of the batch away: each example changes all others."""
    x, y = map(torch.stack, zip(*pairs, strict=True))
    return x - x.mean(0), y


def test_a_collate_function_is_given_one_example_at_a_time() -> None:
    other = TensorDataset(torch.cat([X[:19], 100 * torch.ones(1, 3)]), Y)
    runs = [training(DataLoader(data, collate_fn=centred)) for data in (table(), other)]
    assert torch.equal(runs[0].population.examples.inputs[:19], runs[1].population.examples.inputs[:19])
    assert "collate_fn of client 0 makes something else of two examples together" in runs[0].warnings[0]


def test_examples_of_different_shapes_are_refused() -> None:
    def padless(pairs: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        ((x, y),) = pairs
        return x[None, : 2 + int(y)], y[None]

    with pytest.raises(fp.DataError, match=r"inputs of a client have shapes \[\(2,\), \(3,\)\]"):
        training(DataLoader(table(), collate_fn=padless))


def test_what_a_users_own_table_or_collate_function_does_is_done() -> None:
    """A subclass of TensorDataset or Subset, or a collate function, is not passed by for its raw tensors."""

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


class Scaled(nn.Module):
    """Subtracts a mean that somebody computed."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)
        self.register_buffer("mean", torch.full((64,), 0.3))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs - self.mean)


CONFIG = {
    "data": {"name": "digits", "flat": True, "partition": {"kind": "dirichlet", "n_clients": 5}},
    "model": "test_loaders:Scaled",
    "strategy": {"name": "fedavg", "learning_rate": 1.0},
    "privacy": {"epsilon": 3},
    "rounds": 2,
}


@pytest.mark.usefixtures("allow_plugins")
@pytest.mark.parametrize("command", ["plan", "train"])
def test_statistics_that_a_private_run_ships_are_named(tmp_path: Path, command: str) -> None:
    """Buffers of the model, and a partition that one label moves."""
    (tmp_path / "run.yaml").write_text(json.dumps(CONFIG))

    def said(*changes: str) -> str:
        # a run's folder is new each time
        places = ["--out", str(tmp_path / "-".join(["run", *changes]).replace("=", ""))] if command == "train" else []
        found = CliRunner().invoke(app, [command, str(tmp_path / "run.yaml"), *changes, *places])
        assert found.exit_code == 0, found.output
        return " ".join(found.output.split())

    private = said()
    assert "warning: the model has buffers (mean) that are released with it as they are" in private
    assert "warning: data.partition.kind = dirichlet looks at the labels" in private
    quiet = said("privacy={at: none}")
    assert "buffers" not in quiet
    assert "looks at the labels" not in quiet


@pytest.mark.parametrize(("kind", "looks"), [("by_label", True), ("stratified", True), ("iid", False)])
def test_partitions_that_look_at_labels_are_named(tmp_path: Path, kind: str, looks: bool) -> None:
    (tmp_path / "run.yaml").write_text(json.dumps(CONFIG))
    change = [f"data.partition.kind={kind}", "model=softmax"]
    found = CliRunner().invoke(app, ["plan", str(tmp_path / "run.yaml"), *change])
    assert found.exit_code == 0, found.output
    assert ("looks at the labels" in found.output) == looks
    assert "buffers" not in found.output


class Lying(Flipped):
    """Says that it has other examples than it gives."""

    def __init__(self, sends: int, has: int) -> None:
        super().__init__(0.0, has)
        self.sends = sends

    def __len__(self) -> int:
        return self.sends

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if index >= self.n:
            raise IndexError(f"no example {index}")
        return super().__getitem__(index)


def twice(pairs: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Two views of each example: its influence would be twice what is paid for."""
    x, y = map(torch.stack, zip(*pairs, strict=True))
    return torch.cat([x, x.flip(1)]), torch.cat([y, y])


def moved(pairs: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """As many rows as examples, but two for one of them and none for another."""
    ((x, y),) = pairs
    rows = 1 + int(y) if x[0] < 0.5 else 1 - int(y)
    return x.expand(rows, 3), y.expand(rows)


def ragged(pairs: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    ((x, y),) = pairs
    return x[None], y.expand(2)


@pytest.mark.parametrize("collate", [twice, moved, ragged])
def test_one_example_gives_one_row(collate) -> None:
    """Clipping bounds a row: an example with two would have twice the influence that is paid for."""
    with pytest.raises(fp.DataError, match=r"for 1 of its examples: give one row for each"):
        training(DataLoader(table(), collate_fn=collate))


class Together(Flipped):
    """Fetches a batch at once, and takes its mean away: each example changes the others."""

    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, Tensor]]:
        x = X[indices]
        return list(zip(x - x.mean(0), Y[indices], strict=True))


def test_a_data_set_is_asked_for_one_example_at_a_time() -> None:
    run = training(DataLoader(Together(0.0)))
    assert torch.equal(run.population.examples.inputs, X)


def breaks(pairs: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    raise KeyError("label")


@pytest.mark.parametrize(
    ("loader", "why"),
    [
        (DataLoader(table(), collate_fn=breaks), "client 0: its examples cannot be read .KeyError: 'label'"),
        (DataLoader(Lying(9, 20), batch_size=3), None),
        (DataLoader(Lying(25, 20)), "IndexError: no example 20"),
        (DataLoader(Lying(2**40, 20)), "says that it has 1099511627776 examples"),
    ],
)
def test_loaders_that_raise_or_lie_are_named(loader: DataLoader, why: str | None) -> None:
    if why is None:  # nobody can know of the rest
        assert len(training(loader).population.examples.inputs) == 9
        return
    with pytest.raises(fp.DataError, match=why):
        training(loader)


class Nameless(Flipped):
    def __len__(self) -> int:
        raise OSError("the file is gone")


def test_a_length_that_cannot_be_told_is_named() -> None:
    with pytest.raises(fp.DataError, match=r"len\(\) of a client's data set fails .OSError: the file is gone"):
        fp.Client(SoftmaxRegression(3, 2), nn.CrossEntropyLoss(), DataLoader(Nameless(0.0), sampler=range(20)))


@pytest.mark.parametrize("x", [X.to_sparse(), X.to("meta"), X.to(torch.complex64)])
def test_numbers_that_are_not_there_are_refused(x: Tensor) -> None:
    with pytest.raises(fp.DataError, match="give dense real tensors"):
        training(DataLoader(TensorDataset(x, Y)))
