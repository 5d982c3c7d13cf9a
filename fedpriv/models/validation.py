"""Finds layers that are known to mix examples, before data are read, and replaces them.

All other layers are tested on examples; see `fedpriv.oracle.validation`.
"""

from __future__ import annotations

import warnings
from math import gcd

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from fedpriv.errors import ConfigError
from fedpriv.models.copies import copy_module
from fedpriv.models.known_code import is_torch_script
from fedpriv.settings.checks import validate_arguments

# the private bases, since they cover the synchronised and lazy variants too
_BATCH_NORM = nn.modules.batchnorm._BatchNorm  # noqa: SLF001
_INSTANCE_NORM = nn.modules.instancenorm._InstanceNorm  # noqa: SLF001
_GROUPS = 32  # largest number of groups, as in the paper on group normalisation (Wu and He, 2018)


@validate_arguments("validate_model")
def validate_model(model: nn.Module) -> None:
    """Raises for models that no private run can use, as far as is known without data; a run then tests the model.

    These are models with normalisation over the batch, with running statistics or weights that a forward pass changes,
    with parameters that are complex or have no shape yet, or with gradients that are sparse or count words; models
    without a trainable parameter; and models of TorchScript. A BatchNorm in eval mode is a fixed map of each example
    and is accepted.

    Raises:
        ConfigError: If there is such a layer; the message names the first one by its path, and the fix.
    """
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            fix = (
                "is a lazy parameter, which has no shape yet: call the model once on an example before you pass it to "
                "clients"
            )
            raise ConfigError(f"model.{name}", type(parameter).__name__, fix)
    for path, layer in model.named_modules():
        reason = _explain_unfit_layer(layer)
        if reason:
            raise ConfigError(f"model.{path}" if path else "model", type(layer).__name__, reason)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        fix = "has no trainable parameter: set requires_grad=True for the parameters to train"
        raise ConfigError("model", type(model).__name__, fix)
    for name, parameter in model.named_parameters():
        if parameter.is_complex():
            fix = (
                "must be real, but is complex: store torch.view_as_real of it, and use torch.view_as_complex in forward"
            )
            raise ConfigError(f"model.{name}", str(parameter.dtype), fix)


@validate_arguments("shipped")
def check_released_buffers(model: nn.Module) -> list[str]:
    """Returns a warning about the model's buffers, which are released without noise; empty if it has none."""
    names = [name for name, _ in model.named_buffers()]
    if not names:
        return []
    return [
        f"the model has buffers ({', '.join(names)}) that are released unchanged with it and that epsilon does "
        "not cover: take their values from public knowledge, not from private data"
    ]


@validate_arguments("fix_model")
def fix_model(model: nn.Module) -> nn.Module:
    """Returns a copy of `model` that `validate_model` accepts.

    An InstanceNorm loses its running statistics, which changes nothing in training mode. A BatchNorm is replaced with a
    new GroupNorm. The result is **another model** with other outputs, so this raises a Python warning. Frozen layers
    stay frozen.

    Raises:
        ConfigError: If there is no replacement for a layer.
    """
    fixed = copy_module(model)
    unfit = [
        (path, layer)
        for path, layer in fixed.named_modules()
        if _normalizes_over_batch(layer) or _has_running_statistics(layer)
    ]
    for path, layer in unfit:
        replacement = _replacement(layer, path)
        if not path:
            return replacement
        parent, _, name = path.rpartition(".")
        fixed.get_submodule(parent).register_module(name, replacement)
    return fixed


def _explain_unfit_layer(layer: nn.Module) -> str | None:
    """Returns the reason why no private run can use a layer, and the fix; None if it can."""
    if type(layer).__module__.startswith("opacus.grad_sample"):
        return (
            "it is a wrapper of Opacus, whose hooks fedpriv does not use: pass the model that you passed to "
            "make_private, or model.to_standard_module()"
        )
    if is_torch_script(layer):
        return (
            "it is TorchScript, so fedpriv cannot check whether its layers mix examples: pass the module from "
            "which it was scripted or traced, after load_state_dict(scripted.state_dict()) to restore the weights"
        )
    if _normalizes_over_batch(layer):
        why = "it normalises over the batch, but fedpriv computes each example alone, with and without privacy. "
        group_norm = (
            "a GroupNorm, which changes the model; fedpriv.models.fix_model(model) does it (command line: --fix-model)"
        )
        if "running_mean" not in dict(layer.named_buffers()):
            return f"{why}It has no running statistics, so .eval() would not change this: replace it by {group_norm}"
        return (
            f"{why}If its running statistics are public, call .eval() on it, which keeps them and its weights; "
            f"otherwise, replace it by {group_norm}"
        )
    if _has_running_statistics(layer):
        return (
            "it stores running statistics of the data, which would be released without noise; set "
            "track_running_stats=False, or call fedpriv.models.fix_model(model) (command line: --fix-model), which "
            "changes nothing else"
        )
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.max_norm is not None:
        return "it rescales the weights of the words that occur, which reveals what the data contain; set max_norm=None"
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.scale_grad_by_freq and layer.weight.requires_grad:
        return "it divides gradients by the number of examples with the same word; set scale_grad_by_freq=False"
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.sparse and layer.weight.requires_grad:
        return (
            "its gradients are sparse, but parameters need dense gradients; set sparse=False, which changes "
            "nothing else"
        )
    return None


def _normalizes_over_batch(layer: nn.Module) -> bool:
    """Returns True if a layer normalises over the batch."""
    return isinstance(layer, _BATCH_NORM) and (layer.training or layer.running_mean is None)


def _has_running_statistics(layer: nn.Module) -> bool:
    """Returns True if a layer has running statistics of single examples."""
    return isinstance(layer, _INSTANCE_NORM) and (layer.track_running_stats or layer.running_mean is not None)


def _replacement(layer: nn.Module, path: str) -> nn.Module:
    """Returns the layer that replaces one that mixes examples or has running statistics."""
    if isinstance(layer, _INSTANCE_NORM):
        layer.track_running_stats = False
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            layer.register_buffer(name, None)
        return layer
    assert isinstance(layer, _BATCH_NORM)
    if type(layer).__module__.partition(".")[0] != "torch":
        raise ConfigError(
            f"model.{path}",
            type(layer).__name__,
            "has no known replacement: replace this layer yourself, e.g. by a GroupNorm",
        )
    # groups of one number are all zero after normalising, so a layer that may see [n, features] gets one group
    if isinstance(layer, nn.BatchNorm1d):
        groups = 1
    else:
        groups = gcd(_GROUPS, layer.num_features)
    norm = nn.GroupNorm(groups, layer.num_features, affine=layer.affine)
    for new, old in zip(norm.parameters(), layer.parameters(), strict=True):
        new.requires_grad_(old.requires_grad)
    warnings.warn(
        f"model.{path}, a {type(layer).__name__}, was replaced by a new GroupNorm: the outputs of the model change, "
        "and pretrained weights may not fit the new layer",
        stacklevel=4,  # past `validate_arguments`
    )
    like = next((t for t in (*layer.parameters(), *layer.buffers()) if t.is_floating_point()), torch.empty(0))
    return norm.to(like.device, like.dtype).train(layer.training)
