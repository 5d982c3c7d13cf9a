"""Examples of several clients in one padded block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from fedpriv.data.nested import Nested, each


@dataclass(frozen=True)
class Batch:
    """Examples of k clients, padded to b examples each.

    Attributes:
        rows: Position of each client in the round's cohort, `[k]`.
        inputs: `[k, b, ...]`, or dicts and tuples of such tensors; `[k, b, views, ...]` where there are several views.
        targets: The same.
        mask: `[k, b]`, False where padded.
        examples: Position of each example among all of the population, `[k, b]`.
        weights: Factor of each example's loss, `[k, b]`; None means 1.
        views: How many random views there are of each example, whose gradient is the mean of theirs.
    """

    rows: Tensor
    inputs: Nested
    targets: Nested
    mask: Tensor
    examples: Tensor | None = None
    weights: Tensor | None = None
    views: int = 1

    def of(self, rows: slice) -> Batch:
        """The examples of some of these clients."""
        return self._cut(lambda values: values[rows])

    def every(self, first: int, step: int) -> Batch:
        """Some of each client's examples: the one at place `first`, and each `step` further."""
        return self._cut(lambda values: values if values is self.rows else values[:, first::step])

    def _cut(self, cut: Callable[[Tensor], Tensor]) -> Batch:
        held = [field.name for field in fields(self) if field.name != "views"]
        names = [name for name in held if getattr(self, name) is not None]
        return replace(self, **{name: each(cut, getattr(self, name)) for name in names})

    def weighted(self, of_examples: Tensor) -> Batch:
        """The same examples with these loss factors, `[n_examples]` in the order of the population's data."""
        assert self.examples is not None
        return replace(self, weights=of_examples[self.examples])

    def apart(self, dtype: torch.dtype) -> Batch:
        """Each view as an example of its own, `[k, b * views]`, that counts as its part of the example, in `dtype`."""
        if self.views == 1:
            return self
        inputs, targets = each(lambda values: values.flatten(1, 2), (self.inputs, self.targets))
        weights = (self.mask if self.weights is None else self.weights).to(dtype) / self.views
        mask, shares = (cells.repeat_interleave(self.views, 1) for cells in (self.mask, weights))
        return Batch(self.rows, inputs, targets, mask, weights=shares)
