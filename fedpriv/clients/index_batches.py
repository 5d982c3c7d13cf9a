"""Chosen examples of several clients, and their division into padded blocks of clients with similar counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


class Block(NamedTuple):
    """Some of the chosen examples, padded to one length.

    Attributes:
        rows: Their clients, as positions among the k clients, ascending, `[r]`.
        positions: Positions in the data of each, `[r, b]`; 0 where padded.
        mask: False where padded, `[r, b]`.
    """

    rows: Integers
    positions: Integers
    mask: NDArray[np.bool_]


@dataclass(frozen=True)
class IndexBatches:
    """Chosen examples of k clients.

    Attributes:
        counts: Number of chosen examples of each client, `[k]`.
        positions: Their positions in the client's data, one client after another, `[sum of counts]`.
    """

    counts: Integers
    positions: Integers

    @classmethod
    def everything(cls, sizes: Integers) -> Self:
        """Returns all examples of clients with `sizes [k]` examples."""
        return cls(sizes, np.arange(sizes.sum()) - (sizes.cumsum() - sizes).repeat(sizes))

    @classmethod
    def marked(cls, sizes: Integers, marks: NDArray[np.bool_]) -> Self:
        """Returns the marked examples of clients with `sizes [k]` examples; `marks` are of all, `[sum of sizes]`."""
        before = np.concatenate([np.zeros(1, np.int64), marks.cumsum(dtype=np.int64)])
        ends = sizes.cumsum()
        counts = before[ends] - before[ends - sizes]
        return cls(counts, marks.nonzero()[0] - (ends - sizes).repeat(counts))

    @classmethod
    def listed(cls, positions: Sequence[Integers]) -> Self:
        """Returns the examples at the listed positions, an array for each client."""
        counts = np.array([len(client_positions) for client_positions in positions], np.int64)
        return cls(counts, np.concatenate([np.empty(0, np.int64), *positions]))

    def blocks(self, chunk: int, min_fill: float = 0.75) -> Iterator[Block]:
        """Yields blocks of at most `chunk` cells with little padding.

        In a block the client with fewest examples has at least a fraction `min_fill` of the client with most; more than
        `chunk` examples of one client are divided among several blocks.
        """
        starts = self.counts.cumsum() - self.counts
        for rows, low, high in self._cuts(chunk, min_fill):
            offsets = np.arange(low, high)
            mask = offsets < self.counts[rows, None]
            yield Block(rows, self.positions[np.where(mask, starts[rows, None] + offsets, 0)] * mask, mask)

    def _cuts(self, chunk: int, min_fill: float) -> Iterator[tuple[Integers, int, int]]:
        """Yields the clients of each block, and the range of their examples: first, and last plus one."""
        order = np.argsort(-self.counts, kind="stable")[: np.count_nonzero(self.counts)]
        lengths = self.counts[order]
        first = 0
        while first < len(order):
            width = int(lengths[first])
            # a block ends when it is full or when the next row would be padded by more
            similar = int(np.searchsorted(-lengths, -min_fill * width, side="right"))
            last = min(max(first + 1, similar), first + max(1, chunk // width))
            for low in range(0, width, chunk):
                yield np.sort(order[first:last]), low, min(low + chunk, width)
            first = last
