"""The links of a node in the current round, and which of them count: the protocol of docs/design/0009-peers.md."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from fedpriv.sites.peers.messages import Kind, PeerMessage
from fedpriv.sites.peers.neighbours import Link, Neighbour, Patience
from fedpriv.sites.peers.node_folder import NodeFolder, UnresolvedRound, UpLink
from fedpriv.sites.peers.round_links import Correction, RoundLinks

_LOG = logging.getLogger(__name__)
_HUGE = 1e6  # times the largest number of this node: not a valid row


@dataclass(frozen=True)
class Question:
    """A request to a neighbour.

    Attributes:
        kind: `"hello"` or `"exchange"`.
        round: The round of the request.
        row: This node's released row of that round, for an exchange.
    """

    kind: Kind
    round: int
    row: Tensor | None = None


class LinkTable:
    """A node's links in the current round.

    The end of a link with the smaller number decides, and writes to disk that the link is up before it sends this
    decision; the other end follows. A follower that does not receive the decision closes the round without the link and
    records that the round is unsettled. It sends no other request to the decider before the round is settled.

    Args:
        neighbours: The node's neighbours, by number.
        folder: Folder for the decisions.
        doubts: The unsettled round of a link, by the decider's number.
        corrections: Settled rounds for which the correction is not yet in the node's row.
        patience: Waiting times for neighbours.

    Attributes:
        links: The links of the current round, by the neighbour's number; empty until the node has released its row.
    """

    def __init__(
        self,
        neighbours: Mapping[int, Neighbour],
        folder: NodeFolder,
        doubts: Mapping[int, UnresolvedRound],
        corrections: Sequence[Correction],
        patience: Patience,
    ) -> None:
        self.neighbours = neighbours
        self.links: dict[int, Link] = {}
        self.doubts = dict(doubts)
        self.corrections = list(corrections)
        self._folder = folder
        self._patience = patience
        self._up_links = {number: folder.up_link(number) for number, each in neighbours.items() if not each.is_decider}
        self._round = -1
        self._row: Tensor | None = None
        self._began_at = 0.0

    @property
    def is_open(self) -> bool:
        """True if a link of the round is not decided yet."""
        return any(link.status == "open" for link in self.links.values())

    def begin(self, index: int) -> None:
        """Begins a round, before the node has released its row."""
        self._round = index
        self._row = None
        self.links = {}

    def open(self, planned: RoundLinks, row: Tensor, now: float, *, is_repeated: bool) -> None:
        """Opens the links of the round, once the node has released its row.

        Args:
            planned: The links of the plan.
            row: The released row, `[m]`.
            now: The time.
            is_repeated: True if the row was released by an earlier process of the site, which may have sent it.
        """
        self._row = row
        self._began_at = now
        for other, weight in planned.weights.items():
            each = self.neighbours[other]
            link = Link(each, weight)
            up_link = self._up_links.get(other)
            if up_link is not None and up_link.round == self._round:
                link.status = "up"
                link.row = up_link.theirs
            elif is_repeated and each.is_decider and other not in self.doubts:
                link.is_unanswered = True
            elif each.is_lost:
                link.close(self._silence(other))
            each.pinged_at = float("-inf")
            self.links[other] = link

    def questions(self, now: float) -> dict[int, Question]:
        """Returns the requests that are due now, by neighbour."""
        questions: dict[int, Question] = {}
        for other, link in self.links.items():
            each = link.neighbour
            if link.status != "open" or not each.is_present:
                continue
            doubt = self.doubts.get(other)
            if doubt is not None and each.at >= doubt.round:
                questions[other] = Question("exchange", doubt.round, doubt.row)
            elif doubt is None and _has_decision(link, self._round):
                questions[other] = Question("exchange", self._round, self._row)
            elif now - each.pinged_at > self._patience.ping:
                each.pinged_at = now
                questions[other] = Question("hello", self._round)
        return questions

    def take_note(self, message: PeerMessage, now: float) -> None:
        """Records the sender's state in a message; reopens a link if its other end is back in time."""
        each = self.neighbours[message.sender]
        was_lost = each.is_lost
        if each.update(message, now, self._round):
            if was_lost:
                _LOG.warning("%s responds again, in round %d", each.name, each.at + 1)
            link = self.links.get(each.number)
            if link is not None and each.at <= self._round:
                link.open_again()

    def decide(self, question: PeerMessage, *, has_ended: bool) -> tuple[Kind, Tensor | None]:
        """Decides about a link after its other end has sent its row; a decision that it is up is on disk.

        Args:
            question: An exchange from a follower.
            has_ended: True if this node takes part in no further round.

        Returns:
            The kind of the reply, and its row.
        """
        follower = question.sender
        assert question.row is not None
        up_link = self._up_links[follower]
        if up_link is not None and up_link.round == question.round:
            return "up", up_link.ours  # the same reply to the same request, permanently
        if question.round < self._round or has_ended:
            return "down", None
        if question.round > self._round or self._row is None:
            return "later", None
        link = self.links.get(follower)
        if link is None or self._is_huge(question.row):
            return "down", None
        up_link = UpLink(self._round, theirs=question.row, ours=self._row)
        self._folder.write_up_link(follower, up_link)
        self._up_links[follower] = up_link
        link.status = "up"
        link.row = question.row
        link.why = ""
        return "up", self._row

    def take_decision(self, reply: PeerMessage) -> bool:
        """Processes a decider's reply to an exchange; returns True if it has decided."""
        if reply.kind not in ("up", "down"):
            return False
        doubt = self.doubts.get(reply.sender)
        if doubt is not None:
            if reply.round != doubt.round:
                return False
            del self.doubts[reply.sender]
            if reply.row is not None and not self._is_huge(reply.row):
                self.corrections.append(Correction(reply.sender, doubt.weight, theirs=reply.row, ours=doubt.row))
            return True
        link = self.links.get(reply.sender)
        if link is None or reply.round != self._round:
            return False
        link.is_unanswered = False
        if reply.row is None:
            link.close(reply.away or "absent")
        elif self._is_huge(reply.row):
            link.close("malformed")
        else:
            link.status = "up"
            link.row = reply.row
        return True

    def miss_reply(self, other: int, question: Question) -> None:
        """Records that a request has no reply; the decider may still have received the row."""
        link = self.links.get(other)
        if question.kind == "exchange" and question.round == self._round and link is not None:
            link.is_unanswered = other not in self.doubts

    def give_up(self, now: float) -> bool:
        """Closes the links of neighbours that have exceeded their waiting time; returns True if there were any."""
        has_closed = False
        for other, link in self.links.items():
            each = link.neighbour
            if link.status != "open":
                continue
            is_overdue = each.is_overdue(self._began_at, now, self._patience)
            if is_overdue or self._is_stuck(each, now):
                link.close(self._silence(other))
                self.lose(each)
            elif not link.is_unanswered and each.away:
                link.close(each.away)
            elif not link.is_unanswered and each.at > self._round:
                link.close("absent")
            has_closed |= link.status != "open"
        return has_closed

    def _silence(self, other: int) -> str:
        """Returns why the link to a silent neighbour is down, in one word."""
        if other in self.doubts:
            return "unsettled"
        return "no_reply"

    def _is_stuck(self, each: Neighbour, now: float) -> bool:
        """True if a neighbour that reports waiting for others has waited longer than they can take."""
        longest = self._patience.later * (2 + len(self.neighbours))
        if each.at == 0:
            longest += self._patience.first  # it may wait for a site that was never connected
        return each.was_seen and now - max(self._began_at, each.moved_at) > longest

    def lose(self, each: Neighbour) -> None:
        """Stops waiting for a neighbour until its next message."""
        each.give_up()
        if any(other.is_present for other in self.neighbours.values()):
            _LOG.warning("%s does not respond: rounds continue without this neighbour until it returns", each.name)
        else:
            _LOG.warning(
                "%s does not respond, and neither does any other neighbour: this node waits until one of them returns",
                each.name,
            )

    def close(self) -> None:
        """Closes the round: records unsettled links, and clears the corrections, which have been applied."""
        assert self._row is not None
        for other, link in self.links.items():
            if link.status == "doubt":
                self.doubts[other] = UnresolvedRound(self._round, link.weight, self._row)
        self.corrections = []

    def _is_huge(self, row: Tensor) -> bool:
        """True if numbers are a million times this node's: such a row is invalid and would spoil the model."""
        assert self._row is not None
        return float(row.abs().max()) > _HUGE * (1 + float(self._row.abs().max()))


def _has_decision(link: Link, index: int) -> bool:
    """True if the other end of a link decides about it and can now determine if it is up in this round."""
    each = link.neighbour
    if not each.is_decider:
        return False
    if each.at == index:
        return each.is_ready or bool(each.away)
    return link.is_unanswered and (each.at > index or bool(each.away))
