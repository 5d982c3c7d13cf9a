"""The state of a neighbour as a node observes it, and the waiting times for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from fedpriv.sites.peers.messages import Away, PeerMessage

_NEVER = float("-inf")


@dataclass(frozen=True)
class Patience:
    """Waiting times of a node, in seconds.

    Attributes:
        first: For a neighbour that has not connected since the plan began.
        later: For a neighbour that was connected: without a message, or without progress although it waits for no one.
        ping: Between two hellos to a neighbour that is awaited.
    """

    first: float = 600.0
    later: float = 30.0
    ping: float = 0.25


DEFAULT_PATIENCE = Patience()


@dataclass
class Neighbour:
    """A neighbour on the graph, as its last messages show it.

    Attributes:
        number: Its number in the plan.
        name: Its name.
        is_decider: True if it decides about the link, since its number is smaller.
        was_seen: True if it was connected at any time since the plan began.
        at: Its current round; -1 before its first message.
        is_ready: True if it has released its row of round `at`, so that it only waits for others.
        away: Reason why it takes part in no further round; empty while it takes part.
        is_present: True if it has sent a message since this process began and was not given up afterwards.
        is_lost: True if it was given up.
        heard_at: Time of its last message.
        moved_at: Time of its last progress.
        excused_at: Time at which it was last observed to wait for others.
        pinged_at: Time of the last request to it.
    """

    number: int
    name: str
    is_decider: bool
    was_seen: bool
    at: int = -1
    is_ready: bool = False
    away: Away = ""
    is_present: bool = False
    is_lost: bool = False
    heard_at: float = _NEVER
    moved_at: float = _NEVER
    excused_at: float = _NEVER
    pinged_at: float = _NEVER

    def update(self, message: PeerMessage, now: float, current_round: int) -> bool:
        """Processes a message; returns True if the neighbour is back after it was given up, or is new."""
        has_returned = not self.is_present
        has_moved = (message.at, message.is_ready) > (self.at, self.is_ready)
        if message.at >= self.at:
            self.at = message.at
            self.is_ready = message.is_ready
        self.heard_at = now
        if has_returned or has_moved:
            self.moved_at = now
        waits_for_rows = self.is_ready and self.at < current_round
        waits_for_a_word = message.is_waiting and self.at <= current_round
        if waits_for_rows or waits_for_a_word:
            self.excused_at = now
        self.away = message.away
        self.was_seen = True
        self.is_present = True
        self.is_lost = False
        return has_returned

    def give_up(self) -> None:
        """Stops waiting for the neighbour until its next message."""
        self.is_present = False
        self.is_lost = True

    def is_overdue(self, since: float, now: float, patience: Patience) -> bool:
        """True if the waiting time for the neighbour is over.

        Args:
            since: When the wait began.
            now: The time.
            patience: The waiting times.
        """
        if self.was_seen:
            limit = patience.later
        else:
            limit = patience.first
        return now - max(since, self.moved_at, self.excused_at) > limit

    def is_silent(self, since: float, now: float, patience: Patience) -> bool:
        """True if the neighbour has been silent for the waiting time; see `is_overdue` for the arguments."""
        return now - max(since, self.heard_at) > patience.later

    def may_use(self, index: int) -> bool:
        """True if the neighbour may still use a row of this round, as far as is known."""
        return self.is_present and not self.away and self.at <= index


LinkStatus = Literal["open", "up", "down", "doubt"]


@dataclass
class Link:
    """A link of the current round.

    Attributes:
        neighbour: The other end.
        weight: Its weight in the plan.
        status: `"open"`: not decided yet; `"up"`: both ends count it; `"down"`: neither does; `"doubt"`: this end does
            not count it, and the decision of the decider is unknown.
        row: The neighbour's released row of the round, `[m]`; None unless the link is up.
        is_unanswered: True if the decider may have received this end's row but its reply has not arrived.
        why: Reason why the link is down, in one word.
    """

    neighbour: Neighbour
    weight: float
    status: LinkStatus = "open"
    row: Tensor | None = None
    is_unanswered: bool = False
    why: str = ""

    def close(self, why: str) -> None:
        """Closes the link without the neighbour's row."""
        self.why = why
        if self.is_unanswered:
            self.status = "doubt"
        else:
            self.status = "down"

    @property
    def reason(self) -> str:
        """Reason why the link does not count, in one word; for a link in doubt, that it is unsettled."""
        if self.status == "doubt":
            return "unsettled"
        return self.why

    def open_again(self) -> None:
        """Reopens the link, since the neighbour is back before the round is over."""
        if self.status in ("down", "doubt"):
            self.status = "open"
            self.why = ""
