"""A user's function of one example, applied to each example of a batch.

The function is called once for each shape of examples, on zeros, and its torch operations are recorded. The examples
themselves pass through the recorded operations only, each by itself under vmap. So no example can reach another
one, whatever the function remembers: the function never receives an example.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from fedpriv.errors import ConfigError, summarize_error
from fedpriv.models.batching import vmap
from fedpriv.models.nested import Nested

_FORM = (
    "must compute its answer for one example with torch operations: without if, loops over values, random numbers, "
    "numpy and item(), and without changing tensors of its own"
)


def apply_to_each(function: Callable[[Any, Any], Tensor], inputs: Nested, targets: Nested, field: str) -> Tensor:
    """Returns the answer for each example of a batch, `[b]`.

    Guarantee: an answer depends on its example only.

    Args:
        function: Maps inputs and targets of one example, in a batch of one, to True or False in a tensor.
        inputs: Inputs of a batch, `[b, ...]`.
        targets: Targets of the batch, `[b, ...]`.
        field: Name of the function's setting in errors.

    Raises:
        ConfigError: If the function does not consist of torch operations on one example, or returns something else. The
            error depends on the shapes of the examples only.
    """
    leaves, structure = tree_flatten((inputs, targets))
    kinds = tuple((tuple(leaf.shape[1:]), leaf.dtype, leaf.device) for leaf in leaves)
    try:
        recorded = _record(function, structure, kinds)
        answers = vmap(recorded)(*(leaf.unsqueeze(1) for leaf in leaves))
    except Exception as error:
        raise ConfigError(field, _name(function), f"{_FORM} ({summarize_error(error)})") from error
    if not isinstance(answers, Tensor) or answers.dtype != torch.bool or answers.numel() != len(leaves[0]):
        raise ConfigError(field, _name(function), f"{_FORM}; the answer must be one value, True or False")
    return answers.flatten()


@lru_cache(maxsize=64)
def _record(
    function: Callable[[Any, Any], Tensor],
    structure: Any,  # noqa: ANN401 - torch's description of a tree
    kinds: tuple[tuple[tuple[int, ...], torch.dtype, torch.device], ...],
) -> Callable[..., Any]:
    """Returns the operations of a function as a function of the tensors of one example, each `[1, ...]`."""
    from torch.fx.experimental.proxy_tensor import make_fx  # imported here: few runs need it, and it takes a second

    def of_leaves(*leaves: Tensor) -> Tensor:
        return function(*tree_unflatten(leaves, structure))

    zeros = [torch.zeros(1, *shape, dtype=dtype, device=device) for shape, dtype, device in kinds]
    return make_fx(of_leaves, tracing_mode="fake", _allow_non_fake_inputs=True)(*zeros)


def _name(function: object) -> str:
    return getattr(function, "__name__", type(function).__name__)
