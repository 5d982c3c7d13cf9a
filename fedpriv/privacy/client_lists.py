"""Stores many lists of clients, such as the cohorts of a long plan, in a few bytes per client."""

from __future__ import annotations

import base64
import zlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

_TYPES = ("B", "H", "i")  # of 1, 2 and 4 bytes
_MOST_KNOWN = 1 << 16  # clients in the lists that are compared
_AT_ONCE = 1 << 17  # clients that are counted together: temporary arrays of 1 MB


@dataclass
class ClientLists:
    """Lists of clients, numbered from 0.

    A list that is added again gets its first number. Only the first lists are compared, so that a plan whose cohorts
    are all different needs no memory for the comparison.
    """

    _members: array[int] = field(default_factory=lambda: array(_TYPES[0]))
    _ends: array[int] = field(default_factory=lambda: array("q"))
    _known: dict[tuple[int, ...], int] = field(default_factory=dict[tuple[int, ...], int], repr=False, compare=False)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, number: int) -> tuple[int, ...]:
        return tuple(self._packed(number))

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        return map(self.__getitem__, range(len(self)))

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Number of clients in each list."""
        return np.diff(np.asarray(self._ends), prepend=0)

    def number_of(self, clients: tuple[int, ...]) -> int:
        """Returns the number of a list of ascending clients; adds the list if it is new."""
        known = self._known.get(clients)
        if known is not None:
            return known
        if clients:
            self._widen(clients[-1])
        self._members.extend(clients)
        self._ends.append(len(self._members))
        number = len(self._ends) - 1
        if len(self._members) <= _MOST_KNOWN:
            self._known[clients] = number
        return number

    def participations(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns, for each client, the number of given lists that contain it. A list that is given several times is
        counted several times.
        """
        members, ends = np.asarray(self._members), np.asarray(self._ends)
        counts = np.zeros(int(members.max()) + 1 if len(members) else 0, np.int64)
        sizes = self.sizes
        step = max(1, _AT_ONCE // int(sizes.max(initial=1)))
        for first in range(0, len(numbers), step):
            chosen = numbers[first : first + step]
            lengths = sizes[chosen]
            # positions of the members: list by list, each from its start
            offsets = np.repeat(ends[chosen] - lengths.cumsum(), lengths)
            counts += np.bincount(members[offsets + np.arange(len(offsets))], minlength=len(counts))
        return counts

    def packed(self) -> dict[str, str | list[int]]:
        """Returns the lists as values for JSON: their sizes, and a text of all their members."""
        members = np.asarray(self._members).astype("<i4").tobytes()
        return {"sizes": self.sizes.tolist(), "members": base64.b64encode(zlib.compress(members)).decode()}

    @staticmethod
    def unpacked(values: Any) -> ClientLists:  # noqa: ANN401 - any JSON value
        """Returns the lists that `packed` returned.

        Raises:
            ValueError, LookupError, TypeError, OverflowError, zlib.error: If the values are others.
        """
        members = iter(np.frombuffer(zlib.decompress(base64.b64decode(values["members"])), "<i4").tolist())
        lists = ClientLists()
        for size in values["sizes"]:
            lists.number_of(tuple(islice(members, size)))
        return lists

    def _packed(self, number: int) -> array[int]:
        start = self._ends[number - 1] if number else 0
        return self._members[start : self._ends[number]]

    def _widen(self, client: int) -> None:
        """Makes room for the number of a client in the type of the array."""
        while client >= 1 << (8 * self._members.itemsize - (self._members.typecode == "i")):
            following = _TYPES[_TYPES.index(self._members.typecode) + 1]
            self._members = array(following, self._members)


def joined(first: ClientLists, second: ClientLists) -> tuple[ClientLists, Sequence[int]]:
    """Returns the lists of both objects, and the new numbers of the lists of the second object."""
    lists = ClientLists()
    for clients in first:
        lists.number_of(clients)
    return lists, array("i", map(lists.number_of, second))
