"""Public facts about a run's data, known before the data are read: sizes, shapes, number of classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from fedpriv.clients.datasets import size


@dataclass(frozen=True)
class PublicDataInfo:
    """Sizes and shapes of a run's data.

    Attributes:
        sizes: Number of examples of each client.
        input_shape: Shape of one example's input.
        n_classes: Number of classes, labelled from 0; None for regression.
        dtype: Type of a model's inputs.
        tests_have_owners: True if each test example is assigned to one of the clients.
        target_shape: Shape of one example's target: `()`, or `(length,)` where it is a sequence.
    """

    sizes: tuple[int, ...]
    input_shape: tuple[int, ...]
    n_classes: int | None
    dtype: torch.dtype = torch.float32
    tests_have_owners: bool = False
    target_shape: tuple[int, ...] = ()

    @classmethod
    def of(cls, datasets: Sequence[Dataset[Any]], n_classes: int | None) -> Self:
        """Returns the sizes and shapes of data sets, one for each client."""
        example: Tensor
        example, target = datasets[0][0]
        if example.is_floating_point():
            dtype = torch.float32
        else:
            dtype = example.dtype
        sizes = tuple(size(dataset) for dataset in datasets)
        target_shape = tuple(torch.as_tensor(target).shape)
        return cls(sizes, tuple(example.shape), n_classes, dtype, target_shape=target_shape)

    def synthetic_datasets(self) -> list[TensorDataset]:
        """Returns random data sets of these sizes and shapes, one for each client, to measure the time of a round."""
        return [TensorDataset(self._inputs(m), self._targets(m)) for m in self.sizes]

    def _inputs(self, m: int) -> Tensor:
        if self.dtype.is_floating_point:
            return torch.rand(m, *self.input_shape)
        return torch.zeros(m, *self.input_shape, dtype=self.dtype)  # a token that every vocabulary has

    def _targets(self, m: int) -> Tensor:
        if self.n_classes is None:
            return torch.rand(m)
        return torch.randint(self.n_classes, (m, *self.target_shape))
