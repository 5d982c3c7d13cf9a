"""Formats a sentence about a finished run that states if its constraints hold or are violated."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

Verdict = Literal["hold", "unclear", "violated"]
NEGLIGIBLE = 1e-3
"""Largest violation, without noise, at which constraints count as satisfied. It is the tolerance of a solver, not a
tolerance that a user chose.
"""

_WITH_NOISE: dict[Verdict, str] = {
    "hold": "constraints hold, with a margin larger than the noise",
    "unclear": "unclear because of noise whether constraints hold",
    "violated": "constraints are violated by more than the noise",
}


def judge_exact_values(max_violation: float) -> Verdict:
    """Returns the verdict on constraints with a largest violation that is known without noise."""
    if max_violation <= NEGLIGIBLE:
        return "hold"
    return "violated"


def format_constraint_verdict(facts: Mapping[str, Any]) -> str:
    """Returns one line with the verdict, the largest violation and the largest multiplier.

    Args:
        facts: A result, as `result.json` has it.

    Returns:
        The line; empty for a run without constraints.
    """
    verdict: Verdict | None = facts.get("constraints")
    if verdict is None:
        return ""
    multiplier = f"largest multiplier {_largest(facts.get('multipliers', [])):.3g}"
    if "max_violation" in facts:
        if verdict == "hold":
            text = "constraints hold"
        else:
            text = "constraints are violated"
        return f"{text}: largest violation {_number(facts['max_violation']):.2g}, {multiplier}"
    noise = f"± {_largest(facts['constraint_confidence']['half_width']):.2g} (95 %)"
    estimate = f"largest estimated violation {_number(facts['max_violation_estimate']):.2g} {noise}"
    return f"{_WITH_NOISE[verdict]}: {estimate}, {multiplier}"


def _number(value: float | None) -> float:
    """Returns a value of `result.json`, where null stands for a number that is not finite."""
    if value is None:
        return math.nan
    return value


def _largest(rows: Sequence[Sequence[float | None]]) -> float:
    """Returns the largest absolute value, 0 if there are none; NaN if one of them is not a number."""
    values = [abs(_number(value)) for row in rows for value in row]
    if any(map(math.isnan, values)):
        return math.nan
    return max(values, default=0.0)
