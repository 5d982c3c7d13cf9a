"""The server of a federation: it asks sites, adds up what they say, and keeps nothing but what was released."""

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

from fedpriv.errors import FedprivError
from fedpriv.evaluation.evaluator import Evaluator
from fedpriv.network.local import Star, sum_of
from fedpriv.network.rounds import TrainState, server_update
from fedpriv.privacy.accounting.accountant import account
from fedpriv.privacy.accounting.spent import PrivacySpent
from fedpriv.settings.checks import checked
from fedpriv.sites.absence_notice import AbsenceNotice, InvalidNotice
from fedpriv.sites.federation_plan import FederationPlan
from fedpriv.sites.messages import MalformedMessage, TrainRequest, TrainResponse, pack, unpack_response
from fedpriv.sites.resolved_plan import ResolvedPlan
from fedpriv.storage.folder import RunFolder
from fedpriv.strategies.base import Strategy

_TRIES = 2  # a reply that got lost is asked for again: the site says the same
_HUGE = 1e6  # times the largest number that was sent: nobody's answer to it
_STATE = "server.pt"


class Transport(Protocol):
    """Carries questions to sites, and brings their replies."""

    def ask(self, questions: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """The replies of those sites, by number, that answered in time."""
        ...


class Answered(Star):
    """A star on which some of a round's participants do not answer: means are over those who do."""

    def only(self, cohort: Tensor) -> None:
        """Whose messages there are, sorted, `[k]`."""
        self._share, self._drawn = len(cohort) / len(self._drawn), cohort

    def mean(self, rows: Tensor) -> Tensor:
        """See `Star`; divided by the expected number of participants times the share of them that answered."""
        return self.scatter(sum_of(rows) / (self.cohort.expected(self.n_clients) * self._share))


@dataclass(frozen=True)
class SiteRound:
    """A round of a federation.

    Attributes:
        round: Number of finished rounds.
        rounds: Number of planned rounds.
        answered: Names of the sites whose messages were used.
        absent: Why others were not: a code of theirs, `no_reply` or `malformed`.
        noticed: Those of them who had signed it beforehand, so that the noise of their pairs was left out.
        metrics: Of the model, on public test data.
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

    It trusts no site to be well: who does not answer, or says what is no message, is absent from a round, which goes on
    without it where the strategy allows.

    Args:
        proposal: The plan.
        transport: Reaches the sites.
        folder: Where the server's state is kept, all of it released; a federation that stopped goes on from there.
        test: Public test data.

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
        self._transport, self._folder = transport, RunFolder(Path(folder))
        self._network = Answered(len(terms.cards), terms.network.cohort)
        if test is None:
            self._evaluate = None
        else:
            self._evaluate = Evaluator(terms.model, terms.loss, test)
        self._over: dict[int, str] = {}
        self._notices: list[AbsenceNotice] = []
        self._learned: list[AbsenceNotice] = []
        self.progress, self.ended = self._begun(terms.begin()), None

    @property
    def model(self) -> Tensor:
        """The newest model, `[dim]`: computed from releases only."""
        return self.progress.models.mean(0)

    @property
    def strategy(self) -> Strategy:
        """The algorithm."""
        return self.terms.strategy

    def spent(self) -> PrivacySpent:
        """At most what each site has spent on the rounds so far: none answers more than its plan says."""
        plan = self.terms.plan
        told = [record for record in plan.records if record.round < self.progress.round]
        return account(told, plan.n_clients, plan.privacy.delta)

    def __iter__(self) -> Iterator[SiteRound]:
        """Train, round by round, until the plan or the sites' budgets end."""
        terms, names = self.terms, [card.name for card in self.terms.cards]
        for index in range(self.progress.round, terms.rounds):
            if self.strategy.is_done(self.progress.server):
                self.ended = "strategy"
                return
            rows, absent = self._asked(index)
            told = {names[site]: why for site, why in sorted(absent.items())}
            noticed = tuple(names[site] for site in sorted(self._away(index)) if site in absent)
            if not rows or (absent and terms.needs_everyone):
                self.ended = f"absent: {', '.join(f'{name} ({why})' for name, why in told.items())}"
                return
            if not self._next(rows):
                self.ended = "nonfinite"
                return
            if self._evaluate is None:
                metrics = {}
            else:
                metrics = self._evaluate(self.model)
            self._save()
            answered = tuple(names[site] for site in sorted(rows))
            yield SiteRound(index + 1, terms.rounds, answered, told, noticed, metrics)
        self.ended = "rounds"

    def close(self) -> None:
        """Let another process use the folder."""
        self._folder.close()

    def _asked(self, index: int) -> tuple[dict[int, Tensor], dict[int, str]]:
        """What each site says in a round, `[m]`, and why others say nothing."""
        terms, heard = self.terms, self.progress.received
        cohort = self._network.participants(index, terms.public).tolist()
        away = {site: notice for site, notice in self._away(index).items() if site in cohort}
        absent = {site: self._over[site] for site in cohort if site in self._over}
        absent |= {site: notice.why for site, notice in away.items()}
        told = tuple(away.values())
        todo = {
            site: pack(TrainRequest(terms.hash, index, heard[site].float(), told))
            for site in cohort
            if site not in absent
        }
        rows: dict[int, Tensor] = {}
        for _ in range(_TRIES):
            for site, reply in (self._transport.ask(todo) if todo else {}).items():
                if site in todo:
                    del todo[site]
                    self._heard(index, site, reply, rows, absent)
        return rows, absent | dict.fromkeys(todo, "no_reply")

    def _heard(self, index: int, site: int, data: bytes, rows: dict[int, Tensor], absent: dict[int, str]) -> None:
        largest = _HUGE * (1 + float(self.progress.received.abs().max()))
        try:
            reply = unpack_response(data, self.terms.widths[1])
            self._learn(site, reply)
        except (MalformedMessage, InvalidNotice):
            absent[site] = "malformed"
            return
        if reply.message is None:
            absent[site] = str(reply.code)
            if reply.code == "over_budget":
                self._over[site] = "over_budget"
        elif (reply.plan, reply.round) != (self.terms.hash, index) or float(reply.message.abs().max()) > largest:
            absent[site] = "malformed"
        else:
            rows[site] = reply.message

    def _learn(self, site: int, reply: TrainResponse) -> None:
        """Keep what a site has signed of its absence: in later rounds the others are shown it.

        Raises:
            BadNotice: it has not signed it.
        """
        terms = self.terms
        for notice in reply.notices:
            notice.check(terms.hash, terms.cards, terms.rounds)
            if notice.site != site or not terms.leaves_out:
                raise InvalidNotice("a notice of another site, or in a plan that uses none")
        self._learned += [notice for notice in reply.notices if notice not in [*self._notices, *self._learned]]

    def _away(self, index: int) -> dict[int, AbsenceNotice]:
        """Who has signed that it is absent from a round, by what was known when the round began."""
        return {notice.site: notice for notice in self._notices if notice.covers(index)}

    def _next(self, rows: Mapping[int, Tensor]) -> bool:
        """Go on with these messages; whether the new model is finite."""
        before, answered = self.progress, sorted(rows)
        self._network.only(torch.tensor(answered))
        message = torch.stack([rows[site] for site in answered]).to(before.received.dtype)
        reply = server_update(self.strategy, self._network, message, before.reply)
        if not bool(torch.isfinite(reply.models).all() and torch.isfinite(reply.received).all()):
            return False
        parts = {"received": reply.received, "server": reply.server, "output": reply.output, "models": reply.models}
        self.progress = replace(before, round=before.round + 1, **parts)
        return True

    def _save(self) -> None:
        content = io.BytesIO()
        # only now: a round that is asked again after a crash is asked with the same notices
        self._notices, self._learned = [*self._notices, *self._learned], []
        stored = {name: part for name, part in self.progress.stored().items() if name != "local"}
        known = {"over": sorted(self._over), "notices": [notice.model_dump() for notice in self._notices]}
        torch.save({"plan": self.terms.hash, "known": json.dumps(known), **stored}, content)
        self._folder.write(_STATE, content.getvalue())

    def _begun(self, first: TrainState) -> TrainState:
        """Where the federation stands; sites alone have the state of local steps."""
        path = self._folder.path / _STATE
        if not path.exists():
            return first
        try:
            stored = torch.load(path, weights_only=True)
            plan, known = stored.pop("plan"), json.loads(stored.pop("known"))
            over, notices = known["over"], [AbsenceNotice.model_validate(one) for one in known["notices"]]
            found = first.restored({**first.stored(), **stored})
        except (RuntimeError, KeyError, TypeError, ValueError, EOFError, UnpicklingError) as error:
            raise FedprivError(f"{path} cannot be read; choose another folder") from error
        if plan != self.terms.hash:
            raise FedprivError(f"{path} is of another federation; choose another folder")
        self._over, self._notices = dict.fromkeys(over, "over_budget"), notices
        return found
