"""Reads an optimiser of torch: which of fedpriv's makes the same steps, with which step size.

    torch.optim.SGD(lr, momentum, nesterov)       Sgd() or Momentum(momentum, nesterov)
    torch.optim.Adam(lr, betas, eps)              Adam(beta1, beta2, eps)
    torch.optim.AdamW(lr, betas, eps, weight_decay)   AdamW(beta1, beta2, eps, weight_decay)

SGD's and Adam's `weight_decay` is added to the private gradient (`WeightDecay`). An option without a counterpart is
refused: it is never left out in silence. Source: the documentation of `torch.optim`.
"""

from __future__ import annotations

from typing import Any

import torch

from fedpriv.errors import ConfigError
from fedpriv.strategies.optimizers import Adam, AdamW, Momentum, Optimizer, Sgd, WeightDecay

_NO_EFFECT = {"foreach", "fused", "capturable", "differentiable", "decoupled_weight_decay", "params"}
_OFF = {"dampening": 0, "maximize": False, "amsgrad": False}
_OWN_RULE = "use SGD, Adam or AdamW, or write an optimiser for fedpriv.fedavg and call fedpriv.train"


def from_torch(optimizer: torch.optim.Optimizer) -> tuple[float, Optimizer[Any]]:
    """Returns the step size and fedpriv's optimiser that makes the steps of torch's.

    Args:
        optimizer: A new `torch.optim.SGD`, `Adam` or `AdamW`; several parameter groups must have equal options.

    Raises:
        ConfigError: it is another kind, has made steps already, or has an option that fedpriv has not.
    """
    kind = type(optimizer)
    if kind.__module__.startswith("opacus."):
        fix = "is Opacus' wrapper, which adds noise of its own: give the optimizer before make_private"
        raise ConfigError("optimizer", kind.__name__, fix)
    if kind not in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
        raise ConfigError("optimizer", kind.__name__, f"has no counterpart in fedpriv: {_OWN_RULE}")
    if optimizer.state:
        fix = "has made steps already, and fedpriv would start anew: make a new one"
        raise ConfigError("optimizer", kind.__name__, fix)
    if any("initial_lr" in group for group in optimizer.param_groups):  # torch's schedulers write it there
        fix = (
            "has a scheduler, which nobody would step: write the run out with fedpriv.train and a schedule, e.g. Cosine"
        )
        raise ConfigError("optimizer.lr", kind.__name__, fix)
    options = _options(optimizer)
    for name, off in _OFF.items():
        value = options.pop(name, off)
        if value != off:
            raise ConfigError(f"optimizer.{name}", value, f"has no counterpart in fedpriv: set {name}={off}")
    learning_rate = float(options.pop("lr"))
    weight_decay = float(options.pop("weight_decay"))
    if kind is torch.optim.SGD:
        momentum = float(options.pop("momentum"))
        nesterov = bool(options.pop("nesterov"))
        chosen: Optimizer[Any] = Sgd()
        if momentum:
            chosen = Momentum(momentum, nesterov)
    else:
        beta1, beta2 = (float(beta) for beta in options.pop("betas"))
        eps = float(options.pop("eps"))
        if kind is torch.optim.AdamW:
            chosen = AdamW(beta1, beta2, eps, weight_decay)
        else:
            chosen = Adam(beta1, beta2, eps)
    if options:  # of a later version of torch
        name, value = next(iter(options.items()))
        raise ConfigError(f"optimizer.{name}", value, f"is not known to fedpriv: {_OWN_RULE}")
    if weight_decay and kind is not torch.optim.AdamW:
        chosen = WeightDecay(weight_decay, chosen)
    return learning_rate, chosen


def _options(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Returns the options that all parameter groups have in common.

    Raises:
        ConfigError: groups differ.
    """
    first, *others = [
        {name: value for name, value in group.items() if name not in _NO_EFFECT} for group in optimizer.param_groups
    ]
    for group in others:
        for name, value in group.items():
            if value != first[name]:
                fix = f"differs between parameter groups ({first[name]} and {value}): give all the same"
                raise ConfigError(f"optimizer.{name}", value, fix)
    return first
