"""Records of layer calls under vmap, from which the gradients of the layers' parameters are computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from torch._C._functorch import get_unwrapped, is_batchedtensor, maybe_get_bdim

from fedpriv.oracle.backends.factors import Gradients

Cells = tuple[int, int]
"""Number of clients, and number of examples of each client."""
Terms = Callable[[Tensor, Tensor, Cells], list[Gradients]]
"""Computes gradients of a layer's parameters from the layer's input, the gradient of its output, and the cells (one for
each example of each client).
"""


@dataclass(frozen=True)
class Value:
    """A tensor under vmap.

    Attributes:
        stored: The tensor that holds all examples.
        dims: The dimensions of `stored` that belong to clients and examples, or to examples only. Each entry is an
            index into the dimensions that remain after the dimensions earlier in the tuple have been removed.
        version: Torch's counter of in-place changes at the time of recording.
    """

    stored: Tensor
    dims: tuple[int, ...]
    version: int

    @classmethod
    def of(cls, tensor: Tensor) -> Value:
        """Unwraps a tensor under vmap."""
        dims: list[int] = []
        while is_batchedtensor(tensor):
            dims.insert(0, maybe_get_bdim(tensor))
            tensor = get_unwrapped(tensor)
        return cls(tensor, tuple(dims), tensor._version)  # noqa: SLF001 - torch has no other name for it

    @property
    def changed(self) -> bool:
        """True if the tensor was changed in place since it was recorded."""
        return self.stored._version != self.version  # noqa: SLF001

    def in_front(self, like: Tensor) -> Tensor:
        """Moves the dimensions of clients and examples to the front of a tensor that has the shape of `stored`."""
        for position, dim in enumerate(self.dims):
            like = like.movedim(position + dim, position)
        return like.detach()


@dataclass(frozen=True)
class Call:
    """One call of a layer.

    Attributes:
        names: Names of its weight and, if it has one, its bias; empty for a parameter without a gradient.
        input: Its input.
        output: Its output.
        terms: Computes the gradients of weight and bias.
    """

    names: tuple[str, ...]
    input: Value
    output: Value
    terms: Terms

    def gradients(self, output: Tensor, cells: Cells) -> list[tuple[str, Gradients]]:
        """Returns this call's term in the gradients of each parameter, from the gradient of the stored output."""
        gradients = self.terms(self.input.in_front(self.input.stored), self.output.in_front(output), cells)
        # not strict: a layer may have no bias, and a frozen parameter has no name
        return [(name, gradient) for name, gradient in zip(self.names, gradients, strict=False) if name]
