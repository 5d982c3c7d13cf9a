"""Whether the constraints of a finished run hold, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

Verdict = Literal["hold", "unclear", "violated"]
NEGLIGIBLE = 1e-3
"""Largest violation, without noise, at which constraints count as holding: a solver's, not a user's, tolerance."""

_WITH_NOISE: dict[Verdict, str] = {
    "hold": "constraints hold beyond the noise",
    "unclear": "noise hides whether constraints hold",
    "violated": "constraints are violated beyond the noise",
}


def of_exact_values(max_violation: float) -> Verdict:
    """Returns the verdict on constraints whose largest violation is known without noise."""
    return "hold" if max_violation <= NEGLIGIBLE else "violated"


def constraint_verdict(facts: Mapping[str, Any]) -> str:
    """Returns one line with the verdict, the largest violation and the largest multiplier.

    Args:
        facts: A result, as `result.json` has it.

    Returns:
        The line; empty for a run without constraints.
    """
    verdict: Verdict | None = facts.get("constraints")
    if verdict is None:
        return ""
    largest = max((abs(value) for row in facts.get("multipliers", []) for value in row), default=0.0)
    multiplier = f"largest multiplier {largest:.3g}"
    if "max_violation" in facts:
        told = "constraints hold" if verdict == "hold" else "constraints are violated"
        return f"{told}: largest violation {facts['max_violation']:.2g}, {multiplier}"
    widths = [value for row in facts["constraint_confidence"]["half_width"] for value in row]
    noise = f"± {max(widths, default=0.0):.2g} (95 %)"
    estimate = f"largest estimated violation {facts['max_violation_estimate']:.2g} {noise}"
    return f"{_WITH_NOISE[verdict]}: {estimate}, {multiplier}"
