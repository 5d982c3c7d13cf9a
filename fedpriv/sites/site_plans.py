"""The plans that a site has accepted, each with its session, and all with one accountant."""

from __future__ import annotations

from collections.abc import Mapping

from fedpriv.privacy.accounting import PrivacySpent
from fedpriv.sites.federation_plan import FederationPlan
from fedpriv.sites.messages import compute_request_limit
from fedpriv.sites.plan_filter import make_accountant, planned_records
from fedpriv.sites.reserving import Reservation
from fedpriv.sites.resolved_plan import ResolvedPlan
from fedpriv.sites.session import SiteSession
from fedpriv.sites.site_folder import SiteFolder
from fedpriv.sites.site_records import PLAN


class SitePlans:
    """The plans that a site has accepted. The caller must hold the site's lock.

    Args:
        folder: The site's folder.

    Raises:
        LedgerError: If a plan or a ledger is missing, damaged or altered, so that the site's spending is unknown.
    """

    def __init__(self, folder: SiteFolder) -> None:
        self._folder = folder
        self._accountant = make_accountant(folder)
        self._sessions: dict[str, SiteSession] = {}
        self._longest: dict[str, int] = {}  # bytes of the longest request of each plan
        folder.remember_plans()

    @property
    def accepted(self) -> Mapping[str, FederationPlan]:
        """All accepted plans, by their hash."""
        return {proposal.hash: proposal for proposal in self._folder.accepted}

    @property
    def open(self) -> Mapping[str, FederationPlan]:
        """The accepted plans that are not closed, by their hash."""
        return {plan: proposal for plan, proposal in self.accepted.items() if not self._folder.is_closed(proposal)}

    @property
    def sessions(self) -> Mapping[str, SiteSession]:
        """The sessions that were started since the site was, by the hash of the plan."""
        return dict(self._sessions)

    def session(self, plan: str) -> SiteSession:
        """Returns the session of an accepted plan, which the first call starts.

        Raises:
            LedgerError: If the site's budget file has no reservation of the plan.
            PrivacyError: If the plan is closed.
        """
        if plan not in self._sessions:
            proposal = self.accepted[plan]
            resolved_plan = ResolvedPlan.of(proposal)
            Reservation(self._folder, resolved_plan, self._folder.number_in(proposal)).check_made()
            session = SiteSession(self._folder, proposal, resolved_plan, self._accountant)
            self._accountant.add_plan(plan, session.planned)
            self._sessions[plan] = session
        return self._sessions[plan]

    def accept(self, proposal: FederationPlan, resolved_plan: ResolvedPlan) -> None:
        """Accepts a plan; the site replies to its requests from now on.

        Args:
            proposal: The plan.
            resolved_plan: The same plan, resolved.

        Raises:
            DataError: If the site's data do not fit the plan.
            BudgetExhausted: If the lifetime budget of the data does not allow it.
            PrivacyError: If that budget's guarantee is stronger than the plan's, or differs from the site's other
                plans'.
        """
        self.check_number(proposal)
        reservation = Reservation(self._folder, resolved_plan, self._folder.number_in(proposal))
        reservation.check()
        self._announce_accepted()
        session = self._sessions.get(proposal.hash)
        if session is None:
            session = SiteSession(self._folder, proposal, resolved_plan, self._accountant)
        self._accountant.check_plan(proposal.hash, session.planned)
        reservation.make()
        self._folder.accept(proposal)
        self._accountant.add_plan(proposal.hash, session.planned)
        self._sessions[proposal.hash] = session

    def check_number(self, proposal: FederationPlan) -> None:
        """Raises an error for a new plan for statistics if the site has accepted too many within a month.

        Raises:
            ConfigError: If the policy of the site's owner allows no more.
        """
        policy = self._folder.settings.policy.statistics
        if proposal.statistics is None or policy is None or proposal.hash in self.accepted:
            return
        policy.check_number(
            [
                self._folder.run(accepted) / PLAN
                for accepted in self.accepted.values()
                if accepted.document.statistics is not None
            ]
        )

    def longest_question(self) -> int:
        """Returns the length in bytes of the longest request of any accepted plan."""
        for plan, proposal in self.accepted.items():
            if plan not in self._longest:
                if plan in self._sessions:
                    resolved_plan = self._sessions[plan].resolved_plan
                else:
                    resolved_plan = ResolvedPlan.of(proposal)
                self._longest[plan] = compute_request_limit(resolved_plan.widths[0], len(resolved_plan.cards))
        return max(self._longest.values(), default=compute_request_limit(0, 0))

    def spent(self) -> PrivacySpent:
        """Returns the spending of the site so far, under all plans together."""
        return self._accountant.spent()

    def _announce_accepted(self) -> None:
        """Registers all accepted plans with the accountant, also those without a request since the start."""
        for plan, proposal in self.accepted.items():
            if plan not in self._sessions:
                planned = planned_records(ResolvedPlan.of(proposal), self._folder.number_in(proposal))
                self._accountant.add_plan(plan, planned)
