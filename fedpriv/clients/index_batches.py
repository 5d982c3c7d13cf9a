"""Some examples of several clients, and how they are cut into padded blocks of similar lengths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

Whole = NDArray[np.int64]


class Block(NamedTuple):
    """Some of the chosen examples, padded to one length.

    Attributes:
        rows: Whose they are: positions among the clients, ascending, `[r]`.
        places: Positions in the data of each, `[r, b]`; 0 where padded.
        mask: False where padded, `[r, b]`.
    """

    rows: Whole
    places: Whole
    mask: NDArray[np.bool_]


@dataclass(frozen=True)
class IndexBatches:
    """Examples of k clients.

    Attributes:
        counts: How many of each client, `[k]`.
        places: Their positions in the client's data, one client after another, `[sum of counts]`.
    """

    counts: Whole
    places: Whole

    @classmethod
    def everything(cls, sizes: Whole) -> Self:
        """All examples of clients that have so many, `[k]`."""
        return cls(sizes, np.arange(sizes.sum()) - (sizes.cumsum() - sizes).repeat(sizes))

    @classmethod
    def marked(cls, sizes: Whole, marks: NDArray[np.bool_]) -> Self:
        """The marked ones among all examples `[sum of sizes]` of clients that have so many, `[k]`."""
        before = np.concatenate([np.zeros(1, np.int64), marks.cumsum(dtype=np.int64)])
        ends = sizes.cumsum()
        counts = before[ends] - before[ends - sizes]
        return cls(counts, marks.nonzero()[0] - (ends - sizes).repeat(counts))

    @classmethod
    def listed(cls, places: Sequence[Whole]) -> Self:
        """The listed ones of each client."""
        counts = np.array([len(part) for part in places], np.int64)
        return cls(counts, np.concatenate([np.empty(0, np.int64), *places]))

    def blocks(self, chunk: int, alike: float = 0.75) -> Iterator[Block]:
        """Cut them into blocks of at most `chunk` cells with little padding.

        Clients go together of which the one with fewest has at least a fraction `alike` of the one with most; more than
        `chunk` of one client are cut along its examples.
        """
        starts = self.counts.cumsum() - self.counts
        for rows, low, high in self._cuts(chunk, alike):
            offsets = np.arange(low, high)
            mask = offsets < self.counts[rows, None]
            yield Block(rows, self.places[np.where(mask, starts[rows, None] + offsets, 0)] * mask, mask)

    def _cuts(self, chunk: int, alike: float) -> Iterator[tuple[Whole, int, int]]:
        """Rows, and from which to which of their examples."""
        order = np.argsort(-self.counts, kind="stable")[: np.count_nonzero(self.counts)]
        lengths, first = self.counts[order], 0
        while first < len(order):
            width = int(lengths[first])
            # a block ends when it is full or when the next row would be padded by more
            similar = int(np.searchsorted(-lengths, -alike * width, side="right"))
            last = min(max(first + 1, similar), first + max(1, chunk // width))
            for low in range(0, width, chunk):
                yield np.sort(order[first:last]), low, min(low + chunk, width)
            first = last
