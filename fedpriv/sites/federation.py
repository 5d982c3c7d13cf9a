"""The server of a federation: it sends requests to sites, averages their messages, and stores only released values."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import Dataset

from fedpriv.errors import ConfigError, FedprivError
from fedpriv.evaluation import Evaluator
from fedpriv.network import Star, TrainState, server_update, sum_replicated_rows
from fedpriv.privacy.accounting import PrivacySpent, account
from fedpriv.settings import validate_arguments
from fedpriv.sites.absence_notice import AbsenceNotice, InvalidNotice
from fedpriv.sites.counter_store import CounterStore
from fedpriv.sites.federation_plan import FederationPlan
from fedpriv.sites.messages import MalformedMessage, TrainRequest, TrainResponse, pack, unpack_response
from fedpriv.sites.reply_counter import InvalidCounter
from fedpriv.sites.resolved_plan import ResolvedPlan
from fedpriv.statistics import Description
from fedpriv.storage import RunFolder
from fedpriv.strategies import Strategy

_TRIES = 2  # a request with a lost reply is sent again; the site repeats its reply
_HUGE = 1e6  # times the largest number that was sent: not a valid reply to it
_STATE = "server.pt"


class Transport(Protocol):
    """Carries requests to sites and returns their replies."""

    def ask(self, questions: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """Returns the replies that sites sent in time, by site number.

        Args:
            questions: The request for each site, by number.
        """
        ...


class RespondingStar(Star):
    """A star for rounds in which some participants do not reply; means are over those that do."""

    def restrict_to(self, responders: Tensor) -> None:
        """Restricts the current round to the participants that replied: their numbers, sorted, `[k]`."""
        self._share = len(responders) / len(self._drawn)
        self._drawn = responders

    def mean(self, rows: Tensor) -> Tensor:
        """See `Star`; the sum is divided by the expected number of participants times the share that replied."""
        return self.scatter(sum_replicated_rows(rows) / (self.cohort.expected(self.n_clients) * self._share))


@dataclass(frozen=True)
class SiteRound:
    """Reports one round of a federation.

    Attributes:
        round: Number of finished rounds.
        rounds: Number of planned rounds.
        answered: Names of the sites with messages that were used.
        absent: The reason for each other participant, by name: its own code, `no_reply` or `malformed`.
        noticed: Absent sites that had signed a notice beforehand, so that the noise of their pairs was omitted.
        metrics: Metrics of the model on public test data.
    """

    round: int
    rounds: int
    answered: tuple[str, ...]
    absent: Mapping[str, str] = field(default_factory=dict[str, str])
    noticed: tuple[str, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])


@validate_arguments("federation")
class Federation:
    """The server's side of a plan.

    It does not rely on any site: a site that does not reply, or sends bytes that are not a message, is absent from the
    round. The round continues without it if the strategy allows this.

    Args:
        proposal: The plan.
        transport: Carries requests to the sites.
        folder: Folder of the server's state, all of which is released. A stopped federation resumes from it.
        test: Public test data; None for no metrics.

    Attributes:
        ended: Reason why there are no more rounds; None while there are.

    Raises:
        ConfigError: If the plan is rejected.
        FedprivError: If the folder belongs to another federation or is in use.
    """

    def __init__(
        self, proposal: FederationPlan, transport: Transport, folder: str | Path, test: Dataset[Any] | None = None
    ) -> None:
        self.resolved_plan = resolved_plan = ResolvedPlan.of(proposal)
        if not isinstance(resolved_plan.network, Star):
            fix = "a plan on a graph has no server: each site runs its own node instead, see docs/howto/peers.md"
            raise ConfigError("plan.network.topology", "a graph", fix)
        self._transport, self._folder = transport, RunFolder(Path(folder))
        self._network = RespondingStar(len(resolved_plan.cards), resolved_plan.network.cohort)
        if test is None or resolved_plan.statistics is not None:
            self._evaluate = None
        else:
            self._evaluate = Evaluator(resolved_plan.model, resolved_plan.loss, test)
        self._out_of_budget: dict[int, str] = {}  # sites that refuse every later round, with their code
        self._notices: list[AbsenceNotice] = []  # the notices that are sent to sites
        self._new_notices: list[AbsenceNotice] = []  # notices of the current round, sent from the next round on
        verifying_keys = {number: card.verifying_key for number, card in enumerate(resolved_plan.cards)}
        self._counters = CounterStore(self._folder.path, resolved_plan.hash, verifying_keys, self._folder.write)
        self.progress = self._restore_progress(resolved_plan.begin())
        self.ended = None
        self._n_asked = 0  # rounds in which sites may have replied, also if the last was never used

    @property
    def model(self) -> Tensor:
        """The newest model, `[dim]`: computed from releases only."""
        return self.progress.models.mean(0)

    @property
    def strategy(self) -> Strategy:
        """The algorithm."""
        return self.resolved_plan.strategy

    def describe(self) -> Description | None:
        """Returns the answers of a plan for statistics; None for training, or before all sites have replied."""
        if self.resolved_plan.statistics is None or self.progress.round < self.resolved_plan.rounds:
            return None
        return self.resolved_plan.describe(self.model, self.spent())

    def spent(self) -> PrivacySpent:
        """Returns an upper bound on each site's spending so far: no site releases more than its plan announces.

        If the federation ended before its plan, the end may depend on query results, so the whole plan is charged.
        """
        plan = self.resolved_plan.plan
        released = plan.records
        if self.ended is None:
            released = [record for record in plan.records if record.round < max(self._n_asked, self.progress.round)]
        return account(released, plan.n_clients, plan.privacy.delta)

    def __iter__(self) -> Iterator[SiteRound]:
        """Trains round by round, until the plan or the sites' budgets end, and yields a report of each round."""
        resolved_plan = self.resolved_plan
        names = [card.name for card in resolved_plan.cards]
        for index in range(self.progress.round, resolved_plan.rounds):
            if self.strategy.is_done(self.progress.server):
                self.ended = "strategy"
                return
            self._n_asked = index + 1
            rows, absent = self._collect_messages(index)
            reasons = {names[site]: reason for site, reason in sorted(absent.items())}
            noticed = tuple(names[site] for site in sorted(self._notices_for(index)) if site in absent)
            if not rows or (absent and resolved_plan.needs_everyone):
                self.ended = f"absent: {', '.join(f'{name} ({reason})' for name, reason in reasons.items())}"
                return
            if not self._advance(rows):
                self.ended = "nonfinite"
                return
            if self._evaluate is None:
                metrics = {}
            else:
                metrics = self._evaluate(self.model)
            self._save()
            answered = tuple(names[site] for site in sorted(rows))
            yield SiteRound(index + 1, resolved_plan.rounds, answered, reasons, noticed, metrics)
        self.ended = "rounds"

    def close(self) -> None:
        """Releases the folder for other processes."""
        self._folder.close()

    def _collect_messages(self, index: int) -> tuple[dict[int, Tensor], dict[int, str]]:
        """Sends requests to a round's participants; returns their messages, each `[m]`, and why others sent none."""
        resolved_plan = self.resolved_plan
        received = self.progress.received
        cohort = self._network.participants(index, resolved_plan.public).tolist()
        notices = {site: notice for site, notice in self._notices_for(index).items() if site in cohort}
        absent = {site: self._out_of_budget[site] for site in cohort if site in self._out_of_budget}
        absent |= {site: notice.reason for site, notice in notices.items()}
        unanswered = {
            site: pack(
                TrainRequest(
                    resolved_plan.hash,
                    index,
                    received[site].float(),
                    tuple(notices.values()),
                    self._counters.largest(site),
                )
            )
            for site in cohort
            if site not in absent
        }
        rows: dict[int, Tensor] = {}
        for _ in range(_TRIES):
            if not unanswered:
                break
            for site, reply in self._transport.ask(unanswered).items():
                if site in unanswered:
                    del unanswered[site]
                    self._add_reply(index, site, reply, rows, absent)
            self._counters.save()
        return rows, absent | dict.fromkeys(unanswered, "no_reply")

    def _add_reply(self, index: int, site: int, data: bytes, rows: dict[int, Tensor], absent: dict[int, str]) -> None:
        """Adds the message of a reply to `rows`, or the reason for its absence to `absent`."""
        largest = _HUGE * (1 + float(self.progress.received.abs().max()))
        try:
            reply = unpack_response(data, self.resolved_plan.widths[1])
            self._collect_notices(site, reply)
            is_rolled_back = self._collect_counter(site, reply)
        except (MalformedMessage, InvalidNotice, InvalidCounter):
            absent[site] = "malformed"
            return
        if is_rolled_back:
            absent[site] = "rolled_back"
        elif reply.message is None:
            absent[site] = str(reply.code)
            if reply.code == "over_budget":
                self._out_of_budget[site] = "over_budget"
        elif (reply.plan, reply.round) != (self.resolved_plan.hash, index) or float(
            reply.message.abs().max()
        ) > largest:
            absent[site] = "malformed"
        else:
            rows[site] = reply.message

    def _collect_notices(self, site: int, reply: TrainResponse) -> None:
        """Checks and stores the notices of a reply; they are sent to the other sites in later rounds.

        Raises:
            InvalidNotice: If the site has not signed one of them.
        """
        resolved_plan = self.resolved_plan
        for notice in reply.notices:
            notice.check(resolved_plan.hash, resolved_plan.cards, resolved_plan.rounds)
            if notice.site != site or not resolved_plan.leaves_out:
                raise InvalidNotice(
                    "the reply contains a notice of absence of another site, or the plan uses no notices"
                )
        all_notices = [*self._notices, *self._new_notices]
        self._new_notices += [notice for notice in reply.notices if notice not in all_notices]

    def _collect_counter(self, site: int, reply: TrainResponse) -> bool:
        """Stores a site's reply counter; returns True if it is smaller than one that the site has signed before.

        Raises:
            InvalidCounter: If a message comes without a counter, or the site has not signed it.
        """
        if reply.counter is not None:
            return self._counters.take(site, reply.counter)
        if reply.message is not None:
            raise InvalidCounter("the reply contains a message but no signed counter")
        return False

    def _notices_for(self, index: int) -> dict[int, AbsenceNotice]:
        """Returns the notices that cover a round, by site, among the notices known when the round began."""
        return {notice.site: notice for notice in self._notices if notice.covers(index)}

    def _advance(self, rows: Mapping[int, Tensor]) -> bool:
        """Runs the server's update on these messages; returns False, without a new state, if it is not finite."""
        before = self.progress
        answered = sorted(rows)
        self._network.restrict_to(torch.tensor(answered))
        message = torch.stack([rows[site] for site in answered]).to(before.received.dtype)
        reply = server_update(self.strategy, self._network, message, before.reply)
        if not bool(torch.isfinite(reply.models).all() and torch.isfinite(reply.received).all()):
            return False
        self.progress = replace(
            before,
            round=before.round + 1,
            received=reply.received,
            server=reply.server,
            output=reply.output,
            models=reply.models,
        )
        return True

    def _save(self) -> None:
        content = io.BytesIO()
        # only now: a round that is repeated after a crash is repeated with the same notices
        self._notices += self._new_notices
        self._new_notices = []
        stored = {name: value for name, value in self.progress.stored().items() if name != "local"}
        public_facts = {
            "over": sorted(self._out_of_budget),
            "notices": [notice.model_dump() for notice in self._notices],
        }
        torch.save({"plan": self.resolved_plan.hash, "known": json.dumps(public_facts), **stored}, content)
        self._folder.write(_STATE, content.getvalue())

    def _restore_progress(self, initial: TrainState) -> TrainState:
        """Returns the state in the folder, or the initial one; only sites have the state of client updates.

        Raises:
            FedprivError: If the folder's state cannot be read, or belongs to another federation.
        """
        path = self._folder.path / _STATE
        if not path.exists():
            return initial
        try:
            stored = torch.load(path, weights_only=True)
            plan = stored.pop("plan")
            public_facts = json.loads(stored.pop("known"))
            out_of_budget = public_facts["over"]
            notices = [AbsenceNotice.model_validate(notice) for notice in public_facts["notices"]]
            progress = initial.restored({**initial.stored(), **stored})
        except (RuntimeError, LookupError, AttributeError, TypeError, ValueError, EOFError, UnpicklingError) as error:
            raise FedprivError(
                f"{path}, the progress of this federation, cannot be read; restore the file, or use another folder"
            ) from error
        if plan != self.resolved_plan.hash:
            raise FedprivError(f"{path} belongs to a federation with another plan; use another folder for this plan")
        self._out_of_budget = dict.fromkeys(out_of_budget, "over_budget")
        self._notices = notices
        return progress
