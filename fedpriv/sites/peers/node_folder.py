"""The files of a node between rounds: its state, and the last round in which each follower's link was up.

All values are the site's own releases, values received from neighbours, and public facts.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor

from fedpriv.errors import FedprivError
from fedpriv.network import TrainState
from fedpriv.sites.peers.round_links import Correction
from fedpriv.sites.site_records import NODE_LINKS, NODE_STATE
from fedpriv.storage import files

_UNREADABLE = (RuntimeError, KeyError, TypeError, ValueError, EOFError, UnpicklingError)


@dataclass(frozen=True)
class UnresolvedRound:
    """A round that a follower closed without receiving its decider's decision about the link.

    Attributes:
        round: The round, from 0.
        weight: The link's weight in it.
        row: The follower's released row of it, `[m]`.
    """

    round: int
    weight: float
    row: Tensor


@dataclass(frozen=True)
class UpLink:
    """The last round in which a decider has counted a link as up.

    Attributes:
        round: The round, from 0.
        theirs: The follower's released row, `[m]`.
        ours: The decider's released row, `[m]`.
    """

    round: int
    theirs: Tensor
    ours: Tensor


@dataclass(frozen=True)
class NodeState:
    """The state of a node between two rounds.

    Attributes:
        progress: The run's state, with one row: this node's.
        doubts: The unsettled round of a link, by the decider's number.
        corrections: Settled rounds for which the correction is not yet in the node's row.
        last_up: The last round in which each neighbour's link was up, by the neighbour's number.
    """

    progress: TrainState
    doubts: Mapping[int, UnresolvedRound] = field(default_factory=dict[int, UnresolvedRound])
    corrections: tuple[Correction, ...] = ()
    last_up: Mapping[int, int] = field(default_factory=dict[int, int])


class NodeFolder:
    """Files of one node, inside the folder of its plan.

    Args:
        path: The folder of the plan, inside the site's folder.
        plan: Hash of the plan.
        check: Raises FedprivError once another process has taken over the site's folder.
    """

    def __init__(self, path: Path, plan: str, check: Callable[[], None]) -> None:
        self.path = path
        self._plan = plan
        self._check = check

    def read(self, initial: TrainState) -> NodeState:
        """Returns the state on disk; without a file, this is the state before round 0.

        Args:
            initial: The run's state before round 0, with one row.

        Raises:
            FedprivError: If the file cannot be read, or belongs to another plan.
        """
        path = self.path / NODE_STATE
        if not path.exists():
            return NodeState(initial)
        try:
            stored = torch.load(io.BytesIO(files.read(path)), weights_only=True)
            if stored["plan"] != self._plan:
                raise FedprivError(
                    f"{path} belongs to another plan, so this node cannot continue: restore the file of this plan"
                )
            return NodeState(
                progress=initial.restored({**initial.stored(), **stored["progress"]}),
                doubts={number: UnresolvedRound(**doubt) for number, doubt in stored["doubts"].items()},
                corrections=tuple(Correction(**correction) for correction in stored["corrections"]),
                last_up=stored["last_up"],
            )
        except _UNREADABLE as error:
            raise FedprivError(
                f"{path} cannot be read, so this node cannot continue in its plan: restore the file, or make a new plan"
            ) from error

    def write(self, state: NodeState) -> None:
        """Writes the state to disk; the state of the client update is stored by the site and is not included.

        Raises:
            FedprivError: If it cannot be written.
        """
        stored = {
            "plan": self._plan,
            "progress": {name: value for name, value in state.progress.stored().items() if name != "local"},
            "doubts": {number: vars(doubt) for number, doubt in state.doubts.items()},
            "corrections": [vars(correction) for correction in state.corrections],
            "last_up": dict(state.last_up),
        }
        self._save(NODE_STATE, stored)

    def up_link(self, follower: int) -> UpLink | None:
        """Returns the last round in which the link to a follower was counted as up; None if there is none.

        Raises:
            FedprivError: If the file cannot be read.
        """
        path = self.path / _up_name(follower)
        if not path.exists():
            return None
        try:
            return UpLink(**torch.load(io.BytesIO(files.read(path)), weights_only=True))
        except _UNREADABLE as error:
            raise FedprivError(
                f"{path} cannot be read, so this node cannot continue in its plan: restore the file, or make a new plan"
            ) from error

    def write_up_link(self, follower: int, link: UpLink) -> None:
        """Writes to disk that a link is up; called before the decision is sent to the follower.

        Raises:
            FedprivError: If it cannot be written.
        """
        self._save(_up_name(follower), vars(link))

    def write_file(self, name: str, content: bytes) -> None:
        """Writes a file of the node to disk atomically.

        Raises:
            FedprivError: If it cannot be written, or another process has taken over the site's folder.
        """
        self._check()
        try:
            files.write_whole(self.path / name, content)
        except OSError as error:
            raise FedprivError(
                f"{self.path / name} could not be written ({error.strerror}); correct the cause, and restart the node"
            ) from error

    def _save(self, name: str, stored: Mapping[str, Any]) -> None:
        content = io.BytesIO()
        torch.save(dict(stored), content)
        self.write_file(name, content.getvalue())


def _up_name(follower: int) -> str:
    return NODE_LINKS.format(follower)
