"""Attention with dropout in elementary operations: in torch's fused kernel vmap cannot draw a mask for each example."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

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


def _multi_head(*args: Any, **named: Any) -> tuple[Tensor, None] | None:  # noqa: ANN401 - torch's own
    if named.get("need_weights", True) or not named.get("training", True) or args[_DROPOUT] == 0:
        return None
    # torch itself uses elementary operations if attention weights are to be returned
    return functional.multi_head_attention_forward(*args, **{**named, "need_weights": True})[0], None


WRITTEN_OUT: dict[object, Callable[..., object]] = {
    functional.scaled_dot_product_attention: _scaled_dot_product,
    functional.multi_head_attention_forward: _multi_head,
}
"""By function of torch, a function with the same distribution of outputs; it returns None if the fused one will do."""
