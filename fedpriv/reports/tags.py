"""The names under which boards show a round's values: a group, a slash, the number."""

from __future__ import annotations

import math
from collections.abc import Mapping

_CONSTRAINTS = {
    "violation": "largest_violation",
    "max_violation_estimate": "largest_violation",
    "max_multiplier": "largest_multiplier",
}


def list_scalars(metrics: Mapping[str, float], epsilon: float, target: float | None) -> dict[str, float]:
    """Returns the numbers of a round by tag: its metrics, epsilon, and epsilon's fraction of the target."""
    values = {_tag(name): value for name, value in metrics.items()}
    if math.isfinite(epsilon):
        values["privacy/epsilon"] = epsilon
        if target is not None:
            values["privacy/epsilon_of_target"] = epsilon / target
    return values


def _tag(name: str) -> str:
    """Returns the tag of a metric; boards show a group for each prefix."""
    if name in _CONSTRAINTS:
        return f"constraints/{_CONSTRAINTS[name]}"
    group, _, metric = name.partition("_")
    if group in ("test", "node", "client"):
        return f"{group}/{metric}"
    return f"run/{name}"
