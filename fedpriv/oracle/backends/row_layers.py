"""Computes layers for a batch without vmap: the layers that `Recording` records, and layers with a copy of their
weights for each example.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import disable_saved_tensors_hooks
from torch.nn import functional

from fedpriv.models.nested import Nested, first_leaf, list_leaves
from fedpriv.oracle.backends import row_operations
from fedpriv.oracle.backends.batched_forward import BatchedForward, MixingRowsError, Operation
from fedpriv.oracle.backends.calls import Call
from fedpriv.oracle.backends.functional import Functional

_RECURRENT = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)


def _require(condition: bool) -> None:
    if not condition:
        raise MixingRowsError("a layer's arguments are not known to keep examples apart")


def _weights(mode: BatchedForward, *weights: Tensor | None) -> bool:
    """Returns True if the weights are trained. The weights of a layer must be all trained or all constant."""
    trained = [mode.is_trained(weight) for weight in weights if weight is not None]
    _require(all(trained) or all(weight is None or mode.is_constant(weight) for weight in weights))
    return all(trained)


def _recorded(mode: BatchedForward, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    output = mode.recorded(func, args, kwargs)
    _require(output is not None)
    return mode.rows(output)


def _layer(least: int) -> Operation:
    """Returns the replacement for a layer with input, weight and bias; the input has at least `least` dimensions."""

    def operation(mode: BatchedForward, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
        x, weight = args[:2]
        offset = row_operations.get_argument(args, kwargs, 2, "bias")
        _require(mode.is_rows(x) and x.dim() >= least)
        if _weights(mode, weight, offset):
            return _recorded(mode, func, args, kwargs)
        return mode.rows(func(*args, **kwargs))

    return operation


def _embedding(mode: BatchedForward, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
    index, weight = args[:2]
    trained = _weights(mode, weight)
    # a norm to which rows are scaled is written into the weight
    _require(len(args) < 4 or args[3] is None)
    if mode.is_constant(index) and not trained:
        return mode.constant(func(*args, **kwargs))
    if mode.is_constant(index):
        # positions are the same for all examples, but their gradients are not
        output = mode.recorded(func, (index.expand(mode.count, *index.shape), *args[1:]), kwargs)
        _require(output is not None)
        return mode.looked_up(output)
    _require(mode.is_rows(index))
    if not trained:
        return mode.rows(func(*args, **kwargs))
    return _recorded(mode, func, args, kwargs)


def _embedding_bag(
    mode: BatchedForward, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:  # noqa: ANN401
    _require(all(mode.is_rows(value) or mode.is_trained(value) for value in args if isinstance(value, Tensor)))
    _require(not any(isinstance(value, Tensor) and not mode.is_rows(value) for value in kwargs.values()))
    return _recorded(mode, func, args, kwargs)


def _addmm(mode: BatchedForward, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
    offset, x, weight = args
    _require(mode.is_rows(x) and not kwargs)
    if _weights(mode, offset, weight):
        return _recorded(mode, func, args, kwargs)
    return mode.rows(func(*args))


def _recurrent(mode: BatchedForward, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
    x, state, weights, *options, batch_first = args
    _require(isinstance(weights, (tuple, list)) and batch_first is True and x.dim() == 3 and not kwargs)
    _, _, dropout, train, _ = options
    _require(mode.is_rows(x) and not (train and dropout))
    states = state
    if not isinstance(state, (tuple, list)):
        states = (state,)
    _require(all(mode.is_state(first) for first in states))
    _require(all(mode.is_trained(weight) or mode.is_constant(weight) for weight in weights))
    output = mode.recorded(func, args, kwargs)
    _require(output is not None)
    mode.rows(output[0])
    mode.states(*output[1:])
    return output


def _layer_norm(mode: BatchedForward, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
    names = ("input", "normalized_shape", "weight", "bias", "eps")
    x, shape, weight, bias, eps = _bound(names, args, kwargs, (None, None, None, None, 1e-5))
    _require(mode.is_rows(x) and len(shape) < x.dim())
    if not _weights(mode, weight, bias):
        return mode.rows(func(*args, **kwargs))
    output = functional.layer_norm(x, shape, None, None, eps)
    singles = (1,) * (x.dim() - 1 - len(shape))
    if weight is not None:
        output = output * mode.copy(weight).unflatten(0, (-1, *singles))
    if bias is not None:
        output = output + mode.copy(bias).unflatten(0, (-1, *singles))
    return mode.rows(output)


def _group_norm(mode: BatchedForward, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
    """Computes many examples, each with a copy of the weights, as one example with more channels and groups."""
    names = ("input", "num_groups", "weight", "bias", "eps")
    x, groups, weight, bias, eps = _bound(names, args, kwargs, (None, None, None, None, 1e-5))
    _require(mode.is_rows(x) and x.dim() >= 3)
    if not _weights(mode, weight, bias) or (weight is None and bias is None):
        return mode.rows(func(*args, **kwargs))
    if weight is None or bias is None:
        raise MixingRowsError("group normalization with only one of weight and bias")
    weights, biases = mode.copy(weight).flatten(), mode.copy(bias).flatten()
    folded = x.flatten(2).flatten(0, 1).unsqueeze(0)
    return mode.rows(torch.group_norm(folded, groups * mode.count, weights, biases, eps).view(x.shape))


def _attention(mode: BatchedForward, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
    defaults = (None, None, None, None, 0.0, False, None, False)
    query, key, value, mask, dropout, causal, scale, grouped = _bound(names, args, kwargs, defaults)
    _require(all(mode.is_rows(tensor) and tensor.dim() == query.dim() >= 3 for tensor in (query, key, value)))
    _require(dropout == 0)
    if mask is not None:
        of_rows = mode.is_rows(mask) and mask.dim() == query.dim()
        alone = mode.is_constant(mask) and (mask.dim() < query.dim() or mask.shape[0] == 1)
        _require(of_rows or alone)
    options: dict[str, Any] = {"is_causal": causal, "scale": scale, "enable_gqa": grouped}
    return mode.rows(functional.scaled_dot_product_attention(query, key, value, mask, **options))


def _bound(
    names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any], defaults: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Returns a call's arguments in the order of their names."""
    values = dict(zip(names, defaults, strict=True)) | dict(zip(names, args, strict=False)) | kwargs
    _require(len(values) == len(names))
    return tuple(values.values())


OPERATIONS: dict[object, Operation] = {
    **row_operations.OPERATIONS,
    functional.linear: _layer(2),
    functional.conv1d: _layer(3),
    functional.conv2d: _layer(4),
    functional.embedding: _embedding,
    functional.embedding_bag: _embedding_bag,
    functional.layer_norm: _layer_norm,
    functional.group_norm: _group_norm,
    functional.scaled_dot_product_attention: _attention,
    torch.addmm: _addmm,
    **dict.fromkeys(_RECURRENT, _recurrent),
}
"""The replacement of each torch function that a model may call."""


def compute_row_outputs(
    model: Functional,
    params: Mapping[str, Tensor],
    x: Nested,
    calls: list[Call],
    keep: Callable[[Tensor], Tensor],
) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns a model's outputs for a batch, each row computed from the same row of the inputs alone.

    Args:
        model: The model.
        params: Its trainable parameters, which require gradients.
        x: The batch, `[b, ...]`.
        calls: The list to which recorded calls are appended.
        keep: See `Recording`.

    Returns:
        The outputs, and `BatchedForward.copies`.

    Raises:
        MixingRowsError: If the model is not known to keep the rows of a batch apart.
    """
    buffers = model.buffers()
    constants = [*buffers.values(), *model.frozen]
    mode = BatchedForward(params, constants, list_leaves(x), len(first_leaf(x)), calls, keep, OPERATIONS)
    with disable_saved_tensors_hooks("a hook on saved tensors would receive all examples"), mode:
        outputs = model.outputs(params, x, buffers)
    if not mode.is_rows(outputs):
        raise MixingRowsError("the model does not return a tensor with one row per example")
    return outputs, mode.copies


def keeps_rows_apart(model: Functional, row: Tensor, x: Nested) -> bool:
    """Returns True if all operations of a model on a batch are known to keep its rows apart.

    In that case an example's output is the same in any batch as alone.

    Args:
        model: The model.
        row: Its trainable parameters, `[dim]`.
        x: A batch, `[b, ...]`.
    """
    params = {name: leaf.requires_grad_() for name, leaf in model.unflatten(row.detach()).items()}
    try:
        with torch.enable_grad():
            compute_row_outputs(model, params, x, [], lambda tensor: tensor)
    except Exception:  # errors of models that compute with hidden sizes, and `MixingRowsError`
        return False
    return True
