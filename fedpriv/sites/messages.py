"""Questions and replies as bytes: one row of numbers in the safetensors format, which is read without running code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedpriv.errors import FedprivError
from fedpriv.sites.absence_notice import AbsenceNotice

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
    "failed",
]
"""Why a site does not answer. Nothing else is told: the text of an error may hold data."""
_OVERHEAD = 4096  # bytes of names and numbers beside a row
_FACTS = {"plan", "round", "code", "notices"}


class MalformedMessage(FedprivError):
    """Bytes that are no message of the expected kind."""


@dataclass(frozen=True)
class TrainRequest:
    """What a server asks of a site.

    Attributes:
        plan: Hash of the plan.
        round: The round, from 0.
        heard: What the site receives in this round, `[h]`.
        notices: Of those participants of the round who have signed that they do not answer.
    """

    plan: str
    round: int
    heard: Tensor
    notices: tuple[AbsenceNotice, ...] = ()


@dataclass(frozen=True)
class TrainResponse:
    """What a site says.

    Attributes:
        plan: Hash of the plan.
        round: The round of the question.
        message: What its local step sends, `[m]`, private; None if it refuses.
        code: Why it refuses; None if it does not.
        notices: That it will not answer in later rounds, signed.
    """

    plan: str
    round: int
    message: Tensor | None
    code: Code | None
    notices: tuple[AbsenceNotice, ...] = ()


def pack(message: TrainRequest | TrainResponse) -> bytes:
    """The bytes of a message, the same for the same message."""
    if isinstance(message, TrainRequest):
        row = message.heard
    else:
        row = message.message
    if isinstance(message, TrainRequest):
        code = None
    else:
        code = message.code
    notices = [notice.model_dump() for notice in message.notices]
    facts = {"plan": message.plan, "round": message.round, "code": code, "notices": notices}
    if row is None:
        tensors = {}
    else:
        tensors = {"row": row.detach().cpu().contiguous()}
    return save(tensors, {"fedpriv": json.dumps(facts, sort_keys=True)})


def unpack_request(data: bytes) -> TrainRequest:
    """Read a question.

    Raises:
        Malformed: the bytes are none.
    """
    plan, at, code, row, notices = _unpacked(data)
    if row is None or code is not None:
        raise MalformedMessage("a question has a row and no code")
    return TrainRequest(plan, at, row, notices)


def unpack_response(data: bytes, width: int) -> TrainResponse:
    """Read a reply of `width` numbers, or a refusal.

    Raises:
        Malformed: the bytes are neither.
    """
    if len(data) > 4 * width + _OVERHEAD:
        raise MalformedMessage("too long")
    plan, at, code, row, notices = _unpacked(data)
    known = next((one for one in get_args(Code) if one == code), None)
    if (row is None) == (code is None) or code != known or (row is not None and len(row) != width):
        raise MalformedMessage("a reply has a row of its width, or a known code")
    return TrainResponse(plan, at, row, known, notices)


def _unpacked(data: bytes) -> tuple[str, int, str | None, Tensor | None, tuple[AbsenceNotice, ...]]:
    try:
        tensors, facts = load(data), _facts(data)
        notices = _notices(facts["notices"])
    except (SafetensorError, ValueError, RecursionError, KeyError, TypeError) as error:
        raise MalformedMessage("not a message") from error
    plan, at, code, row = facts["plan"], facts["round"], facts["code"], tensors.get("row")
    if not (isinstance(plan, str) and type(at) is int and at >= 0 and (code is None or isinstance(code, str))):
        raise MalformedMessage("facts of another kind")
    if {*tensors} - {"row"} or (row is not None and (row.dim() != 1 or row.dtype != torch.float32)):
        raise MalformedMessage("numbers of another shape or type")
    if row is not None and not bool(torch.isfinite(row).all()):
        raise MalformedMessage("numbers that are not finite")
    return plan, at, code, row, notices


def _notices(told: object) -> tuple[AbsenceNotice, ...]:
    """Notices whose signatures are still to be checked."""
    if not isinstance(told, list):
        raise MalformedMessage("notices are a list")
    return tuple(AbsenceNotice.model_validate(one) for one in told)


def _facts(data: bytes) -> Mapping[str, object]:
    """What stands beside the row; safetensors checked the header before."""
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    facts = json.loads(header["__metadata__"]["fedpriv"])
    if not isinstance(facts, dict) or {*facts} != _FACTS:
        raise MalformedMessage("other facts")
    return facts
