"""Computes the smallest of several upper bounds on the epsilon of a history, which contains events and the number of
times that each occurred.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache

from fedpriv.privacy.accounting import gaussian, rdp
from fedpriv.privacy.accounting.events import Event, History, covers

__all__ = ["compute_tight_epsilons"]

BOUNDS = ("pure", "rdp", "gaussian", "pld")
_SLOW = "pld"
_FINE_NOISE = 2.0**16  # steps of the noise of random allocation in a factor of 2
_LARGEST_GROUP_EPSILON = 200.0  # beyond, a group's distribution is slow, and its epsilon of no use either way
_FINITE = 1e300
MOST_TIGHT = 64  # histories that get a privacy loss distribution; the others keep the quick bound, also an upper bound


def compute_quick_epsilons(history: History, delta: float) -> dict[str, float]:
    """Returns the epsilon of each closed-form bound, by the bound's name; infinity for bounds that do not apply."""
    paid = {event: count for event, count in history.items() if math.isfinite(event.noise)}
    bounds = {
        "pure": sum(count * rdp.compute_pure_epsilon(event) for event, count in paid.items()),
        "rdp": float(rdp.compute_epsilons(rdp.compute_total(paid), delta)),
    }
    if all(event.composes_exactly for event in paid):
        mu2 = sum(count / event.noise**2 for event, count in paid.items())
        bounds["gaussian"] = gaussian.compute_epsilon(math.sqrt(mu2), delta)
    epochs = _equal_epochs(history)
    if epochs is not None and delta > 0:
        event, count = epochs
        bounds[_SLOW] = _epsilon_of_epochs(event, count, delta)
    return bounds


def _equal_epochs(history: History) -> tuple[Event, int] | None:
    """Returns the event and its count if only equal epochs of random allocation have a cost; else None."""
    paid = [(event, count) for event, count in history.items() if math.isfinite(event.noise)]
    if len(paid) == 1 and paid[0][0].is_epoch:
        return paid[0]
    return None


@lru_cache(maxsize=1024)
def _epsilon_of_epochs(event: Event, count: int, delta: float, *, is_tight: bool = False) -> float:
    """Returns a bound on the epsilon of equal epochs of random allocation, which is quick unless `is_tight`."""
    from fedpriv.privacy.accounting import allocation, allocation_replace

    # these bounds refine themselves until they are good enough: without rounding, the last bits of the noise would show
    rounded = 2.0 ** (math.floor(math.log2(event.noise) * _FINE_NOISE) / _FINE_NOISE)
    noise = min(rounded, event.noise)  # the power may be wrong in its last bit
    if event.selection == "allocation":
        return allocation.epsilon_bounds(event.batches, noise, count, delta).upper
    if is_tight:
        return allocation_replace.epsilon(event.batches, 2 * noise, count, delta)
    return allocation.replace_epsilon(event.batches, 2 * noise, count, delta)


def compute_tight_epsilons(history: History, delta: float, *, rough: bool = False) -> dict[str, float]:
    """Returns the epsilon of each bound that may be the smallest, by name.

    A privacy loss distribution is not computed if the exact Gaussian bound applies, or if the quick bounds are so large
    that it would be slow or of no use.

    Args:
        history: The history.
        delta: Delta of the guarantee.
        rough: True if a privacy loss distribution may be a little less tight; see `pld.epsilon`.
    """
    bounds = compute_quick_epsilons(history, delta)
    epochs = _equal_epochs(history)
    if epochs is not None and delta > 0:
        event, count = epochs
        bounds[_SLOW] = _epsilon_of_epochs(event, count, delta, is_tight=True)
        return bounds
    if any(event.group > 1 for event in history):
        largest_useful = _LARGEST_GROUP_EPSILON
    else:
        largest_useful = _FINITE
    if min(bounds.values()) <= largest_useful and "gaussian" not in bounds:
        from fedpriv.privacy.accounting import pld

        bounds["pld"] = pld.epsilon(history, delta, rough=rough)
    return bounds


def compute_largest_epsilon(
    histories: Sequence[History], delta: float, enough: float = 0.0, *, rough: bool = False
) -> float:
    """Returns the largest epsilon of several histories, with as little work as possible.

    Args:
        histories: The distinct histories.
        delta: Delta of the guarantee.
        enough: No tight bound is computed for histories whose quick bound is at most this number.
        rough: True if bounds may be slightly less tight; see `compute_tight_epsilons`.

    Returns:
        The largest epsilon. If it is at most ``enough``, any number between the largest epsilon and ``enough`` may be
        returned.
    """
    return compute_worst_epsilon(histories, delta, enough, rough=rough)[0]


def compute_worst_epsilon(
    histories: Sequence[History], delta: float, enough: float = 0.0, only: str | None = None, *, rough: bool = False
) -> tuple[float, str]:
    """Returns the largest epsilon of several histories, and the name of the bound that gave it.

    Args:
        histories: The distinct histories.
        delta: Delta of the guarantee.
        enough: See `compute_largest_epsilon`.
        only: Name of a single bound to use, e.g. `"rdp"`; epsilon is infinite if this bound does not apply. None uses
            the smallest bound.
        rough: See `compute_largest_epsilon`.

    Returns:
        Epsilon, and the bound's name; `"none"` if no bound is finite.
    """
    by_quick_bound = sorted(
        ((_least(compute_quick_epsilons(h, delta), only), h) for h in histories), key=lambda pair: -pair[0][0]
    )
    result = (0.0, only or "pure")
    tightened = list[History]()
    for bound, history in by_quick_bound:
        # a single quick bound: the largest comes first
        if only not in (None, _SLOW):
            if math.isfinite(bound[0]):
                return bound
            return (math.inf, "none")

        # a tight bound is at most the quick one, so no later history can be worse
        if only is None and bound[0] <= max(result[0], enough):
            return max(result, bound)

        # a history that another one dominates cannot be the worst
        if not any(is_dominated(history, other) for other in tightened):
            if only is not None or len(tightened) < MOST_TIGHT:
                bound = _least(compute_tight_epsilons(history, delta, rough=rough), only)
            result = max(result, bound)
            tightened.append(history)
    if math.isfinite(result[0]):
        return result
    return (math.inf, "none")


def _least(epsilons: Mapping[str, float], only: str | None) -> tuple[float, str]:
    """Returns the smallest bound with its name, or the bound named `only`."""
    if only is not None:
        return epsilons.get(only, math.inf), only
    return min((epsilon, name) for name, epsilon in epsilons.items())


def make_dominating_history(histories: Sequence[History]) -> History:
    """Returns a history that costs at least as much as each of `histories`.

    If one of the histories dominates all others, it is returned. If not, the union of the histories that no other
    history dominates is returned.
    """
    undominated = list[History]()
    for history in sorted(histories, key=lambda h: -sum(h.values())):
        if not any(is_dominated(history, other) for other in undominated):
            undominated = [*(other for other in undominated if not is_dominated(other, history)), history]
    union: Counter[Event] = Counter()
    for history in undominated:
        union |= Counter(dict(history))
    return union


def is_dominated(history: History, other: History) -> bool:
    """True if each event of ``history`` can be paired with a different event of ``other`` that costs at least as much.

    Guarantee: True is certain; False may be wrong.
    """
    if len(history) > len(other):
        return False
    if all(count <= other.get(event, 0) for event, count in history.items()):
        return True
    pairs = zip(sorted(history.items()), sorted(other.items()), strict=False)
    return all(covers(theirs, ours) and m <= n for (ours, m), (theirs, n) in pairs)
