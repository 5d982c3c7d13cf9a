"""Attention as the backends compute it: torch's, with a mask for each example."""

from __future__ import annotations

import pytest
import torch
from model_batches import single
from model_kinds import (
    E,
    Mapped,
    T,
    attended,
    attention,
)
from torch import nn

from fedpriv.clients.batch import Batch
from fedpriv.oracle.backends import BACKENDS
from fedpriv.oracle.backends.attention import WRITTEN_OUT, fused_attention
from fedpriv.privacy.clipping import Clip

pytestmark = pytest.mark.filterwarnings(
    "ignore:There is a performance drop", "ignore:enable_nested_tensor", "ignore:.*norm_first"
)


@pytest.mark.parametrize("heads", [(), (2,)])
@pytest.mark.parametrize("mask", [None, "causal", "boolean", "added"])
def test_explicit_attention_matches_torch(mask: str | None, heads: tuple[int, ...]) -> None:
    torch.manual_seed(6)
    q, k, v = torch.randn(3, 2, *heads, T, E, dtype=torch.float64)
    allowed = torch.ones(T, T, dtype=torch.bool).tril(1)
    added = torch.randn(T, T, dtype=torch.float64)
    given = {"causal": {"is_causal": True}, "boolean": {"attn_mask": allowed}, "added": {"attn_mask": added}}
    options = given.get(mask or "", {})
    attend = nn.functional.scaled_dot_product_attention
    found = WRITTEN_OUT[attend](q, k, v, dropout_p=1e-12, **options)
    torch.testing.assert_close(found, attend(q, k, v, **options))
    assert WRITTEN_OUT[attend](q, k, v) is None


@pytest.mark.parametrize("mask", [None, "causal", "one for all", "one an example", "one a head", "three dimensions"])
@pytest.mark.parametrize("levels", [1, 2])
def test_fused_attention_under_vmap_matches_torch(mask: str | None, levels: int) -> None:
    torch.manual_seed(8)
    q, k, v = torch.randn(3, *(2, 3)[:levels], 1, 2, T, E, dtype=torch.float64, requires_grad=True)
    front = (2, 3)[:levels]
    shapes = {"one for all": (T, T), "one an example": (*front, 1, 1, T, T)}
    shapes |= {"one a head": (*front, 1, 2, T, T), "three dimensions": (*front, 1, T, T)}
    bias = torch.randn(*shapes[mask], dtype=torch.float64) if mask in shapes else None
    dim = None if bias is None or mask == "one for all" else 0

    def attend(function, q, k, v, bias):
        return function(q, k, v, attn_mask=bias, is_causal=mask == "causal")

    def every(function):
        batched = lambda *tensors: attend(function, *tensors)  # noqa: E731
        for _ in range(levels):
            batched = torch.func.vmap(batched, in_dims=(0, 0, 0, dim))
        outputs = batched(q, k, v, bias)
        return outputs, torch.autograd.grad(outputs.sin().sum(), (q, k, v))

    together, expected = every(fused_attention), every(nn.functional.scaled_dot_product_attention)
    torch.testing.assert_close(together, expected, rtol=1e-9, atol=1e-12)
    assert fused_attention(q, k, v) is None, "nothing is under vmap"


@pytest.mark.parametrize("backend", ["ghost", "loop"])
def test_attention_dropout_mask_per_example(backend: str) -> None:
    """Of 64 equal examples about half lose a given weight: not all, and not none."""
    torch.manual_seed(7)
    model = Mapped(attended, attention(dropout=0.5)()).double()
    row = torch.cat([p.detach().flatten() for p in model.parameters()]).unsqueeze(0)
    x, y = torch.randn(1, 1, T, E).double().expand(1, 64, -1, -1), torch.zeros(1, 64).long()
    whole = Batch(torch.zeros(1).long(), x, y, torch.ones(1, 64, dtype=torch.bool))
    served = BACKENDS[backend](model, nn.CrossEntropyLoss())
    sums = torch.stack([served.clipped_sum(row, one, Clip(1e6))[0] for one in list(single(whole))[:2]])
    assert not torch.equal(*sums)
    mean = served.clipped_sum(row, whole, Clip(1e6))[0] / 64
    again = served.clipped_sum(row, whole, Clip(1e6))[0] / 64
    assert 0 < float((mean - again).norm()) < float((sums[0] - sums[1]).norm())
