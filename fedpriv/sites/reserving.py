"""Reserves a site's share of a plan in the lifetime budget of its data, if the owner has one budget for all uses."""

from __future__ import annotations

import hashlib
from pathlib import Path

from fedpriv.errors import LedgerError
from fedpriv.privacy import Budget, RunCost
from fedpriv.sites.plan_filter import single_site_record
from fedpriv.sites.resolved_plan import ResolvedPlan
from fedpriv.sites.site_folder import SiteFolder


class Reservation:
    """The reservation of one site's share of a plan in the budget file that its settings name.

    If the settings name no file, the methods do nothing. The whole share is charged, as for a run of one process,
    independent of the site's actual replies.

    Args:
        folder: The site's folder.
        resolved_plan: The plan.
        number: The site's number in it.

    Raises:
        LedgerError: If the budget is missing, damaged or altered.
    """

    def __init__(self, folder: SiteFolder, resolved_plan: ResolvedPlan, number: int) -> None:
        file = folder.settings.budget.file
        if file is None:
            self._budget = None
        else:
            self._budget = Budget(Path(file))
        name = f"{resolved_plan.cards[number].signing_key}/{resolved_plan.hash}".encode()
        run_name = hashlib.blake2b(name, digest_size=16).hexdigest()
        shared = [record for record in resolved_plan.plan.records if record.clients is None or number in record.clients]
        records = [single_site_record(record, number, len(resolved_plan.cards)) for record in shared]
        self._cost = RunCost(
            f"site {folder.settings.name}, plan {resolved_plan.hash[:32]}", records, 1, run_name=run_name
        )

    def check(self) -> None:
        """Raises an error for a plan that the budget does not allow; reserves nothing.

        Raises:
            BudgetExhausted: If the plan would exceed the budget.
            PrivacyError: If the plan does not have the guarantee that the budget requires.
        """
        if self._budget is not None and not self._holds:
            self._budget.check(self._cost)

    def make(self) -> None:
        """Reserves the share, unless it is already reserved; called before any reply. See `check` for errors."""
        if self._budget is not None and not self._holds:
            self._budget.reserve(self._cost)

    def check_made(self) -> None:
        """Raises an error for a plan that was never reserved.

        Raises:
            LedgerError: If the plan was accepted without this budget, or an earlier copy of the budget was restored.
        """
        if self._budget is not None and not self._holds:
            raise LedgerError(
                f"{self._budget.path} contains no reservation of {self._cost.name}: the budget file was replaced by an "
                "earlier copy, or the site accepted the plan without this budget. Restore the newest copy of the file, "
                "or accept the plan again"
            )

    @property
    def _holds(self) -> bool:
        assert self._budget is not None
        return self._budget.holds(self._cost.run_name or "")
