"""Records the calls of linear, convolution and embedding layers in a forward pass, to obtain the factors of their
weights' gradients.

Vmap tracks the dimension of the examples, so it need not be guessed from shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fedpriv.oracle.backends.attention import WRITTEN_OUT, fused_attention
from fedpriv.oracle.backends.calls import Call, Cells, Terms, Value
from fedpriv.oracle.backends.cells import cell_functions
from fedpriv.oracle.backends.factors import Convolved, Dense, Gradients, Integers, OuterProducts, widen_to_float32
from fedpriv.oracle.backends.recurrent import RecurrentRecorder
from fedpriv.oracle.backends.tables import few_rows


class DivergingExamplesError(Exception):
    """Raised when a model branches on a value that is true for some examples and false for others, so that they cannot
    share a batch.

    Attributes:
        flags: True for the examples that take the branch, in their order.
    """

    def __init__(self, flags: Tensor) -> None:
        super().__init__("the model branches on values of single examples")
        self.flags = flags


class Recording(TorchFunctionMode):
    """A context that records the calls of layers if their weights are parameters of the model.

    Other calls, and layers with weights that are computed from parameters, are executed as usual. Attention with
    dropout is replaced by elementary operations.

    Args:
        own: The parameters with which the model is called, by name; each has one copy for each example.
        shared: The same parameters, with one value for all examples of a client. Recorded calls use these instead of
            the copies.
        calls: The list to which recorded calls are appended.
        levels: Number of nested vmaps: over examples, or over clients and examples, and in addition over views.
        example_levels: Number of nested vmaps without the vmap over views.
        keep: Returns the tensor to record and to pass to the model: the tensor itself or, for models that change
            tensors in place, a copy.
    """

    def __init__(
        self,
        copies: Mapping[str, Tensor],
        shared: Mapping[str, Tensor],
        calls: list[Call],
        levels: int,
        example_levels: int,
        keep: Callable[[Tensor], Tensor],
    ) -> None:
        super().__init__()
        self._names = {id(tensor): name for name, tensor in copies.items()}
        self._shared = shared
        self._calls = calls
        self._levels = levels
        self._example_levels = example_levels
        self._keep = keep
        self._recurrent: dict[object, Callable[..., object]] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        """Records the layer and returns its output, or calls the function."""
        replacement = self._replacement(func)
        if replacement is not None:
            output = replacement(*args, **(kwargs or {}))
            if output is not None:
                return output
        return func(*args, **(kwargs or {}))

    def __exit__(self, *error: Any) -> None:  # noqa: ANN401 - as torch types it
        """Drops references to functions that are methods of this object.

        These references form a cycle, which would keep the activations of a forward pass in memory until Python's
        garbage collector runs.
        """
        super().__exit__(*error)
        self._recurrent.clear()

    def _replacement(self, func: object) -> Callable[..., Any] | None:
        """Returns the function that records or replaces calls of a torch function; None if there is none."""
        method = _METHODS.get(func)
        if method is not None:
            return partial(method, self)
        if func in _RECURRENT:
            if not self._recurrent:
                recorder = RecurrentRecorder(self._names, self._shared, self._calls, self._levels)
                self._recurrent.update({**cell_functions(self._linear_or_copies), **recorder.functions()})
            return self._recurrent[func]
        return _FUNCTIONS.get(func)

    def _decide(self, condition: Tensor) -> bool | None:
        """Returns the truth value of a condition that is the same for all examples.

        Each example takes the branch that it would take alone. If branches differ, an error is raised and the examples
        are computed separately.
        """
        value = Value.of(condition)
        # in bfloat16, a different batch size rounds so differently that one example could change the others
        if not value.dims or value.stored.numel() == 0 or torch.is_autocast_enabled(value.stored.device.type):
            return None
        flags = value.in_front(value.stored) != 0
        if bool(flags.all()):
            return True
        if not bool(flags.any()):
            return False
        if flags.dim() != self._example_levels or len(value.dims) != self._example_levels:
            return None  # views of one example cannot be computed separately
        raise DivergingExamplesError(flags.flatten())

    def _linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
        return self._record(functional.linear, _linear_gradients, input, weight, bias)

    def _linear_or_copies(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        output = self._linear(input, weight, bias)
        if output is None:
            return functional.linear(input, weight, bias)
        return output

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
        strides = _repeat(stride, dims)
        paddings = _repeat(padding, dims)
        dilations = _repeat(dilation, dims)
        size = tuple(weight.shape[2:])

        def terms(x: Tensor, out: Tensor, cells: Cells) -> list[Gradients]:
            left = _images(widen_to_float32(out), cells, dims)
            right = _images(widen_to_float32(x), cells, dims)
            return [
                Convolved(left, right, size, (strides, paddings, dilations), groups),
                Dense(left.flatten(4).sum((2, 4))),
            ]

        if dims == 1:
            function = functional.conv1d
        else:
            function = functional.conv2d
        return self._record(function, terms, input, weight, bias, strides, paddings, dilations, groups)

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
            return [few_rows(x.reshape(*cells, -1), _positions(widen_to_float32(out), cells), n_rows)]

        if id(weight) in self._names and len(Value.of(input).dims) < self._levels:
            # positions are the same for all examples, their gradients are not
            input = input + torch.zeros_like(weight.flatten()[0], dtype=input.dtype)
        return self._record(lambda x, w, _: functional.embedding(x, w), terms, input, weight, None)

    def _embedding_bag(
        self,
        input: Tensor,
        weight: Tensor,
        offsets: Tensor | None = None,
        max_norm: float | None = None,
        norm_type: float = 2,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        per_sample_weights: Tensor | None = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
    ) -> Tensor | None:
        """Looks up the rows of bags `[m, t]` and sums them."""
        if offsets is not None or input.dim() != 2 or id(weight) not in self._names:
            return None
        options = (max_norm, scale_grad_by_freq, sparse, per_sample_weights, padding_idx)
        if self._levels == 0 and mode != "max" and input.shape[1] and options == (None, False, False, None, None):
            return self._record_bag(input, weight, mode)
        rows = self._embedding(input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
        if rows is None:
            return None
        if per_sample_weights is not None:
            rows = rows * per_sample_weights.unsqueeze(2)
        if padding_idx is None:
            return _pooled(rows, mode)
        return _pooled_without(rows, input == padding_idx % len(weight), mode)

    def _record_bag(self, input: Tensor, weight: Tensor, mode: str) -> Tensor | None:
        """Computes sums or means of bags with torch's operation, in which each row of a bag has the same gradient."""
        positions = input.shape[1]
        n_rows = len(weight)

        def terms(x: Tensor, out: Tensor, cells: Cells) -> list[Gradients]:
            if mode == "mean":
                out = out / positions
            values = _positions(widen_to_float32(out), cells).expand(-1, -1, positions, -1)
            return [few_rows(x.reshape(*cells, positions), values, n_rows)]

        return self._record(lambda x, w, _: functional.embedding_bag(x, w, mode=mode), terms, input, weight, None)

    def _addmm(self, input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor | None:
        """Computes a linear layer with a weight of shape `[inputs, outputs]`, as in Hugging Face's GPT-2."""
        if beta != 1 or alpha != 1 or input.dim() != 1:
            return None

        def terms(x: Tensor, out: Tensor, cells: Cells) -> list[Gradients]:
            right = _positions(out, cells)
            return [OuterProducts(_positions(x, cells), right), Dense(_over_positions(right))]

        return self._record(lambda x, w, b: torch.addmm(b, x, w), terms, mat1, mat2, input)

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
        shared = [self._shared[name] for name in names]
        device = weight.device.type
        if input.is_floating_point() and torch.is_autocast_enabled(device):
            # under vmap torch casts some functions only
            dtype = torch.get_autocast_dtype(device)
            input = input.to(dtype)
            shared = [tensor.to(dtype) for tensor in shared]
        recorded_input = Value.of(self._keep(input))
        output = function(input, shared[0], shared[1] if len(shared) > 1 else None, *options)
        recorded_output = Value.of(output)
        if len(recorded_input.dims) < self._levels or not recorded_output.stored.requires_grad:
            return None  # the same for all examples, or without gradients
        self._calls.append(Call(names, recorded_input, recorded_output, terms))
        return self._keep(output)


# private methods of the class above, bound once for all passes: binding them all takes as long as a small layer
_METHODS: dict[object, Callable[..., object]] = {
    functional.linear: Recording._linear,  # noqa: SLF001
    functional.embedding: Recording._embedding,  # noqa: SLF001
    functional.embedding_bag: Recording._embedding_bag,  # noqa: SLF001
    torch.addmm: Recording._addmm,  # noqa: SLF001
    functional.conv1d: Recording._convolution,  # noqa: SLF001
    functional.conv2d: Recording._convolution,  # noqa: SLF001
    Tensor.__bool__: Recording._decide,  # noqa: SLF001
}
_RECURRENT = {*cell_functions(functional.linear), *RecurrentRecorder({}, {}, [], 0).functions()}
_FUNCTIONS: dict[object, Callable[..., object]] = {
    **WRITTEN_OUT,
    functional.scaled_dot_product_attention: fused_attention,
}


def _linear_gradients(x: Tensor, out: Tensor, cells: Cells) -> list[Gradients]:
    left = _positions(out, cells)
    return [OuterProducts(left, _positions(x, cells)), Dense(_over_positions(left))]


def _pooled(rows: Tensor, mode: str) -> Tensor:
    """Returns the sum, mean or maximum of each bag's rows, `[m, t, d] -> [m, d]`; zeros for an empty bag."""
    if mode == "max" and rows.shape[1]:
        return rows.max(1).values
    if mode == "mean":
        return rows.sum(1) / max(rows.shape[1], 1)
    return rows.sum(1)


def _pooled_without(rows: Tensor, ignored: Tensor, mode: str) -> Tensor:
    """Returns the sum, mean or maximum over the rows that are not ignored, `[m, t, d], [m, t] -> [m, d]`."""
    if mode == "max":
        largest = rows.masked_fill(ignored.unsqueeze(2), -torch.inf).max(1).values
        return largest.masked_fill(ignored.all(1, keepdim=True), 0)
    sums = rows.masked_fill(ignored.unsqueeze(2), 0).sum(1)
    if mode == "mean":
        return sums / (~ignored).sum(1, keepdim=True).clamp_min(1)
    return sums


def _repeat(value: int | Integers, dims: int) -> Integers:
    if isinstance(value, int):
        return (value,) * dims
    return tuple(value) * (dims // len(value))


def _positions(values: Tensor, cells: Cells) -> Tensor:
    """Reshapes `[..., width]` to `[k, b, t, width]`."""
    return values.reshape(*cells, -1, values.shape[-1])


def _over_positions(values: Tensor) -> Tensor:
    """Sums over positions, `[k, b, t, width] -> [k, b, width]`, for the gradient of a bias, rounded as in torch."""
    if values.shape[2] == 1:
        return values.squeeze(2)
    return values.sum(2)


def _images(values: Tensor, cells: Cells, dims: int) -> Tensor:
    """Reshapes `[..., c, *s]` to `[k, b, n, c, *s]`."""
    return values.reshape(*cells, -1, *values.shape[-dims - 1 :])
