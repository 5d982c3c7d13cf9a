"""Long lists of a ledger line in few bytes: who answered, and numbers of which each stands for many clients.

A list of whole numbers is written as their differences, four bytes each, first all lowest bytes, then all next ones;
that is compressed (zlib, RFC 1950) and written in base64: a random cohort takes hardly more than its entropy.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

_FEWEST = 64  # shorter lists stay readable
_MOST = 10**6  # clients, as many as a ledger's header may name


def packed_clients(clients: Sequence[int] | None) -> object:
    """A cohort: a text where it is long and in ascending order, else as it is."""
    if clients is None or len(clients) < _FEWEST:
        return clients
    gaps = np.diff(np.asarray(clients, dtype=np.int64), prepend=-1) - 1
    if gaps.min() >= 0 and gaps.max() < 2**32:
        return _text(gaps)
    return clients


def packed_numbers(numbers: float | Sequence[float]) -> object:
    """Numbers of several clients: the different ones, and a text that says whose is which, where that is shorter."""
    if not isinstance(numbers, Sequence) or len(numbers) < _FEWEST:
        return numbers
    levels = list(dict.fromkeys(numbers))
    place = {level: index for index, level in enumerate(levels)}
    if len(levels) > len(numbers) // 4:
        return numbers
    return {"levels": levels, "of": _text(np.array([place[number] for number in numbers]))}


def unpacked_clients(told: object) -> list[int]:
    """What `packed_clients` was given.

    Raises:
        ValueError: the text is none that it gives.
    """
    if not isinstance(told, str):
        raise ValueError("not a packed cohort")
    return ((_numbers(told) + 1).cumsum() - 1).tolist()


def unpacked_numbers(told: object) -> list[float]:
    """What `packed_numbers` was given.

    Raises:
        ValueError: levels or text are none that it gives.
    """
    match told:
        case {"levels": list() as levels, "of": str() as text, **rest} if not rest:
            places = _numbers(text)
            if places.max(initial=-1) >= len(levels):
                raise ValueError("not packed numbers")
            return [levels[place] for place in places.tolist()]
        case _:
            raise ValueError("not packed numbers")


def _text(numbers: np.ndarray[Any, Any]) -> str:
    planes = numbers.astype("<u4").view(np.uint8).reshape(-1, 4).T
    # gaps of random cohorts repeat nothing but zeros: longer matches would only disturb the code
    writer = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL, zlib.Z_RLE)
    return base64.b64encode(writer.compress(planes.tobytes()) + writer.flush()).decode()


def _numbers(text: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    try:
        reader = zlib.decompressobj()
        planes = reader.decompress(base64.b64decode(text, validate=True), 4 * _MOST + 4)
    except (binascii.Error, zlib.error) as error:
        raise ValueError("not a packed list") from error
    if len(planes) % 4 or not reader.eof or reader.unused_data:
        raise ValueError("not a packed list")
    return np.ascontiguousarray(np.frombuffer(planes, np.uint8).reshape(4, -1).T).view("<u4")[:, 0].astype(np.int64)
