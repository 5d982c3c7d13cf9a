"""What a node knows of a neighbour, and how long it waits for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from fedpriv.sites.peers.messages import Away, PeerMessage

_NEVER = float("-inf")


@dataclass(frozen=True)
class Patience:
    """How long a node waits, in seconds.

    Attributes:
        first: For a neighbour that has not been there yet since the plan began.
        later: For a neighbour that was there: without a word, or without moving on though nobody keeps it waiting.
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
        is_decider: Whether it decides about the link, since its number is smaller.
        was_seen: Whether it has been there at any time since the plan began.
        at: The round in which it is; -1 before its first message.
        is_ready: Whether it has released its row of round `at`, so that it waits for others only.
        away: Why it takes part in no round any more; empty while it does.
        is_present: Whether it has said something since this process began, and was not given up afterwards.
        is_lost: Whether it was given up.
        heard_at: When it last said anything.
        moved_at: When it last moved on.
        excused_at: When it was last seen waiting for others.
        pinged_at: When it was last asked.
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
        """Takes note of a message; returns whether the neighbour is back after it was given up, or there at last."""
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
        """Waits for the neighbour no longer, until it says something."""
        self.is_present = False
        self.is_lost = True

    def is_overdue(self, since: float, now: float, patience: Patience) -> bool:
        """Whether the neighbour was waited for long enough.

        Args:
            since: When the wait began.
            now: The time.
            patience: How long to wait.
        """
        if self.was_seen:
            limit = patience.later
        else:
            limit = patience.first
        return now - max(since, self.moved_at, self.excused_at) > limit

    def is_silent(self, since: float, now: float, patience: Patience) -> bool:
        """Whether the neighbour has said nothing for long enough; arguments as for `is_overdue`."""
        return now - max(since, self.heard_at) > patience.later

    def may_use(self, index: int) -> bool:
        """Whether the neighbour may still use a row of this round, as far as is known."""
        return self.is_present and not self.away and self.at <= index


LinkStatus = Literal["open", "up", "down", "doubt"]


@dataclass
class Link:
    """A link of the current round.

    Attributes:
        neighbour: The other end.
        weight: Its weight in the plan.
        status: `"open"`: not decided yet; `"up"`: both ends count it; `"down"`: neither does; `"doubt"`: this end does
            not count it, and does not know whether the decider did.
        row: The neighbour's released row of the round, `[m]`; None unless the link is up.
        is_unanswered: Whether the decider may have received this end's row without its reply having come back.
        why: Why the link is down, in one word.
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
        """Why the link does not count, in one word; of a link in doubt that it is unsettled."""
        if self.status == "doubt":
            return "unsettled"
        return self.why

    def open_again(self) -> None:
        """Opens the link again, since the neighbour is back before the round is over."""
        if self.status in ("down", "doubt"):
            self.status = "open"
            self.why = ""
