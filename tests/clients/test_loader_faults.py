"""Loaders that raise, lie, or give other than one row for an example, are refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from loader_runs import Flipped, X, Y, table, training
from torch import Tensor, nn
from torch.utils.data import (
    DataLoader,
    TensorDataset,
)

import fedpriv as fp
from fedpriv.models import SoftmaxRegression


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
def test_loader_not_one_row_per_example_raises(collate) -> None:
    """Clipping bounds a row: an example with two rows would have twice the influence that is charged for."""
    with pytest.raises(fp.DataError, match=r"for 1 of its examples: each tensor must have one row per example"):
        training(DataLoader(table(), collate_fn=collate))


class Together(Flipped):
    """Fetches a batch at once, and takes its mean away: each example changes the others."""

    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, Tensor]]:
        x = X[indices]
        return list(zip(x - x.mean(0), Y[indices], strict=True))


def test_data_set_read_one_example_at_a_time() -> None:
    run = training(DataLoader(Together(0.0)))
    assert torch.equal(run.population.examples.inputs, X)


def breaks(pairs: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    raise KeyError("label")


@pytest.mark.parametrize(
    ("loader", "why"),
    [
        (
            DataLoader(table(), collate_fn=breaks),
            "client 0: the examples cannot be read .KeyError: 'label'",
        ),
        (DataLoader(Lying(9, 20), batch_size=3), None),
        (DataLoader(Lying(25, 20)), "IndexError: no example 20"),
        (
            DataLoader(Lying(2**40, 20)),
            "a client's data set has 1099511627776 examples, but at most 2147483648 are allowed",
        ),
    ],
)
def test_faulty_loader_raises_with_client(loader: DataLoader, why: str | None) -> None:
    if why is None:  # nobody can know of the rest
        assert len(training(loader).population.examples.inputs) == 9
        return
    with pytest.raises(fp.DataError, match=why):
        training(loader)


class Nameless(Flipped):
    def __len__(self) -> int:
        raise OSError("the file is gone")


def test_failing_length_raises() -> None:
    with pytest.raises(
        fp.DataError,
        match=r"len\(\) of a client's data set raises OSError: the file is gone: pass a data set whose len\(\)",
    ):
        fp.Client(SoftmaxRegression(3, 2), nn.CrossEntropyLoss(), DataLoader(Nameless(0.0), sampler=range(20)))


@pytest.mark.parametrize("x", [X.to_sparse(), X.to("meta"), X.to(torch.complex64)])
def test_sparse_meta_complex_inputs_raise(x: Tensor) -> None:
    with pytest.raises(fp.DataError, match="use dense tensors of real numbers"):
        training(DataLoader(TensorDataset(x, Y)))


def test_text_labels_raise() -> None:
    data: Any = [(torch.ones(4), "rare disease") for _ in range(6)]
    owners = fp.make_clients(torch.nn.Linear(4, 2), torch.nn.functional.cross_entropy, [data])
    with pytest.raises(
        fp.DataError, match=r"labels that are text, but labels must be numbers: number the classes from 0"
    ) as error:
        fp.Training(owners, fp.fedavg(0.1), fp.Privacy(epsilon=3), rounds=1)
    assert "rare" not in str(error.value)  # a label is somebody's
