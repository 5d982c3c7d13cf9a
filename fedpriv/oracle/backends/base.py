"""What a backend computes: sums of clipped per-example gradients, one row a client."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from fedpriv.clients.batch import Batch
from fedpriv.privacy.clipping import Clip


class Backend(Protocol):
    """Per-example gradients of the clients' losses, clipped one by one and summed.

    The guarantee rests on this: each example changes its client's row by a vector of norm at most `clip.bound`, up to
    the rounding of float64, in which clipped gradients are summed.
    Built as `Backend(model, loss)`; every backend gives the same sums as `loop` up to rounding.
    """

    def clipped_sum(
        self, params: Tensor, batch: Batch, clip: Clip | None, anchor: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Sum of clipped per-example gradients.

        Args:
            params: Row of each client of the batch, `[k, dim]` (already selected: row j belongs to `batch.rows[j]`).
            batch: Examples `[k, b, ...]` with their mask.
            clip: Bound on each example's gradient, or None for exact sums. An example whose gradient is not finite
                counts as zero when clipped, and is passed on as it is when not.
            anchor: `[k, dim]`; if given, each example contributes the clipped difference of its gradients at
                `params` and at `anchor`.

        Returns:
            The sums `[k, dim]`, in float64 where they are clipped, and the number of examples per client whose gradient
            was not finite, `[k]`.
        """
        ...

    def largest_norm(self, params: Tensor, batch: Batch, norm: Clip) -> Tensor:
        """Largest per-example gradient norm of each client, `[k]`. Data dependent: never private."""
        ...
