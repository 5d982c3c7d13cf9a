"""An audit: all checks, in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fedpriv.audit.arithmetic import NAME as ARITHMETIC
from fedpriv.audit.arithmetic import arithmetic
from fedpriv.audit.batches import NAME as BATCHES
from fedpriv.audit.batches import batches
from fedpriv.audit.canaries import NAME as CANARIES
from fedpriv.audit.canaries import canaries
from fedpriv.audit.canary_rows import NAME as DATA
from fedpriv.audit.canary_rows import rows_of_data
from fedpriv.audit.check_result import Audit, CheckResult
from fedpriv.audit.clip_check import NAME as SUMS
from fedpriv.audit.clip_check import sums
from fedpriv.audit.ledger_check import NAME as BOOKS
from fedpriv.audit.ledger_check import books
from fedpriv.audit.noise import NAME as NOISE
from fedpriv.audit.noise import noise
from fedpriv.audit.other_runs import NAME as OTHER_RUNS
from fedpriv.audit.other_runs import other_runs
from fedpriv.audit.replay import NAME as DOOR
from fedpriv.audit.replay import door
from fedpriv.audit.shapes import NAME as INTERACTION
from fedpriv.audit.shapes import interaction
from fedpriv.audit.target import AuditTarget, Data
from fedpriv.errors import FedprivError
from fedpriv.settings.checks import checked

Check = Callable[[AuditTarget, Data], CheckResult]
CHECKS: Mapping[str, Check] = {
    DATA: rows_of_data,
    ARITHMETIC: arithmetic,
    INTERACTION: interaction,
    DOOR: door,
    SUMS: sums,
    NOISE: noise,
    BOOKS: books,
    OTHER_RUNS: other_runs,
    CANARIES: canaries,
    BATCHES: batches,
}
"""Each looks at a run and its data, and says what it found."""


@checked("audit")
def audit(subject: AuditTarget, tell: Callable[[CheckResult], None] = lambda _: None) -> Audit:
    """Make all checks.

    Args:
        subject: What is audited.
        tell: Called with each finding as soon as it is known.

    Returns:
        All findings. A check that the run refuses, or that fails, is *not checked*, and says why.
    """
    data, found = subject.data(), list[CheckResult]()
    for name, check in CHECKS.items():
        finding = _made(name, check, subject, data)
        tell(finding)
        found.append(finding)
    return Audit(subject.name, str(subject.privacy), found)


def _made(name: str, check: Check, subject: AuditTarget, data: Data) -> CheckResult:
    if not subject.privacy.private and name not in (DATA, INTERACTION):
        return CheckResult(name, "not checked", "the run makes no promise: its answers have no noise that is priced")
    try:
        return check(subject, data)
    except FedprivError as error:
        return CheckResult(name, "not checked", f"the run is refused: {error}")
