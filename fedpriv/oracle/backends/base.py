"""Defines the interface of backends, which compute sums of clipped per-example gradients, one row for each client."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from fedpriv.clients.batch import Batch
from fedpriv.privacy.clipping import Clip


class Backend(Protocol):
    """Computes per-example gradients of the clients' losses, clips each and sums them.

    Guarantee: each example changes its client's row by a vector with norm at most `clip.bound`, up to rounding in
    float64, and changes no other row. All privacy guarantees depend on this property. Backends are built as
    `Backend(model, loss, chunk)`.
    """

    def clipped_sum(
        self, params: Tensor, batch: Batch, clip: Clip | None, anchor: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Returns sums of clipped per-example gradients.

        Args:
            params: Parameters of each client of the batch, `[k, dim]`. Row j belongs to client `batch.rows[j]`.
            batch: Examples `[k, b, ...]` with their mask.
            clip: Bound on each example's gradient, or None for exact sums. With a bound, gradients that are not finite
                count as zero; without, they are added as they are.
            anchor: `[k, dim]`; if given, each example contributes the clipped difference of its gradients at
                `params` and at `anchor`.

        Returns:
            The sums `[k, dim]`, in float64 if they are clipped, and the number of non-finite per-example gradients of
            each client, `[k]`.
        """
        ...

    def largest_norm(self, params: Tensor, batch: Batch, norm: Clip) -> Tensor:
        """Returns the largest per-example gradient norm of each client, `[k]`; data-dependent and not private."""
        ...
