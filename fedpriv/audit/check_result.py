"""Results of an audit's checks, and the exit status that follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Verdict = Literal["held", "found", "not checked"]
SECRET = (
    "this audit used private data without noise: its output, JSON and picture are not private; show them only "
    "to people who may see the data"
)


@dataclass(frozen=True)
class CheckResult:
    """The result of one check.

    Attributes:
        name: Name of the check.
        verdict: `"held"`: nothing was found. `"found"`: a promise is broken. `"not checked"`: nothing can be said.
        evidence: What was observed, in a sentence or two.
        power: What this check could have detected, and what not: a small fault may pass a weak check.
        numbers: Measured numbers by name.
    """

    name: str
    verdict: Verdict
    evidence: str
    power: str = ""
    numbers: dict[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True)
class Audit:
    """All findings about one run or strategy. They are not private, see `SECRET`.

    Attributes:
        subject: Name of what was audited.
        promise: The privacy that it promises, as printed.
        findings: The result of each check, in order.
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
        """Returns the audit as a dictionary for `--json`."""
        return {
            "audited": self.subject,
            "promise": self.promise,
            "status": self.status,
            "findings": [vars(finding) for finding in self.findings],
            "note": SECRET,
        }


def summarize(name: str, broken: Sequence[str], evidence: str, power: str = "", **numbers: float) -> CheckResult:
    """Returns the result of a check: found, with all texts in `broken`; held, with `evidence`, if there are none.

    Args:
        name: Name of the check.
        broken: One text for each broken promise.
        evidence: What was observed if nothing is broken.
        power: What the check could have detected.
        numbers: Measured numbers.
    """
    if broken:
        return CheckResult(name, "found", "; ".join(broken), power, numbers)
    return CheckResult(name, "held", evidence, power, numbers)
