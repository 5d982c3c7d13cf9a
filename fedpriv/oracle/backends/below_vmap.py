"""Runs a function outside of all vmaps, on tensors that contain all examples.

Under vmap each operation takes several times as long to start, which slows down loops over time steps. Moreover,
torch's kernels for whole layers have no vmap rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

from torch import Tensor
from torch._C._functorch import is_batchedtensor
from torch.autograd.function import Function

Tensors = tuple[Tensor, ...]


class _Info(NamedTuple):
    """The argument that torch passes to a vmap rule."""

    batch_size: int
    randomness: str


def call_below_vmap(function: Callable[..., Tensors], examples: Sequence[Tensor], shared: Sequence[Tensor]) -> Tensors:
    """Applies a function of plain tensors to arguments under vmap, or to a batch without vmap, and returns the outputs.

    Args:
        function: Maps `(examples, shared)`, which have the dimensions of all vmaps in front, to tensors with the same
            dimensions in front. Autograd records it as usual.
        examples: Arguments that get a dimension for each vmap. An argument that does not depend on a vmap is expanded
            along its dimension.
        shared: Arguments that get a dimension only for the vmaps that they depend on, such as parameters.
    """
    if not any(is_batchedtensor(tensor) for tensor in (*examples, *shared)):
        return function([*examples], [*shared])
    return cast("Tensors", _Below.apply(function, len(examples), *examples, *shared))


class _Below(Function):
    @staticmethod
    def forward(function: Callable[..., Tensors], count: int, *tensors: Tensor) -> Tensors:
        raise NotImplementedError("must be called under vmap")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:  # noqa: ANN401 - as torch types it
        """Saves nothing, since autograd records the function's own operations."""

    @staticmethod
    def vmap(  # pyright: ignore[reportIncompatibleMethodOverride] - torch passes what `forward` takes
        info: _Info,
        in_dims: Sequence[int | None],
        function: Any,  # noqa: ANN401 - as torch types it
        count: int,
        *tensors: Tensor,
    ) -> Any:  # noqa: ANN401 - as torch types it
        """Moves this vmap's dimension to the front, then continues with the next vmap or with the function."""
        moved: list[Tensor] = []
        for index, (tensor, dim) in enumerate(zip(tensors, in_dims[2:], strict=True)):
            if dim is not None:
                moved.append(tensor.movedim(dim, 0))
            elif index < count:
                moved.append(tensor.expand(info.batch_size, *tensor.shape))
            else:
                moved.append(tensor)
        if any(is_batchedtensor(tensor) for tensor in moved):
            outputs = cast("Tensors", _Below.apply(function, count, *moved))
        else:
            outputs = function(moved[:count], moved[count:])
        return outputs, (0,) * len(outputs)
