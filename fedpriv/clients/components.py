"""Splits a data set into the data sets from which its examples come."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import ConcatDataset, Dataset, Subset

from fedpriv.clients.datasets import ExactOnly, size
from fedpriv.errors import PrivacyError

Integers = NDArray[np.int64]


def components(dataset: Dataset[Any], index: Integers, client: int | None) -> Iterator[tuple[Dataset[Any], Integers]]:
    """Yields the data sets that examples come from, and their indices there, through `Subset` and `ConcatDataset`.

    Args:
        dataset: The data set.
        index: Indices of the examples in it.
        client: Number of its owner; None for public data.

    Raises:
        PrivacyError: If the data of a client were prepared with statistics of all clients' data.
    """
    if isinstance(dataset, ExactOnly) and client is not None:
        raise PrivacyError(
            f"the data of client {client} can be used only in runs without privacy, because they were prepared with "
            "statistics of all examples together, or contain some examples twice. Set data.protocol to held_out, or "
            "train without privacy (privacy.noise_on: none)"
        )
    index = np.where(index < 0, index + size(dataset), index)
    if isinstance(dataset, Subset):
        yield from components(dataset.dataset, np.asarray(dataset.indices, dtype=np.int64)[index], client)
    elif isinstance(dataset, ConcatDataset):
        for component, (low, high) in zip(dataset.datasets, pairwise([0, *dataset.cumulative_sizes]), strict=True):
            yield from components(component, index[(index >= low) & (index < high)] - low, client)
    else:
        yield dataset, index
