"""`torch.func.vmap` without torch's warning that an operation is slow under it: users did not choose vmap."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Literal, cast

import torch
from torch.func import vmap as torch_vmap

_lock = threading.Lock()
_calls = 0  # running calls in all threads: torch's switch is for the whole process


def vmap(
    function: Callable[..., Any],
    in_dims: int | tuple[int | None, ...] = 0,
    *,
    randomness: Literal["error", "different", "same"] = "error",
) -> Callable[..., Any]:
    """Returns a function that maps over a dimension of its arguments, as `torch.func.vmap` does.

    Where torch has no batched form of an operation, such as `EmbeddingBag`, vmap computes it in a loop and warns that
    its developers should be told. Gradients are right, so the warning is off during calls of the returned function.

    Args:
        function: Function of one element.
        in_dims: Dimension of each argument to map over; None for an argument that all elements share.
        randomness: Whether random operations are refused, or differ between elements, or are the same for all.
    """
    mapped = torch_vmap(function, in_dims, randomness=randomness)

    def call(*arguments: object) -> object:
        with _no_fallback_warning():
            return mapped(*arguments)

    return call


@contextmanager
def _no_fallback_warning() -> Generator[None]:
    """Switches torch's warning off until the last of all running calls ends."""
    global _calls
    with _lock:
        _calls += 1
        if _calls == 1:
            _switch_warning(is_on=False)
    try:
        yield
    finally:
        with _lock:
            _calls -= 1
            if _calls == 0:
                _switch_warning(is_on=True)


def _switch_warning(*, is_on: bool) -> None:
    """Switches torch's warning about a missing rule of vmap; torch has no public function for it."""
    functorch = getattr(cast("Any", torch)._C, "_functorch", None)  # noqa: SLF001
    switch = getattr(functorch, "_set_vmap_fallback_warning_enabled", None)
    if switch is not None:
        switch(is_on)
