"""What a node reports: of each round, and at the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

RoundStatus = Literal["released", "inactive", "passed", "interrupted"]


@dataclass(frozen=True)
class NodeRound:
    """Reports one round of a node. Released values and public facts only.

    Attributes:
        round: Number of finished rounds.
        rounds: Number of planned rounds.
        status: `"released"`: the node released its row; `"inactive"`: the plan does not have it in this round;
            `"passed"`: its neighbours had closed the round before it came back; `"interrupted"`: its release is on
            record without a reply, since the process ended in between.
        up: Names of the neighbours whose rows were mixed in.
        down: Why the link to each other neighbour of the round was down, by name: `absent` (it had passed the round),
            `no_reply`, `unsettled` (no reply to a row that it may have counted), `malformed`, or why it takes part no
            more.
        corrected: Names of the neighbours whose unsettled round was made good in this one.
        metrics: Metrics of the node's model on public test data.
    """

    round: int
    rounds: int
    status: RoundStatus
    up: tuple[str, ...] = ()
    down: Mapping[str, str] = field(default_factory=dict[str, str])
    corrected: tuple[str, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True)
class NeighbourReport:
    """What became of a neighbour, at the end.

    Attributes:
        last_up: Number of the last round in which its row was mixed in, from 1; 0 for none.
        is_missing: Whether it was given up and has not come back.
        away: Why it takes part in no round any more, in one word; empty while it does.
        is_unsettled: Whether a round is unsettled in which it may have counted a link that this node did not.
    """

    last_up: int
    is_missing: bool
    away: str
    is_unsettled: bool
