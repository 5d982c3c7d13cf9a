"""What answers are made of before noise: sums over the drawn examples of each client."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fedpriv.backends.base import Backend
from fedpriv.batch import Batch
from fedpriv.constraint_queries import ConstraintQueries
from fedpriv.privacy.clipping import Clip


class Sums:
    """Sums at rows of parameters, `[k, dim]`. Nothing here is private: it stays with whoever holds the clients.

    Args:
        backend: Computes sums of clipped gradients.
        n_clients: Number of clients of the run.
        device: Where they are.

    Attributes:
        broken_examples: How many examples of each client had a gradient that is not finite and counted as zero,
            `[n_clients]`: a diagnostic, never written or sent.
    """

    def __init__(self, backend: Backend, n_clients: int, device: torch.device) -> None:
        self._backend = backend
        self.broken_examples = torch.zeros(n_clients, dtype=torch.long, device=device)

    def gradients(
        self,
        batches: Iterator[Batch],
        cohort: Tensor,
        params: Tensor,
        anchor: Tensor | None = None,
        clip: Clip | None = None,
        weights: Tensor | None = None,
    ) -> Tensor:
        """Sums of gradients (less those at `anchor [k, dim]`), `[k, dim]`.

        Args:
            batches: The examples.
            cohort: The clients of the rows, `[k]`.
            params: Where.
            anchor: The other point of differences.
            clip: Bound on each example's part; None does not clip.
            weights: Public coefficients of each example's loss, `[examples]`.
        """
        total = torch.zeros(params.shape, device=params.device, dtype=params.dtype)
        cohort = cohort.to(params.device)
        for batch in batches:
            at = None if anchor is None else _rows(anchor, batch)
            weighted = batch if weights is None else batch.weighted(weights)
            part, broken = self._backend.clipped_sum(_rows(params, batch), weighted, clip, at)
            total.index_add_(0, batch.rows, part)
            self.broken_examples.index_add_(0, cohort[batch.rows], broken)
        return total

    def largest_norms(self, batches: Iterator[Batch], params: Tensor, clip: Clip) -> list[float]:
        """Largest norm of one example's gradient, for each row."""
        norms = params.new_zeros(len(params))
        for batch in batches:
            largest = self._backend.largest_norm(_rows(params, batch), batch, clip)
            norms[batch.rows] = norms[batch.rows].maximum(largest)
        return norms.tolist()


def statistics(batches: Iterator[Batch], params: Tensor, queries: ConstraintQueries) -> Tensor:
    """Sums of bounded losses for constraint values, `[k, n_sums]`."""
    total = params.new_zeros(len(params), queries.n_sums)
    for batch in batches:
        total.index_add_(0, batch.rows, queries.bounded_sum(_rows(params, batch), batch))
    return total


def _rows(params: Tensor, batch: Batch) -> Tensor:
    """The rows of a batch's clients, without a copy where all rows are one or all are wanted."""
    if params.stride(0) == 0:
        return params[:1].expand(len(batch.rows), -1)
    return params if len(batch.rows) == len(params) else params[batch.rows]
