"""Requests and replies as bytes: one row of numbers in the safetensors format, which is read without running code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedpriv.config.base import Section
from fedpriv.errors import FedprivError
from fedpriv.settings import Whole
from fedpriv.sites.absence_notice import AbsenceNotice
from fedpriv.sites.reply_counter import ReplyCounter

Code = Literal[
    "malformed",
    "other_plan",
    "other_round",
    "other_point",
    "not_in_cohort",
    "not_as_planned",
    "bad_notice",
    "said_absent",
    "over_budget",
    "bad_counter",
    "rolled_back",
    "closed",
    "failed",
]
"""Reason why a site does not reply. Nothing else leaves the site, since the text of an error may contain data."""
OVERHEAD = 4096
"""Maximum size in bytes of names and numbers that accompany a row."""
_NOTICE = 512  # bytes of an absence notice in a request
_FACTS = {"plan", "round", "code", "notices", "counter"}


class MalformedMessage(FedprivError):
    """Raised for bytes that are not a message of the expected kind."""


@dataclass(frozen=True)
class TrainRequest:
    """A request of the server to a site.

    Attributes:
        plan: Hash of the plan.
        round: The round, from 0.
        received: The values that the site receives in this round, `[h]`.
        notices: Absence notices of participants of the round.
        counter: The site's largest reply counter on the server; None if there is none. It does not change the reply.
    """

    plan: str
    round: int
    received: Tensor
    notices: tuple[AbsenceNotice, ...] = ()
    counter: ReplyCounter | None = None


@dataclass(frozen=True)
class TrainResponse:
    """The reply of a site.

    Attributes:
        plan: Hash of the plan.
        round: The round of the request.
        message: The message of its client update, `[m]`, privatised; None if the site refuses.
        code: Reason of the refusal; None if the site does not refuse.
        notices: The site's notices of absence from later rounds.
        counter: Its signed reply counter; None in a refusal of a site that cannot determine it.
    """

    plan: str
    round: int
    message: Tensor | None
    code: Code | None
    notices: tuple[AbsenceNotice, ...] = ()
    counter: ReplyCounter | None = None


def pack(message: TrainRequest | TrainResponse) -> bytes:
    """Returns the bytes of a message; equal messages have equal bytes."""
    if isinstance(message, TrainRequest):
        row = message.received
        code = None
    else:
        row = message.message
        code = message.code
    notices = [notice.model_dump() for notice in message.notices]
    if message.counter is None:
        counter = None
    else:
        counter = message.counter.model_dump()
    facts = {"plan": message.plan, "round": message.round, "code": code, "notices": notices, "counter": counter}
    if row is None:
        tensors = {}
    else:
        tensors = {"row": row.detach().cpu().contiguous()}
    return save(tensors, {"fedpriv": json.dumps(facts, sort_keys=True)})


def compute_request_limit(width: int, n_sites: int) -> int:
    """Returns the length in bytes of the longest request.

    Args:
        width: Number of values that a site receives.
        n_sites: Number of sites; each may have a notice in the request.
    """
    return 4 * width + OVERHEAD + _NOTICE * n_sites


def unpack_request(data: bytes) -> TrainRequest:
    """Reads a request.

    Raises:
        MalformedMessage: If the bytes are not a request.
    """
    facts, row = _unpack(data)
    if row is None or facts.code is not None:
        raise MalformedMessage("a request must contain a row of numbers and no refusal code")
    return TrainRequest(facts.plan, facts.round, row, facts.notices, facts.counter)


def unpack_response(data: bytes, width: int) -> TrainResponse:
    """Reads a reply of `width` numbers, or a refusal.

    Raises:
        MalformedMessage: If the bytes are neither.
    """
    if len(data) > 4 * width + OVERHEAD:
        raise MalformedMessage("the reply is longer than any reply of this plan")
    facts, row = _unpack(data)
    known_code = next((allowed for allowed in get_args(Code) if allowed == facts.code), None)
    if (row is None) == (facts.code is None) or facts.code != known_code or (row is not None and len(row) != width):
        raise MalformedMessage("a reply must contain either a row of the plan's width or a known refusal code")
    return TrainResponse(facts.plan, facts.round, row, known_code, facts.notices, facts.counter)


class _Facts(Section):
    """The contents of a message besides its row; the signatures are not yet checked."""

    plan: str
    round: Whole
    code: str | None
    notices: tuple[AbsenceNotice, ...]
    counter: ReplyCounter | None


def read_plan_hash(data: bytes) -> str:
    """Returns the hash of the plan in a message, without reading its numbers.

    Raises:
        MalformedMessage: If the bytes are not a message.
    """
    try:
        plan = _read_facts(data)["plan"]
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise MalformedMessage("the bytes are not a message of fedpriv") from error
    if not isinstance(plan, str):
        raise MalformedMessage("the plan in the message is not text")
    return plan


def _unpack(data: bytes) -> tuple[_Facts, Tensor | None]:
    """Returns the facts of a message and its row of numbers."""
    try:
        tensors = load(data)
        facts = _Facts.model_validate(_read_facts(data))
    except (SafetensorError, ValueError, RecursionError, KeyError, TypeError) as error:
        raise MalformedMessage("the bytes are not a message of fedpriv") from error
    row = tensors.get("row")
    if {*tensors} - {"row"} or (row is not None and (row.dim() != 1 or row.dtype != torch.float32)):
        raise MalformedMessage("the message must contain at most one row, of float32 numbers")
    if row is not None and not bool(torch.isfinite(row).all()):
        raise MalformedMessage("the row contains numbers that are not finite")
    return facts, row


def _read_facts(data: bytes) -> Mapping[str, Any]:
    """Returns the metadata that accompanies the row; safetensors must have accepted the header."""
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    facts = json.loads(header["__metadata__"]["fedpriv"])
    if not isinstance(facts, dict) or {*facts} != _FACTS:
        raise MalformedMessage("the fields are not those of a message of this version")
    return facts
