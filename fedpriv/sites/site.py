"""A site: an organisation with data and a budget, which decides to which requests it replies."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from fedpriv.clients import size
from fedpriv.errors import ConfigError, FedprivError
from fedpriv.privacy.accounting import PrivacySpent
from fedpriv.settings import validate_arguments, wait_for_pace
from fedpriv.sites.absence_notice import AbsenceNotice
from fedpriv.sites.activity import Activity
from fedpriv.sites.descriptor import CertificatePin, SiteDescriptor
from fedpriv.sites.federation_plan import FederationPlan, check_fingerprint
from fedpriv.sites.messages import (
    pack,
)
from fedpriv.sites.node_session import NodeSession
from fedpriv.sites.plan_review import review, review_within
from fedpriv.sites.prometheus import PlanProgress
from fedpriv.sites.proposals import ProposalBox, Word, is_proposal, proposed_hash
from fedpriv.sites.resolved_plan import ResolvedPlan
from fedpriv.sites.responder import Responder, make_refusal
from fedpriv.sites.site_data import load_site_data
from fedpriv.sites.site_folder import SiteFolder
from fedpriv.sites.site_plans import SitePlans
from fedpriv.sites.site_settings import SiteBudget, SiteSettings
from fedpriv.sites.statistics_policy import read_table
from fedpriv.storage import FOLDER

_LOG = logging.getLogger(__name__)
_registry_lock = threading.Lock()  # guards `_locks`
_locks: dict[Path, threading.RLock] = {}


@validate_arguments("site")
class Site:
    """One organisation, with a folder that only its owner can read.

    Guarantee: the site sends only its card, replies that are its recorded releases (or computed from them and from
    received values), and refusals, each one of a few codes. All releases together are within its budget.

    Args:
        folder: A folder that was made by `create`.

    Attributes:
        activity: Counts of replies and refusals since this object was created.

    Raises:
        FedprivError: If there is no site, or another process runs it.
        LedgerError: If a plan or a ledger is missing, damaged or altered, so that the site's spending is unknown.
    """

    def __init__(self, folder: str | Path) -> None:
        self._lock = _shared_lock(Path(folder))
        self.activity = Activity()
        self._proposals = ProposalBox(Path(folder))
        with self._lock:
            self._folder = SiteFolder(Path(folder))
            try:
                self._plans = SitePlans(self._folder)
                self._responder = Responder(self._folder, self._plans, self.activity)
            except BaseException:
                self._folder.close()
                raise

    @classmethod
    def create(cls, folder: str | Path, settings: str | Path, secrets: str = FOLDER) -> Site:
        """Creates a site with new keys.

        Args:
            folder: Its folder, new or empty.
            settings: YAML file with `name`, `data`, `budget: {epsilon, delta}`; optional: `client` and `public_size`.
            secrets: Location of the keys, see `fedpriv.storage.secret_store`.

        Raises:
            ConfigError: If a setting cannot be used.
            DataError: If the data are missing or broken.
        """
        options = SiteSettings.read(Path(settings))
        dataset, _ = load_site_data(options.data, options.client)
        site_folder = SiteFolder.new(Path(folder), options, secrets)
        if options.public_size is None:
            public_size = size(dataset)
        else:
            public_size = options.public_size
        card = SiteDescriptor(
            name=options.name,
            size=public_size,
            size_declared=options.public_size is not None,
            public_key=site_folder.public_keys["public_key"],
            signing_key=site_folder.public_keys["signing_key"],
        )
        site_folder.write_card(card)
        site_folder.close()
        return cls(folder)

    @property
    def card(self) -> SiteDescriptor:
        """The public facts of this site."""
        return self._folder.card

    def set_certificate(self, pin: CertificatePin) -> SiteDescriptor:
        """Writes the site's certificate on its card, for future plans; returns the card.

        Raises:
            FedprivError: If another object has taken over the folder.
        """
        with self._lock:
            self._folder.check()
            card = self.card.model_copy(update={"certificate": pin})
            self._folder.write_card(card)
        return card

    @property
    def budget(self) -> SiteBudget:
        """Largest spending of this site, in all federations together."""
        return self._folder.settings.budget

    @property
    def settings(self) -> SiteSettings:
        """The settings, written by the owner."""
        return self._folder.settings

    @property
    def path(self) -> Path:
        """The site's folder."""
        return self._folder.path

    def progress(self) -> list[PlanProgress]:
        """Returns the progress of each plan for which this object has sent or prepared replies."""
        with self._lock:
            sessions = self._plans.sessions
        return [
            PlanProgress(plan, session.last_round + 1, session.resolved_plan.rounds)
            for plan, session in sessions.items()
        ]

    @property
    def test_data(self) -> Dataset[Any]:
        """The test examples that accompany the site's data and count as public."""
        settings = self._folder.settings
        return load_site_data(settings.data, settings.client)[1].test

    def prepare(self) -> None:
        """Reads the data, checks the plans, and accepts approved ones now instead of at the first request."""
        with self._lock:
            self._accept_approved()
            for plan in self.open_plans:
                self._plans.session(plan)

    def consider(self, text: str) -> tuple[FederationPlan, ResolvedPlan]:
        """Reads and resolves a plan for its owner to inspect; accepts nothing.

        Raises:
            ConfigError: If the text is not a plan, does not contain this site, is not allowed between organisations,
                costs more epsilon than its settings state, violates the site's policy, or asks for statistics of
                columns that the site does not have.
            DataError: If the site's table cannot be read.
        """
        proposal, resolved_plan = review(text, self.card, self.settings.policy)
        if proposal.statistics is not None:
            read_table(self.settings.data, proposal.statistics)
        return proposal, resolved_plan

    def join(self, text: str, accept: str) -> FederationPlan:
        """Accepts a plan (settings, privacy cost, keys of all sites); the site then replies to its requests.

        Args:
            text: The plan.
            accept: Its fingerprint, which all owners have compared over another channel.

        Raises:
            ConfigError: If the fingerprint belongs to another plan, or the plan is rejected.
            DataError: If the site's data do not fit the plan.
            BudgetExhausted: If the lifetime budget of the data does not allow it.
            PrivacyError: If that budget's guarantee is stronger than the plan's, or differs from the site's other
                plans'.
        """
        proposal, resolved_plan = self.consider(text)
        check_fingerprint("accept", accept, [proposal.hash])
        with self._lock:
            self._plans.accept(proposal, resolved_plan)
        return proposal

    def answer(self, question: bytes, party: str = "") -> bytes:
        """Returns the reply to a request, or a refusal. Never raises.

        A repeated request gets the same reply and is charged once. A proposed plan gets one of the responses of
        `fedpriv.sites.proposals` and waits for the owner. Under a plan on a graph, only the site's own node
        (`answer_node`) may send requests: others receive only messages from the node to its neighbours.

        Args:
            question: The bytes that arrived.
            party: Sender of the bytes, by its name in the transport, for the log; empty if unknown.
        """
        arrived = time.monotonic()
        reply = self._reply_or_refuse(question, party)
        wait_for_pace(arrived, self.settings.policy.pad_seconds)
        return reply

    def _reply_or_refuse(self, question: bytes, party: str) -> bytes:
        """Returns the reply to a request or a proposal; never raises."""
        try:
            if is_proposal(question):
                return self._receive_proposal(question, party).encode()
            with self._lock:
                return self._responder.respond(question, party, self._accept_approved, from_node=False)
        except Exception:  # the text of any exception may contain data, so it is kept here
            _LOG.exception("a request was not answered")
            return pack(make_refusal("", 0, "failed"))

    def _receive_proposal(self, data: bytes, party: str) -> Word:
        """Stores a proposed plan for the owner; returns the response to the sender."""
        with self._lock:
            self._accept_approved()
            if proposed_hash(data) in self.plans:
                return "accepted"
        return self._proposals.receive(data, party, self._review_proposal)

    def _review_proposal(self, text: str) -> None:
        """Reviews a plan that arrived over the network.

        Raises:
            OtherColumns: If it is for statistics of columns that the site does not have.
            FedprivError: If the site would not accept it.
        """
        # not yet inspected by the owner: it must not name code or take endless time
        review_within(text, self.card, self.settings.policy)
        proposal = FederationPlan.read(text)
        if proposal.statistics is not None:
            read_table(self.settings.data, proposal.statistics)
            with self._lock:
                self._plans.check_number(proposal)

    def accept_approved(self) -> None:
        """Accepts the plans that the owner has approved since; writes the error of a plan that cannot be accepted."""
        with self._lock:
            self._accept_approved()

    def _accept_approved(self) -> None:
        """Accepts the plans that the owner has approved; writes the error of a plan that cannot be accepted."""
        for proposal in self._proposals.proposals:
            if proposal.decision != "approved" or proposal.hash in self.plans:
                continue
            try:
                self.join(proposal.text, proposal.hash)
            except FedprivError as error:
                _LOG.error("an approved plan was not accepted: %s", error)
                self._proposals.decide(proposal.hash, "refused", str(error))

    def answer_node(self, question: bytes) -> bytes:
        """Returns the reply to a request of this site's own node, under a plan on a graph; see `answer`."""
        try:
            with self._lock:
                return self._responder.respond(question, "its own node", self._accept_approved, from_node=True)
        except Exception:  # the text of any exception may contain data, so it is kept here
            _LOG.exception("the site's own node was not answered")
            return pack(make_refusal("", 0, "failed"))

    def node_session(self, plan: str) -> NodeSession:
        """Returns the data with which the node of this site takes part in a plan on a graph.

        Raises:
            ConfigError: If there is no such plan, or it has a server.
            LedgerError: If the site's budget file has no reservation of the plan.
        """
        if plan not in self.plans:
            raise ConfigError(
                "plan", plan, "the site has accepted no plan with this hash: accept the plan first (fedpriv site join)"
            )
        with self._lock:
            session = self._plans.session(plan)
            if not session.resolved_plan.is_graph:
                raise ConfigError(
                    "plan.network.topology",
                    "star",
                    "only plans on a graph have nodes, but this plan has a server: use fedpriv site run",
                )
            return NodeSession(
                resolved_plan=session.resolved_plan,
                number=session.number,
                folder=self._folder.run(self.plans[plan]),
                signing_key=session.signing_key,
                secrets=session.agreed_secrets(),
                last_answered=self._folder.session_state(self.plans[plan]).round,
                check=self._folder.check,
                sign_counter=session.sign_counter,
                check_counter=session.check_counter,
            )

    def declare_absence(self, plan: str, first: int, last: int) -> AbsenceNotice:
        """Signs that this site sends no replies from round `first` to `last` (from 0) of the plan with this hash.

        The other sites then omit the noise of its pairs. The notice is sent with the next replies and cannot be
        withdrawn: these rounds are refused permanently.

        Raises:
            ConfigError: If there is no such plan, a round is over or not in the plan, or the plan cannot use notices.
        """
        if plan not in self.plans:
            raise ConfigError(
                "plan", plan, "the site has accepted no plan with this hash: accept the plan first (fedpriv site join)"
            )
        with self._lock:
            return self._plans.session(plan).declare_absence(first, last, "away")

    def spent(self) -> PrivacySpent:
        """Returns the spending of this site so far, in all its federations together.

        Raises:
            FedprivError: If another object has taken over the folder, since its spending is unknown here.
        """
        with self._lock:
            self._folder.check()
            return self._plans.spent()

    def notices(self, plan: str) -> Sequence[AbsenceNotice]:
        """Returns the absence notices of this site in the federation with this hash."""
        return self._folder.notices(self.plans[plan])

    @property
    def plans(self) -> Mapping[str, FederationPlan]:
        """The plans that this site has accepted, by their hash."""
        return self._plans.accepted

    @property
    def open_plans(self) -> Mapping[str, FederationPlan]:
        """The accepted plans that are not closed (`fedpriv seal`), by their hash."""
        return self._plans.open

    def resolved_plan(self, plan: str) -> ResolvedPlan:
        """Returns the resolved plan with this hash, which the site has accepted."""
        with self._lock:
            return self._plans.session(plan).resolved_plan

    def close(self) -> None:
        """Releases the site for other processes."""
        with self._lock:
            self._folder.close()


def _shared_lock(folder: Path) -> threading.RLock:
    """Returns the lock that all `Site` objects of a folder in this process share.

    A later object takes over the folder. It reads the ledgers under this lock, so that it misses no release that an
    earlier object is about to write.
    """
    with _registry_lock:
        return _locks.setdefault(folder.resolve(), threading.RLock())
