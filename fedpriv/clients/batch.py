"""Examples of several clients in one padded block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from fedpriv.models.nested import Nested, map_tree


@dataclass(frozen=True, eq=False)
class Batch:
    """Examples of k clients, padded to b examples each. Two batches are equal only if they are the same object.

    Attributes:
        rows: Position of each client in the round's cohort, `[k]`.
        inputs: `[k, b, ...]`, or dicts and tuples of such tensors; `[k, b, views, ...]` with several views.
        targets: Like `inputs`.
        mask: `[k, b]`, False where padded.
        examples: Position of each example among all examples of the population, `[k, b]`.
        weights: Factor of each example's loss, `[k, b]`; None means 1.
        views: Number of random views of each example; its gradient is the mean of the views' gradients.
    """

    rows: Tensor
    inputs: Nested
    targets: Nested
    mask: Tensor
    examples: Tensor | None = None
    weights: Tensor | None = None
    views: int = 1

    def select(self, rows: slice) -> Batch:
        """Returns the examples of some of these clients."""
        return self._cut(lambda values: values[rows])

    def every(self, first: int, step: int) -> Batch:
        """Returns every `step`-th example of each client, from position `first` on."""
        if (first, step) == (0, 1):
            return self
        return self._cut(lambda values: values if values is self.rows else values[:, first::step])

    def piece(self, rows: slice, cells: slice | Tensor) -> Batch:
        """Returns the examples of some clients at the positions `cells`, which are the same for each client."""
        clients, examples = self.mask.shape
        if isinstance(cells, slice) and _is_whole(rows, clients) and _is_whole(cells, examples):
            return self
        return self._cut(lambda values: values[rows] if values is self.rows else values[rows, cells])

    def _cut(self, cut: Callable[[Tensor], Tensor]) -> Batch:
        """Applies `cut` to every tensor of the batch."""
        tensors = [field.name for field in fields(self) if field.name != "views"]
        names = [name for name in tensors if getattr(self, name) is not None]
        return replace(self, **{name: map_tree(cut, getattr(self, name)) for name in names})

    def weighted(self, weights: Tensor) -> Batch:
        """Returns the same examples with these loss factors, `[n_examples]` in the order of the population's data."""
        assert self.examples is not None
        return replace(self, weights=weights[self.examples])

    def split_views(self, dtype: torch.dtype) -> Batch:
        """Returns each view as an example, `[k, b * views]`, with its share of the example's weight, in `dtype`."""
        if self.views == 1:
            return self
        inputs, targets = map_tree(lambda values: values.flatten(1, 2), (self.inputs, self.targets))
        if self.weights is None:
            weights = self.mask
        else:
            weights = self.weights
        shares = weights.to(dtype) / self.views
        return Batch(
            self.rows,
            inputs,
            targets,
            mask=self.mask.repeat_interleave(self.views, 1),
            weights=shares.repeat_interleave(self.views, 1),
        )


def _is_whole(span: slice, length: int) -> bool:
    return span.indices(length) == (0, length, 1)
