"""Looks for broken promises of a run or a strategy, before an attacker does."""

from fedpriv.audit.finding import Audit, Finding
from fedpriv.audit.running import audit
from fedpriv.audit.subject import Subject

__all__ = ["Audit", "Finding", "Subject", "audit"]
