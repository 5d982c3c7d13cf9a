"""Sums over examples in float64, whatever the type of the gradients.

In float32 a sum of n rows is wrong by up to n times the rounding of its largest partial sum, so that one example could
move it by far more than its clipped norm. In float64 the error of a sum of n rows of norm C is at most `n**2 2**-53 C`
in any order; `fedpriv.privacy.clipping.ROUNDING` pays for it.
"""

from __future__ import annotations

import torch
from torch import Tensor

_CELLS = 2**18
"""Numbers that are widened at once on a processor: as float64 they stay in its cache."""


def sum_of_products(left: Tensor, right: Tensor) -> Tensor:
    """`out[k] = left[k] @ right[k]` in float64: `[k, o, b], [k, b, i] -> [k, o, i]`, b examples of k clients.

    Args:
        left: Coefficients in float64.
        right: Numbers of any floating type; they are widened a piece at a time.
    """
    if right.dtype == torch.float64:
        return torch.bmm(left, right)
    clients, examples, width = right.shape
    cells = _CELLS if right.device.type == "cpu" else 256 * _CELLS
    # as many clients as fit, or a part of one client's examples
    height = max(cells // max(examples * width, 1), 1)
    depth = max(examples if height > 1 else cells // max(width, 1), 1)
    sums = left.new_zeros(clients, left.shape[1], width)
    for total, weights, numbers in zip(sums.split(height), left.split(height), right.split(height), strict=True):
        for weight, number in zip(weights.split(depth, 2), numbers.split(depth, 1), strict=True):
            total.baddbmm_(weight, number.double())
    return sums
