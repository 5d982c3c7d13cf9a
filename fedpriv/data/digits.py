"""Scikit-learn's embedded digits: 1797 images of 8x8, without a file or network access."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch.utils.data import TensorDataset

from fedpriv.data.base import Split, as_inputs
from fedpriv.data.transforms import TransformName
from fedpriv.settings import Whole, validate_arguments


@validate_arguments("data")
def digits(*, flat: bool = False, transforms: Sequence[TransformName] = (), seed: Whole = 0) -> Split:
    """Loads digits of 10 classes, split into 80 % train and 20 % test examples with the same shares of classes.

    Args:
        flat: `[n, 64]` instead of `[n, 1, 8, 8]`.
        transforms: Functions of single images, see `fedpriv.data.transforms`; they receive pixels in [0, 1].
        seed: Seed of the split.

    Returns:
        The training and test examples.

    Source: Alpaydin & Kaynak (1998), UCI optical recognition of handwritten digits (its test part).
    """
    from sklearn.datasets import load_digits  # slow to import
    from sklearn.model_selection import train_test_split

    pixels, labels = load_digits(return_X_y=True)
    order = np.arange(len(labels))
    train_rows, test_rows = train_test_split(order, test_size=0.2, stratify=labels, random_state=seed)
    # [n, 64] -> [n, 1, 8, 8]
    images = torch.from_numpy(np.asarray(pixels, dtype=np.float32) / 16).reshape(-1, 1, 8, 8)
    x = as_inputs(images, flat=flat, transforms=transforms)
    y = torch.from_numpy(np.asarray(labels, dtype=np.int64))
    return Split(
        train=TensorDataset(x[train_rows], y[train_rows]),
        test=TensorDataset(x[test_rows], y[test_rows]),
        n_classes=10,
        writers=None,
        description=f"digits: {len(train_rows)} train and {len(test_rows)} test images of 8x8, 10 classes",
    )
