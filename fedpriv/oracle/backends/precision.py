"""A model whose forward and backward pass multiply in bfloat16, for speed on devices that have it.

Parameters, and so gradients, stay float32: what is clipped is what is summed, whatever it was rounded to before, and
both in the precision of any other run. A gradient must still not depend on what else is in its batch; where kernels
round otherwise for another batch size, that is 2**-8 of it here, so neighbours must have batches of one size.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedpriv.errors import ConfigError
from fedpriv.privacy.settings import Privacy

SERVING: tuple[Literal["ghost"], Literal["vmap"], Literal["loop"]] = ("ghost", "vmap", "loop")
"""Backends that take norms of, and sum, the same numbers: `ghost` converts factors exactly, or multiplies them to one
gradient in bfloat16 from which it computes both. `linear` would take norms of factors in bfloat16."""


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
    """Refuses bfloat16 where the privacy guarantee would not hold, or is not proved.

    Raises:
        ConfigError: names the setting.
    """
    if dtype != "float32":
        raise ConfigError("compute.dtype", dtype, "compute.precision bfloat16 needs float32 parameters")
    if backend not in ("auto", *SERVING):
        fix = f"would clip low-precision factors in bfloat16: use auto or one of {', '.join(SERVING)}"
        raise ConfigError("compute.backend", backend, fix)
    if privacy.private and (privacy.unit, privacy.relation) != ("sample", "replace_one"):
        fix = (
            "is supported only for unit sample and relation replace_one, where neighbours have batches of one "
            "size; with other sizes, kernels may round other examples' gradients differently, by 2**-8; use "
            "full"
        )
        raise ConfigError("compute.precision", "bfloat16", fix)
