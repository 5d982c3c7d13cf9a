"""Examples of several clients in one padded block."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from torch import Tensor

from fedpriv.nested import Nested, each


@dataclass(frozen=True)
class Batch:
    """Examples of k clients, padded to b examples each.

    Attributes:
        rows: Position of each client in the round's cohort, `[k]`.
        inputs: `[k, b, ...]`, or dicts and tuples of such tensors.
        targets: The same.
        mask: `[k, b]`, False where padded.
        examples: Position of each example among all of the population, `[k, b]`.
        weights: Factor of each example's loss, `[k, b]`; None means 1.
    """

    rows: Tensor
    inputs: Nested
    targets: Nested
    mask: Tensor
    examples: Tensor | None = None
    weights: Tensor | None = None

    def of(self, rows: slice) -> Batch:
        """The examples of some of these clients."""
        names = [field.name for field in fields(self) if getattr(self, field.name) is not None]
        return replace(self, **{name: each(lambda t: t[rows], getattr(self, name)) for name in names})

    def weighted(self, of_examples: Tensor) -> Batch:
        """The same examples with these loss factors, `[n_examples]` in the order of the population's data."""
        assert self.examples is not None
        return replace(self, weights=of_examples[self.examples])
