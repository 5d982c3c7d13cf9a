"""Torch's modes for fedpriv's computations, independent of the modes of the calling code.

A user may enter `torch.autocast` or `torch.no_grad`, or change torch's default type or the precision of products, at
any time, also between two rounds. A run must compute every round in the way that was tested before the first round. So
the user's modes are not used: modes are set for each computation, and restored after it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, TypeVar, cast

import torch

T = TypeVar("T")
_FULL = "ieee"
_LOWER = ("tf32", "bf16")


@dataclass(frozen=True)
class Modes:
    """Modes of computations: gradients on, no autocast, no inference mode.

    Attributes:
        dtype: Torch's default type of floating-point tensors, which a model may use for new tensors.
        full_precision: True if float32 numbers are multiplied in float32. If False, the user's setting is not changed.
    """

    dtype: torch.dtype
    full_precision: bool

    @contextmanager
    def fixed(self) -> Generator[None]:
        """Returns a context in which torch has these modes. The previous modes are restored when the context ends."""
        with ExitStack() as stack:
            if torch.is_inference_mode_enabled():
                stack.enter_context(torch.inference_mode(mode=False))
            if not torch.is_grad_enabled():
                stack.enter_context(torch.enable_grad())
            for device in ("cpu", "cuda"):
                if torch.is_autocast_enabled(device):
                    stack.enter_context(torch.autocast(device, enabled=False))
            if torch.get_default_dtype() != self.dtype:
                stack.callback(torch.set_default_dtype, torch.get_default_dtype())
                torch.set_default_dtype(self.dtype)
            if self.full_precision:
                stack.enter_context(_full_precision())
            yield

    def iterate(self, items: Iterable[T]) -> Iterator[T]:
        """Yields items. Each item is computed in these modes, while the code that receives it runs in its own modes."""
        iterator = iter(items)
        try:
            while True:
                with self.fixed():
                    try:
                        item = next(iterator)
                    except StopIteration:
                        return
                yield item
        finally:
            close = getattr(iterator, "close", None)
            if close is not None:
                close()


@cache
def _switches() -> list[ModuleType]:
    """Returns the objects with a separate switch `fp32_precision`; empty in versions of torch that have none."""
    backends = torch.backends
    owners: list[tuple[ModuleType, tuple[str, ...]]] = [(backends.mkldnn, ("matmul", "conv", "rnn"))]
    if torch.cuda.is_available():
        owners += [(backends.cuda, ("matmul",)), (backends.cudnn, ("conv", "rnn"))]
    switches = [getattr(owner, name, None) for owner, names in owners for name in names]
    return [cast("ModuleType", switch) for switch in switches if hasattr(switch, "fp32_precision")]


@contextmanager
def _full_precision() -> Generator[None]:
    """Returns a context in which float32 numbers are multiplied in float32."""
    switches: list[Any] = _switches()
    if not switches:  # torch before 2.9
        precision, tf32 = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(precision)
            torch.backends.cudnn.allow_tf32 = tf32
        return
    lowered = [(switch, switch.fp32_precision) for switch in switches if switch.fp32_precision in _LOWER]
    for switch, _ in lowered:
        switch.fp32_precision = _FULL
    try:
        yield
    finally:
        for switch, precision in lowered:
            switch.fp32_precision = precision
