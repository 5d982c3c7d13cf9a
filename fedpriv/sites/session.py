"""The site's side of one federation: its data, noise, ledger and state."""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedpriv.clients import checksum_constants, digest_examples, find_changed_constants, read_fixed_examples
from fedpriv.distributed import Modes
from fedpriv.errors import BudgetExhausted, ConfigError, PrivacyError
from fedpriv.network import ClientInput, client_update, seed_torch_draws
from fedpriv.oracle import (
    KEPT,
    ClippedSums,
    StateCheck,
    copy_unused_backend,
    data_oracle,
    draw_check_rounds,
    needs_full_precision,
    select_backend,
)
from fedpriv.privacy import KeyAgreedPairwise, Ledger, PrivacyFilter, Record, make_pairs, make_pairwise_facts
from fedpriv.randomness import Randomness, new_secret
from fedpriv.sites.absence_notice import MAX_OPEN_NOTICES, AbsenceNotice, InvalidNotice, Reason, absent_sites
from fedpriv.sites.agreement import AgreedSecrets
from fedpriv.sites.federation_plan import FederationPlan
from fedpriv.sites.messages import Code, TrainRequest, TrainResponse, pack
from fedpriv.sites.plan_filter import SitePlanFilter
from fedpriv.sites.reply_counter import ReplyCounter
from fedpriv.sites.resolved_plan import ResolvedPlan
from fedpriv.sites.site_accountant import SiteAccountant
from fedpriv.sites.site_data import make_population
from fedpriv.sites.site_folder import SiteFolder
from fedpriv.sites.site_records import RolledBack, SessionState, check_rollback
from fedpriv.strategies import flatten_with_names, unflatten_like

_LOG = logging.getLogger(__name__)


class SiteSession:
    """Takes part in one federation for one site.

    Each start of the process draws a new secret for the noise, which is never written. A site that was stopped resumes
    with a new secret; rounds on record are over.

    Args:
        folder: The site's folder.
        proposal: The plan.
        resolved_plan: The resolved plan.
        accountant: Counts the releases of all plans of the site.

    Raises:
        ConfigError: If the plan does not contain the site, or does not fit its data.
        DataError: If its data cannot be used.
        PrivacyError: If the site has closed the plan.
        LedgerError: If its ledger lost lines, or is damaged or altered.
    """

    def __init__(
        self, folder: SiteFolder, proposal: FederationPlan, resolved_plan: ResolvedPlan, accountant: SiteAccountant
    ) -> None:
        self._folder = folder
        self._proposal = proposal
        self.resolved_plan = resolved_plan
        if folder.is_closed(proposal):
            raise PrivacyError(
                f"plan {proposal.fingerprint} is closed: the keys with which this site replied were destroyed "
                "(fedpriv seal). Take part in another plan"
            )
        self.number = folder.number_in(proposal)
        self._modes = Modes(torch.float32, needs_full_precision(resolved_plan.plan.privacy))
        with self._modes.fixed():
            self._population = make_population(folder.settings, resolved_plan, self.number, proposal.outline)
        backend = select_backend("auto", self._population).backend
        self._constants = checksum_constants(self._population.model)
        self._state_check = StateCheck(self._population, backend, copy_unused_backend(backend))
        self._check_rounds = draw_check_rounds(resolved_plan.rounds) | {resolved_plan.rounds - 1}
        self._randomness = Randomness(resolved_plan.seed, new_secret(), secrets.randbits(62), resolved_plan.hash)

        # reject examples that differ from the ones of earlier replies, before the ledger is opened
        released = folder.released(proposal)
        digest = digest_examples(read_fixed_examples(self._population, 0), self._data_key())
        folder.check_data(proposal, digest, has_released=bool(released))

        self._accountant = accountant
        self._filter = SitePlanFilter(resolved_plan, self.number, accountant, released)
        self._ledger = self._open_ledger(self._filter)
        if self._ledger.is_void:
            raise PrivacyError(KEPT)
        self._oracle = data_oracle(
            self._population,
            ClippedSums(backend, 1, torch.device("cpu")),
            resolved_plan.plan.privacy,
            self._ledger,
            self._randomness,
            _fill_with_own,
            pair_secrets=self._secrets(),
            table=resolved_plan.plan.releases,
        )

        # the state of the client update after the last answered round
        state = folder.session_state(proposal)
        first = resolved_plan.strategy.local_step.init(resolved_plan.start[None])
        if state.local is None:
            self._local = first
        else:
            self._local = unflatten_like(first, state.local)
        self._notices = folder.notices(proposal)
        self._announce_end_of_budget()

    def answer(self, question: TrainRequest) -> TrainResponse | bytes:
        """Replies to a request: with a new reply, with the stored bytes for a repeated request, or with a refusal.

        Raises:
            PrivacyError: If the release is not the planned one, or the request contains an invalid
                notice or counter.
            RolledBack: If the request shows that the site's folder is an older copy.
        """
        round_index = question.round
        self.check_counter(question.counter)
        state = self._folder.session_state(self._proposal)
        if len(question.received) != self.resolved_plan.widths[0]:
            return self._refusal(question, "malformed")
        if round_index == state.round:
            if _digest(question) == state.question:
                return state.reply
            return self._refusal(question, "other_point")
        if not self.last_round < round_index < self.resolved_plan.rounds:
            return self._refusal(question, "other_round")
        if self.number not in self.resolved_plan.cohort(round_index):
            return self._refusal(question, "not_in_cohort")
        absent = self._absent_participants(question)
        if self.number in absent or any(notice.covers(round_index) for notice in self._notices):
            return self._refusal(question, "said_absent")
        try:
            return self._take_part(question, absent)
        except BudgetExhausted as refused:
            _LOG.warning("%s", refused)  # its numbers are the site's own: only the code is sent
            self._announce_end_of_budget()
            return self._refusal(question, "over_budget")

    def declare_absence(self, first: int, last: int, reason: Reason) -> AbsenceNotice:
        """Signs that the site sends no replies from round `first` to `last`; these rounds are refused permanently.

        The notice is on disk before it is sent, with the replies to the next requests.

        Raises:
            ConfigError: If a round is over or not in the plan, too many notices are open, or the plan cannot use
                notices.
        """
        if not self.resolved_plan.leaves_out:
            fix = (
                "this plan uses no notices of absence: they need pairwise trust in which every two sites share a "
                "secret, and rounds in which not all sites must reply"
            )
            raise ConfigError("notice", self._proposal.fingerprint, fix)
        if not self.last_round < first <= last < self.resolved_plan.rounds:
            fix = (
                f"must be rounds that are not over, from {self.last_round + 2} to {self.resolved_plan.rounds}, the "
                "first one first"
            )
            raise ConfigError("notice.rounds", f"{first + 1}-{last + 1}", fix)
        if self._n_open_notices >= MAX_OPEN_NOTICES:
            raise ConfigError(
                "notice",
                self._n_open_notices,
                f"at most {MAX_OPEN_NOTICES} notices of absence may be open at a time: cover more rounds with one "
                "notice",
            )
        notice = AbsenceNotice.signed(self.signing_key, self.resolved_plan.hash, self.number, first, last, reason)
        self._folder.write_notices(self._proposal, [*self._notices, notice])
        self._notices.append(notice)
        return notice

    @property
    def planned(self) -> Sequence[Record]:
        """The site's share of all records of the plan, in order of their rounds."""
        return self._filter.planned

    @property
    def _n_open_notices(self) -> int:
        """Number of notices that cover rounds still to come."""
        return sum(notice.last > self.last_round for notice in self._notices)

    @property
    def last_round(self) -> int:
        """The last round that is over for this site, because it was answered or is on record; -1 for none."""
        answered = self._folder.session_state(self._proposal).round
        return max([answered, *(record.round for record in self._ledger.records)])

    def _announce_end_of_budget(self) -> None:
        """Signs a notice for the rounds that the budget will not allow, so that others can omit the pairs."""
        last = self.resolved_plan.rounds - 1
        if not self.resolved_plan.leaves_out or any(notice.last == last for notice in self._notices):
            return
        if self._n_open_notices >= MAX_OPEN_NOTICES:
            return
        first = self._filter.first_refused(self._rounds_to_come())
        if first is None:
            return
        budget = self._folder.settings.budget
        _LOG.warning(
            "the site's budget of epsilon=%g at delta=%g allows only the first %d of %d rounds of plan %s; privacy "
            "cost so far, in all plans: %s. A signed notice declares the site absent after the last allowed round.",
            *(budget.epsilon, budget.delta, first, last + 1, self._proposal.fingerprint, self._accountant.spent()),
        )
        self.declare_absence(first, last, "over_budget")

    def _rounds_to_come(self) -> frozenset[int]:
        """Returns the rounds in which the site may still reply: neither over, nor covered by one of its notices."""
        return frozenset(range(self.last_round + 1, self.resolved_plan.rounds)) - self._covered_rounds()

    def _covered_rounds(self) -> frozenset[int]:
        """Returns the rounds for which the site has signed an absence notice."""
        rounds = range(self.resolved_plan.rounds)
        return frozenset(index for index in rounds if any(notice.covers(index) for notice in self._notices))

    def _has_state(self) -> bool:
        with self._modes.fixed():
            return self._state_check.has_changed()

    def _absent_participants(self, question: TrainRequest) -> frozenset[int]:
        """Returns the participants of a round that have signed that they do not reply.

        Raises:
            InvalidNotice: If a notice is forged, for another run or round, or not allowed in this plan.
        """
        resolved_plan = self.resolved_plan
        if question.notices and not resolved_plan.leaves_out:
            raise InvalidNotice("the request contains notices of absence, but this plan uses none")
        for notice in question.notices:
            notice.check(resolved_plan.hash, resolved_plan.cards, resolved_plan.rounds)
        return absent_sites(question.notices, question.round, resolved_plan.cohort(question.round).tolist())

    def _take_part(self, question: TrainRequest, absent: frozenset[int]) -> bytes:
        """Takes part in a round; returns the reply, which is on disk together with the new state."""
        resolved_plan = self.resolved_plan
        index = question.round
        self._filter.leave_out(self._covered_rounds())
        client_input = ClientInput(
            index, resolved_plan.cohort(index), question.received[None], resolved_plan.common[index]
        )
        self._oracle.engine.excluded = absent
        draws = seed_torch_draws(self._randomness.torch_seed("local", index, self.number), torch.device("cpu"))
        with self._modes.fixed(), draws:
            message, local = client_update(resolved_plan.strategy, self._oracle, client_input, self._local)
        if find_changed_constants(self._population.model, self._constants):
            self._ledger.void("a forward pass changed a frozen parameter or a buffer")
            raise PrivacyError("a forward pass changed a frozen parameter or a buffer")
        if index in self._check_rounds and self._has_state():
            self._ledger.void(KEPT)
            raise PrivacyError(KEPT)
        # the ledger is on disk before the state, and both before the reply is sent
        counter = self.sign_counter()
        response = TrainResponse(
            resolved_plan.hash, index, message[0].float(), None, self._open_notices(index), counter
        )
        reply = pack(response)
        state = SessionState(
            round=index,
            question=_digest(question),
            reply=reply,
            local=flatten_with_names(local),
            records=len(self._ledger.records),
        )
        self._folder.write_session_state(self._proposal, state)
        self._local = local
        return reply

    def _refusal(self, question: TrainRequest, code: Code) -> TrainResponse:
        notices = self._open_notices(question.round)
        return TrainResponse(self.resolved_plan.hash, question.round, None, code, notices, self.sign_counter())

    def check_counter(self, counter: ReplyCounter | None) -> None:
        """Compares a counter that this site has signed with its records.

        Raises:
            InvalidCounter: If the site has not signed the counter.
            RolledBack: If the site has fewer records, so that its folder is an older copy.
        """
        if counter is None:
            return
        counter.check(self.resolved_plan.hash, self.number, self.resolved_plan.cards[self.number].verifying_key)
        if counter.exceeds(len(self._ledger.records), len(self._notices)):
            self._folder.remember_rollback(counter)
            check_rollback(self._folder.path)
            raise RolledBack("the site's files were changed while the site was running: start the site again")

    def sign_counter(self) -> ReplyCounter:
        """Returns the site's signed counter, which covers only records that are on disk."""
        self._ledger.sync()
        return ReplyCounter.signed(
            self.signing_key,
            self.resolved_plan.hash,
            self.number,
            records=len(self._ledger.records),
            notices=len(self._notices),
        )

    def _open_notices(self, round_index: int) -> tuple[AbsenceNotice, ...]:
        """Returns the site's notices that cover rounds after this one."""
        return tuple(notice for notice in self._notices if notice.last > round_index)[-MAX_OPEN_NOTICES:]

    def _secrets(self) -> AgreedSecrets | None:
        """Returns the secrets that the site shares with the others; None if the plan has no pairwise noise."""
        if not isinstance(self.resolved_plan.plan.privacy.trust, KeyAgreedPairwise):
            return None
        return self.agreed_secrets()

    def agreed_secrets(self) -> AgreedSecrets:
        """Returns the secrets that the site shares with each other site, from their X25519 keys in the plan."""
        public = {number: card.key for number, card in enumerate(self.resolved_plan.cards)}
        private = self._folder.keys.private_key_of(self.resolved_plan.cards[self.number])
        return AgreedSecrets(self.number, private, public, bytes.fromhex(self.resolved_plan.hash))

    @property
    def signing_key(self) -> bytes:
        """The site's Ed25519 key in the plan, 32 bytes."""
        return self._folder.keys.signing_key_of(self.resolved_plan.cards[self.number])

    def _data_key(self) -> bytes:
        """Returns the key of the digest of the site's examples, derived from the site's key in the plan."""
        return hashlib.blake2b(b"examples", digest_size=32, key=self.signing_key, person=b"fedpriv site").digest()

    def _open_ledger(self, guard: PrivacyFilter) -> Ledger:
        """Resumes the ledger of the federation, or starts it."""
        folder = self._folder
        path = folder.ledger(self._proposal)
        if path.exists():
            n_replied = folder.session_state(self._proposal).records
            ledger = Ledger.resume(path, guard, n_replied)
        else:
            plan = self.resolved_plan.plan
            paired = make_pairwise_facts(make_pairs(plan.privacy, plan.n_clients))
            header = {"n_clients": plan.n_clients, "delta": plan.privacy.delta, **paired, "planned": len(plan.records)}
            folder.run(self._proposal)
            ledger = Ledger(guard, path, header)
        ledger.may_write = folder.check
        return ledger


def _fill_with_own(rows: Tensor) -> Tensor:
    """Replaces the sum of public facts of all clients, `[1, n]`: a site only needs its own facts."""
    return torch.full_like(rows, float(rows.sum()))


def _digest(question: TrainRequest) -> str:
    """Returns a digest of the inputs of a reply, which do not include the server's copy of the counter."""
    return hashlib.sha256(pack(replace(question, counter=None))).hexdigest()
