"""Packs the long lists of a ledger line into few bytes. These lists are cohorts, and numbers that are equal for many
clients.

A list of whole numbers is written as their differences, four bytes each, first all lowest bytes, then all second ones
and so on. The bytes are compressed (zlib, RFC 1950) and written in base64: the size of a packed random cohort is close
to its entropy.
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


def pack_clients(clients: Sequence[int] | None) -> object:
    """Returns a cohort as a text if it is long and in ascending order, else unchanged."""
    if clients is None or len(clients) < _FEWEST:
        return clients
    gaps = np.diff(np.asarray(clients, dtype=np.int64), prepend=-1) - 1
    if gaps.min() >= 0 and gaps.max() < 2**32:
        return _text(gaps)
    return clients


def pack_numbers(numbers: float | Sequence[float]) -> object:
    """Returns the distinct numbers and a text with each client's index into them; returns `numbers` if this is not
    shorter.
    """
    if not isinstance(numbers, Sequence) or len(numbers) < _FEWEST:
        return numbers
    levels = list(dict.fromkeys(numbers))
    if len(levels) > len(numbers) // 4:
        return numbers
    index_of = {level: index for index, level in enumerate(levels)}
    return {"levels": levels, "of": _text(np.array([index_of[number] for number in numbers]))}


def unpack_clients(packed: object) -> list[int]:
    """Returns the cohort that `pack_clients` packed.

    Raises:
        ValueError: If the argument is no text that `pack_clients` returns.
    """
    if not isinstance(packed, str):
        raise ValueError("is not a packed cohort")
    return ((_numbers(packed) + 1).cumsum() - 1).tolist()


def unpack_numbers(packed: object) -> list[float]:
    """Returns the numbers that `pack_numbers` packed.

    Raises:
        ValueError: If the argument is not a value that `pack_numbers` returns.
    """
    match packed:
        case {"levels": list() as levels, "of": str() as text, **rest} if not rest:
            indices = _numbers(text)
            if indices.max(initial=-1) >= len(levels):
                raise ValueError("not packed numbers")
            return [levels[index] for index in indices.tolist()]
        case _:
            raise ValueError("not packed numbers")


def _text(numbers: np.ndarray[Any, Any]) -> str:
    """Returns whole numbers in [0, 2**32) as compressed text."""
    planes = numbers.astype("<u4").view(np.uint8).reshape(-1, 4).T
    # gaps of random cohorts repeat nothing but zeros: longer matches would only disturb the code
    writer = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL, zlib.Z_RLE)
    return base64.b64encode(writer.compress(planes.tobytes()) + writer.flush()).decode()


def _numbers(text: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Returns the whole numbers of a compressed text."""
    try:
        reader = zlib.decompressobj()
        planes = reader.decompress(base64.b64decode(text, validate=True), 4 * _MOST + 4)
    except (binascii.Error, zlib.error) as error:
        raise ValueError("not a packed list") from error
    if len(planes) % 4 or not reader.eof or reader.unused_data:
        raise ValueError("not a packed list")
    return np.ascontiguousarray(np.frombuffer(planes, np.uint8).reshape(4, -1).T).view("<u4")[:, 0].astype(np.int64)
