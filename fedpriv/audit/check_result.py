"""What a check of an audit found, and what follows for the command that asked for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Verdict = Literal["held", "found", "not checked"]
SECRET = (
    "this audit looked at private data without noise: what it prints, its JSON and its picture are not private; show "
    "them to nobody who may not see the data"
)


@dataclass(frozen=True)
class CheckResult:
    """The outcome of one check.

    Attributes:
        name: The check.
        verdict: `"held"`: nothing was found. `"found"`: a promise is broken. `"not checked"`: nothing can be said.
        evidence: What was seen, in a sentence or two.
        power: What this check could have seen, and what not: a small fault may pass a weak check.
        numbers: Measured numbers by name.
    """

    name: str
    verdict: Verdict
    evidence: str
    power: str = ""
    numbers: dict[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True)
class Audit:
    """All findings about one run or strategy. Not private, see `SECRET`.

    Attributes:
        subject: What was audited.
        promise: The epsilon that it promises, as printed.
        findings: One for each check, in order.
    """

    subject: str
    promise: str
    findings: Sequence[CheckResult]

    @property
    def status(self) -> int:
        """Exit status: 1 if anything was found, else 2 if something could not be checked, else 0."""
        verdicts = {finding.verdict for finding in self.findings}
        if "found" in verdicts:
            return 1
        if "not checked" in verdicts:
            return 2
        return 0

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        told = [vars(finding) for finding in self.findings]
        return {
            "audited": self.subject,
            "promise": self.promise,
            "status": self.status,
            "findings": told,
            "note": SECRET,
        }


def summarize(name: str, broken: Sequence[str], held: str, power: str = "", **numbers: float) -> CheckResult:
    """A finding: all that is `broken`, or else what `held`."""
    return CheckResult(name, "found" if broken else "held", "; ".join(broken) if broken else held, power, numbers)
