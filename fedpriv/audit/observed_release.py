"""A release of an audited run, together with its exact value and the scale of its noise."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedpriv.privacy import Record


@dataclass(frozen=True)
class ObservedRelease:
    """A release, its exact value and the scale of its noise, row by row.

    Attributes:
        record: Its record in the ledger.
        released: The released value, `[k, dim]` in float64; `[1, dim]` if it is a sum over clients.
        exact: The same without noise.
        level: The factor of unit noise, `[k, dim]`; for noise that is correlated over time, the factors after
            filtering.
        amount: Number of copies of the noise that are summed in the drawn noise.
        moved: Largest distance between the results on two neighbouring data sets, in the clip's norm, `[k]`; None
            without neighbours.
        others: Largest change of a row of a client with unchanged data; 0 if there is none.
    """

    record: Record
    released: Tensor
    exact: Tensor
    level: Tensor
    amount: float
    moved: Tensor | None = None
    others: float = 0.0

    def multiplier(self, row: int) -> float:
        """Returns the noise multiplier of a row according to the ledger."""
        multipliers = self.record.noise_multiplier
        if isinstance(multipliers, tuple):
            return multipliers[row]
        return multipliers

    def row_clients(self, n_clients: int) -> list[int]:
        """Returns the client of each row; `[-1]` for a sum over clients."""
        if self.record.clients is None:
            clients = list(range(n_clients))
        else:
            clients = list(self.record.clients)
        if len(clients) == len(self.released):
            return clients
        return [-1]
