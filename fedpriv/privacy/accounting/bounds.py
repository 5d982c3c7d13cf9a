"""The smallest of several upper bounds on the epsilon of a history: events, each with how often it happened."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedpriv.privacy.accounting import gaussian, rdp
from fedpriv.privacy.accounting.events import History, covers

MOST_TIGHT = 64  # histories that get a privacy loss distribution; the others keep the quick bound, also an upper bound


def quick(history: History, delta: float) -> dict[str, float]:
    """Epsilon by each closed-form bound, by name; infinite where one does not apply."""
    paid = {event: count for event, count in history.items() if math.isfinite(event.noise)}
    bounds = {
        "pure": sum(count * rdp.pure(event) for event, count in paid.items()),
        "rdp": float(rdp.epsilons(rdp.total(paid), delta)),
    }
    if all(event.composes_exactly for event in paid):
        mu2 = sum(count / event.noise**2 for event, count in paid.items())
        bounds["gaussian"] = gaussian.epsilon_of(math.sqrt(mu2), delta)
    return bounds


def tight(history: History, delta: float) -> dict[str, float]:
    """Epsilon by each bound that may be the smallest, by name, privacy loss distributions included."""
    bounds = quick(history, delta)
    if math.isfinite(min(bounds.values())) and "gaussian" not in bounds:
        from fedpriv.privacy.accounting import pld

        bounds["pld"] = pld.epsilon(history, delta)
    return bounds


def largest(histories: Sequence[History], delta: float, enough: float = 0.0) -> float:
    """Largest epsilon of several histories, with as little work as possible.

    Args:
        histories: The distinct histories.
        delta: Delta of the guarantee.
        enough: No tight bound is computed for histories whose quick bound is at most this.

    Returns:
        The largest epsilon; if all are at most ``enough``, any number between it and ``enough``.
    """
    first = sorted(((min(quick(h, delta).values()), h) for h in histories), key=lambda pair: -pair[0])
    result, seen = 0.0, list[History]()
    for bound, history in first:
        if bound <= max(result, enough):
            return max(result, bound)
        if not any(dominated(history, other) for other in seen):
            result = max(result, bound if len(seen) >= MOST_TIGHT else min(tight(history, delta).values()))
            seen.append(history)
    return result


def dominated(history: History, other: History) -> bool:
    """Whether each event of ``history`` can be paired with another one of ``other`` that costs at least as much.

    True is certain; False may be wrong.
    """
    if len(history) > len(other):
        return False
    if all(count <= other.get(event, 0) for event, count in history.items()):
        return True
    pairs = zip(sorted(history.items()), sorted(other.items()), strict=False)
    return all(covers(theirs, ours) and m <= n for (ours, m), (theirs, n) in pairs)
