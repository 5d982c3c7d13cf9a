"""Tests if two results of the same computation differ by more than rounding explains."""

from __future__ import annotations

import torch
from torch import Tensor

# largest relative differences that rounding explains
SAME_KERNEL = 1e-4
"""Relative difference allowed between two calls of the same kernel on inputs of the same shape."""
OTHER_KERNEL = 1e-2
"""Relative difference allowed between two kernels, one for a batch and one for a batch of one."""
OTHER_REDUCTION = 1e-3
"""Relative difference allowed between a batch's loss and the mean of its examples' losses."""

HALF_PRECISION = 2.0**-5
"""Relative difference allowed between a batch's loss and the mean of its examples' losses if the loss computes in half
precision.
"""


def differ(a: Tensor, b: Tensor, tolerance: float) -> bool:
    """Returns True if two tensors differ in shape, or by more than `tolerance` times the larger norm."""
    if a.shape != b.shape:
        return True
    a = a.detach().double().nan_to_num()
    b = b.detach().double().nan_to_num()
    return bool((a - b).norm() > tolerance * torch.maximum(a.norm(), b.norm()))


def rows_differ(a: Tensor, b: Tensor, tolerance: float) -> Tensor:
    """Returns a mask of the rows that differ in two tensors with the same number of rows, see `differ`, `[n]`."""
    if a.shape != b.shape:
        return torch.ones(len(a), dtype=torch.bool)
    a, b = (rows.detach().reshape(len(rows), -1).double().nan_to_num() for rows in (a, b))
    return (a - b).norm(dim=1) > tolerance * torch.maximum(a.norm(dim=1), b.norm(dim=1))
