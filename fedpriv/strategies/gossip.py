"""What decentralised strategies share: each node sends a row and averages the rows of its neighbours (gossip)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedpriv.strategies.base import Network


@dataclass(frozen=True)
class Mixed:
    """What each node made of its neighbours' rows when it was last active.

    Attributes:
        rows: `[n, dim]`.
    """

    rows: Tensor


@dataclass(frozen=True)
class Gossip:
    """`rows <- W rows` on the round's active nodes, W the network's mixing matrix; inactive nodes keep their rows.

    On a star every entry of W is 1/n, which makes the strategy its centralised counterpart.
    """

    hears: ClassVar[tuple[str, ...]] = ("row",)
    says: ClassVar[tuple[str, ...]] = ("mixed_row",)
    is_sum: ClassVar[bool] = False

    def init(self, params: Tensor) -> tuple[Tensor, Mixed]:
        """Each node starts from its own row."""
        return params, Mixed(params)

    def __call__(self, message: Tensor, network: Network, state: Mixed) -> tuple[Tensor, Mixed]:
        """Mix what was sent."""
        rows = network.fill(network.mix(message), state.rows)
        return rows, Mixed(rows)
