"""Which layers a private run refuses, and what replaces them."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
from torch import nn

from fedpriv.errors import ConfigError

# torch's own layers that treat each example alone and keep nothing
_PLAIN: tuple[type[nn.Module], ...] = (
    nn.Sequential,
    nn.ModuleList,
    nn.Identity,
    nn.Flatten,
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.GroupNorm,
    nn.LayerNorm,
    nn.ReLU,
    nn.Tanh,
    nn.Sigmoid,
    nn.GELU,
    nn.MaxPool2d,
    nn.AvgPool2d,
    nn.AdaptiveAvgPool2d,
    nn.Dropout,
    nn.Embedding,
)

# the private bases, since they cover the synchronised and lazy variants too
_BATCH_NORM = nn.modules.batchnorm._BatchNorm  # noqa: SLF001
_INSTANCE_NORM = nn.modules.instancenorm._InstanceNorm  # noqa: SLF001


def validate_model(model: nn.Module) -> None:
    """Refuse models that private training cannot use.

    These are models with layers that mix examples (BatchNorm), that keep running statistics or that opacus refuses,
    frozen or not, and models without a trainable parameter.

    Raises:
        ConfigError: names the first such layer by its path, and the fix.
    """
    for path, layer in model.named_modules():
        if reason := _why_unfit(layer):
            fix = f"{reason}; replace it, or call fedpriv.models.fix_model(model) (command line: --fix-model)"
            raise ConfigError(f"model.{path}" if path else "model", type(layer).__name__, fix)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        fix = "has no parameter to train; set requires_grad of those that a run should move"
        raise ConfigError("model", type(model).__name__, fix)


def shipped(model: nn.Module) -> list[str]:
    """A warning about the model's buffers, which are released without noise; empty if it has none."""
    names = [name for name, _ in model.named_buffers()]
    if not names:
        return []
    return [
        f"the model has buffers ({', '.join(names)}) that are released with it as they are, not covered by epsilon: "
        "take their values from public knowledge, not from anybody's data"
    ]


def fix_model(model: nn.Module) -> nn.Module:
    """A copy of `model` that `validate_model` accepts: BatchNorm becomes a new GroupNorm, LSTM opacus's DPLSTM, etc.

    Frozen parameters stay frozen.

    Raises:
        ConfigError: opacus has no replacement for a layer, or the replacement of a partly frozen layer has other
            parameters.
    """
    fixed = copy.deepcopy(model)
    unfit = [(path, layer) for path, layer in fixed.named_modules() if _why_unfit(layer)]
    for path, layer in unfit:
        replacement = _replacement(layer, path)
        if not path:
            return replacement
        parent, _, name = path.rpartition(".")
        fixed.get_submodule(parent).register_module(name, replacement)
    return fixed


def _opacus() -> Any:  # noqa: ANN401 - opacus has no types
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus.validators import ModuleValidator  # seconds to import
    return ModuleValidator


def _why_unfit(layer: nn.Module) -> str | None:
    if isinstance(layer, _BATCH_NORM):
        return "it normalises over the batch, so examples mix; use GroupNorm"
    if isinstance(layer, _INSTANCE_NORM):
        running = layer.track_running_stats or layer.running_mean is not None
        return "it keeps running statistics of the data; set track_running_stats=False" if running else None
    if type(layer) in _PLAIN or not type(layer).__module__.startswith("torch."):
        return None  # not on opacus's list, which takes seconds and 80 MB to import
    validators = _opacus().VALIDATORS
    if type(layer) in validators and validators[type(layer)](layer):
        return f"opacus does not support it; use opacus.layers.DP{type(layer).__name__}"
    return None


def _replacement(layer: nn.Module, path: str) -> nn.Module:
    fixer = _opacus().FIXERS.get(type(layer))
    if fixer is None:
        raise ConfigError(f"model.{path}", type(layer).__name__, "opacus knows no replacement: replace it by hand")
    # groups of one number are all zero after normalising, so a layer that may see [n, features] gets one group
    options = {"num_groups": 1} if isinstance(layer, nn.BatchNorm1d) else {}
    replacement: nn.Module = fixer(layer, **options)
    if isinstance(replacement, _INSTANCE_NORM):
        # opacus leaves the buffers, and torch goes on updating them
        replacement.register_buffer("running_mean", None)
        replacement.register_buffer("running_var", None)
    _keep_frozen(layer, replacement, path)
    some = next((t for t in (*layer.parameters(), *layer.buffers()) if t.is_floating_point()), torch.empty(0))
    return replacement.to(some.device, some.dtype).train(layer.training)


def _keep_frozen(layer: nn.Module, replacement: nn.Module, path: str) -> None:
    """Freeze the same parameters of the replacement; those of other names follow the ones that they stand for."""
    flags = {name: parameter.requires_grad for name, parameter in layer.named_parameters()}
    new = dict(replacement.named_parameters())
    renamed = {flag for name, flag in flags.items() if name not in new}
    if len(renamed) > 1:
        fix = f"only partly frozen, and {type(replacement).__name__} has other parameters: replace it by hand"
        raise ConfigError(f"model.{path}", type(layer).__name__, fix)
    for name, parameter in new.items():
        parameter.requires_grad_(flags.get(name, renamed != {False}))
