"""Operations that compute each row of a batch from the same row alone, with checks that their arguments allow this."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fedpriv.oracle.backends.batched_forward import BatchedForward, BatchSize, MixingRowsError, Operation


def _require(condition: bool) -> None:
    if not condition:
        raise MixingRowsError("an operation's arguments are not known to keep examples apart")


def get_argument(
    args: tuple[Any, ...], kwargs: dict[str, Any], position: int, name: str, default: object = None
) -> Any:  # noqa: ANN401
    """Returns an argument of a call, passed by position or by name."""
    if len(args) > position:
        return args[position]
    return kwargs.get(name, default)


def _given_sizes(args: tuple[Any, ...]) -> Sequence[Any]:
    """Returns the sizes or dimensions after a tensor, passed as one sequence or as separate arguments."""
    if len(args) == 2 and isinstance(args[1], (tuple, list)):
        return args[1]
    return args[1:]


def _tensors(values: Sequence[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _tensors(value)
        else:
            _require(not isinstance(value, BatchSize))


def _applied_to_rows(check: Operation) -> Operation:
    """Wraps an operation on rows; if all arguments are constant, torch's function is called instead."""

    def operation(mode: BatchedForward, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
        has_rows = False
        has_copies = False
        for tensor in _tensors((*args, *kwargs.values())):
            if mode.is_rows(tensor):
                has_rows = True
            elif mode.has_copies(tensor):
                has_copies = True
            else:
                _require(mode.is_constant(tensor))
        if not has_rows and not has_copies:
            return mode.constant(func(*args, **kwargs))
        _require(has_rows)
        return mode.rows(check(mode, func, args, kwargs))

    return operation


def _aligned(mode: BatchedForward, value: Any, dims: int) -> Any:  # noqa: ANN401
    """Returns a tensor whose dimensions broadcast with rows of `dims` dimensions in the same way as for a single
    example.
    """
    if not isinstance(value, Tensor):
        return value
    if mode.is_constant(value):
        _require(value.dim() < dims or (value.dim() == dims and value.shape[0] == 1))
        return value
    if mode.has_copies(value):
        value = mode.copy(value)
        if value.dim() == dims + 1:  # a parameter with a first dimension of 1, as for a single example
            _require(value.shape[1] == 1)
            return value.squeeze(1)
    missing = dims - value.dim()
    _require(missing >= 0)
    if missing == 0:
        return value
    return value.reshape(len(value), *(1,) * missing, *value.shape[1:])


def _elementwise(mode: BatchedForward, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
    _require("out" not in kwargs and (func is not torch.where or len(args) == 3))
    dims = max(tensor.dim() for tensor in _tensors((*args, *kwargs.values())) if mode.is_rows(tensor))
    aligned = [_aligned(mode, value, dims) for value in args]
    return func(*aligned, **{name: _aligned(mode, value, dims) for name, value in kwargs.items()})


def _first_argument(mode: BatchedForward, args: tuple[Any, ...]) -> Tensor:
    """Returns the first argument, the only one that is a tensor."""
    _require(bool(args) and mode.is_rows(args[0]) and len([*_tensors(args[1:])]) == 0)
    return args[0]


def _check_example_dimensions(dims: object, count: int) -> None:
    """Raises `MixingRowsError` if one of the given dimensions of a tensor with `count` dimensions is the dimension of
    examples.
    """
    if not isinstance(dims, (tuple, list)):
        dims = (dims,)
    for dim in dims:
        _require(type(dim) is int and -count <= dim < count and dim % count != 0)


def _make_dimension_operation(position: int, extra: int = 0, names: tuple[str, ...] = ("dim",)) -> Operation:
    """Returns an operation along the dimensions in the given argument; the result has `extra` more dimensions."""

    def check(mode: BatchedForward, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
        x = _first_argument(mode, args)
        dims = [kwargs[name] for name in names if name in kwargs] + [*args[position : position + 1]]
        _require(len(dims) == 1)
        _check_example_dimensions(dims[0], x.dim() + extra)
        return func(*args, **kwargs)

    return check


def _mean(mode: BatchedForward, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
    """Computes a mean as a sum divided by the number of terms. It is rounded as in torch on a CPU, but its gradient
    needs less memory.
    """
    x = _first_argument(mode, args)
    dims = get_argument(args, kwargs, 1, "dim")
    _check_example_dimensions(dims, x.dim())
    if x.dtype not in (torch.float32, torch.float64) or x.device.type != "cpu" or {*kwargs} - {"dim", "keepdim"}:
        return func(*args, **kwargs)
    sums = x.sum(*args[1:], **kwargs)
    return sums / (x.numel() // max(sums.numel(), 1))


def _transpose(mode: BatchedForward, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
    x = _first_argument(mode, args)
    _require(len(args) == 3 and not kwargs)
    _check_example_dimensions(args[1:], x.dim())
    return func(*args)


def _permute(mode: BatchedForward, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
    x = _first_argument(mode, args)
    dims = _given_sizes(args)
    _require(len(dims) == x.dim() and not kwargs and dims[0] == 0)
    return func(*args)


def _flatten(mode: BatchedForward, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
    x = _first_argument(mode, args)
    start = get_argument(args, kwargs, 1, "start_dim", 0)
    _check_example_dimensions(start, max(x.dim(), 2))
    return func(*args, **kwargs)


def _reshape(mode: BatchedForward, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
    """Reshapes rows, which remain rows if their number is unchanged."""
    _require(mode.is_rows(args[0]) and not kwargs)
    shape = _given_sizes(args)
    sizes = [mode.count if isinstance(size, BatchSize) else size for size in shape]
    _require(bool(sizes) and (isinstance(shape[0], BatchSize) or shape[0] == -1))
    _require(all(type(size) is int for size in sizes))
    return mode.rows(func(args[0], sizes))


def _expand(mode: BatchedForward, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
    _require(mode.is_rows(args[0]) and not kwargs)
    shape = _given_sizes(args)
    _require(len(shape) == args[0].dim() and (isinstance(shape[0], BatchSize) or shape[0] == -1))
    _require(all(type(size) is int for size in shape[1:]))
    return mode.rows(func(args[0], [-1, *shape[1:]]))


def _join(new: int) -> Operation:
    """Returns the operation for `cat` or, with a new dimension, `stack`."""

    def check(mode: BatchedForward, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
        tensors = args[0]
        _require(isinstance(tensors, (tuple, list)) and all(mode.is_rows(tensor) for tensor in tensors))
        dim = get_argument(args, kwargs, 1, "dim", 0)
        _check_example_dimensions(dim, tensors[0].dim() + new)
        return func(*args, **kwargs)

    return check


def _index(mode: BatchedForward, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
    """Indexes dimensions after the first with numbers and slices, with all examples selected."""
    x, index = args
    if mode.is_state(x):
        _require(type(index) is int)
        return mode.rows(func(x, index))
    if mode.is_constant(x):
        _require(len([*_tensors(args[1:])]) == 0)
        return mode.constant(func(x, index))
    _require(mode.is_rows(x) and not kwargs)
    parts = index
    if not isinstance(index, tuple):
        parts = (index,)
    _require(all(part is None or part is ... or isinstance(part, slice) or type(part) is int for part in parts))
    bounds = [b for part in parts if isinstance(part, slice) for b in (part.start, part.stop, part.step)]
    _require(not any(isinstance(bound, (BatchSize, Tensor)) for bound in bounds))
    if parts[0] is ...:
        _require(sum(part is not None and part is not ... for part in parts) < x.dim())
    else:
        _require(isinstance(parts[0], slice) and parts[0] == slice(None))
    return mode.rows(func(x, index))


def _pooling(dims: int) -> Operation:
    def check(mode: BatchedForward, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
        _require(_first_argument(mode, args).dim() == dims)
        return func(*args, **kwargs)

    return check


def _pad(mode: BatchedForward, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
    x = _first_argument(mode, args)
    pad = get_argument(args, kwargs, 1, "pad")
    _require(len(pad) <= 2 * (x.dim() - 1))
    return func(*args, **kwargs)


def _product(mode: BatchedForward, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
    left, right = args
    both = mode.is_rows(left) and mode.is_rows(right) and left.dim() == right.dim() >= 3
    into_rows = mode.is_rows(left) and mode.is_constant(right) and left.dim() >= 2 == right.dim()
    _require((both or into_rows) and not kwargs)
    return func(left, right)


def _dropout(mode: BatchedForward, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
    """Returns the input if dropout is off. Models with active dropout are left to vmap, so that their random draws do
    not change.
    """
    _require(not dict(zip(("p", "training"), args[1:], strict=False), **kwargs).get("training", True))
    return _elementwise(mode, func, args, kwargs)


def _getter(mode: BatchedForward, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
    """Returns properties that are the same for every batch: type, device, number of dimensions."""
    return func(*args, **kwargs)


def _shape(mode: BatchedForward, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
    """Returns sizes, with the number of examples hidden."""
    x, *dims = args
    dims = [*dims, *kwargs.values()]
    if mode.is_constant(x) or mode.is_trained(x):
        return func(*args, **kwargs)
    _require(mode.is_rows(x) or mode.is_state(x))
    sizes: list[int] = list(x.shape)
    if mode.is_rows(x):
        sizes[0] = mode.size
    else:
        sizes[1] = mode.size
    if not dims or dims[0] is None:
        return tuple(sizes)
    return sizes[dims[0]]


def _flag(mode: BatchedForward, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
    """Computes `all` or `any` over the values of each example, with one flag for each example."""
    if mode.is_constant(args[0]):
        return mode.constant(func(*args, **kwargs))
    _require(mode.is_rows(args[0]) and len(args) == 1 and not kwargs)
    flags = args[0].reshape(mode.count, -1)
    return mode.rows(func(flags, 1))


def _truth(mode: BatchedForward, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
    if mode.is_constant(args[0]):
        return func(*args)
    _require(mode.is_rows(args[0]) and args[0].dim() == 1)
    # in bfloat16, a different batch size rounds so differently that one example could change the others
    _require(not torch.is_autocast_enabled(args[0].device.type))
    return mode.decide(args[0])


def _create(mode: BatchedForward, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
    """Creates constants and the initial states of recurrent layers, `[layers, b, width]`."""
    if func is torch.zeros and len(args) == 3 and isinstance(args[1], BatchSize):
        states = func(args[0], mode.count, args[2], **kwargs)
        mode.states(states)
        return states
    tensors = [*_tensors((*args, *kwargs.values()))]
    _require(not tensors)
    return mode.constant(func(*args, **kwargs))


def _named(operation: Operation, names: str) -> dict[object, Operation]:
    """Maps the functions with these names in torch, its tensors and `torch.nn.functional` to the operation."""
    owners = (torch, Tensor, functional)
    return {getattr(owner, name): operation for name in names.split() for owner in owners if hasattr(owner, name)}


def _matrix_transpose(
    mode: BatchedForward, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:  # noqa: ANN401
    _require(_first_argument(mode, args).dim() >= 3)
    return func(*args, **kwargs)


def _converted(mode: BatchedForward, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
    _first_argument(mode, args)
    return func(*args, **kwargs)


_ELEMENTWISE = """relu gelu silu elu leaky_relu softplus selu hardtanh relu6 hardswish mish logsigmoid tanh sigmoid exp
log sqrt rsqrt abs neg square sin cos erf float double half bfloat16 long int bool contiguous clone detach type_as
zeros_like ones_like add sub mul div pow maximum minimum where masked_fill clamp clamp_min clamp_max lerp eq ne lt le gt
ge logical_and logical_or logical_not __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__
__rdiv__ __pow__ __neg__ __abs__ __and__ __or__ __invert__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__"""
_GETTERS = ("dtype", "device", "ndim", "is_cuda", "is_nested", "is_sparse", "layout", "requires_grad")
_ALONG = "softmax log_softmax sum prod amax amin logsumexp cumsum std var unbind squeeze select narrow unflatten"
_FACTORIES = (torch.arange, torch.zeros, torch.ones, torch.full, torch.eye, torch.linspace, torch.tensor)

OPERATIONS: dict[object, Operation] = {
    **_named(_applied_to_rows(_elementwise), _ELEMENTWISE),
    **_named(_applied_to_rows(_make_dimension_operation(1)), _ALONG),
    **_named(_applied_to_rows(_mean), "mean"),
    **_named(_applied_to_rows(_make_dimension_operation(1, extra=1)), "unsqueeze"),
    **_named(_applied_to_rows(_make_dimension_operation(2)), "split chunk"),
    **_named(_applied_to_rows(_make_dimension_operation(1, names=("dimension",))), "unfold"),
    **_named(_applied_to_rows(_transpose), "transpose swapaxes"),
    **_named(_applied_to_rows(_permute), "permute"),
    **_named(_applied_to_rows(_flatten), "flatten"),
    **_named(_applied_to_rows(_join(0)), "cat"),
    **_named(_applied_to_rows(_join(1)), "stack"),
    **_named(_applied_to_rows(_pooling(3)), "max_pool1d avg_pool1d adaptive_avg_pool1d adaptive_max_pool1d"),
    **_named(_applied_to_rows(_pooling(4)), "max_pool2d avg_pool2d adaptive_avg_pool2d adaptive_max_pool2d"),
    **_named(_applied_to_rows(_pad), "pad"),
    **_named(_applied_to_rows(_product), "matmul bmm __matmul__"),
    **_named(_applied_to_rows(_dropout), "dropout dropout1d dropout2d"),
    **_named(_reshape, "reshape view"),
    **_named(_expand, "expand"),
    **_named(_flag, "all any"),
    **_named(_getter, "dim is_floating_point"),
    **_named(_shape, "size"),
    **{getattr(Tensor, name).__get__: _getter for name in _GETTERS},
    **dict.fromkeys(_FACTORIES, _create),
    Tensor.shape.__get__: _shape,  # pyright: ignore[reportAttributeAccessIssue]
    Tensor.__bool__: _truth,
    Tensor.__getitem__: _index,
    Tensor.mT.__get__: _applied_to_rows(_matrix_transpose),  # pyright: ignore[reportAttributeAccessIssue]
    Tensor.to: _applied_to_rows(_converted),
}
"""The replacement of each torch function, except for layers (see `row_layers`)."""
