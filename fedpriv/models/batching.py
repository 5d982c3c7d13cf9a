"""A `torch.func.vmap` that passes no code two elements at once, and without torch's warning about slow operations.

Torch computes most functions under vmap as if each element were alone. A few kinds of code would receive the tensors of
all elements, so they raise an error here: a custom operation, an `autograd.Function` with a custom rule for vmap, and
hooks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, cast

import torch
from torch import Tensor
from torch._functorch.autograd_function import custom_function_call
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.autograd.function import Function
from torch.autograd.graph import disable_saved_tensors_hooks
from torch.func import vmap as torch_vmap
from torch.overrides import TorchFunctionMode

_lock = threading.Lock()
_calls = 0  # running calls in all threads: torch's switch is for the whole process


def vmap(
    function: Callable[..., Any],
    in_dims: int | tuple[int | None, ...] = 0,
    *,
    randomness: Literal["error", "different", "same"] = "error",
    known: bool = False,
) -> Callable[..., Any]:
    """Returns a function that maps over a dimension of its arguments, as `torch.func.vmap` does.

    Where torch has no batched form of an operation, such as `EmbeddingBag`, vmap computes it in a loop and warns that
    it should be reported to torch. The gradients are correct, so the warning is off during calls of the returned
    function.

    Guarantee: the function computes each element from that element and the shared arguments alone, also in a backward
    pass through its results; a call of code that could do otherwise raises `MixingElementsError`.

    Args:
        function: Function of one element.
        in_dims: Dimension of each argument to map over; None for an argument that all elements share.
        randomness: Treatment of random operations: they raise an error, differ between elements, or are the same for
            all elements.
        known: True if all code that the function calls is torch's or fedpriv's, and calls no custom code.
    """
    mapped = torch_vmap(function, in_dims, randomness=randomness)

    def call(*arguments: object) -> object:
        with _no_fallback_warning():
            if known:
                return mapped(*arguments)
            with disable_saved_tensors_hooks(_SEES_ALL.format("a hook on saved tensors")), _Apart():
                return mapped(*arguments)

    return call


class MixingElementsError(RuntimeError):
    """A function under vmap calls code that torch gives all elements at once."""

    def __init__(self, what: str) -> None:
        super().__init__(_SEES_ALL.format(what))


_SEES_ALL = "vmap would pass all elements at once to {}"
_TORCHS_OPERATIONS = ("torch._ops.aten", "torch._ops.prims", "torch._ops.prim")


class _Apart(TorchFunctionMode):
    """A context in which no custom code gets more than one element under vmap."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever torch's function gives
        """Calls torch's function; raises `MixingElementsError` for those that call custom code."""
        kwargs = kwargs or {}
        if func is custom_function_call:
            return func(_wrap_elementwise(args[0]), *args[1:], **kwargs)
        if isinstance(func, (OpOverload, OpOverloadPacket)) and func.__module__ not in _TORCHS_OPERATIONS:
            raise MixingElementsError(f"the operation {func}")
        # torch calls the function later, in a backward pass for example, where this context is not active
        has_callback = any(callable(value) and not isinstance(value, type) for value in (*args, *kwargs.values()))
        if has_callback or isinstance(func, HigherOrderOperator):
            raise MixingElementsError(f"a function passed to {getattr(func, '__name__', func)}")
        if func == _STEP_BACK:
            raise MixingElementsError("a hook on gradients")
        return func(*args, **kwargs)


_STEP_BACK = cast("Any", Tensor.grad_fn).__get__  # the step of a backward pass, which takes hooks


def _wrap_elementwise(function: type[Function]) -> type[Function]:
    """Returns an `autograd.Function` with methods that are called for one element at a time, with a separate context.

    With `generate_vmap_rule` torch calls them under vmap. Only the functions that they call may be custom rules.
    """
    if function.__module__.partition(".")[0] in ("fedpriv", "torch"):
        return function
    if not function.generate_vmap_rule:
        raise MixingElementsError(f"the rule for vmap of {function.__name__}")

    def guarded(method: Callable[..., Any]) -> staticmethod[..., Any]:
        def call(*args: Any) -> Any:  # noqa: ANN401 - whatever a user's method takes and gives
            with _Apart():
                return method(*args)

        return staticmethod(call)

    names = ("forward", "setup_context", "backward")
    return type(function.__name__, (function,), {name: guarded(getattr(function, name)) for name in names})


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
