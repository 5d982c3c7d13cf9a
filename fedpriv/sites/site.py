"""A site: it has data, a secret seed and a budget, and decides itself which questions it answers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from fedpriv.data.base import size
from fedpriv.errors import BudgetExhausted, ConfigError
from fedpriv.privacy.accounting.plan_filter import UnplannedRelease
from fedpriv.privacy.accounting.spent import PrivacySpent
from fedpriv.settings.checks import checked
from fedpriv.sites.absence_notice import AbsenceNotice, InvalidNotice
from fedpriv.sites.descriptor import SiteDescriptor
from fedpriv.sites.federation_plan import FederationPlan
from fedpriv.sites.messages import Code, MalformedMessage, TrainResponse, pack, unpack_request
from fedpriv.sites.plan_filter import planned_of
from fedpriv.sites.reserving import Reservation
from fedpriv.sites.resolved_plan import ResolvedPlan
from fedpriv.sites.session import SiteSession, make_accountant, number_of, own_data
from fedpriv.sites.site_folder import SiteBudget, SiteFolder, SiteSettings

_LOG = logging.getLogger(__name__)
_ROUNDED = 1 + 1e-6
_making_locks = threading.Lock()
_locks: dict[Path, threading.RLock] = {}


@checked("site")
class Site:
    """One organisation, in a folder of its own that nobody else can read.

    Guarantee: all that leaves is its card, replies that are its recorded releases (or computed from them and from what
    it was sent), and refusals that are one of a few words. All releases together are within its budget.

    Args:
        folder: A folder that `create` has made.

    Raises:
        FedprivError: there is no site, or another process runs it.
        LedgerError: a plan or a ledger is missing, damaged or altered, so that what the site has spent is unknown.
    """

    def __init__(self, folder: str | Path) -> None:
        self._one_at_a_time = _lock_of(Path(folder))
        self._members: dict[str, SiteSession] = {}
        with self._one_at_a_time:
            self._folder = SiteFolder(Path(folder))
            try:
                self._accountant = make_accountant(self._folder)
                self._folder.remember_plans()
            except BaseException:
                self._folder.close()
                raise

    @classmethod
    def create(cls, folder: str | Path, settings: str | Path) -> Site:
        """Make a site, with a secret seed and a key that nobody else has.

        Args:
            folder: Its folder, new or empty.
            settings: YAML file with `name`, `data`, `budget: {epsilon, delta}`, and maybe `client` and `public_size`.

        Raises:
            ConfigError: a setting cannot be used.
            DataError: the data are missing or broken.
        """
        read = SiteSettings.read(Path(settings))
        found = own_data(read.data, read.client)[0]
        made = SiteFolder.new(Path(folder), read)
        if read.public_size is None:
            count = size(found)
        else:
            count = read.public_size
        made.tell(
            SiteDescriptor(name=read.name, size=count, size_declared=read.public_size is not None, **made.public_keys)
        )
        made.close()
        return cls(folder)

    @cached_property
    def card(self) -> SiteDescriptor:
        """What others are told."""
        return SiteDescriptor.model_validate_json((self._folder.path / "card.json").read_bytes())

    @property
    def budget(self) -> SiteBudget:
        """The most that this site spends, in all federations together."""
        return self._folder.settings.budget

    def prepare(self) -> None:
        """Read the data and check the plans now, not at the first question."""
        with self._one_at_a_time:
            for plan in self.plans:
                self._member(plan)

    def consider(self, text: str) -> tuple[FederationPlan, ResolvedPlan]:
        """What a plan asks of this site; nothing is accepted.

        Raises:
            ConfigError: it is no plan, does not have this site, is refused between organisations, or costs more than
                it says.
        """
        proposal = FederationPlan.read(text)
        card = proposal.cards[number_of(self._folder, proposal)]
        if card != self.card:
            raise ConfigError("plan.sites", card.name, "the plan has another card of this site")
        terms = ResolvedPlan.of(proposal)
        said, costs = terms.plan.privacy.epsilon, terms.plan.spent().epsilon
        if said is not None and costs > said * _ROUNDED:
            raise ConfigError("plan.privacy.epsilon", said, f"its noise costs {costs:.4g}: do not accept it")
        return proposal, terms

    def join(self, text: str, accept: str) -> FederationPlan:
        """Accept a plan: its settings, its price, and everybody's keys. Its questions are answered from now on.

        Args:
            text: The plan.
            accept: Its fingerprint, as all owners have compared it by another way.

        Raises:
            ConfigError: it is another plan, or is refused.
            DataError: the site's data do not fit it.
            BudgetExhausted: the lifetime budget of the data does not allow it.
            PrivacyError: that budget promises more than the plan, or the site's other plans protect something else.
        """
        proposal, terms = self.consider(text)
        if "".join(accept.split()) not in (proposal.hash[:32], proposal.hash):
            fix = "is not the fingerprint of this plan: compare it with the other owners, not with the server"
            raise ConfigError("accept", accept, fix)
        with self._one_at_a_time:
            reservation = Reservation(self._folder, terms, number_of(self._folder, proposal))
            reservation.check()
            self._announce_accepted()
            member = self._members.get(proposal.hash)
            if member is None:
                member = SiteSession(self._folder, proposal, terms, self._accountant)
            self._accountant.check_plan(proposal.hash, member.planned)
            reservation.make()
            self._folder.accept(proposal)
            self._accountant.add_plan(proposal.hash, member.planned)
            self._members[proposal.hash] = member
        return proposal

    def _announce_accepted(self) -> None:
        """Has the accountant know all accepted plans, also those that nobody has asked for since the site started."""
        for plan, proposal in self.plans.items():
            if plan not in self._members:
                planned = planned_of(ResolvedPlan.of(proposal), number_of(self._folder, proposal))
                self._accountant.add_plan(plan, planned)

    def answer(self, question: bytes) -> bytes:
        """The reply to a question; a refusal where it is none that this site answers.

        Asked twice the same, it says the same, and pays once.
        """
        with self._one_at_a_time:
            return self._answered(question)

    def _answered(self, question: bytes) -> bytes:
        plan, at = "", 0
        try:
            asked = unpack_request(question)
            plan, at = asked.plan, asked.round
            if plan not in self.plans:
                return _refusal("", at, "other_plan")
            reply = self._member(plan).answer(asked)
            if isinstance(reply, bytes):
                return reply
            return pack(reply)
        except BudgetExhausted:
            return _refusal(plan, at, "over_budget")
        except UnplannedRelease:
            return _refusal(plan, at, "not_as_planned")
        except InvalidNotice:
            return _refusal(plan, at, "bad_notice")
        except MalformedMessage:
            return _refusal(plan, at, "malformed")
        except Exception:  # whatever it is: its text may hold data, so it stays here
            _LOG.exception("a question was not answered")
            return _refusal(plan, at, "failed")

    def say_absent(self, plan: str, first: int, last: int) -> AbsenceNotice:
        """Sign that this site answers nothing from round `first` to `last`, counted from 0, of the plan with this hash.

        The others then leave the noise of its pairs out. The notice leaves with the next replies, and cannot be taken
        back: these rounds are refused for ever.

        Raises:
            ConfigError: there is no such plan, a round is over or not in the plan, or a notice is of no use there.
        """
        if plan not in self.plans:
            raise ConfigError("plan", plan, "the site has accepted no plan of this hash")
        with self._one_at_a_time:
            return self._member(plan).say_absent(first, last, "away")

    def spent(self) -> PrivacySpent:
        """What this site has spent so far, in all its federations together.

        Raises:
            FedprivError: this object no longer has the folder: what another one has spent since is not known here.
        """
        with self._one_at_a_time:
            self._folder.check()
            return self._accountant.spent()

    def notices(self, plan: str) -> Sequence[AbsenceNotice]:
        """What this site has signed of its absence, in the federation with this hash."""
        return self._folder.notices(self.plans[plan])

    @property
    def plans(self) -> Mapping[str, FederationPlan]:
        """The plans that this site has accepted, by their hash."""
        return {found.hash: found for found in self._folder.accepted}

    def _member(self, plan: str) -> SiteSession:
        if plan not in self._members:
            found = self.plans[plan]
            terms = ResolvedPlan.of(found)
            Reservation(self._folder, terms, number_of(self._folder, found)).check_made()
            member = SiteSession(self._folder, found, terms, self._accountant)
            self._accountant.add_plan(plan, member.planned)
            self._members[plan] = member
        return self._members[plan]

    def close(self) -> None:
        """Let another process run the site."""
        with self._one_at_a_time:
            self._folder.close()


def _lock_of(folder: Path) -> threading.RLock:
    """Returns the lock that all `Site` objects of a folder in this process share.

    A later one takes the folder over. It reads the ledgers under this lock, so that no release of an earlier one that
    is about to be written is left out.
    """
    with _making_locks:
        return _locks.setdefault(folder.resolve(), threading.RLock())


def _refusal(plan: str, at: int, code: Code) -> bytes:
    return pack(TrainResponse(plan, at, None, code))
