"""Seeds the global generators of torch, NumPy and Python for user functions that draw from them, and restores them
afterwards.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

_LOCK = threading.RLock()  # all threads share the global generators
Seed = Callable[[int], None]


@dataclass(frozen=True)
class GeneratorStates:
    """The states of the global generators on the CPU.

    Attributes:
        torch_state: The state of torch's default generator.
        numpy_state: The state of NumPy's legacy generator.
        python_state: The state of Python's `random`.
    """

    torch_state: Tensor
    numpy_state: dict[str, Any]
    python_state: tuple[Any, ...]

    @classmethod
    def current(cls) -> Self:
        """Returns the current states."""
        legacy = np.random.get_state(legacy=False)  # noqa: NPY002 - functions of users draw from it
        return cls(torch.default_generator.get_state(), dict(legacy), random.getstate())

    def restore(self) -> None:
        """Sets the generators to these states."""
        torch.default_generator.set_state(self.torch_state)
        np.random.set_state(self.numpy_state)  # noqa: NPY002
        random.setstate(self.python_state)

    @property
    def has_changed(self) -> bool:
        """True if anything was drawn from a generator since these states were read."""
        current = GeneratorStates.current()
        if self.python_state != current.python_state or not torch.equal(self.torch_state, current.torch_state):
            return True
        if any(self.numpy_state[name] != current.numpy_state[name] for name in ("has_gauss", "gauss")):
            return True
        mine = self.numpy_state["state"]
        current_state = current.numpy_state["state"]
        return mine["pos"] != current_state["pos"] or not np.array_equal(mine["key"], current_state["key"])


@contextmanager
def global_generators() -> Generator[Seed]:
    """Returns a context with exclusive use of the global generators. Their states are restored when it ends.

    Its value is a function that seeds all of them. Other threads that need the generators wait.
    """
    with _LOCK:
        saved = GeneratorStates.current()
        try:
            yield _seed
        finally:
            saved.restore()


def _seed(number: int) -> None:
    """Seeds all global generators."""
    torch.default_generator.manual_seed(number)
    np.random.seed(number % 2**32)  # noqa: NPY002
    random.seed(number)
