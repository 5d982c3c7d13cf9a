"""The reference backend, which computes one client after another and one example after another with plain autograd.

Every other backend must give the same sums up to rounding. It is slow and simple on purpose.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from fedpriv.clients.batch import Batch
from fedpriv.clients.client import Loss
from fedpriv.clients.reading import Pair
from fedpriv.models.nested import Nested, map_tree
from fedpriv.oracle.backends.functional import Functional
from fedpriv.privacy.clipping import Clip


class LoopBackend:
    """Computes per-example gradients one at a time.

    Guarantee: each example adds a vector with norm at most `clip.bound` to its client's row, and nothing to other rows.

    Args:
        model: The clients' model; its own parameters are not used.
        loss: Maps the outputs and targets of a batch of one to a scalar.
        chunk: Unused, since examples are computed one at a time.
    """

    def __init__(self, model: nn.Module, loss: Loss, chunk: int | None = None) -> None:
        self._functional = Functional(model, loss)

    def clipped_sum(
        self, params: Tensor, batch: Batch, clip: Clip | None, anchor: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """See `Backend.clipped_sum`."""
        sums = torch.zeros(params.shape, dtype=params.dtype if clip is None else torch.float64, device=params.device)
        broken = torch.zeros(len(params), dtype=torch.long, device=params.device)
        for client, gradient in self._gradients(params, batch, anchor):
            if clip is None:
                is_broken = ~torch.isfinite(gradient).all()
            else:
                gradient, is_broken = clip.rows(gradient)
            sums[client] += gradient
            broken[client] += is_broken
        return sums, broken

    def largest_norm(self, params: Tensor, batch: Batch, norm: Clip) -> Tensor:
        """See `Backend.largest_norm`: infinite if a gradient is not finite, 0 for a client without examples."""
        largest = torch.zeros(len(params), dtype=torch.float64, device=params.device)
        for client, gradient in self._gradients(params, batch, anchor=None):
            largest[client] = torch.maximum(largest[client], norm.norms(gradient).nan_to_num(torch.inf, torch.inf))
        return largest

    def _gradients(self, params: Tensor, batch: Batch, anchor: Tensor | None) -> Iterator[tuple[int, Tensor]]:
        """Yields each client's position and the gradient `[dim]`, or gradient difference, of each of its examples."""
        for client in range(len(params)):
            for example in batch.mask[client].nonzero().flatten():
                x, y = _cell((batch.inputs, batch.targets), client, int(example))
                gradient = self._mean(params[client], x, y, batch.views)
                if anchor is not None:
                    gradient = gradient - self._mean(anchor[client], x, y, batch.views)
                if batch.weights is not None:
                    gradient = gradient * batch.weights[client, example]
                yield client, gradient

    def _mean(self, row: Tensor, x: Nested, y: Nested, views: int) -> Tensor:
        """Returns the mean gradient of the views of an example."""
        if views == 1:
            return self._gradient(row, x, y)
        pairs = [map_tree(lambda values, view=view: values[view], (x, y)) for view in range(views)]
        return torch.stack([self._gradient(row, view_x, view_y) for view_x, view_y in pairs]).mean(0)

    def _gradient(self, row: Tensor, x: Nested, y: Nested) -> Tensor:
        row = row.detach().clone().requires_grad_()
        loss = self._functional.example_loss(self._functional.unflatten(row), x, y)
        return torch.autograd.grad(loss, row)[0]


def _cell(pair: Pair, client: int, example: int) -> Pair:
    return map_tree(lambda values: values[client, example], pair)
