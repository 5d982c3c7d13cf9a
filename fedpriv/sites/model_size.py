"""Rejects a plan's model that is too large, before any memory is allocated for it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode

from fedpriv.clients import PublicDataInfo
from fedpriv.config import Config
from fedpriv.errors import ConfigError
from fedpriv.models import MODELS, add_lora, resolve

_MOST_TENSORS = 20_000  # large language models have some thousands of tensors; each takes additional memory
_COPIES = 4  # of the parameters that a site holds at least: the model, its row, its gradient and the released row


class _WithoutFilling(TorchFunctionMode):
    """Skips the filling of initial values: the meta device has none, and its first normal draw takes ten seconds."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Collection[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - what torch's function returns
        options = kwargs or {}
        if func is nn.init.normal_:
            if "tensor" in options:
                return options["tensor"]
            return args[0]
        return func(*args, **options)


class _TooLarge(ConfigError):
    """Raised while a model with too many parameters is created."""


def check_model_size(config: Config, outline: PublicDataInfo, limit: int, field: str, why: str) -> None:
    """Creates the model of a plan on torch's meta device, which needs no memory, and counts its parameters.

    Args:
        config: The plan's settings.
        outline: Public facts about the data.
        limit: The largest number of parameters, including frozen ones, and of values of one example.
        field: The setting that contains the limit, for the error.
        why: The reason for the limit.

    Raises:
        ConfigError: If the model or an example exceeds the limit, or the model has over 20 000 parameter tensors.
            Creation stops at that point.
    """
    if prod(outline.input_shape) > limit:
        raise _TooLarge(field, f"examples of shape {outline.input_shape}", f"{why} {limit} values for each example")
    fix = f"{why} {limit} parameters; a model may also have at most {_MOST_TENSORS} parameter tensors"
    too_many = _TooLarge(field, "a larger model", fix)
    try:
        with torch.device("meta"), _WithoutFilling(), _at_most(limit, too_many):
            model = resolve(
                config.model.name,
                input_shape=outline.input_shape,
                n_classes=outline.n_classes,
                **config.model.options,
            )
            lora = config.model.lora
            if lora is not None:
                add_lora(model, lora.layers, rank=lora.rank, alpha=lora.alpha, train=config.model.train or ())
    except _TooLarge:
        raise
    except ConfigError:
        # a model from user code may not support the meta device; others are rejected with their own error
        if config.model.name in MODELS:
            raise


def compute_largest_in_memory() -> int | None:
    """Returns the number of parameters that this machine's memory can hold in training; None if it is unknown."""
    try:
        n_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not on Windows
        return None
    return n_bytes // (4 * _COPIES)


@contextmanager
def _at_most(limit: int, error: ConfigError) -> Generator[None]:
    """Raises an error in this thread as soon as the modules created in it exceed this total number of parameters."""
    thread = threading.get_ident()
    count = 0
    n_tensors = 0

    def add(module: nn.Module, name: str, parameter: Tensor | None) -> None:
        nonlocal count, n_tensors
        if parameter is None or threading.get_ident() != thread:
            return
        count += parameter.numel()
        n_tensors += 1
        if count > limit or n_tensors > _MOST_TENSORS:
            raise error

    # torch calls it for each parameter of each module, so even a model with endlessly many layers is stopped
    hook = register_module_parameter_registration_hook(add)
    try:
        yield
    finally:
        hook.remove()
