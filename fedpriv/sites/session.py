"""One federation as a site takes part in it: its data, its noise, its ledger and its state."""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from fedpriv import models
from fedpriv.clients import ownership
from fedpriv.clients.client import Client
from fedpriv.clients.client_set import public_sizes
from fedpriv.clients.data_fingerprints import digest_of, examples_of
from fedpriv.clients.layout import changed_constants, constant_totals
from fedpriv.clients.population import Population
from fedpriv.clients.public_info import PublicDataInfo
from fedpriv.clients.shard import ClientShard
from fedpriv.config.building import divided
from fedpriv.config.schema import DataSection
from fedpriv.data import Split, load
from fedpriv.errors import BudgetExhausted, ConfigError, DataError, PrivacyError
from fedpriv.network.rounds import ClientInput, client_update, seeded_torch_draws
from fedpriv.oracle.backend_selection import select_backend
from fedpriv.oracle.clipped_sums import ClippedSums
from fedpriv.oracle.data_answerer import data_oracle
from fedpriv.oracle.validation import validate_per_example
from fedpriv.planning import compatibility
from fedpriv.privacy.ledger import Ledger, PrivacyFilter
from fedpriv.privacy.ledger_file import facts_of_pairs
from fedpriv.privacy.pairwise import KeyAgreedPairwise
from fedpriv.privacy.record import Record
from fedpriv.privacy.release.pairwise import pairs_of
from fedpriv.randomness.agreement import AgreedSecrets
from fedpriv.randomness.streams import Randomness
from fedpriv.sites.absence_notice import MOST, AbsenceNotice, InvalidNotice, Reason, absent_by
from fedpriv.sites.federation_plan import FederationPlan
from fedpriv.sites.messages import Code, TrainRequest, TrainResponse, pack
from fedpriv.sites.on_record import Kept
from fedpriv.sites.plan_filter import SitePlanFilter, of_one
from fedpriv.sites.resolved_plan import ResolvedPlan
from fedpriv.sites.site_accountant import SiteAccountant
from fedpriv.sites.site_folder import SiteFolder
from fedpriv.strategies.state import flatten_with_names, unflatten_like

_LOG = logging.getLogger(__name__)


def own_data(section: DataSection, client: int) -> tuple[Dataset[Any], Split]:
    """A site's examples, and the data set that they are from.

    Raises:
        ConfigError: the partition has no such client.
        DataError: they are missing or broken.
    """
    split = load(section.name, **section.options)
    parts = divided(section, split)
    if client >= len(parts):
        raise ConfigError("site.client", client, f"the partition has clients 0 to {len(parts) - 1}")
    return parts[client], split


class SiteSession:
    """One federation, as one site takes part in it.

    A site that was stopped goes on with fresh noise of its own, so that a question that it was asked before it stopped
    has no second answer with the same noise; rounds on record are over.

    Args:
        folder: The site's.
        proposal: The plan.
        terms: What it means.
        accountant: Counts the releases of all plans of the site.

    Raises:
        ConfigError: the plan has no such site, or does not fit its data.
        DataError: its data cannot be used.
        LedgerError: its ledger lost lines, or is damaged or altered.
    """

    def __init__(
        self, folder: SiteFolder, proposal: FederationPlan, terms: ResolvedPlan, accountant: SiteAccountant
    ) -> None:
        self._folder, self._proposal, self.terms = folder, proposal, terms
        self.number = number_of(folder, proposal)
        self._population = self._made(terms)
        backend = select_backend("auto", self._population).backend
        self._constants = constant_totals(self._population.model)
        self._randomness = Randomness(terms.seed, folder.secret_seed, secrets.randbits(62), terms.hash)
        released = folder.released(proposal)
        digest = digest_of(examples_of(self._population, 0), self._randomness.data_key())
        folder.check_data(proposal, digest, has_released=bool(released))
        self._accountant = accountant
        self._filter = SitePlanFilter(terms, self.number, accountant, released)
        self._ledger = self._opened(self._filter)
        sums = ClippedSums(backend, 1, torch.device("cpu"))
        of_run = terms.plan.privacy, self._ledger, self._randomness
        self._oracle = data_oracle(self._population, sums, *of_run, _of_own, pair_secrets=self._secrets())
        kept, first = folder.kept(proposal), terms.strategy.local_step.init(terms.start[None])
        if kept.local is None:
            self._local = first
        else:
            self._local = unflatten_like(first, kept.local)
        self._notices = folder.notices(proposal)
        self._foresee()

    def answer(self, question: TrainRequest) -> TrainResponse | bytes:
        """What the site says: a new reply, the same bytes as before to the same question, or a refusal.

        Raises:
            PrivacyError: it is not what the plan announced, or holds a notice that nobody has signed.
        """
        at, kept = question.round, self._folder.kept(self._proposal)
        if len(question.heard) != self.terms.widths[0]:
            return self._refusal(question, "malformed")
        if at == kept.round:
            if _digest(question) == kept.question:
                return kept.reply
            return self._refusal(question, "other_point")
        if not self._newest < at < self.terms.rounds:
            return self._refusal(question, "other_round")
        if self.number not in self.terms.cohort(at):
            return self._refusal(question, "not_in_cohort")
        away = self._away(question)
        if self.number in away or any(notice.covers(at) for notice in self._notices):
            return self._refusal(question, "said_absent")
        try:
            return self._step(question, away)
        except BudgetExhausted as refused:
            _LOG.warning("%s", refused)  # its numbers are the site's own: one word leaves
            self._foresee()
            return self._refusal(question, "over_budget")

    def say_absent(self, first: int, last: int, why: Reason) -> AbsenceNotice:
        """Sign that the site answers nothing from round `first` to `last`, and keep to it for ever.

        It is on the disk before it leaves, with the replies to the next questions.

        Raises:
            ConfigError: a round is over or is none of the plan's, too many notices are open, or nobody could use it.
        """
        if not self.terms.leaves_out:
            fix = "is of no use: only where every two sites share a secret, and not all must answer, pairs are left out"
            raise ConfigError("notice", self._proposal.fingerprint, fix)
        if not self._newest < first <= last < self.terms.rounds:
            fix = f"name rounds that are still to come, {self._newest + 2} to {self.terms.rounds}"
            raise ConfigError("notice.rounds", f"{first + 1}-{last + 1}", fix)
        if self._many >= MOST:
            raise ConfigError("notice", self._many, f"at most {MOST} may be open at a time: name more rounds in one")
        made = AbsenceNotice.signed(self._folder.signing_key, self.terms.hash, self.number, first, last, why)
        self._folder.remember(self._proposal, [*self._notices, made])
        self._notices.append(made)
        return made

    @property
    def planned(self) -> Sequence[Record]:
        """The site's own part of all records of the plan, in order of their rounds."""
        return self._filter.planned

    @property
    def _many(self) -> int:
        """Number of open notices."""
        return sum(notice.last > self._newest for notice in self._notices)

    @property
    def _newest(self) -> int:
        """The last round that is over for this site: answered, or on record."""
        kept = self._folder.kept(self._proposal).round
        return max([kept, *(record.round for record in self._ledger.records)])

    def _foresee(self) -> None:
        """Say beforehand in which rounds the budget will be spent, so that others need not carry this site's pairs."""
        last = self.terms.rounds - 1
        if not self.terms.leaves_out or any(notice.last == last for notice in self._notices):
            return
        if self._many >= MOST:
            return
        first, budget = self._filter.first_refused(self._rounds_to_come()), self._folder.settings.budget
        if first is None:
            return
        _LOG.warning(
            "the budget of epsilon=%g at delta=%g allows no more than the first %d of %d rounds of plan %s; spent so "
            "far, in all plans: %s. Others are told, signed, that the site is absent from then on.",
            *(budget.epsilon, budget.delta, first, last + 1, self._proposal.fingerprint, self._accountant.spent()),
        )
        self.say_absent(first, last, "over_budget")

    def _rounds_to_come(self) -> frozenset[int]:
        """The rounds that the site may still answer: neither over, nor signed away."""
        return frozenset(range(self._newest + 1, self.terms.rounds)) - self._signed_away()

    def _signed_away(self) -> frozenset[int]:
        """The rounds that the site has signed not to answer."""
        rounds = range(self.terms.rounds)
        return frozenset(at for at in rounds if any(notice.covers(at) for notice in self._notices))

    def _away(self, question: TrainRequest) -> frozenset[int]:
        """The participants of a round who have signed that they do not answer.

        Raises:
            BadNotice: a notice is forged, of another run, of another round, or may not be used in this plan.
        """
        terms, at = self.terms, question.round
        if question.notices and not terms.leaves_out:
            raise InvalidNotice("no pairs are left out in this plan")
        for notice in question.notices:
            notice.check(terms.hash, terms.cards, terms.rounds)
        return absent_by(question.notices, at, terms.cohort(at).tolist())

    def _step(self, question: TrainRequest, away: frozenset[int]) -> bytes:
        """Take part in a round: charge, compute, keep what is said, and only then say it."""
        self._filter.leave_out(self._signed_away())
        terms, at = self.terms, question.round
        call = ClientInput(at, terms.cohort(at), question.heard[None], terms.common[at])
        self._oracle.answerer.excluded = away
        with seeded_torch_draws(self._randomness.torch_seed("local", at, self.number), torch.device("cpu")):
            message, local = client_update(terms.strategy, self._oracle, call, self._local)
        if changed_constants(self._population.model, self._constants):
            raise PrivacyError("a forward pass changed a frozen parameter or a buffer")
        reply = pack(TrainResponse(terms.hash, at, message[0].float(), None, self._open(at)))
        self._ledger.sync()
        records = len(self._ledger.records)
        self._folder.keep(self._proposal, Kept(at, _digest(question), reply, flatten_with_names(local), records))
        self._local = local
        return reply

    def _refusal(self, question: TrainRequest, code: Code) -> TrainResponse:
        return TrainResponse(self.terms.hash, question.round, None, code, self._open(question.round))

    def _open(self, at: int) -> tuple[AbsenceNotice, ...]:
        """What the site has said of its absence in rounds after this one."""
        return tuple(notice for notice in self._notices if notice.last > at)[-MOST:]

    def _made(self, terms: ResolvedPlan) -> Population:
        """The site's examples and the model, checked as in a run of one process."""
        settings, privacy, card = self._folder.settings, terms.plan.privacy, terms.cards[self.number]
        dataset, split = own_data(settings.data, settings.client)
        found, wanted = PublicDataInfo.of([dataset], split.n_classes), self._proposal.outline
        if replace(found, sizes=()) != replace(wanted, sizes=()):
            told = f"{found.input_shape}, {found.n_classes} classes"
            fix = f"examples of the plan are {wanted.input_shape}, {wanted.n_classes} classes"
            raise ConfigError("site.data", told, fix)
        models.validate_model(terms.model)
        (problem,) = terms.config.problem.everyones()
        declared = card.size if card.size_declared else None
        client = Client(terms.model, terms.loss, DataLoader(dataset), declared, problem)
        if card.size != client.public_size:
            raise DataError("the site has not as many examples as its card says; make a new one: fedpriv site card")
        public_sizes([client], privacy)
        ownership.check_clients([client], None, privacy)
        part = ClientShard([self.number], terms.sizes, len(terms.cards))
        population = Population([client], shard=part)
        compatibility.check_problem(terms.strategy, [problem], privacy, terms.plan.asked, compare=False)
        validate_per_example(population)
        return population

    def _secrets(self) -> AgreedSecrets | None:
        if not isinstance(self.terms.plan.privacy.trust, KeyAgreedPairwise):
            return None
        public = {number: card.key for number, card in enumerate(self.terms.cards)}
        return AgreedSecrets(self.number, self._folder.private_key, public, bytes.fromhex(self.terms.hash))

    def _opened(self, guard: PrivacyFilter) -> Ledger:
        folder, path = self._folder, self._folder.ledger(self._proposal)
        keys = {"digest_key": self._randomness.digest_key(), "seal_key": self._randomness.seal_key()}
        if path.exists():
            kept = folder.kept(self._proposal).records
            ledger = Ledger.resume(path, guard, kept, fresh_noise=True, **keys)
        else:
            plan = self.terms.plan
            paired = facts_of_pairs(pairs_of(plan.privacy, plan.n_clients))
            header = {"n_clients": plan.n_clients, "delta": plan.privacy.delta, **paired, "planned": len(plan.records)}
            folder.run(self._proposal)
            ledger = Ledger(guard, path, header, **keys)
        ledger.may_write = folder.check
        return ledger


def number_of(folder: SiteFolder, proposal: FederationPlan) -> int:
    """A site's number in a plan, where it is known by its key.

    Raises:
        ConfigError: it is not there, or under another name.
    """
    cards = proposal.cards
    found = [number for number, card in enumerate(cards) if card.key == folder.public_key]
    if not found or cards[found[0]].name != folder.settings.name:
        raise ConfigError("plan.sites", folder.settings.name, "the plan does not have this site's name and key")
    return found[0]


def make_accountant(folder: SiteFolder) -> SiteAccountant:
    """Returns the accountant of a site, with all that its ledgers have on record in all plans that it has accepted.

    Raises:
        LedgerError: a plan is missing, or its ledger is, or is damaged or altered.
    """
    on_record: dict[str, Sequence[Record]] = {}
    for proposal in folder.accepted:
        number = number_of(folder, proposal)
        n_sites = len(proposal.cards)
        on_record[proposal.hash] = [of_one(record, number, n_sites) for record in folder.released(proposal)]
    budget = folder.settings.budget
    return SiteAccountant(budget.epsilon, budget.delta, on_record)


def _of_own(rows: Tensor) -> Tensor:
    """Public facts of others, `[1, n]`, that a site needs for nothing: its own stand for them."""
    return torch.full_like(rows, float(rows.sum()))


def _digest(question: TrainRequest) -> str:
    return hashlib.sha256(pack(question)).hexdigest()
