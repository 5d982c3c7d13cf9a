"""Looks for broken promises of a run or a strategy, before an attacker does."""

from fedpriv.audit.check_result import Audit, CheckResult
from fedpriv.audit.running import audit
from fedpriv.audit.target import AuditTarget

__all__ = ["Audit", "AuditTarget", "CheckResult", "audit"]
