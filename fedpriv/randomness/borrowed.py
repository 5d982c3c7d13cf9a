"""The global generators of torch, NumPy and Python, seeded for functions of a user's own that draw from them."""

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

_LOCK = threading.RLock()  # they are one for all threads
Seed = Callable[[int], None]


@dataclass(frozen=True)
class States:
    """Where the global generators stand, on the processor."""

    of_torch: Tensor
    of_numpy: dict[str, Any]
    of_python: tuple[Any, ...]

    @classmethod
    def now(cls) -> Self:
        """Where they stand."""
        legacy = np.random.get_state(legacy=False)  # noqa: NPY002 - what functions of users draw from
        return cls(torch.default_generator.get_state(), dict(legacy), random.getstate())

    def restore(self) -> None:
        """Put them back."""
        torch.default_generator.set_state(self.of_torch)
        np.random.set_state(self.of_numpy)  # noqa: NPY002
        random.setstate(self.of_python)

    @property
    def left(self) -> bool:
        """Whether somebody has drawn since."""
        now, rest = States.now(), ("has_gauss", "gauss")
        mine, others = self.of_numpy["state"], now.of_numpy["state"]
        numpy = mine["pos"] == others["pos"] and np.array_equal(mine["key"], others["key"])
        same = numpy and all(self.of_numpy[name] == now.of_numpy[name] for name in rest)
        return not same or self.of_python != now.of_python or not torch.equal(self.of_torch, now.of_torch)


@contextmanager
def global_generators() -> Generator[Seed]:
    """A context that lends the global generators and puts them back where they were.

    It gives a function that seeds all of them. Other threads that ask for them wait.
    """
    with _LOCK:
        before = States.now()
        try:
            yield _seed
        finally:
            before.restore()


def _seed(number: int) -> None:
    torch.default_generator.manual_seed(number)
    np.random.seed(number % 2**32)  # noqa: NPY002
    random.seed(number)
