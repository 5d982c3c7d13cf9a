"""Embeddings with an untrained row (`padding_idx`) under vmap. Torch's vmap rule for several tables loses the index of
that row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode


class PaddedEmbedding(TorchFunctionMode):
    """A context in which the row `padding_idx` of an embedding gets no gradient, also if vmap and autograd are
    combined.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        """Replaces the embedding function."""
        if func is functional.embedding:
            return _embedding(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    *others: Any,  # noqa: ANN401 - torch's own
    **options: Any,  # noqa: ANN401
) -> Tensor:
    rows = functional.embedding(input, weight, padding_idx, *others, **options)
    if padding_idx is None:
        return rows
    return rows.detach().where((input == padding_idx % len(weight)).unsqueeze(-1), rows)
