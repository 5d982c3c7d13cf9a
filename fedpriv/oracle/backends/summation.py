"""Sums over examples in float64, whatever the type of the gradients.

In float32 the error of a sum of n rows is up to n times the rounding error of its largest partial sum, so one example
could change the sum by far more than its clipped norm. In float64 the error for n rows of norm C is at most
`n**2 2**-53 C` in any order, which the sensitivity includes (`fedpriv.privacy.clipping.ROUNDING`).
"""

from __future__ import annotations

import torch
from torch import Tensor

_CELLS = 2**16
"""Largest number of entries that are converted to float64 at once on a CPU: half a mebibyte, which fits in its cache.
"""


def sum_of_products(left: Tensor, right: Tensor) -> Tensor:
    """Returns `out[k] = left[k] @ right[k]` in float64: `[k, o, b], [k, b, i] -> [k, o, i]`; see `add_products`."""
    sums = left.new_zeros(left.shape[0], left.shape[1], right.shape[2])
    add_products(sums, left, right)
    return sums


def add_products(sums: Tensor, left: Tensor, right: Tensor) -> None:
    """Computes `sums[k] += left[k] @ right[k]` in float64, in place: `[k, o, b], [k, b, i]`, b examples of k clients.

    Args:
        sums: `[k, o, i]` in float64.
        left: Factors of the products, in float64.
        right: Factors of any floating-point type; they are converted to float64 in pieces.
    """
    clients, examples, width = right.shape
    if right.device.type == "cpu":
        cells = _CELLS
    else:
        cells = 1024 * _CELLS
    if clients == 1 and (right.dtype == torch.float64 or examples * width <= cells):
        sums[0].addmm_(left[0], right[0].double())  # into a view of a long row without a copy
        return
    if right.dtype == torch.float64 or examples * width <= cells:
        if right.dtype == torch.float64:
            height = clients
        else:
            height = cells // max(examples * width, 1)
        for total, weights, numbers in zip(
            *(tensor.split(max(height, 1)) for tensor in (sums, left, right)), strict=True
        ):
            _add(total, weights, numbers.double())
        return
    depth = max(cells // width, 1)
    wide = left.new_empty(min(depth, examples), width)
    for total, weights, numbers in zip(sums, left, right, strict=True):
        for weight, number in zip(weights.split(depth, 1), numbers.split(depth), strict=True):
            total.addmm_(weight, wide[: len(number)].copy_(number))


def _add(sums: Tensor, left: Tensor, right: Tensor) -> None:
    if len(sums) == 1:  # into a view of a long row without a copy
        sums[0].addmm_(left[0], right[0])
    else:
        sums += torch.bmm(left, right)
