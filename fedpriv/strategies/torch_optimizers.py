"""Converts an optimiser of torch to a step size and the optimiser of fedpriv that makes the same steps.

    torch.optim.SGD(lr, momentum, nesterov)       Sgd() or Momentum(momentum, nesterov)
    torch.optim.Adam(lr, betas, eps)              Adam(beta1, beta2, eps)
    torch.optim.AdamW(lr, betas, eps, weight_decay)   AdamW(beta1, beta2, eps, weight_decay)

SGD's and Adam's `weight_decay` is added to the private gradient (`WeightDecay`). Parameter groups may differ in
`weight_decay` alone. An option without a counterpart raises an error. Source: the documentation of `torch.optim`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedpriv.errors import ConfigError
from fedpriv.strategies.optimizers import Adam, AdamW, DecayGroups, Momentum, Optimizer, Sgd, WeightDecay

_NO_EFFECT = {"foreach", "fused", "capturable", "differentiable", "params", "weight_decay"}  # the last is read apart
_OFF = {"dampening": 0, "maximize": False, "amsgrad": False}
_OWN_RULE = "use SGD, Adam or AdamW, or write an optimizer for fedpriv.fedavg and call fedpriv.train"


def from_torch(optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor]) -> tuple[float, Optimizer[Any]]:
    """Returns the step size and fedpriv's optimiser that makes the steps of torch's.

    Args:
        optimizer: A new `torch.optim.SGD`, `Adam` or `AdamW`; several parameter groups may differ in `weight_decay`.
        parameters: The trained parameters, in the order of a row.

    Raises:
        ConfigError: If the optimiser is of another class, has made steps already, or has an option that fedpriv lacks.
    """
    kind = type(optimizer)
    if kind.__module__.startswith("opacus."):
        fix = "is a wrapper of Opacus, which adds its own noise: pass the optimizer before make_private"
        raise ConfigError("optimizer", kind.__name__, fix)
    if kind not in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
        raise ConfigError("optimizer", kind.__name__, f"has no counterpart in fedpriv: {_OWN_RULE}")
    if optimizer.state:
        fix = "has made steps already, and fedpriv would ignore its state: create a new optimizer"
        raise ConfigError("optimizer", kind.__name__, fix)
    if any("initial_lr" in group for group in optimizer.param_groups):  # torch's schedulers write it there
        fix = "has a scheduler, which would never be stepped: use fedpriv.train with a schedule, e.g. Cosine"
        raise ConfigError("optimizer.lr", kind.__name__, fix)
    options = _options(optimizer)
    for name, off in _OFF.items():
        value = options.pop(name, off)
        if value != off:
            raise ConfigError(f"optimizer.{name}", value, f"has no counterpart in fedpriv: set {name}={off}")
    learning_rate = float(options.pop("lr"))
    is_decoupled = bool(options.pop("decoupled_weight_decay", kind is torch.optim.AdamW))
    if kind is torch.optim.SGD:
        momentum = float(options.pop("momentum"))
        nesterov = bool(options.pop("nesterov"))
        chosen: Optimizer[Any] = Sgd()
        if momentum:
            chosen = Momentum(momentum, nesterov)
    else:
        beta1, beta2 = (float(beta) for beta in options.pop("betas"))
        chosen = Adam(beta1, beta2, float(options.pop("eps")))
    if options:  # of a later version of torch
        name, value = next(iter(options.items()))
        raise ConfigError(f"optimizer.{name}", value, f"is unknown to fedpriv: {_OWN_RULE}")
    return learning_rate, _with_decay(chosen, _decays(optimizer, parameters), is_decoupled=is_decoupled)


def _with_decay(plain: Optimizer[Any], decays: Sequence[tuple[int, float]], *, is_decoupled: bool) -> Optimizer[Any]:
    """Returns an optimiser with the weight decay of torch's optimiser, as one value for all parameters or a value for
    each parameter.
    """
    different = {decay for _, decay in decays}
    if len(different) > 1:
        return WeightDecay(DecayGroups(tuple(decays)), plain, is_decoupled)
    (decay,) = different
    if is_decoupled and isinstance(plain, Adam):
        return AdamW(plain.beta1, plain.beta2, plain.eps, decay)
    if decay:
        return WeightDecay(decay, plain)
    return plain


def _decays(optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor]) -> list[tuple[int, float]]:
    """Returns the number of entries and the weight decay of each trained parameter, in their order.

    Consecutive parameters with the same decay are joined into one entry.
    """
    decay_of = {
        id(parameter): float(group["weight_decay"]) for group in optimizer.param_groups for parameter in group["params"]
    }
    decays: list[tuple[int, float]] = []
    for parameter in parameters:
        entries, decay = parameter.numel(), decay_of[id(parameter)]
        if decays and decays[-1][1] == decay:
            entries += decays.pop()[0]
        decays.append((entries, decay))
    return decays


def _options(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Returns the options that all parameter groups have in common, without the weight decay.

    Raises:
        ConfigError: If groups differ in another option.
    """
    first, *others = [
        {name: value for name, value in group.items() if name not in _NO_EFFECT} for group in optimizer.param_groups
    ]
    for group in others:
        for name, value in group.items():
            if value != first[name]:
                fix = f"differs between parameter groups ({first[name]} and {value}): use the same value in all groups"
                raise ConfigError(f"optimizer.{name}", value, fix)
    return first
