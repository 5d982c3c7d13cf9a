"""Work and memory counted without a clock, and a ledger's guard that allows everything."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def count_calls(run: Callable[[], object]) -> int:
    """Number of functions that are called, of Python and of C."""
    count = 0

    def counted(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(counted)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


class LargestTensor(TorchDispatchMode):
    """The largest tensor that an operation makes, in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(found):
            if isinstance(leaf, Tensor):
                self.numbers = max(self.numbers, leaf.untyped_storage().nbytes() // leaf.element_size())
        return found


class AdmitAll:
    """No limit."""

    def admit(self, record: object) -> None:
        """Allow it."""
