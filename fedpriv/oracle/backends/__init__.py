"""Backends compute sums of clipped per-example gradients. They differ in speed; results differ by rounding only."""

from __future__ import annotations

from typing import Literal, Protocol

from torch import nn

from fedpriv.clients.client import Loss
from fedpriv.errors import ConfigError
from fedpriv.oracle.backends.base import Backend
from fedpriv.oracle.backends.ghost import GhostBackend
from fedpriv.oracle.backends.linear import LinearBackend
from fedpriv.oracle.backends.loop import LoopBackend
from fedpriv.oracle.backends.vmap import VmapBackend

BackendName = Literal["auto", "loop", "vmap", "ghost", "linear"]


class BackendFactory(Protocol):
    """The type of backend classes. A call with a model and a loss builds a backend; see `build_backend`."""

    def __call__(self, model: nn.Module, loss: Loss, chunk: int | None = None) -> Backend:
        """Builds the backend."""
        ...


BACKENDS: dict[str, BackendFactory] = {
    "loop": LoopBackend,
    "vmap": VmapBackend,
    "ghost": GhostBackend,
    "linear": LinearBackend,
}


def list_candidates(model: nn.Module, views: int = 1) -> list[BackendName]:
    """Returns the backends that may support the model with `views` views of each example, in order from fastest to
    slowest.

    `fedpriv.oracle.backend_selection` tests them.
    """
    general: list[BackendName] = ["ghost", "vmap", "loop"]
    if views == 1 and LinearBackend.supports(model):
        return ["linear", *general]
    return general


def build_backend(name: BackendName, model: nn.Module, loss: Loss, chunk: int | None = None) -> Backend:
    """Builds a backend.

    Args:
        name: A key of `BACKENDS`, or `"auto"`, which uses `linear` if it supports the model, else `ghost`.
        model: The clients' model.
        loss: The clients' loss.
        chunk: Largest number of examples for which gradients are computed at once; None lets the backend choose.

    Raises:
        ConfigError: If the name is unknown, or the backend does not support the model.
    """
    if name == "auto":
        name = list_candidates(model)[0]
    if name not in BACKENDS:
        raise ConfigError("compute.backend", name, f"choose 'auto' or one of {sorted(BACKENDS)}")
    return BACKENDS[name](model, loss, chunk)
