"""What is public about a run's data before anybody reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from fedpriv.data.base import size


@dataclass(frozen=True)
class Outline:
    """The shape of a run's data.

    Attributes:
        sizes: Number of examples of each client.
        input_shape: Of one example.
        n_classes: Labels are in `[0, n_classes)`; None where targets are numbers.
        dtype: Of the inputs, as models get them.
    """

    sizes: tuple[int, ...]
    input_shape: tuple[int, ...]
    n_classes: int | None
    dtype: torch.dtype = torch.float32

    @classmethod
    def of(cls, datasets: Sequence[Dataset[Any]], n_classes: int | None) -> Self:
        """Of data that are there, one data set a client."""
        example: Tensor = datasets[0][0][0]
        dtype = torch.float32 if example.is_floating_point() else example.dtype
        return cls(tuple(size(dataset) for dataset in datasets), tuple(example.shape), n_classes, dtype)

    def made_up(self) -> list[TensorDataset]:
        """Random examples of this shape, a data set a client: to measure time, not to learn from."""
        return [TensorDataset(torch.rand(m, *self.input_shape), self._targets(m)) for m in self.sizes]

    def _targets(self, m: int) -> Tensor:
        return torch.rand(m) if self.n_classes is None else torch.randint(self.n_classes, (m,))
