"""How fast a run is computed, never how private it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from fedpriv.errors import ConfigError


@dataclass(frozen=True)
class Compute:
    """How fast, never how private.

    Args:
        backend: `"auto"` takes the closed form for linear models and vmap otherwise.
        device: A torch device, or `"auto"` for a GPU if there is one.
        dtype: `"float32"` or `"float64"`.
        chunk: Largest number of examples in one batch of a backend.
    """

    backend: Literal["auto", "loop", "vmap", "linear"] = "auto"
    device: str = "auto"
    dtype: Literal["float32", "float64"] = "float32"
    chunk: int = 16384

    def torch_device(self) -> torch.device:
        """The device, resolved.

        Raises:
            ConfigError: there is none of this name here.
        """
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        try:
            return torch.empty(0, device=self.device).device
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            reason = str(error).split(". ")[0].splitlines()[0]
            raise ConfigError(
                "compute.device", self.device, f"cannot be used here ({reason}); say auto or cpu"
            ) from error
