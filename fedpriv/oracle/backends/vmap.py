"""Batched per-example gradients with `torch.func`, for any model that vmap can batch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from fedpriv.clients.batch import Batch
from fedpriv.clients.client import Loss
from fedpriv.oracle.backends.functional import Functional, all_alike, count, is_finite, unpad
from fedpriv.oracle.backends.group_norm import FoldedGroupNorm
from fedpriv.oracle.backends.summation import sum_of_products
from fedpriv.privacy.clipping import Clip

Gradients = list[Tensor]
"""Of each parameter, `[c, b, size]` for c clients and b examples."""


class VmapBackend:
    """Per-example gradients, many at a time.

    Guarantee: each example adds to its client's row a vector of norm at most `clip.bound`, and to no other row.

    If all clients have the same parameters, their examples go through one vmap. If not, clients are batched too where
    that is faster, else computed one after another. Time of the former over the latter, by number of parameters (torch
    2.13, one CPU thread):

    ===================  =====  =====  =====  =====  ==============
    examples per client      2     10     32    100  exact, 10 / 32
    ===================  =====  =====  =====  =====  ==============
    softmax, 7 840        0.16   0.19   0.45   0.67     0.29 / 0.71
    MLP, 50 890           0.21   0.33   0.68   1.23     0.34 / 0.75
    CNN, 29 034           0.27   0.52   0.85   1.06     1.01 / 1.32
    MLP, 203 530          0.26   0.95   1.24   0.98     0.37 / 0.70
    CNN, 1 651 658        1.37   0.96   1.02   1.06     0.94 / 1.13
    ===================  =====  =====  =====  =====  ==============

    So clients are batched if 4 fit in a chunk; for exact sums, with one gradient a client, up to 16 examples each.

    Args:
        model: The clients' model; its own parameters are not used. Dropout draws a mask for each example.
        loss: Maps the outputs and targets of a batch of one to a scalar.
        chunk: Largest number of examples at once. On a CPU never more than 4 to 512, with about 16 MiB of gradients,
            which suits its cache, and so it is by default; a GPU is faster with more.
    """

    def __init__(self, model: nn.Module, loss: Loss, chunk: int | None = None) -> None:
        self._functional = Functional(model, loss)
        grouped = any(isinstance(module, nn.GroupNorm) for module in model.modules())
        self._kernels = FoldedGroupNorm() if grouped else nullcontext()
        size = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
        in_cache = min(max((16 << 20) // max(size, 1), 4), 512)
        on_cpu = all(parameter.device.type == "cpu" for parameter in model.parameters())
        self._chunk = min(chunk or in_cache, in_cache) if on_cpu else chunk or in_cache

    def clipped_sum(
        self, params: Tensor, batch: Batch, clip: Clip | None, anchor: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """See `Backend.clipped_sum`."""
        if clip is None:
            return self._exact_sum(params, batch, anchor)
        sums = torch.zeros(params.shape, dtype=torch.float64, device=params.device)
        broken = torch.zeros(len(params), dtype=torch.long, device=params.device)
        for rows, gradients, norms, mask in self._blocks(params, batch, clip, anchor):
            broken[rows] += count(~torch.isfinite(norms) & mask)
            sums[rows] += _weighted_sum(clip.factors(norms) * mask, gradients)
        return sums, broken

    def largest_norm(self, params: Tensor, batch: Batch, norm: Clip) -> Tensor:
        """See `Backend.largest_norm`: infinite where a gradient is not finite, 0 for a client without examples."""
        largest = torch.zeros(len(params), dtype=torch.float64, device=params.device)
        for rows, _, norms, mask in self._blocks(params, batch, norm, anchor=None):
            norms = norms.nan_to_num(torch.inf, torch.inf).where(mask, 0)
            largest[rows] = torch.maximum(largest[rows], norms.amax(1))
        return largest

    def _exact_sum(self, params: Tensor, batch: Batch, anchor: Tensor | None) -> tuple[Tensor, Tensor]:
        sums = self._sums(params, batch)
        if anchor is not None:
            sums -= self._sums(anchor, batch)
        broken = torch.zeros(len(params), dtype=torch.long, device=params.device)
        if not is_finite(sums):
            # rare, so only then is each example looked at
            for rows, gradients, _, mask in self._blocks(params, batch, Clip(1.0), anchor):
                whole = torch.stack([torch.isfinite(g).all(-1) for g in gradients]).all(0)
                broken[rows] += count(~whole & mask)
        return sums, broken

    def _sums(self, params: Tensor, batch: Batch) -> Tensor:
        """Sum of each client's gradients, `[k, dim]`: one backward pass for all examples of a client."""
        sums = params.new_zeros(params.shape)
        inputs, targets = unpad(batch)
        clients, examples = batch.mask.shape
        for rows, cells in self._cut(clients, examples, together=all_alike(params) or examples <= 16):
            mask = batch.mask[rows, cells]
            with self._kernels:
                kept = mask if batch.weights is None else mask * batch.weights[rows, cells]
                found = self._over_clients(params[rows], inputs[rows, cells], targets[rows, cells], kept)
            flat = torch.cat([g.reshape(len(mask), -1) for g in found.values()], 1)
            sums[rows] += flat.where(mask.any(1, keepdim=True), 0)
        return sums

    def _over_clients(self, params: Tensor, x: Tensor, y: Tensor, mask: Tensor) -> dict[str, Tensor]:
        of_sum = grad(self._summed_loss)
        if all_alike(params):
            one_row = vmap(of_sum, in_dims=(None, 0, 0, 0), randomness="different")
            return one_row(self._functional.unflatten(params[0]), x, y, mask)
        return vmap(of_sum, randomness="different")(self._functional.unflatten(params), x, y, mask)

    def _summed_loss(self, params: dict[str, Tensor], x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        losses = self._functional.losses(self._functional.outputs(params, x), y)
        return (losses * mask).sum()

    def _blocks(
        self, params: Tensor, batch: Batch, norm: Clip, anchor: Tensor | None
    ) -> Iterator[tuple[slice, Gradients, Tensor, Tensor]]:
        """Pieces of the batch: its clients, the gradients, their norms `[c, b]` and the mask `[c, b]`."""
        clients, examples = batch.mask.shape
        for rows, cells in self._cut(clients, examples, together=all_alike(params) or examples * 4 <= self._chunk):
            x, y, mask = batch.inputs[rows, cells], batch.targets[rows, cells], batch.mask[rows, cells]
            with self._kernels:
                gradients = self._gradients(params[rows], x, y)
                if anchor is not None:
                    gradients = [g - a for g, a in zip(gradients, self._gradients(anchor[rows], x, y), strict=True)]
            if batch.weights is not None:
                gradients = [g * batch.weights[rows, cells].unsqueeze(2) for g in gradients]
            # the norm of the norms of the parts is the norm of the whole, in l1 as in l2
            yield rows, gradients, norm.norms(torch.stack([norm.norms(g) for g in gradients], -1)), mask

    def _gradients(self, params: Tensor, x: Tensor, y: Tensor) -> Gradients:
        of_examples = vmap(grad(self._functional.example_loss), in_dims=(None, 0, 0), randomness="different")
        if all_alike(params):
            # one vmap over [c * b, ...]
            found = of_examples(self._functional.unflatten(params[0]), x.flatten(0, 1), y.flatten(0, 1))
            return [g.reshape(*x.shape[:2], -1) for g in found.values()]
        found = vmap(of_examples, randomness="different")(self._functional.unflatten(params), x, y)
        return [g.flatten(2) for g in found.values()]

    def _cut(self, clients: int, examples: int, *, together: bool) -> Iterator[tuple[slice, slice]]:
        """Blocks of clients and examples, at most a chunk of cells in each; single clients unless `together`."""
        height = max(self._chunk // max(examples, 1), 1) if together else 1
        # as many pieces as the chunk asks for, all of one width: a short last piece costs a whole call
        width = math.ceil(examples / max(math.ceil(examples / self._chunk), 1))
        for top in range(0, clients, height):
            for left in range(0, examples, max(width, 1)):
                yield slice(top, top + height), slice(left, left + width)


def _weighted_sum(weights: Tensor, gradients: Gradients) -> Tensor:
    """`sum_b weights[c, b] * gradients[c, b]`; a cell of weight 0 adds nothing even when it is not finite."""
    row = weights.unsqueeze(1)
    sums = torch.cat([sum_of_products(row, g).squeeze(1) for g in gradients], 1)
    if is_finite(sums):
        return sums
    # 0 * inf is nan: only then pay for a second pass
    kept = weights.unsqueeze(2) > 0
    return torch.cat([sum_of_products(row, g.where(kept, 0)).squeeze(1) for g in gradients], 1)
