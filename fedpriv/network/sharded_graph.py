"""A graph whose nodes are in several processes: only rows that cross a border are sent, once to each process."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from fedpriv.clients.shard import ClientShard
from fedpriv.distributed.devices import moved
from fedpriv.distributed.mesh import Communicator
from fedpriv.network.graph import Graph, to_torch
from fedpriv.network.mixing import Weights
from fedpriv.randomness.streams import Randomness


@dataclass(frozen=True)
class BorderExchange:
    """What this process has to do with the others in one mixing step.

    Attributes:
        weights: The round's W.
        inner: Its part between nodes here, `[k, k]`.
        outer: Its part from nodes elsewhere to those here, `[k, j]`.
        heard: How many of the j rows come from which process.
        told: Which of the rows here go to which process.
        sent: Where these are put together, for each process; used again in every step, as new pages take time.
        others: Where those of the others come, `[j, dim]`.
    """

    weights: Weights
    inner: Tensor
    outer: Tensor
    heard: Mapping[int, int]
    told: Mapping[int, Tensor]
    sent: Mapping[int, Tensor]
    others: Tensor

    def suits(self, weights: Weights, rows: Tensor) -> bool:
        """Whether it is that of these weights, for rows of this type and place."""
        like = self.others
        alike = like.dtype == rows.dtype and like.device == rows.device and like.shape[1] == rows.shape[1]
        return self.weights is weights and alike


class ShardedGraph:
    """A graph as one of its processes sees it: rows are of nodes here.

    Links and weights are drawn from the public seed, so each process draws them all, and knows without asking which
    rows the others need.

    Args:
        whole: The network of all nodes.
        part: The nodes that are here. Where there are none, one row stands for what they would hear: it counts nowhere.
        shares: The nodes of each process.
        communicator: The processes among which the clients are split.
    """

    def __init__(self, whole: Graph, part: ClientShard, shares: Sequence[range], communicator: Communicator) -> None:
        self._whole, self._part, self._communicator = whole, part, communicator
        self._ends = np.array([share.stop for share in shares])
        self.n_clients, self.everyone, self.answers = whole.n_clients, whole.everyone, whole.answers
        self.mean = self.gather = self.total = self.largest = whole.mean  # there is no server
        self.scatter, self.numbers_sent = whole.scatter, 0
        self._cohort, self._rows, self._border = torch.arange(whole.n_clients), part.ids, None

    @property
    def spectral_gap(self) -> float:
        """See `Graph`."""
        return self._whole.spectral_gap

    def participants(self, round_index: int, randomness: Randomness) -> Tensor:
        """The active nodes of all processes, sorted, `[k]`."""
        self._cohort, self.numbers_sent = self._whole.participants(round_index, randomness), 0
        return self._cohort

    def here(self, cohort: Tensor, like: Tensor) -> Tensor:
        """Rows of those that are here."""
        (self._rows,) = moved(like.device, self._part.rows(cohort))
        return self._rows

    def mix(self, rows: Tensor) -> Tensor:
        """Multiply by the round's W, `mixing_steps` times: `[k, dim] -> [k, dim]`, of the active nodes here."""
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
        """Tell other processes the rows that they need; theirs, `[j, dim]`, are there when the context ends."""
        for rank, places in border.told.items():
            torch.index_select(rows, 0, places, out=border.sent[rank])
        parts = border.others.split(list(border.heard.values()))
        with self._communicator.exchange(border.sent, dict(zip(border.heard, parts, strict=True))):
            yield border.others

    def border(self, rows: Tensor) -> BorderExchange:
        """That of the round's weights, for rows like these."""
        if self._border is None or not self._border.suits(self._whole.current, rows):
            self._border = self._border_of(self._whole.current, rows)
        return self._border

    def fill(self, rows: Tensor, others: Tensor) -> Tensor:
        """The active nodes' rows, and those of `others` for the rest here: `[k, dim], [n, dim] -> [n, dim]`."""
        if len(rows) == len(others):
            return rows
        return others.index_copy(0, self._rows.to(others.device), rows)

    def _border_of(self, weights: Weights, like: Tensor) -> BorderExchange:
        owner, me = np.searchsorted(self._ends, self._cohort.numpy(), side="right"), self._communicator.rank
        whole, mine = sparse.csr_array(weights), owner == me
        needed = {rank: np.unique(whole[owner == rank].indices) for rank in range(self._communicator.world_size)}
        asked = {rank: nodes[mine[nodes]] - mine.argmax() for rank, nodes in needed.items() if rank != me}
        told = {rank: torch.from_numpy(places) for rank, places in asked.items() if len(places)}
        elsewhere = needed[me][~mine[needed[me]]]  # ascending, so those of one process after those of another
        heard = {rank: count for rank, count in enumerate(np.bincount(owner[elsewhere]).tolist()) if count}
        inner, outer = (to_torch(whole[mine][:, nodes], like, 1)[0] for nodes in (mine, elsewhere))
        places = moved(like.device, *told.values())
        sent = {rank: like.new_empty(len(rows), like.shape[1]) for rank, rows in told.items()}
        others = like.new_empty(len(elsewhere), like.shape[1])
        return BorderExchange(weights, inner, outer, heard, dict(zip(told, places, strict=True)), sent, others)
