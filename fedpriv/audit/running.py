"""Runs all checks of an audit, in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fedpriv.audit.arithmetic import NAME as ARITHMETIC
from fedpriv.audit.arithmetic import check_arithmetic
from fedpriv.audit.batches import NAME as BATCHES
from fedpriv.audit.batches import check_batches
from fedpriv.audit.canaries import NAME as CANARIES
from fedpriv.audit.canaries import check_canaries
from fedpriv.audit.check_result import Audit, CheckResult
from fedpriv.audit.clip_check import NAME as SUMS
from fedpriv.audit.clip_check import check_sums_only
from fedpriv.audit.data_check import NAME as DATA
from fedpriv.audit.data_check import check_data
from fedpriv.audit.ledger_check import NAME as LEDGER
from fedpriv.audit.ledger_check import check_ledger
from fedpriv.audit.noise import NAME as NOISE
from fedpriv.audit.noise import check_noise
from fedpriv.audit.other_runs import NAME as OTHER_RUNS
from fedpriv.audit.other_runs import check_other_runs
from fedpriv.audit.replay import NAME as REPLAY
from fedpriv.audit.replay import check_by_replay
from fedpriv.audit.shapes import NAME as INTERACTION
from fedpriv.audit.shapes import check_interaction
from fedpriv.audit.target import AuditTarget, Data
from fedpriv.errors import FedprivError
from fedpriv.settings import validate_arguments

Check = Callable[[AuditTarget, Data], CheckResult]
CHECKS: Mapping[str, Check] = {
    DATA: check_data,
    ARITHMETIC: check_arithmetic,
    INTERACTION: check_interaction,
    REPLAY: check_by_replay,
    SUMS: check_sums_only,
    NOISE: check_noise,
    LEDGER: check_ledger,
    OTHER_RUNS: check_other_runs,
    CANARIES: check_canaries,
    BATCHES: check_batches,
}
"""The checks by name, in order; each accepts a run and its data, and returns its result."""


@validate_arguments("audit")
def audit(subject: AuditTarget, progress: Callable[[CheckResult], None] = lambda _: None) -> Audit:
    """Runs all checks.

    Args:
        subject: The run to audit.
        progress: Called with each finding as soon as it is available.

    Returns:
        All findings. A check that raises an error or fails is *not checked*, with the reason.
    """
    data = subject.data()
    findings: list[CheckResult] = []
    for name, check in CHECKS.items():
        finding = _run_check(name, check, subject, data)
        progress(finding)
        findings.append(finding)
    return Audit(subject.name, str(subject.privacy), findings)


def _run_check(name: str, check: Check, subject: AuditTarget, data: Data) -> CheckResult:
    if not subject.privacy.private and name not in (DATA, INTERACTION):
        return CheckResult(
            name,
            "not checked",
            "the run claims no privacy guarantee: its query results have no noise with a privacy cost",
        )
    try:
        return check(subject, data)
    except FedprivError as error:
        return CheckResult(name, "not checked", f"the run cannot start: {error}")
