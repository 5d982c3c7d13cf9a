"""Messages between two neighbours on a graph, as signed bytes: safetensors, which is read without running code.

A row is sealed for the one neighbour that receives it, with a secret that the two have agreed on, so that no third
party can read it in transit, with any transport (AES-SIV, RFC 5297: equal rows have equal bytes).

| kind | sender | content |
|---|---|---|
| `hello` | either end | the sender's round; requests the same from the receiver |
| `here` | either end | the reply to a hello |
| `exchange` | follower | its released row of a round; requests the decider's row |
| `up` | decider | the link counts in that round, with the decider's released row |
| `down` | decider | the link never counts in that round |
| `later` | decider | not decided yet; the follower repeats its request |

The site with the smaller number decides about a link, and the other end follows (docs/design/0009-peers.md).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESSIV
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedpriv.sites.agreement import AgreedSecrets
from fedpriv.sites.messages import MalformedMessage
from fedpriv.sites.reply_counter import ReplyCounter

Kind = Literal["hello", "here", "exchange", "up", "down", "later"]
Away = Literal["", "over_budget", "finished", "nonfinite", "alone"]
"""Reason why a site takes part in no further round; empty while it takes part."""
_WITH_ROW = {"exchange", "up"}
_OVERHEAD = 4096  # bytes of names, numbers and signature that accompany a row
_DOMAIN = b"fedpriv/peer message/1/"
_FACTS = {"plan", "kind", "round", "at", "is_ready", "is_waiting", "away", "sender", "receiver", "counter", "shown"}
_COUNTERS = ("counter", "shown")


@dataclass(frozen=True)
class PeerMessage:
    """A request of one neighbour to another, or the reply to it.

    Attributes:
        kind: Kind of message; see the module.
        plan: Hash of the plan.
        sender: Number of the site that signed it.
        receiver: Number of the site that receives it.
        round: The round of the message's content, from 0.
        at: The current round of the sender.
        is_ready: True if the sender has released its row of round `at`, so that it only waits for others.
        is_waiting: True if the sender does not release yet, since after a start it waits for a message of a neighbour.
        away: Reason why the sender takes part in no further round; empty while it takes part.
        counter: The sender's signed reply counter.
        shown: The receiver's largest counter at the sender, so that an old copy of the receiver's folder is detected.
        row: The sender's released row of `round`, `[m]` float32, in an `exchange` and an `up`; None in others.
    """

    kind: Kind
    plan: str
    sender: int
    receiver: int
    round: int
    at: int
    is_ready: bool
    is_waiting: bool = False
    away: Away = ""
    counter: ReplyCounter | None = None
    shown: ReplyCounter | None = None
    row: Tensor | None = None


class MessageCodec:
    """Packs and unpacks the messages of one site in one plan.

    Args:
        plan: Hash of the plan.
        secrets: The secrets that the site shares with the others.
        signing_key: Its Ed25519 key, 32 bytes.
        verifying_keys: The Ed25519 public key of each of its neighbours, 32 bytes, by number.
        width: Number of values of a row.
    """

    def __init__(
        self,
        plan: str,
        secrets: AgreedSecrets,
        signing_key: bytes,
        verifying_keys: Mapping[int, bytes],
        width: int,
    ) -> None:
        self._plan = plan
        self._number = secrets.client
        self._signing_key = Ed25519PrivateKey.from_private_bytes(signing_key)
        self._verifying_keys = verifying_keys
        self._width = width
        self._seals = {other: AESSIV(_seal_key(secrets, other)) for other in verifying_keys}

    def pack(self, message: PeerMessage) -> bytes:
        """Returns the bytes of a message of this site; equal messages have equal bytes."""
        facts = {name: getattr(message, name) for name in sorted(_FACTS)}
        for name in _COUNTERS:
            if facts[name] is not None:
                facts[name] = facts[name].model_dump()
        if message.row is None:
            sealed = b""
            tensors = {}
        else:
            row = message.row.detach().cpu().contiguous().numpy().tobytes()
            sealed = self._seals[message.receiver].encrypt(row, [_about(message)])
            tensors = {"sealed": torch.frombuffer(bytearray(sealed), dtype=torch.uint8)}
        signature = self._signing_key.sign(_signed_content(facts, sealed))
        return save(tensors, {"fedpriv": json.dumps({**facts, "signature": signature.hex()}, sort_keys=True)})

    def unpack(self, data: bytes) -> PeerMessage:
        """Reads a message of a neighbour to this site.

        Raises:
            MalformedMessage: If the bytes are not a message, are not signed by a neighbour for this site and plan, or
            contain a row with another width or with numbers that are not finite.
        """
        if len(data) > longest_message(self._width):
            raise MalformedMessage("the message is longer than any message of this plan")
        try:
            tensors = load(data)
            header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
            facts = json.loads(header["__metadata__"]["fedpriv"])
            signature = bytes.fromhex(facts.pop("signature"))
        except (SafetensorError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
            raise MalformedMessage("the bytes are not a message of fedpriv") from error
        _check_facts(facts)
        counters = {name: _read_counter(facts[name]) for name in _COUNTERS}
        plain = {name: value for name, value in facts.items() if name not in _COUNTERS}
        message = PeerMessage(**plain, counter=counters["counter"], shown=counters["shown"])
        if (message.plan, message.receiver) != (self._plan, self._number):
            raise MalformedMessage("the message is for another plan or another site")
        if message.sender not in self._verifying_keys:
            raise MalformedMessage("the sender of the message is not a neighbour")
        sealed = _sealed_bytes(tensors, facts["kind"])
        try:
            public = Ed25519PublicKey.from_public_bytes(self._verifying_keys[message.sender])
            public.verify(signature, _signed_content(facts, sealed))
        except (InvalidSignature, ValueError):
            raise MalformedMessage(f"the message is not signed by its sender, site {message.sender}") from None
        if sealed:
            message = replace(message, row=self._open(message, sealed))
        return message

    def _open(self, message: PeerMessage, sealed: bytes) -> Tensor:
        """Returns the row of a message, `[m]`."""
        try:
            content = self._seals[message.sender].decrypt(sealed, [_about(message)])
        except InvalidTag:
            raise MalformedMessage("the encrypted row is for another site, or was changed") from None
        if len(content) != 4 * self._width:
            raise MalformedMessage("the row has another number of values than the plan")
        row = torch.frombuffer(bytearray(content), dtype=torch.float32)
        if not bool(torch.isfinite(row).all()):
            raise MalformedMessage("the row contains numbers that are not finite")
        return row


def longest_message(width: int) -> int:
    """Returns the length of the longest message in bytes, for rows of this many values."""
    return 4 * width + _OVERHEAD


def _seal_key(secrets: AgreedSecrets, other: int) -> bytes:
    """Returns the key that seals rows between this site and another one, 64 bytes."""
    halves = [secrets.pair_secret(secrets.client, other, f"peer row {half}") for half in (1, 2)]
    return b"".join(halves)


def _about(message: PeerMessage) -> bytes:
    """Returns the message fields to which a sealed row is bound."""
    return f"{message.plan}/{message.sender}/{message.receiver}/{message.round}".encode()


def _signed_content(facts: Mapping[str, Any], sealed: bytes) -> bytes:
    """Returns the bytes that are signed: the facts as JSON with sorted keys, and a digest of the sealed row."""
    digest = hashlib.sha256(sealed).hexdigest()
    return _DOMAIN + json.dumps({**facts, "row": digest}, sort_keys=True).encode()


def _sealed_bytes(tensors: Mapping[str, Tensor], kind: str) -> bytes:
    """Returns the sealed row of a message; empty for a kind that has none."""
    expected = set[str]()
    if kind in _WITH_ROW:
        expected = {"sealed"}
    if {*tensors} != expected:
        raise MalformedMessage("messages of the kinds exchange and up must contain a row, and others must not")
    if not tensors:
        return b""
    sealed = tensors["sealed"]
    if sealed.dtype != torch.uint8 or sealed.dim() != 1 or not len(sealed):
        raise MalformedMessage("the encrypted row is empty or has another type")
    return sealed.numpy().tobytes()


def _read_counter(fields: object) -> ReplyCounter | None:
    """Returns a counter before its own signature is checked."""
    if fields is None:
        return None
    try:
        return ReplyCounter.model_validate(fields)
    except ValueError as error:
        raise MalformedMessage("the reply counter in the message cannot be read") from error


def _check_facts(facts: Mapping[str, Any]) -> None:
    if {*facts} != _FACTS:
        raise MalformedMessage("the fields are not those of a message of this version")
    # `type(...) is int`, since a bool is an `int` as well
    if any(type(facts[name]) is not int or facts[name] < 0 for name in ("round", "at", "sender", "receiver")):
        raise MalformedMessage("a round or a site number is not a whole number of at least 0")
    if not isinstance(facts["plan"], str) or any(type(facts[name]) is not bool for name in ("is_ready", "is_waiting")):
        raise MalformedMessage("the plan is not text, or a flag is not true or false")
    if facts["kind"] not in get_args(Kind) or facts["away"] not in get_args(Away):
        raise MalformedMessage("the kind of the message, or the state of its sender, is unknown")
