"""A site's part of a plan, reserved in the lifetime budget of its data, where its owner keeps one for all uses."""

from __future__ import annotations

from pathlib import Path

from fedpriv.errors import LedgerError
from fedpriv.privacy.budget import Budget
from fedpriv.privacy.composition import RunCost
from fedpriv.randomness.streams import Randomness
from fedpriv.sites.plan_filter import of_one
from fedpriv.sites.resolved_plan import ResolvedPlan
from fedpriv.sites.site_folder import SiteFolder


class Reservation:
    """What a plan asks of one site, in the budget that the site's settings name; nothing where they name none.

    All of it is charged, as for a run of one process, whatever the site answers in the end.

    Args:
        folder: The site's.
        terms: The plan.
        number: The site's number in it.

    Raises:
        LedgerError: the budget is missing, damaged or altered.
    """

    def __init__(self, folder: SiteFolder, terms: ResolvedPlan, number: int) -> None:
        place = folder.settings.budget.file
        if place is None:
            self._budget = None
        else:
            self._budget = Budget(Path(place))
        noise = Randomness(terms.seed, folder.secret_seed, 0, terms.hash).noise_name()
        mine = [record for record in terms.plan.records if record.clients is None or number in record.clients]
        records = [of_one(record, number, len(terms.cards)) for record in mine]
        self._wanted = RunCost(f"site {folder.settings.name}, plan {terms.hash[:32]}", records, 1, noise=noise)

    def check(self) -> None:
        """Refuse a plan that the budget does not allow; nothing is reserved.

        Raises:
            BudgetExhausted: it would overspend.
            PrivacyError: it does not protect what the budget promises.
        """
        if self._budget is not None and not self._holds:
            self._budget.check(self._wanted)

    def make(self) -> None:
        """Reserve it, if it is not reserved yet, before anything is answered. Errors are those of `check`."""
        if self._budget is not None and not self._holds:
            self._budget.reserve(self._wanted)

    def check_made(self) -> None:
        """Refuse to answer what was never reserved.

        Raises:
            LedgerError: the plan was accepted without this budget, or an earlier copy of it was put back.
        """
        if self._budget is not None and not self._holds:
            raise LedgerError(
                f"{self._budget.path} holds no reservation of {self._wanted.name}: an earlier copy was put back, or "
                "the site has accepted the plan without this budget. Restore its newest copy, or accept the plan again"
            )

    @property
    def _holds(self) -> bool:
        assert self._budget is not None
        return self._budget.holds(self._wanted.noise or "")
