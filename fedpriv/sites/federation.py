"""The server of a federation: it asks sites, averages their messages, and stores nothing but released values."""

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
from fedpriv.network import Star, TrainState, server_update, sum_of
from fedpriv.privacy.accounting import PrivacySpent, account
from fedpriv.settings import checked
from fedpriv.sites.absence_notice import AbsenceNotice, InvalidNotice
from fedpriv.sites.counter_store import CounterStore
from fedpriv.sites.federation_plan import FederationPlan
from fedpriv.sites.messages import MalformedMessage, TrainRequest, TrainResponse, pack, unpack_response
from fedpriv.sites.reply_counter import InvalidCounter
from fedpriv.sites.resolved_plan import ResolvedPlan
from fedpriv.storage import RunFolder
from fedpriv.strategies import Strategy

_TRIES = 2  # a reply that got lost is asked for again: the site says the same
_HUGE = 1e6  # times the largest number that was sent: nobody's answer to it
_STATE = "server.pt"


class Transport(Protocol):
    """Carries questions to sites, and brings their replies back."""

    def ask(self, questions: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """Returns the replies of the sites that answered in time, by number.

        Args:
            questions: The question for each site, by number.
        """
        ...


class RespondingStar(Star):
    """A star on which some participants of a round do not answer; means are over those that do."""

    def restrict_to(self, responders: Tensor) -> None:
        """Restricts the current round to the participants that answered: their numbers, sorted, `[k]`."""
        self._share = len(responders) / len(self._drawn)
        self._drawn = responders

    def mean(self, rows: Tensor) -> Tensor:
        """See `Star`; the sum is divided by the expected number of participants times the share that answered."""
        return self.scatter(sum_of(rows) / (self.cohort.expected(self.n_clients) * self._share))


@dataclass(frozen=True)
class SiteRound:
    """Reports one round of a federation.

    Attributes:
        round: Number of finished rounds.
        rounds: Number of planned rounds.
        answered: Names of the sites whose messages were used.
        absent: The reason for each other participant, by name: its own code, `no_reply` or `malformed`.
        noticed: Absent sites that had signed a notice beforehand, so that the noise of their pairs was left out.
        metrics: Metrics of the model on public test data.
    """

    round: int
    rounds: int
    answered: tuple[str, ...]
    absent: Mapping[str, str] = field(default_factory=dict[str, str])
    noticed: tuple[str, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])


@checked("federation")
class Federation:
    """The server's side of a plan.

    It relies on no site: one that does not answer, or sends bytes that are no message, is absent from the round, which
    goes on without it where the strategy allows.

    Args:
        proposal: The plan.
        transport: Carries questions to the sites.
        folder: Where the server's state is kept, all of it released; a federation that stopped goes on from there.
        test: Public test data; None for no metrics.

    Attributes:
        ended: Why there are no more rounds; None while there are.

    Raises:
        ConfigError: the plan is refused.
        FedprivError: the folder is another federation's, or in use.
    """

    def __init__(
        self, proposal: FederationPlan, transport: Transport, folder: str | Path, test: Dataset[Any] | None = None
    ) -> None:
        self.terms = terms = ResolvedPlan.of(proposal)
        if not isinstance(terms.network, Star):
            fix = "a graph has no server: each site runs its own node, see docs/howto/peers.md"
            raise ConfigError("plan.network.topology", "a graph", fix)
        self._transport, self._folder = transport, RunFolder(Path(folder))
        self._network = RespondingStar(len(terms.cards), terms.network.cohort)
        if test is None:
            self._evaluate = None
        else:
            self._evaluate = Evaluator(terms.model, terms.loss, test)
        self._out_of_budget: dict[int, str] = {}  # sites that refuse every later round, with their code
        self._notices: list[AbsenceNotice] = []  # those that sites are shown
        self._new_notices: list[AbsenceNotice] = []  # those of the current round, shown from the next one on
        verifying_keys = {number: card.verifying_key for number, card in enumerate(terms.cards)}
        self._counters = CounterStore(self._folder.path, terms.hash, verifying_keys, self._folder.write)
        self.progress = self._restore_progress(terms.begin())
        self.ended = None
        self._n_asked = 0  # rounds that sites may have answered, also if the last of them was never used

    @property
    def model(self) -> Tensor:
        """The newest model, `[dim]`: computed from releases only."""
        return self.progress.models.mean(0)

    @property
    def strategy(self) -> Strategy:
        """The algorithm."""
        return self.terms.strategy

    def spent(self) -> PrivacySpent:
        """Returns an upper bound on what each site has spent so far: no site answers more than its plan announces.

        If the federation ended before its plan, the end may depend on answers, so the whole plan is charged.
        """
        plan = self.terms.plan
        released = plan.records
        if self.ended is None:
            released = [record for record in plan.records if record.round < max(self._n_asked, self.progress.round)]
        return account(released, plan.n_clients, plan.privacy.delta)

    def __iter__(self) -> Iterator[SiteRound]:
        """Trains round by round, until the plan or the sites' budgets end, and yields a report of each round."""
        terms = self.terms
        names = [card.name for card in terms.cards]
        for index in range(self.progress.round, terms.rounds):
            if self.strategy.is_done(self.progress.server):
                self.ended = "strategy"
                return
            self._n_asked = index + 1
            rows, absent = self._collect_messages(index)
            reasons = {names[site]: why for site, why in sorted(absent.items())}
            noticed = tuple(names[site] for site in sorted(self._notices_for(index)) if site in absent)
            if not rows or (absent and terms.needs_everyone):
                self.ended = f"absent: {', '.join(f'{name} ({why})' for name, why in reasons.items())}"
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
            yield SiteRound(index + 1, terms.rounds, answered, reasons, noticed, metrics)
        self.ended = "rounds"

    def close(self) -> None:
        """Lets another process use the folder."""
        self._folder.close()

    def _collect_messages(self, index: int) -> tuple[dict[int, Tensor], dict[int, str]]:
        """Asks the participants of a round; returns their messages, each `[m]`, and why the others sent none."""
        terms = self.terms
        received = self.progress.received
        cohort = self._network.participants(index, terms.public).tolist()
        notices = {site: notice for site, notice in self._notices_for(index).items() if site in cohort}
        absent = {site: self._out_of_budget[site] for site in cohort if site in self._out_of_budget}
        absent |= {site: notice.why for site, notice in notices.items()}
        unanswered = {
            site: pack(
                TrainRequest(
                    terms.hash, index, received[site].float(), tuple(notices.values()), self._counters.largest(site)
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
        """Adds the message of a reply to `rows`, or the reason why there is none to `absent`."""
        largest = _HUGE * (1 + float(self.progress.received.abs().max()))
        try:
            reply = unpack_response(data, self.terms.widths[1])
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
        elif (reply.plan, reply.round) != (self.terms.hash, index) or float(reply.message.abs().max()) > largest:
            absent[site] = "malformed"
        else:
            rows[site] = reply.message

    def _collect_notices(self, site: int, reply: TrainResponse) -> None:
        """Checks and stores the notices of a reply; in later rounds the other sites are shown them.

        Raises:
            InvalidNotice: the site has not signed one of them.
        """
        terms = self.terms
        for notice in reply.notices:
            notice.check(terms.hash, terms.cards, terms.rounds)
            if notice.site != site or not terms.leaves_out:
                raise InvalidNotice("a notice of another site, or in a plan without notices")
        all_notices = [*self._notices, *self._new_notices]
        self._new_notices += [notice for notice in reply.notices if notice not in all_notices]

    def _collect_counter(self, site: int, reply: TrainResponse) -> bool:
        """Stores how much a site has on record; returns whether it is less than it has signed before.

        Raises:
            InvalidCounter: a message comes without a count, or the site has not signed it.
        """
        if reply.counter is not None:
            return self._counters.take(site, reply.counter)
        if reply.message is not None:
            raise InvalidCounter("a message without a counter")
        return False

    def _notices_for(self, index: int) -> dict[int, AbsenceNotice]:
        """Returns the notices that cover a round, by site, among those that were known when the round began."""
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
        # only now: a round that is asked again after a crash is asked with the same notices
        self._notices += self._new_notices
        self._new_notices = []
        stored = {name: value for name, value in self.progress.stored().items() if name != "local"}
        public_facts = {
            "over": sorted(self._out_of_budget),
            "notices": [notice.model_dump() for notice in self._notices],
        }
        torch.save({"plan": self.terms.hash, "known": json.dumps(public_facts), **stored}, content)
        self._folder.write(_STATE, content.getvalue())

    def _restore_progress(self, initial: TrainState) -> TrainState:
        """Returns the state that the folder holds, or the initial one; sites alone have the state of local steps.

        Raises:
            FedprivError: the folder's state cannot be read, or is another federation's.
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
            raise FedprivError(f"{path} cannot be read; use another folder") from error
        if plan != self.terms.hash:
            raise FedprivError(f"{path} belongs to another federation; use another folder")
        self._out_of_budget = dict.fromkeys(out_of_budget, "over_budget")
        self._notices = notices
        return progress
