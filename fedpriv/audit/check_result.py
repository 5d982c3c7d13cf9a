"""Results of an audit's checks, and the resulting exit status."""

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
        verdict: `"held"`: nothing was found. `"found"`: a guarantee is broken. `"not checked"`: there is no result.
        evidence: Observations, in a sentence or two.
        power: Faults that this check could have detected, and faults that it misses: a small fault may pass a weak
            check.
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
        subject: Name of the audited run or strategy.
        promise: Its privacy guarantee, as printed.
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
    """Returns the result of a check: found, with all texts in `broken`; or held, with `evidence`, if there are none.

    Args:
        name: Name of the check.
        broken: One text for each broken guarantee.
        evidence: Observation if nothing is broken.
        power: Faults that the check could have detected.
        numbers: Measured numbers.
    """
    if broken:
        return CheckResult(name, "found", "; ".join(broken), power, numbers)
    return CheckResult(name, "held", evidence, power, numbers)
