"""Attention under vmap.

Attention with dropout is computed with elementary operations, since under vmap torch's fused kernel cannot draw a mask
for each example. Without dropout, torch's fused kernel is called once for all examples; under vmap it would be called
for one example after another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_batchedtensor
from torch.nn import functional

from fedpriv.oracle.backends.below_vmap import call_below_vmap

_DROPOUT = 10  # index of `dropout_p` among the arguments of `multi_head_attention_forward`


def _scaled_dot_product(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor | None:
    if dropout_p == 0 or enable_gqa:
        return None
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -torch.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return functional.dropout(scores.softmax(-1), dropout_p) @ value


def fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor | None:
    """Returns torch's fused attention of all examples under vmap; None if it cannot be used. Each tensor is `[..., h,
    t, d]`.
    """
    if dropout_p > 0:
        return _scaled_dot_product(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    dims = query.dim()
    if not is_batchedtensor(query) or dims < 3 or key.dim() != dims or value.dim() != dims:
        return None
    examples = [query, key, value]
    if attn_mask is not None:
        if attn_mask.dim() > dims:
            return None
        # as many dimensions as the other arguments, so that the dimensions of examples line up
        examples.append(attn_mask.reshape(*(1,) * (dims - attn_mask.dim()), *attn_mask.shape))
        if any(mask not in (1, own) for mask, own in zip(examples[3].shape[:-3], query.shape[:-3], strict=True)):
            return None

    def attend(examples: list[Tensor], _: list[Tensor]) -> tuple[Tensor]:
        front = examples[0].shape[:-3]
        folded = [tensor.expand(*front, *tensor.shape[-3:]).flatten(0, -4) for tensor in examples]
        mask = folded[3] if len(folded) > 3 else None
        options: dict[str, Any] = {"attn_mask": mask, "is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
        attended = functional.scaled_dot_product_attention(folded[0], folded[1], folded[2], **options)
        return (attended.unflatten(0, front),)

    return call_below_vmap(attend, examples, [])[0]


def _multi_head(*args: Any, **named: Any) -> tuple[Tensor, None] | None:  # noqa: ANN401 - torch's own
    if named.get("need_weights", True) or not named.get("training", True) or args[_DROPOUT] == 0:
        return None
    # torch itself uses elementary operations if attention weights are to be returned
    return functional.multi_head_attention_forward(*args, **{**named, "need_weights": True})[0], None


WRITTEN_OUT: dict[object, Callable[..., object]] = {
    functional.scaled_dot_product_attention: _scaled_dot_product,
    functional.multi_head_attention_forward: _multi_head,
}
"""Maps a torch function to one with the same distribution of outputs, which returns None if the fused one suffices."""
