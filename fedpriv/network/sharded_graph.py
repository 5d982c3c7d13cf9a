"""A graph with nodes in several processes. Each process receives only the rows that it needs, and receives each row
once.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from fedpriv.clients.shard import ClientShard
from fedpriv.distributed.devices import move_to_device
from fedpriv.distributed.mesh import Communicator
from fedpriv.network.graph import Graph, to_torch
from fedpriv.network.mixing import Weights
from fedpriv.randomness.streams import Randomness


@dataclass(frozen=True)
class BorderExchange:
    """The rows that this process exchanges with others in one mixing step, and the buffers for them.

    Attributes:
        weights: The round's W.
        inner: The block of W between nodes of this process, `[k, k]`.
        outer: The block of W from nodes of other processes to nodes of this one, `[k, j]`.
        receive_counts: Number of the j rows that come from each rank.
        send_rows: Positions of the rows that go to each rank.
        send_buffers: Buffers for the rows to each rank. They are used again in every step, since new memory takes time.
        receive_buffer: Buffer for the rows from all other ranks, `[j, dim]`.
    """

    weights: Weights
    inner: Tensor
    outer: Tensor
    receive_counts: Mapping[int, int]
    send_rows: Mapping[int, Tensor]
    send_buffers: Mapping[int, Tensor]
    receive_buffer: Tensor

    def suits(self, weights: Weights, rows: Tensor) -> bool:
        """True if the exchange is for these weights, and for rows of this width, type and device."""
        buffer = self.receive_buffer
        same_kind = buffer.dtype == rows.dtype and buffer.device == rows.device and buffer.shape[1] == rows.shape[1]
        return self.weights is weights and same_kind


class ShardedGraph:
    """The part of a graph in one process. All rows belong to the nodes in this process.

    Links and weights are drawn from the public seed, so each process draws them all, and computes without communication
    which rows the others need.

    Args:
        whole: The network of all nodes.
        shard: The nodes of this process. A process without nodes has one placeholder row, which is left out of all
            sums.
        shares: The nodes of each process.
        communicator: The processes among which the clients are split.
    """

    def __init__(self, whole: Graph, shard: ClientShard, shares: Sequence[range], communicator: Communicator) -> None:
        self._whole = whole
        self._shard = shard
        self._communicator = communicator
        self._ends = np.array([share.stop for share in shares])
        self.n_clients = whole.n_clients
        self.everyone = whole.everyone
        self.answers = whole.answers
        self.mean = self.gather = self.total = self.largest = whole.mean  # there is no server
        self.scatter = whole.scatter
        self.numbers_sent = 0
        self._cohort = torch.arange(whole.n_clients)
        self._rows = shard.ids
        self._border = None

    @property
    def spectral_gap(self) -> float:
        """See `Graph`."""
        return self._whole.spectral_gap

    def participants(self, round_index: int, randomness: Randomness) -> Tensor:
        """Draws and returns the active nodes of all processes, sorted, `[k]`."""
        self._cohort = self._whole.participants(round_index, randomness)
        self.numbers_sent = 0
        return self._cohort

    def local_positions(self, cohort: Tensor, like: Tensor) -> Tensor:
        """Returns the positions of the cohort's nodes among the rows in this process."""
        (self._rows,) = move_to_device(like.device, self._shard.rows(cohort))
        return self._rows

    def mix(self, rows: Tensor) -> Tensor:
        """Multiplies by the round's W, `mixing_steps` times: `[k, dim] -> [k, dim]`, of this process's nodes."""
        if not len(self._cohort):
            return rows
        border = self.border(rows)
        self.numbers_sent += self._whole.numbers_in(rows)
        for _ in range(self._whole.mixing_steps):
            with self.crossing(border, rows) as others:
                rows = border.inner @ rows
            rows.addmm_(border.outer, others)
        return rows

    @contextmanager
    def crossing(self, border: BorderExchange, rows: Tensor) -> Generator[Tensor]:
        """A context that exchanges rows with other processes. The received rows, `[j, dim]`, are complete when the
        context ends.
        """
        for rank, row_indices in border.send_rows.items():
            torch.index_select(rows, 0, row_indices, out=border.send_buffers[rank])
        chunks = border.receive_buffer.split(list(border.receive_counts.values()))
        with self._communicator.exchange(border.send_buffers, dict(zip(border.receive_counts, chunks, strict=True))):
            yield border.receive_buffer

    def border(self, rows: Tensor) -> BorderExchange:
        """Returns the exchange for the round's weights and rows like these."""
        if self._border is None or not self._border.suits(self._whole.current, rows):
            self._border = self._make_border(self._whole.current, rows)
        return self._border

    def replace_rows(self, rows: Tensor, others: Tensor) -> Tensor:
        """Returns `others` with the rows of this process's active nodes replaced: `[k, dim], [n, dim] -> [n, dim]`."""
        if len(rows) == len(others):
            return rows
        return others.index_copy(0, self._rows.to(others.device), rows)

    def _make_border(self, weights: Weights, like: Tensor) -> BorderExchange:
        """Returns the exchange for these weights, with buffers of the type, width and device of `like`."""
        rank = self._communicator.rank
        owner = np.searchsorted(self._ends, self._cohort.numpy(), side="right")  # rank of each active node
        is_local = owner == rank
        matrix = sparse.csr_array(weights)
        # the nodes with the rows that each rank multiplies
        needed = {other: np.unique(matrix[owner == other].indices) for other in range(self._communicator.world_size)}

        # a rank's active nodes are consecutive, so that its first one has row 0
        rows_to_send = {
            other: nodes[is_local[nodes]] - is_local.argmax() for other, nodes in needed.items() if other != rank
        }
        send_rows = {other: torch.from_numpy(rows) for other, rows in rows_to_send.items() if len(rows)}

        outside = needed[rank][~is_local[needed[rank]]]  # ascending, and therefore grouped by rank
        receive_counts = {other: count for other, count in enumerate(np.bincount(owner[outside]).tolist()) if count}
        inner, outer = (to_torch(matrix[is_local][:, nodes], like, 1)[0] for nodes in (is_local, outside))
        rows_on_device = move_to_device(like.device, *send_rows.values())
        return BorderExchange(
            weights=weights,
            inner=inner,
            outer=outer,
            receive_counts=receive_counts,
            send_rows=dict(zip(send_rows, rows_on_device, strict=True)),
            send_buffers={other: like.new_empty(len(rows), like.shape[1]) for other, rows in send_rows.items()},
            receive_buffer=like.new_empty(len(outside), like.shape[1]),
        )
