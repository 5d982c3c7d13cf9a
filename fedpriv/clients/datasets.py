"""Properties of any data set that a run needs: its number of examples, and restrictions on training."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

from torch.utils.data import Dataset, TensorDataset

from fedpriv.errors import DataError

PUBLISHED = frozenset(
    {
        "adult",
        "breast_cancer",
        "covertype",
        "digits",
        "femnist",
        "heart",
        "mnist",
        "monks",
        "sensors",
        "shakespeare",
        "torchvision",
    }
)
"""Names of fedpriv's data sets that have the same rows each time they are loaded with the same options."""


class ExactOnly(TensorDataset):
    """Examples that private runs do not accept, because their preparation depends on all examples, or because some
    examples occur twice.
    """


def size(dataset: Dataset[Any]) -> int:
    """Returns the number of examples.

    Raises:
        DataError: If the data set has no `__len__`.
    """
    if not isinstance(dataset, Sized):
        raise DataError(f"{type(dataset).__name__} has no length: use a map-style torch Dataset")
    return len(dataset)
