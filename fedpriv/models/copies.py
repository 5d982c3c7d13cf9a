"""Copies of modules, also of those that hold tensors which torch does not copy."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import TypeVar

from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.utils._pytree import tree_leaves

T = TypeVar("T")


def copy_module(module: nn.Module, memo: Mapping[int, object] | None = None) -> nn.Module:
    """Returns a deep copy of a module; see `copy_with_modules`."""
    return copy_with_modules(module, [module], memo)


def copy_with_modules(thing: T, modules: list[nn.Module], memo: Mapping[int, object] | None = None) -> T:
    """Returns a deep copy of an object that holds modules.

    Torch copies no tensor that was computed from parameters, such as the weight of `weight_norm` and `prune` or an
    attention map that a layer keeps. In the copy such an attribute is detached; the next forward pass recomputes it.
    Values left behind by a call under `torch.func` are not available outside of it, and become None.

    Args:
        thing: The object.
        modules: The modules in it.
        memo: Replacements of some objects, by their `id`, as for `copy.deepcopy`.
    """
    replaced: dict[int, object] = {}
    for module in modules:
        for tensor in _attributes(module):
            if is_functorch_wrapped_tensor(tensor):
                replaced[id(tensor)] = None
            elif not tensor.is_leaf:
                replaced[id(tensor)] = tensor.detach().clone()
    return copy.deepcopy(thing, {**replaced, **(memo or {})})


def _attributes(module: nn.Module) -> Iterator[Tensor]:
    """Yields the tensors in attributes of a module and of those inside it; not its parameters."""
    for layer in module.modules():
        for name, value in vars(layer).items():
            if name not in ("_parameters", "_modules"):
                yield from (leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor))
