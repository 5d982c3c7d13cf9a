"""An audit: all checks, in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fedpriv.audit.arithmetic import NAME as ARITHMETIC
from fedpriv.audit.arithmetic import arithmetic
from fedpriv.audit.books import NAME as BOOKS
from fedpriv.audit.books import books
from fedpriv.audit.canaries import NAME as CANARIES
from fedpriv.audit.canaries import canaries
from fedpriv.audit.door import NAME as DOOR
from fedpriv.audit.door import door
from fedpriv.audit.finding import Audit, Finding
from fedpriv.audit.interaction import NAME as INTERACTION
from fedpriv.audit.interaction import interaction
from fedpriv.audit.noise import NAME as NOISE
from fedpriv.audit.noise import noise
from fedpriv.audit.other_runs import NAME as OTHER_RUNS
from fedpriv.audit.other_runs import other_runs
from fedpriv.audit.rows_of_data import NAME as DATA
from fedpriv.audit.rows_of_data import rows_of_data
from fedpriv.audit.subject import Data, Subject
from fedpriv.audit.sums import NAME as SUMS
from fedpriv.audit.sums import sums
from fedpriv.checks import checked
from fedpriv.errors import FedprivError

Check = Callable[[Subject, Data], Finding]
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
}
"""Each looks at a run and its data, and says what it found."""


@checked("audit")
def audit(subject: Subject, tell: Callable[[Finding], None] = lambda _: None) -> Audit:
    """Make all checks.

    Args:
        subject: What is audited.
        tell: Called with each finding as soon as it is known.

    Returns:
        All findings. A check that the run refuses, or that fails, is *not checked*, and says why.
    """
    data, found = subject.data(), list[Finding]()
    for name, check in CHECKS.items():
        finding = _made(name, check, subject, data)
        tell(finding)
        found.append(finding)
    return Audit(subject.name, str(subject.privacy), found)


def _made(name: str, check: Check, subject: Subject, data: Data) -> Finding:
    if not subject.privacy.private and name not in (DATA, INTERACTION):
        return Finding(name, "not checked", "the run makes no promise: its answers have no noise that is priced")
    try:
        return check(subject, data)
    except FedprivError as error:
        return Finding(name, "not checked", f"the run is refused: {error}")
