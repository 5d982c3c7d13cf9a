"""The aggregator of decentralised strategies: each node sends a row and averages its neighbours' rows (gossip)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedpriv.strategies.base import Network


@dataclass(frozen=True)
class MixedRows:
    """For each node, the average of its neighbours' rows from the last round in which the node was active.

    Attributes:
        rows: `[n, dim]`.
    """

    rows: Tensor


@dataclass(frozen=True)
class GossipAverage:
    """`rows <- W rows` on the round's active nodes, W the network's mixing matrix; inactive nodes keep their rows.

    On a star every entry of W is 1/n, so the strategy becomes its centralised counterpart.
    """

    receives: ClassVar[tuple[str, ...]] = ("row",)
    sends: ClassVar[tuple[str, ...]] = ("mixed_row",)
    is_sum: ClassVar[bool] = False

    def init(self, params: Tensor) -> tuple[Tensor, MixedRows]:
        """Starts each node from its initial parameters."""
        return params, MixedRows(params)

    def __call__(self, message: Tensor, network: Network, state: MixedRows) -> tuple[Tensor, MixedRows]:
        """Averages the neighbours' rows."""
        rows = network.replace_rows(network.mix(message), state.rows)
        return rows, MixedRows(rows)
