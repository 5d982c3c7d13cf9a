"""Chains lines, so that changes are detected: each line contains a hash of itself and all lines before it.

A line is a JSON object. Its last field `chain` is SHA-256 of the `chain` of the line before (64 zeros before the first
line), followed by the bytes of this line up to `,"chain"`. The chain can be checked without a key.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

START = 64 * "0"
_FIELD = re.compile(rb',"chain":"([0-9a-f]{64})"\}\Z')
_CLOCK = "seconds"  # how long a run took: the only thing that its repetition may change


def add_chained_line(text: str, before: str) -> tuple[str, str]:
    """Links a JSON object to the line before it.

    Args:
        text: The object, with at least one field.
        before: The `chain` of the line before.

    Returns:
        The line, and its `chain`.
    """
    chain = _hash(before, text[:-1].encode())
    return f'{text[:-1]},"chain":"{chain}"}}', chain


def read_chained_line(line: bytes, before: str) -> tuple[bytes, str] | None:
    """Returns the object in a line of `add_chained_line`, and its `chain`; None if that is missing or wrong."""
    match = _FIELD.search(line)
    if match is None or match[1].decode() != _hash(before, line[: match.start()]):
        return None
    return line[: match.start()] + b"}", match[1].decode()


def with_chain(facts: Mapping[str, Any], before: str) -> dict[str, Any]:
    """Returns facts with their `chain` added. Their order and layout do not matter, and `seconds` is not hashed.

    Args:
        facts: Numbers, texts, lists and dicts of them.
        before: The `chain` of the last line before.
    """
    return {**facts, "chain": _hash(before, _plain(facts))}


def is_linked(facts: Mapping[str, Any], before: str) -> bool:
    """True if the `chain` of facts is the one that `with_chain` computes for them."""
    return facts.get("chain") == _hash(before, _plain(facts))


def _hash(before: str, text: bytes) -> str:
    return hashlib.sha256(before.encode() + text).hexdigest()


def _plain(facts: Mapping[str, Any]) -> bytes:
    """Returns the bytes that are hashed, the same for every order and layout of the facts."""
    hashed = {name: value for name, value in facts.items() if name not in ("chain", _CLOCK)}
    return json.dumps(hashed, sort_keys=True, separators=(",", ":")).encode()
