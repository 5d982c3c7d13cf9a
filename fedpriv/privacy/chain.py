"""Chained lines, in which every change is detected: each holds a hash of itself and of all lines before it.

A linked line is a JSON object whose last two fields are

* `chain`: SHA-256 of the `chain` of the line before (64 zeros before the first line), followed by the bytes of this
  line up to `,"chain"`. Anybody can check it;
* `seal`: the first 128 bits of HMAC-SHA-256 of `chain`, under a key. Only those who hold the key can check or make it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

START = 64 * "0"
_FIELDS = re.compile(rb',"chain":"([0-9a-f]{64})","seal":"([0-9a-f]{32})"\}\Z')
_BARE = re.compile(rb',"chain":"([0-9a-f]{64})"\}\Z')
_CLOCK = "seconds"  # how long a run took: the only thing that its repetition may change


class Link(NamedTuple):
    """The last two fields of a line."""

    chain: str
    seal: str

    def is_of(self, key: bytes) -> bool:
        """Whether the line was sealed with this key."""
        return hmac.compare_digest(self.seal, _seal(self.chain, key))


def link(text: str, before: str, key: bytes) -> tuple[str, str]:
    """Links a JSON object to the line before it.

    Args:
        text: The object, with at least one field.
        before: The `chain` of the line before.
        key: Secret key of the seal.

    Returns:
        The line, and its `chain`.
    """
    chain = _hash(before, text[:-1].encode())
    return f'{text[:-1]},"chain":"{chain}","seal":"{_seal(chain, key)}"}}', chain


def unlink(line: bytes, before: str) -> tuple[bytes, Link] | None:
    """Splits a line into its object and its link, and checks the `chain`.

    Returns:
        The object without the two fields, and the fields; None if they are missing, or `chain` is wrong.
    """
    match = _FIELDS.search(line)
    if match is None:
        return None
    fields = Link(match[1].decode(), match[2].decode())
    if fields.chain == _hash(before, line[: match.start()]):
        return (line[: match.start()] + b"}", fields)
    return None


def chained(text: str, before: str) -> tuple[str, str]:
    """Links a JSON object like `link`, without a seal: for files whose writers share no secret."""
    chain = _hash(before, text[:-1].encode())
    return f'{text[:-1]},"chain":"{chain}"}}', chain


def unchained(line: bytes, before: str) -> tuple[bytes, str] | None:
    """Returns the object in a line of `chained`, and its `chain`; None if that is missing or wrong."""
    match = _BARE.search(line)
    if match is None or match[1].decode() != _hash(before, line[: match.start()]):
        return None
    return line[: match.start()] + b"}", match[1].decode()


def linked(facts: Mapping[str, Any], before: str, key: bytes) -> dict[str, Any]:
    """Returns facts with the two fields added. Their order and layout do not matter, and `seconds` is not hashed.

    Args:
        facts: Numbers, texts, lists and dicts of them.
        before: The `chain` of the last line before.
        key: Secret key of the seal.
    """
    chain = _hash(before, _plain(facts))
    return {**facts, "chain": chain, "seal": _seal(chain, key)}


def link_of(facts: Mapping[str, Any], before: str) -> Link | None:
    """Returns the two fields of facts made by `linked`; None if they are missing, or the facts were changed."""
    chain = _hash(before, _plain(facts))
    seal = facts.get("seal")
    if isinstance(seal, str) and facts.get("chain") == chain:
        return Link(chain, seal)
    return None


def _hash(before: str, text: bytes) -> str:
    return hashlib.sha256(before.encode() + text).hexdigest()


def _seal(chain: str, key: bytes) -> str:
    return hmac.digest(key, chain.encode(), "sha256").hex()[:32]


def _plain(facts: Mapping[str, Any]) -> bytes:
    """Returns the bytes that are hashed, the same for every order and layout of the facts."""
    hashed = {name: value for name, value in facts.items() if name not in ("chain", "seal", _CLOCK)}
    return json.dumps(hashed, sort_keys=True, separators=(",", ":")).encode()
