"""Reports of a node: for each round, and at the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

RoundStatus = Literal["released", "inactive", "passed", "interrupted"]


@dataclass(frozen=True)
class NodeRound:
    """Reports one round of a node. Contains released values and public facts only.

    Attributes:
        round: Number of finished rounds.
        rounds: Number of planned rounds.
        status: `"released"`: the node released its row; `"inactive"`: it does not take part in this round of the plan;
            `"passed"`: its neighbours had closed the round before it came back; `"interrupted"`: its release is on
            record without a reply, since the process ended in between.
        up: Names of the neighbours with rows that were mixed in.
        down: Why the link to each other neighbour of the round was down, by name: `absent` (it had passed the round),
            `no_reply`, `unsettled` (no reply to a row that it may have counted), `malformed`, or the reason why it no
            longer takes part.
        corrected: Names of the neighbours for which an unsettled round was corrected in this one.
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
    """Reports the state of a neighbour at the end.

    Attributes:
        last_up: Number of the last round in which its row was mixed in, from 1; 0 for none.
        is_missing: True if it was given up and has not come back.
        away: Reason why it takes part in no further round, in one word; empty while it takes part.
        is_unsettled: True if there is an unsettled round in which it may have counted a link that this node did not.
    """

    last_up: int
    is_missing: bool
    away: str
    is_unsettled: bool
