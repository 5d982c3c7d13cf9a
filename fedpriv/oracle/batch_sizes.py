"""Sizes of batches in which a model and a loss are tried before a run.

Code of a user's own may mix the examples of large batches only, or of batches of some sizes. Only public facts decide
which sizes are tried.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fedpriv.data.nested import T, each

LARGEST = 512
"""Largest batch that a model is tried in: backends compute no more examples at once on a CPU."""
_STEPS = (2, 17, 65, 257, 1025, 4097)  # far apart, so that all of them together cost no more than the largest
_BYTES = 32 << 20


def batch_sizes(most_examples: int | None, largest: int, example_bytes: int) -> list[int]:
    """Returns ascending sizes: a few, even and odd, and the largest batch of the run as far as it is tried.

    Args:
        most_examples: How many examples all clients have; None if that is not known, see `Population.most_examples`.
        largest: Largest size to try.
        example_bytes: Memory that one example takes; a batch is tried with 32 MiB, or 2 examples.
    """
    largest = max(min(largest, _BYTES // max(example_bytes, 1)), 2)
    if most_examples is not None:
        largest = min(largest, most_examples)
    return [size for size in _STEPS if size < largest] + [largest]


def repeated(count: int, size: int) -> list[int]:
    """Returns indices of `size` examples: those of the first `count`, again and again."""
    return [index % count for index in range(size)]


def repeat_examples(tree: T, indices: Sequence[int], dim: int = 0) -> T:
    """Returns the examples with these indices, which lie along a dimension."""
    order = torch.tensor(indices)
    return each(lambda values: values.index_select(dim, order.to(values.device)), tree)
