"""One release, with what stands under its noise."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedpriv.privacy.record import Record


@dataclass(frozen=True)
class ObservedRelease:
    """A release and what stands under it, row by row.

    Attributes:
        record: Its line in the ledger.
        released: What was opened, `[k, dim]` in float64; `[1, dim]` where it is a sum over clients.
        exact: The same without noise.
        level: What unit noise was multiplied by, `[k, dim]` (with noise that is correlated in time, filtered ones).
        amount: Sum of how many copies of the noise was drawn.
        moved: Largest distance of two of the neighbours' answers in the clip's norm, `[k]`; None without neighbours.
        others: Largest change of a row whose client's data did not change; 0 where there is none.
    """

    record: Record
    released: Tensor
    exact: Tensor
    level: Tensor
    amount: float
    moved: Tensor | None = None
    others: float = 0.0

    def multiplier(self, row: int) -> float:
        """The noise over sensitivity that the ledger says of a row."""
        said = self.record.noise_multiplier
        if isinstance(said, tuple):
            return said[row]
        return said

    def whose(self, n_clients: int) -> list[int]:
        """The clients that its rows belong to; -1 for a sum over clients."""
        if self.record.clients is None:
            clients = list(range(n_clients))
        else:
            clients = list(self.record.clients)
        if len(clients) == len(self.released):
            return clients
        return [-1]
