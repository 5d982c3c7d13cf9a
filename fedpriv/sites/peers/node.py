"""A node on a graph of sites: it releases one row a round and mixes it with the rows of its neighbours.

There is no central party. The protocol, and the argument why both ends of a link count it in the same rounds, are in
docs/design/0009-peers.md. Privacy does not depend on the protocol: a row is released once, is recorded before it
exists, and is repeated byte for byte.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from fedpriv.errors import FedprivError
from fedpriv.evaluation import Evaluator
from fedpriv.network import initial_state, server_update
from fedpriv.sites.counter_store import CounterStore
from fedpriv.sites.federation import Transport
from fedpriv.sites.messages import MalformedMessage, TrainRequest, unpack_response
from fedpriv.sites.messages import pack as pack_request
from fedpriv.sites.peers.link_table import LinkTable, Question
from fedpriv.sites.peers.messages import Away, Kind, MessageCodec, PeerMessage
from fedpriv.sites.peers.neighbours import DEFAULT_PATIENCE, Neighbour, Patience
from fedpriv.sites.peers.node_folder import NodeFolder, NodeState
from fedpriv.sites.peers.node_report import NeighbourReport, NodeRound, RoundStatus
from fedpriv.sites.peers.round_links import NodeNetwork, PlannedLinks
from fedpriv.sites.reply_counter import InvalidCounter
from fedpriv.sites.site import Site
from fedpriv.statistics import Description

_LOG = logging.getLogger(__name__)


class Node:
    """The node of a site in one plan on a graph.

    One thread calls `advance`, another one (or the same) `greet`, and any thread `answer`. No lock is held during
    requests to neighbours, so two nodes may send requests to each other at the same time.

    Args:
        site: The site, which has accepted the plan.
        plan: Hash of the plan.
        transport: Carries requests to neighbours, by number, and returns their replies.
        patience: Waiting times for neighbours.
        test: Public test data; None for no metrics.
        clock: Returns the time in seconds.
        on_round: Called with the report of each finished round.

    Attributes:
        ended: Reason why there are no more rounds; empty while there are.
        on_round: Called with the report of each finished round.

    Raises:
        ConfigError: If the site has no such plan, or the plan has a server.
        FedprivError: If the node's files cannot be read.
    """

    def __init__(
        self,
        site: Site,
        plan: str,
        transport: Transport,
        *,
        patience: Patience = DEFAULT_PATIENCE,
        test: Dataset[Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_round: Callable[[NodeRound], object] = lambda report: None,
    ) -> None:
        session = site.node_session(plan)
        self.resolved_plan = resolved_plan = session.resolved_plan
        self.number = session.number
        self.ended: Away = ""
        self._site = site
        self._transport = transport
        self._patience = patience
        self._clock = clock
        self.on_round = on_round
        self._lock = threading.RLock()
        self._wake = threading.Event()
        self._failure: Exception | None = None
        if test is None or resolved_plan.statistics is not None:
            self._evaluate = None
        else:
            self._evaluate = Evaluator(resolved_plan.model, resolved_plan.loss, test)

        # the state on disk
        self._folder = NodeFolder(session.folder, resolved_plan.hash, session.check)
        state = self._folder.read(initial_state(resolved_plan.strategy, resolved_plan.start[None]))
        self._progress = state.progress
        self._last_up = dict(state.last_up)
        self._counter = session.sign_counter()
        self._check_counter = session.check_counter
        self._planned = PlannedLinks(resolved_plan, self.number)
        self._network = NodeNetwork(len(resolved_plan.cards))
        verifying_keys = {other: resolved_plan.cards[other].verifying_key for other in self._planned.neighbours}
        self._counters = CounterStore(self._folder.path, resolved_plan.hash, verifying_keys, self._folder.write_file)
        self._codec = MessageCodec(
            resolved_plan.hash, session.secrets, session.signing_key, verifying_keys, resolved_plan.widths[1]
        )
        self._neighbours = {other: self._new_neighbour(other) for other in self._planned.neighbours}
        self._table = LinkTable(self._neighbours, self._folder, state.doubts, state.corrections, patience)
        self._is_repeated = session.last_answered == self.round
        self._started_at = clock()
        self._is_waiting = True
        self._n_refused = 0
        self._begin_round()

    def _new_neighbour(self, other: int) -> Neighbour:
        return Neighbour(
            number=other,
            name=self.resolved_plan.cards[other].name,
            is_decider=other < self.number,
            was_seen=other in self._last_up,
        )

    @property
    def round(self) -> int:
        """Number of finished rounds; also the index of the current one."""
        return self._progress.round

    @property
    def folder(self) -> Path:
        """The folder of the plan, inside the site's."""
        return self._folder.path

    @property
    def model(self) -> Tensor:
        """The node's newest model, `[dim]`: computed from releases only."""
        return self._progress.models[0]

    def describe(self) -> Description | None:
        """Returns the answers of a plan for statistics; None for training, or if the row of a site is missing."""
        if self.resolved_plan.statistics is None or self.round < self.resolved_plan.rounds:
            return None
        if any(self._last_up.get(other) != 0 for other in self._neighbours):
            return None
        return self.resolved_plan.describe(self.model, self.resolved_plan.plan.spent())

    @property
    def neighbours(self) -> Mapping[str, NeighbourReport]:
        """The report about each neighbour, by name."""
        with self._lock:
            return {
                each.name: NeighbourReport(
                    last_up=self._last_up.get(number, -1) + 1,
                    is_missing=not each.is_present,
                    away=each.away,
                    is_unsettled=number in self._table.doubts,
                )
                for number, each in self._neighbours.items()
            }

    @property
    def is_over(self) -> bool:
        """True if the node has no more rounds and, as far as is known, no neighbour needs it any more."""
        with self._lock:
            return bool(self.ended) and all(each.is_lost or each.away for each in self._neighbours.values())

    def answer(self, question: bytes) -> bytes:
        """Returns the reply to a neighbour's request, and nothing to other senders. Never raises."""
        try:
            message = self._codec.unpack(question)
            with self._lock:
                self._take_note(message)
                self._counters.save()
                reply = self._reply(message)
            self._wake.set()
            return reply
        except MalformedMessage as error:
            self._count_refusal(str(error))
        except Exception as error:  # the text of any exception may contain data, so it is kept here
            _LOG.exception("a neighbour's request was not answered")
            self.stop(error)
        return b""

    def _count_refusal(self, why: str) -> None:
        """Logs a refused request: the first, second, fourth and so on, so that a flood does not fill the log."""
        with self._lock:
            self._n_refused += 1
            count = self._n_refused
        if count & (count - 1) == 0:
            _LOG.warning("a request was refused (%d so far): %s", count, why)

    def is_signed(self, data: bytes) -> bool:
        """Returns True if a neighbour has signed these bytes for this node."""
        try:
            self._codec.unpack(data)
        except MalformedMessage:
            return False
        return True

    def greet(self) -> None:
        """Asks absent neighbours if they are back and, at the end, all neighbours that may still need this node."""
        with self._lock:
            questions: dict[int, Question] = {}
            now = self._clock()
            for other, each in self._neighbours.items():
                if not each.is_present or (self.ended and not each.away):
                    questions[other] = Question("hello", self.round)
                if self.ended and not each.is_lost and each.is_silent(self._began_at, now, self._patience):
                    self._table.lose(each)
        self._ask(questions)

    def stop(self, error: Exception) -> None:
        """Makes the next `advance` raise FedprivError because of this error of another thread."""
        self._failure = error
        self._wake.set()

    def wait(self, seconds: float) -> None:
        """Waits until a neighbour sends a message, at most this long."""
        self._wake.wait(seconds)
        self._wake.clear()

    def advance(self) -> bool:
        """Takes all steps that are possible now; returns True if any step had a result.

        Raises:
            FedprivError: If the site could not reply to its own node, or a file could not be written; restart to
                resume.
        """
        if self._failure is not None:
            raise FedprivError(
                f"the node stops because of an error; restart it to resume: {self._failure}"
            ) from self._failure
        with self._lock:
            step = self._next_step()
            if step in ("inactive", "passed"):
                self._close(step)
                return True
        if step == "release":
            return self._release()
        if step == "wait":
            return False

        with self._lock:
            questions = self._table.questions(self._clock())
        has_moved = self._ask(questions)
        with self._lock:
            has_moved |= self._table.give_up(self._clock())
            if not self._table.is_open:
                self._close("released")
                has_moved = True
        return has_moved

    # ---- the round ----

    def _begin_round(self) -> None:
        """Sets up the round after the last finished one."""
        self._row: Tensor | None = None
        self._began_at = self._clock()
        self._table.begin(self.round)
        if self.round >= self.resolved_plan.rounds:
            self.ended = "finished"
        else:
            self._links = self._planned.links_in_round(self.round)

    def _next_step(self) -> str:
        """Returns what to do in the current round: `inactive`, `passed`, `release`, `wait` or `exchange`."""
        if self.ended:
            return "wait"
        if not self._links.is_active:
            return "inactive"
        if self._row is not None:
            return "exchange"
        if self._is_repeated:
            return "release"
        self._check_word()
        if self._is_waiting:
            return "wait"
        linked = [self._neighbours[other] for other in self._links.weights]
        everyone = self._neighbours.values()
        if any(each.may_use(self.round) for each in linked):
            return "release"
        if all(each.away for each in everyone):
            self.ended = "alone"
            return "wait"
        if not linked and any(each.is_present for each in everyone):
            return "release"  # in this round of the plan, the node has no links

        # no neighbour could use a row now, so it is not released, at no privacy cost
        now = self._clock()
        for each in linked:
            if not each.is_present and not each.is_lost and each.is_overdue(self._began_at, now, self._patience):
                self._table.lose(each)
        is_unknown = any(not each.is_present and not each.is_lost for each in linked)
        if not is_unknown and any(each.is_present and not each.away for each in everyone):
            return "passed"
        return "wait"

    def _check_word(self) -> None:
        """Stops waiting once each neighbour has sent a message since the start, or its waiting time is over.

        Each neighbour sends back the largest counter that this site has signed, so a folder that was set back releases
        nothing. The message of one neighbour is not enough: it may have been away while the site released rows to
        others.
        """
        if not self._is_waiting:
            return
        now = self._clock()
        for each in self._neighbours.values():
            if not each.is_present and not each.is_lost and each.is_overdue(self._started_at, now, self._patience):
                self._table.lose(each)
        self._is_waiting = any(not each.is_present and not each.is_lost for each in self._neighbours.values())

    def _release(self) -> bool:
        """Releases this site's row of the round, or ends the node's part in the round.

        Outside the hours in which the site works, it releases nothing and returns False.
        """
        request = TrainRequest(self.resolved_plan.hash, self.round, self._progress.received[0].float())
        reply = unpack_response(self._site.answer_node(pack_request(request)), self.resolved_plan.widths[1])
        with self._lock:
            is_repeated = self._is_repeated
            self._is_repeated = False
            if reply.counter is not None:
                self._counter = reply.counter
            if reply.message is not None:
                self._row = reply.message
                self._table.open(self._links, reply.message, self._clock(), is_repeated=is_repeated)
            elif reply.code == "over_budget":
                self.ended = "over_budget"
                _LOG.warning(
                    "the site's budget allows no more rounds: the node releases nothing more and keeps its model of "
                    "round %d",
                    self.round,
                )
            elif reply.code == "other_round":
                self._close("interrupted")
            elif reply.code == "closed":
                self._is_repeated = is_repeated
                return False
            else:
                raise FedprivError(
                    f"round {self.round + 1}: the site rejects the request of its own node ({reply.code}); see the "
                    "site's log"
                )
        return True

    def _close(self, status: RoundStatus) -> None:
        """Mixes the rows of links that are up, writes the new state to disk, and starts the next round."""
        up = {other: link.row for other, link in self._table.links.items() if link.row is not None}
        before = self._progress
        corrected: list[str] = []
        if self._row is None:
            message = torch.empty(0, self.resolved_plan.widths[1], dtype=before.received.dtype)
        else:
            message = self._row[None].to(before.received.dtype)
            corrected = [self._neighbours[each.neighbour].name for each in self._table.corrections]
        self._network.begin(self._links, up, self._table.corrections)
        after = server_update(self.resolved_plan.strategy, self._network, message, before.reply)
        if not bool(torch.isfinite(after.models).all() and torch.isfinite(after.received).all()):
            self.ended = "nonfinite"
            return
        self._progress = replace(
            before,
            round=before.round + 1,
            received=after.received,
            server=after.server,
            output=after.output,
            models=after.models,
        )
        links = self._table.links
        if self._row is not None:
            self._table.close()
        self._last_up |= dict.fromkeys(up, before.round)
        self._save()
        metrics = dict[str, float]()
        if self._evaluate is not None:
            metrics = self._evaluate(self.model)
        report = NodeRound(
            round=self.round,
            rounds=self.resolved_plan.rounds,
            status=status,
            up=tuple(self._neighbours[other].name for other in sorted(up)),
            down={link.neighbour.name: link.reason for other, link in sorted(links.items()) if other not in up},
            corrected=tuple(corrected),
            metrics=metrics,
        )
        self._begin_round()
        self.on_round(report)

    def _save(self) -> None:
        """Writes the state to the disk."""
        table = self._table
        state = NodeState(self._progress, table.doubts, tuple(table.corrections), self._last_up)
        self._folder.write(state)

    # ---- messages ----

    def _message(self, kind: Kind, other: int, index: int, row: Tensor | None = None) -> bytes:
        """Returns a message to a neighbour about a round."""
        message = PeerMessage(
            kind=kind,
            plan=self.resolved_plan.hash,
            sender=self.number,
            receiver=other,
            round=index,
            at=self.round,
            is_ready=self._row is not None,
            is_waiting=self._is_waiting and not self.ended,
            away=self.ended,
            counter=self._counter,
            shown=self._counters.largest(other),
            row=row,
        )
        return self._codec.pack(message)

    def _take_note(self, message: PeerMessage) -> None:
        """Records the sender's state in a message, and the counter of this site that it contains.

        Raises:
            MalformedMessage: If a counter is not signed by its site, or a row comes without a counter.
            RolledBack: If the site's folder is an older copy.
        """
        if message.row is not None and message.counter is None:
            raise MalformedMessage("the message contains a row but no signed counter")
        try:
            self._check_counter(message.shown)
            if message.counter is not None:
                self._counters.take(message.sender, message.counter)
        except InvalidCounter as error:
            raise MalformedMessage(str(error)) from None
        self._table.take_note(message, self._clock())

    def _reply(self, question: PeerMessage) -> bytes:
        """Returns the reply to a neighbour's request."""
        other = question.sender
        if question.kind == "hello":
            return self._message("here", other, question.round)
        if question.kind == "exchange" and not self._neighbours[other].is_decider:
            kind, row = self._table.decide(question, has_ended=bool(self.ended))
            return self._message(kind, other, question.round, row)
        raise MalformedMessage(
            f"{self._neighbours[other].name} sent a request that only this node may send on their link"
        )

    def _ask(self, questions: Mapping[int, Question]) -> bool:
        """Sends requests to neighbours and processes their replies; returns True if a link was decided."""
        if not questions:
            return False
        with self._lock:
            packed = {
                other: self._message(question.kind, other, question.round, question.row)
                for other, question in questions.items()
            }
        replies = self._transport.ask(packed)
        with self._lock:
            decisions: list[PeerMessage] = []
            for other, question in questions.items():
                try:
                    reply = self._codec.unpack(replies.get(other, b""))
                    if (reply.sender, reply.round) != (other, question.round):
                        raise MalformedMessage("the reply is from another site, or for another round")
                    self._take_note(reply)
                except MalformedMessage:
                    self._table.miss_reply(other, question)
                    continue
                if question.kind == "exchange":
                    decisions.append(reply)
            self._counters.save()
            has_decided = [self._take_decision(reply) for reply in decisions]
        return any(has_decided)

    def _take_decision(self, reply: PeerMessage) -> bool:
        """Processes a decider's reply; returns True if it has decided. A settled doubt is then on disk."""
        n_doubts = len(self._table.doubts)
        has_decided = self._table.take_decision(reply)
        if len(self._table.doubts) < n_doubts:
            self._save()
        return has_decided
