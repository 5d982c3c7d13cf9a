"""A model that multiplies in bfloat16 in its forward and backward pass, for speed on devices that support it.

Parameters and gradients stay float32. Norms and sums are computed from the same rounded gradients, with the same
precision as in any other run, so clipping is as exact as there. However, a gradient must not depend on other examples
in its batch. A kernel may round differently for another batch size, which in bfloat16 changes a gradient by a relative
2**-8. Batches of neighbouring data sets must therefore have equal size.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedpriv.errors import ConfigError
from fedpriv.privacy.settings import Privacy

SERVING: tuple[Literal["ghost"], Literal["vmap"], Literal["loop"]] = ("ghost", "vmap", "loop")
"""Backends that compute norms and sums from the same numbers. `ghost` converts factors exactly, or multiplies them into
one bfloat16 gradient from which it computes norms and sums. `linear` is excluded because it would compute norms from
factors in bfloat16.
"""


class Bfloat16(nn.Module):
    """The model under `torch.autocast`, with outputs in float32, so that the loss is computed in float32.

    Args:
        model: Any module, with parameters in float32.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Any, **named: Any) -> Any:  # noqa: ANN401 - whatever the model takes and gives
        """Returns the outputs of the model, in float32 if they are one tensor."""
        device = next(self.model.parameters()).device.type
        # without the cache of converted weights, which torch.func's levels would share
        with torch.autocast(device, torch.bfloat16, cache_enabled=False):
            outputs = self.model(*inputs, **named)
        if isinstance(outputs, Tensor):
            return outputs.float()
        return outputs


def check_bfloat16(privacy: Privacy, dtype: str, backend: str) -> None:
    """Raises an error for bfloat16 if the privacy guarantee would not hold or is not proved.

    Raises:
        ConfigError: If the settings do not allow bfloat16; the message names the setting.
    """
    if dtype != "float32":
        raise ConfigError(
            "compute.dtype", dtype, "compute.precision bfloat16 needs float32 parameters: use dtype float32"
        )
    if backend not in ("auto", *SERVING):
        fix = (
            "with compute.precision bfloat16, this backend would clip low-precision factors: use auto or one of "
            f"{', '.join(SERVING)}"
        )
        raise ConfigError("compute.backend", backend, fix)
    if privacy.private and (privacy.unit, privacy.relation) != ("sample", "replace_one"):
        fix = (
            "is supported only for the privacy unit sample and the relation replace_one, where the batches of "
            "neighbouring data sets have the same size. With another batch size, kernels may round the gradients of "
            "the other examples differently, by 2**-8; use full"
        )
        raise ConfigError("compute.precision", "bfloat16", fix)
