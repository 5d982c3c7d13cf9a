"""Checks a run or a strategy for broken privacy guarantees, before an attacker finds them."""

from fedpriv.audit.check_result import Audit, CheckResult
from fedpriv.audit.running import audit
from fedpriv.audit.target import AuditTarget

__all__ = ["Audit", "AuditTarget", "CheckResult", "audit"]
