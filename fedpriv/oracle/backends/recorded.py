"""Linear, convolution and embedding layers, recorded in a forward pass: what their weights' gradients are made of.

Vmap says which dimension the examples are in, so nothing is guessed from shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch._C._functorch import get_unwrapped, is_batchedtensor, maybe_get_bdim
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fedpriv.oracle.backends.attention import WRITTEN_OUT
from fedpriv.oracle.backends.factors import Convolved, Dense, FewRows, Gradients, Integers, OuterProducts

Cells = tuple[int, int]
"""Numbers of clients and of examples of each."""
Terms = Callable[[Tensor, Tensor, Cells], list[Gradients]]


@dataclass(frozen=True)
class Value:
    """A tensor under vmap.

    Attributes:
        stored: The tensor that holds all examples.
        dims: Its dimensions of clients and examples, or of examples, each among those left when the ones before it are
            taken away.
        version: How often it had been changed in place.
    """

    stored: Tensor
    dims: tuple[int, ...]
    version: int

    @classmethod
    def of(cls, tensor: Tensor) -> Value:
        """Look below vmap."""
        dims: list[int] = []
        while is_batchedtensor(tensor):
            dims.insert(0, maybe_get_bdim(tensor))
            tensor = get_unwrapped(tensor)
        return cls(tensor, tuple(dims), tensor._version)  # noqa: SLF001 - torch has no other name for it

    @property
    def changed(self) -> bool:
        """Whether it was changed in place since."""
        return self.stored._version != self.version  # noqa: SLF001

    def in_front(self, like: Tensor) -> Tensor:
        """A tensor of the stored one's shape, its dimensions of clients and examples in front."""
        for place, dim in enumerate(self.dims):
            like = like.movedim(place + dim, place)
        return like.detach()


@dataclass(frozen=True)
class Call:
    """One call of a layer.

    Attributes:
        names: Names of its weight and, if it has one, its bias.
        input: What went in.
        output: What came out.
        terms: Makes the weights' gradients of the input, the gradient of the output, and the numbers of clients and
            examples.
    """

    names: tuple[str, ...]
    input: Value
    output: Value
    terms: Terms

    def gradients(self, output: Tensor, cells: Cells) -> list[tuple[str, Gradients]]:
        """Of each of its weights, the term of its gradients, given the gradient of the stored output."""
        found = self.terms(self.input.in_front(self.input.stored), self.output.in_front(output), cells)
        return list(zip(self.names, found, strict=False))  # a layer may have no bias


class Recording(TorchFunctionMode):
    """A context in which calls of layers whose weights are the model's parameters are recorded.

    Calls that are not understood, and weights that are computed from parameters, go their usual way; attention with
    dropout is written out.

    Args:
        own: The parameters that the model is called with, one copy for each example, by name.
        shared: The same parameters, one for all examples of a client, which recorded calls use instead.
        calls: Where calls are recorded.
        levels: How many vmaps there are: over examples, or over clients and examples.
        keep: Records and hands out copies, for models that change tensors in place.
    """

    def __init__(
        self,
        own: Mapping[str, Tensor],
        shared: Mapping[str, Tensor],
        calls: list[Call],
        levels: int,
        keep: Callable[[Tensor], Tensor],
    ) -> None:
        super().__init__()
        self._names = {id(tensor): name for name, tensor in own.items()}
        self._shared, self._calls, self._levels, self._keep = shared, calls, levels, keep
        self._layers: dict[object, Callable[..., object]] = {
            functional.linear: self._linear,
            functional.embedding: self._embedding,
            functional.conv1d: self._convolution,
            functional.conv2d: self._convolution,
            **WRITTEN_OUT,
        }

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        """Record the layer, or call the function."""
        if func in self._layers:
            found = self._layers[func](*args, **(kwargs or {}))
        else:
            found = None
        if found is None:
            return func(*args, **(kwargs or {}))
        return found

    def _linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
        return self._record(functional.linear, _of_linear, input, weight, bias)

    def _convolution(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: int | Integers = 1,
        padding: str | int | Integers = 0,
        dilation: int | Integers = 1,
        groups: int = 1,
    ) -> Tensor | None:
        dims = weight.dim() - 2
        if isinstance(padding, str) or input.dim() != dims + 2:
            return None
        options = _repeat(stride, dims), _repeat(padding, dims), _repeat(dilation, dims)
        size = tuple(weight.shape[2:])

        def terms(x: Tensor, out: Tensor, cells: Cells) -> list[Gradients]:
            left, right = _images(out, cells, dims), _images(x, cells, dims)
            return [Convolved(left, right, size, options, groups), Dense(left.flatten(4).sum((2, 4)))]

        if dims == 1:
            function = functional.conv1d
        else:
            function = functional.conv2d
        return self._record(function, terms, input, weight, bias, *options, groups)

    def _embedding(
        self,
        input: Tensor,
        weight: Tensor,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Tensor | None:
        if max_norm is not None or scale_grad_by_freq or sparse:
            return None
        n_rows = len(weight)

        def terms(x: Tensor, out: Tensor, cells: Cells) -> list[Gradients]:
            if padding_idx is not None:
                out = out.masked_fill((x == padding_idx % n_rows).unsqueeze(-1), 0)
            return [FewRows(x.reshape(*cells, -1), _positions(out, cells), n_rows)]

        return self._record(lambda x, w, _: functional.embedding(x, w), terms, input, weight, None)

    def _record(
        self,
        function: Callable[..., Tensor],
        terms: Terms,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        *options: object,
    ) -> Tensor | None:
        names = tuple(self._names.get(id(tensor), "") for tensor in (weight, bias) if tensor is not None)
        if not all(names):
            return None
        given = Value.of(self._keep(input))
        shared = [self._shared[name] for name in names]
        output = function(input, shared[0], shared[1] if len(shared) > 1 else None, *options)
        made = Value.of(output)
        if len(given.dims) < self._levels or not made.stored.requires_grad:
            return None  # the same for all examples, or without gradients
        self._calls.append(Call(names, given, made, terms))
        return self._keep(output)


def _of_linear(x: Tensor, out: Tensor, cells: Cells) -> list[Gradients]:
    left = _positions(out, cells)
    return [OuterProducts(left, _positions(x, cells)), Dense(left.sum(2))]


def _repeat(value: int | Integers, dims: int) -> Integers:
    if isinstance(value, int):
        return (value,) * dims
    return tuple(value) * (dims // len(value))


def _positions(values: Tensor, cells: Cells) -> Tensor:
    """`[..., width] -> [k, b, t, width]`."""
    return values.reshape(*cells, -1, values.shape[-1])


def _images(values: Tensor, cells: Cells, dims: int) -> Tensor:
    """`[..., c, *s] -> [k, b, n, c, *s]`."""
    return values.reshape(*cells, -1, *values.shape[-dims - 1 :])
