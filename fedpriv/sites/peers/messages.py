"""What two neighbours on a graph say to each other, as signed bytes: safetensors, which is read without running code.

| kind | from | says |
|---|---|---|
| `hello` | either end | where the sender is; asks the same of the receiver |
| `here` | either end | the reply to a hello |
| `exchange` | follower | its released row of a round; asks for the decider's |
| `up` | decider | the link counts in that round, and the decider's released row of it |
| `down` | decider | the link does not count in that round, for ever |
| `later` | decider | not decided yet: ask again |

Of the two ends of a link, the site with the smaller number decides and the other one follows
(docs/design/0009-peers.md).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedpriv.sites.messages import MalformedMessage

Kind = Literal["hello", "here", "exchange", "up", "down", "later"]
Away = Literal["", "over_budget", "finished", "nonfinite", "alone"]
"""Why a site takes part in no round any more; empty while it does."""
_WITH_ROW = {"exchange", "up"}
_OVERHEAD = 4096  # bytes of names, numbers and signature beside a row
_DOMAIN = b"fedpriv/peer message/1/"
_FACTS = {"plan", "kind", "round", "at", "is_ready", "away", "sender", "receiver"}


@dataclass(frozen=True)
class PeerMessage:
    """A question of one neighbour to another, or the reply to it.

    Attributes:
        kind: What it says; see the module.
        plan: Hash of the plan.
        sender: Number of the site that signed it.
        receiver: Number of the site that it is for.
        round: The round that it is about, from 0.
        at: The round in which the sender is.
        is_ready: Whether the sender has released its row of round `at`, so that it waits for others only.
        away: Why the sender takes part in no round any more; empty while it does.
        row: The sender's released row of `round`, `[m]` float32, in an `exchange` and an `up`; None in others.
    """

    kind: Kind
    plan: str
    sender: int
    receiver: int
    round: int
    at: int
    is_ready: bool
    away: Away = ""
    row: Tensor | None = None


def pack(message: PeerMessage, key: bytes) -> bytes:
    """Returns the bytes of a message, signed with the sender's Ed25519 key, 32 bytes; equal messages, equal bytes."""
    facts = {name: getattr(message, name) for name in sorted(_FACTS)}
    signature = Ed25519PrivateKey.from_private_bytes(key).sign(_signed_content(facts, message.row))
    if message.row is None:
        tensors = {}
    else:
        tensors = {"row": message.row.detach().cpu().contiguous()}
    return save(tensors, {"fedpriv": json.dumps({**facts, "signature": signature.hex()}, sort_keys=True)})


def unpack(data: bytes, width: int, plan: str, receiver: int, verifying_keys: Mapping[int, bytes]) -> PeerMessage:
    """Reads a message of one of some senders, to this receiver, in this plan.

    Args:
        data: The bytes.
        width: Number of values of a row.
        plan: Hash of the plan.
        receiver: Number of the site that it must be for.
        verifying_keys: The Ed25519 public key of each site from which it may come, by number.

    Raises:
        MalformedMessage: the bytes are no message, or none of these sites signed them for this receiver and plan.
    """
    message, signature = _read(data, width)
    if (message.plan, message.receiver) != (plan, receiver) or message.sender not in verifying_keys:
        raise MalformedMessage("of another plan, for another site, or from no neighbour")
    facts = {name: getattr(message, name) for name in sorted(_FACTS)}
    try:
        public = Ed25519PublicKey.from_public_bytes(verifying_keys[message.sender])
        public.verify(signature, _signed_content(facts, message.row))
    except (InvalidSignature, ValueError):
        raise MalformedMessage(f"site {message.sender} has not signed it") from None
    return message


def _signed_content(facts: Mapping[str, Any], row: Tensor | None) -> bytes:
    """Returns the bytes that are signed: the facts as JSON with sorted keys, and a digest of the row."""
    if row is None:
        digest = ""
    else:
        digest = hashlib.sha256(row.detach().cpu().contiguous().numpy().tobytes()).hexdigest()
    return _DOMAIN + json.dumps({**facts, "row": digest}, sort_keys=True).encode()


def _read(data: bytes, width: int) -> tuple[PeerMessage, bytes]:
    """Returns a message and its signature."""
    if len(data) > 4 * width + _OVERHEAD:
        raise MalformedMessage("too long")
    try:
        tensors = load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        facts = json.loads(header["__metadata__"]["fedpriv"])
        signature = bytes.fromhex(facts.pop("signature"))
    except (SafetensorError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise MalformedMessage("not a message") from error
    _check_facts(facts)
    row = tensors.get("row")
    if (row is not None) != (facts["kind"] in _WITH_ROW) or {*tensors} - {"row"}:
        raise MalformedMessage("only an exchange and an up have a row, and nothing else")
    if row is not None:
        _check_row(row, width)
    return PeerMessage(**facts, row=row), signature


def _check_facts(facts: Mapping[str, Any]) -> None:
    if {*facts} != _FACTS:
        raise MalformedMessage("other facts")
    # `type(...) is int`, since a bool is an `int` as well
    if any(type(facts[name]) is not int or facts[name] < 0 for name in ("round", "at", "sender", "receiver")):
        raise MalformedMessage("numbers of another kind")
    if not isinstance(facts["plan"], str) or type(facts["is_ready"]) is not bool:
        raise MalformedMessage("facts of another kind")
    if facts["kind"] not in get_args(Kind) or facts["away"] not in get_args(Away):
        raise MalformedMessage("an unknown word")


def _check_row(row: Tensor, width: int) -> None:
    if row.dtype != torch.float32 or row.shape != (width,):
        raise MalformedMessage("a row of another type or width")
    if not bool(torch.isfinite(row).all()):
        raise MalformedMessage("numbers that are not finite")
