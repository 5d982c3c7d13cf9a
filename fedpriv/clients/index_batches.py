"""Chosen examples of several clients, divided into padded blocks of clients with similar numbers of examples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


class Block(NamedTuple):
    """Some of the chosen examples, padded to one length.

    Attributes:
        rows: Their clients, as positions among the k clients, ascending, `[r]`.
        positions: Positions in each client's data, `[r, b]`; padding contains the position of any example of the
            client.
        mask: False where padded, `[r, b]`.
    """

    rows: Integers
    positions: Integers
    mask: NDArray[np.bool_]


class Padding(NamedTuple):
    """The number of examples to compute. It does not depend on the number of chosen examples, unless more examples are
    chosen than this number.

    Attributes:
        cells: Number of cells of each client, `[k]`: public, and seldom exceeded.
        sizes: Number of examples of each client, `[k]`. Examples that were not chosen fill the remaining cells.
    """

    cells: Integers
    sizes: Integers


@dataclass(frozen=True)
class IndexBatches:
    """Chosen examples of k clients.

    Attributes:
        counts: Number of chosen examples of each client, `[k]`.
        positions: Their positions in the client's data, one client after another, `[sum of counts]`.
        padding: Fixed numbers of cells; None pads no more than blocks need.
    """

    counts: Integers
    positions: Integers
    padding: Padding | None = None

    @classmethod
    def everything(cls, sizes: Integers) -> Self:
        """Returns all examples of clients with `sizes [k]` examples."""
        return cls(sizes, np.arange(sizes.sum()) - (sizes.cumsum() - sizes).repeat(sizes))

    @classmethod
    def marked(cls, sizes: Integers, marks: NDArray[np.bool_]) -> Self:
        """Returns the marked examples of clients with `sizes [k]` examples; `marks` has an entry for each example,
        `[sum of sizes]`.
        """
        marked = marks.nonzero()[0]
        ends = sizes.cumsum()
        starts = ends - sizes
        # number of marked examples before each end and start, without a pass over the unmarked ones
        counts = marked.searchsorted(ends) - marked.searchsorted(starts)
        return cls(counts, marked - starts.repeat(counts))

    @classmethod
    def listed(cls, positions: Sequence[Integers]) -> Self:
        """Returns the examples at the listed positions, an array for each client."""
        counts = np.array([len(client_positions) for client_positions in positions], np.int64)
        return cls(counts, np.concatenate([np.empty(0, np.int64), *positions]))

    def padded(self, padding: Padding) -> Self:
        """Returns the same examples in a fixed number of cells of each client that has examples."""
        return replace(self, padding=padding)

    @property
    def lengths(self) -> Integers:
        """Number of cells of each client, `[k]`; the chosen examples are in the first cells."""
        if self.padding is None:
            return self.counts
        return np.where(self.padding.sizes > 0, np.maximum(self.counts, self.padding.cells), 0)

    def blocks(self, chunk: int, min_fill: float = 0.75) -> Iterator[Block]:
        """Yields blocks of at most `chunk` cells with little padding.

        In a block, the client with the fewest examples has at least a fraction `min_fill` of the number of the client
        with the most examples. If a client has more than `chunk` examples, they are divided among several blocks.
        """
        starts = self.counts.cumsum() - self.counts
        # an example more, so that there is one where none was chosen
        all_positions = np.concatenate([self.positions, np.zeros(1, np.int64)])
        for rows, low, high in self._cuts(chunk, min_fill):
            offsets = np.arange(low, high)
            mask = offsets < self.counts[rows, None]
            positions = all_positions[np.where(mask, starts[rows, None] + offsets, -1)]
            if self.padding is not None:
                positions = np.where(mask, positions, offsets % self.padding.sizes[rows, None])
            yield Block(rows, positions, mask)

    def _cuts(self, chunk: int, min_fill: float) -> Iterator[tuple[Integers, int, int]]:
        """Yields the clients of each block, and the range of their examples as the first position and the last position
        plus one.
        """
        all_lengths = self.lengths
        if len(all_lengths) == 1:  # nothing to compare
            width = int(all_lengths[0])
            for low in range(0, width, chunk):
                yield np.zeros(1, np.int64), low, min(low + chunk, width)
            return
        order = np.argsort(-all_lengths, kind="stable")[: np.count_nonzero(all_lengths)]
        lengths = all_lengths[order]
        first = 0
        while first < len(order):
            width = int(lengths[first])
            # a block ends when it is full or when the next row would be padded by more
            similar = int(np.searchsorted(-lengths, -min_fill * width, side="right"))
            last = min(max(first + 1, similar), first + max(1, chunk // width))
            for low in range(0, width, chunk):
                yield np.sort(order[first:last]), low, min(low + chunk, width)
            first = last
