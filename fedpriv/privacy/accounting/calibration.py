"""How much noise the planned releases need to meet a target epsilon."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from fedpriv.errors import ConfigError, PrivacyError
from fedpriv.privacy.accounting import bounds, gaussian
from fedpriv.privacy.accounting.accountant import check_target
from fedpriv.privacy.accounting.epochs import costs_of
from fedpriv.privacy.accounting.events import Event, History, PrivacyCost, bucketed, histories

if TYPE_CHECKING:
    from fedpriv.privacy.record import Record

_MARGIN = 1e-6  # below the target, so that the run's own accountant agrees whatever the last bits are
_LAST_BITS = 2.0**-52  # of each term of the sum that the run's own accountant makes
_TOLERANCE = 5e-4
_WIDEST = 1e12
_LEAST_FOR_REST, _MOST_FOR_REST = 1e-6, 1e6  # between these the noise of the rest of a run is looked for
_NOTHING = 1e-300  # stands for 0 in logarithms
_STRIDE, _SHORT_STRIDE = 2.0, 0.4  # of the logarithm of the noise; bounds of epochs are slow far from the target
_STEEPEST = 5.0  # power of the noise that is believed: a smaller one makes a larger step
_STRAIGHT = 12  # secant steps before halving
_ROUGH = 60, 0.08  # more noise levels than these are rounded to a dozen, to begin with

Epsilon = Callable[[float], float]


def calibrate(plan: Sequence[Record], n_clients: int, epsilon: float, delta: float) -> float:
    """Smallest noise with which the planned releases meet a target.

    Args:
        plan: The planned releases; their noise multipliers are relative, ``1 / share``.
        n_clients: Number of clients.
        epsilon: Target for all of them together, for the client with the largest epsilon; positive.
        delta: Failure probability in [0, 1).

    Returns:
        The number by which all noise multipliers must be multiplied. With it epsilon is never above the target, and the
        noise at most 0.1 % more than needed. 1 if nothing in the plan costs anything.

    Raises:
        ConfigError: the target is out of range, or no noise of the planned kind can meet it.
        PrivacyError: the plan protects different units or relations.
    """
    check_target(n_clients, delta, epsilon)
    if len({(record.unit, record.relation) for record in plan}) > 1:
        raise PrivacyError("the plan protects different units or relations: plan and account them separately")
    paid = [_noisy(history) for _, history in histories(Counter(costs_of(plan, n_clients)), n_clients)]
    paid = [history for history in paid if history]
    _check_reachable(paid, delta)
    if not paid:
        return 1.0
    if delta == 0 and all(event.selection == "full" for history in paid for event in history):
        return _pure_factor(paid, epsilon)
    goal = epsilon * (1 - _MARGIN)
    if all(event.composes_exactly for history in paid for event in history):
        mu2 = max(sum(count / event.noise**2 for event, count in history.items()) for history in paid)
        ratio = gaussian.ratio_of(goal, delta)
        if not (math.isfinite(mu2) and mu2 <= (ratio * _WIDEST) ** 2):
            raise _out_of_reach(epsilon)
        return math.sqrt(mu2) / ratio
    if delta == 0:
        return _quick_factor(_quickly(paid, delta), goal)
    rough = [bucketed(history, *_ROUGH) for history in paid]
    quick, stride = _quickly(rough, delta), _STRIDE
    if any(event.is_epoch for history in paid for event in history):
        stride = _SHORT_STRIDE
    start = _quick_factor(quick, goal, stride)
    slope = _slope(quick, start)
    if rough != paid:  # too much noise, found in a fraction of the time
        start = _tight_factor(_tightly(rough, delta), start, goal, slope)
        slope = _slope(_tightly(rough, delta), start)
    return _tight_factor(_tightly(paid, delta), start, goal, slope)


def calibrate_rest(
    spent: Sequence[Record], plan: Sequence[Record], n_clients: int, epsilon: float, delta: float
) -> float:
    """Smallest noise with which planned releases meet a target together with earlier ones.

    Args:
        spent: What was released before.
        plan: The planned releases; their noise multipliers are relative, ``1 / share``.
        n_clients: Number of clients.
        epsilon: Target for all releases together, for the client with the largest epsilon; positive.
        delta: Failure probability in [0, 1).

    Returns:
        The number by which the noise multipliers of the plan must be multiplied, at most 0.1 % more than needed.

    Raises:
        ConfigError: the target is out of range, or was spent before, or no noise of the planned kind can meet it.
        PrivacyError: the releases protect different units or relations.
    """
    check_target(n_clients, delta, epsilon)
    if len({(record.unit, record.relation) for record in (*spent, *plan)}) > 1:
        raise PrivacyError("what was released and what is planned protect different units or relations")
    before = Counter(costs_of(spent, n_clients))
    coming = Counter(costs_of(plan, n_clients))
    goal = epsilon * (1 - _MARGIN)

    def together(factor: float) -> float:
        scaled = Counter[PrivacyCost]()
        for charge, count in coming.items():
            events = tuple(event._replace(noise=event.noise * factor) for event in charge.events)
            scaled[replace(charge, events=events)] += count
        return bounds.largest([history for _, history in histories(before + scaled, n_clients)], delta)

    _check_reachable([_noisy(history) for _, history in histories(before + coming, n_clients)], delta)
    high = 1.0
    while together(high) > goal:
        high *= 4
        if high > _MOST_FOR_REST:
            raise _out_of_reach(epsilon)
    low = high / 4
    while low > _LEAST_FOR_REST and together(low) <= goal:
        low, high = low / 4, low
    while high > low * (1 + _TOLERANCE):
        middle = math.sqrt(low * high)
        if together(middle) <= goal:
            high = middle
        else:
            low = middle
    return high


def enough(history: History, epsilon: float, delta: float) -> float:
    """A factor for the noise of a history that meets a target, by the quick bounds: somewhat more than is needed.

    Raises:
        ConfigError: the target is out of range, or no noise of this kind can meet it.
    """
    check_target(1, delta, epsilon)
    _check_reachable([history], delta)
    return _quick_factor(_quickly([history], delta), epsilon)


def delta_warning(delta: float, n: int) -> str | None:
    """Warn about a delta so large that publishing one unit's data outright would meet the guarantee.

    Args:
        delta: The delta of the guarantee.
        n: Number of units (records or clients) that it protects.

    Returns:
        A sentence for the user; None when delta is below 1 / n.
    """
    if delta * n < 1:
        return None
    return (
        f"delta={delta} is not below 1/{n}: a mechanism that publishes one of the {n} records at random meets such a "
        f"guarantee. Choose delta well below {1 / n:.1g}"
    )


def _quickly(paid: Sequence[History], delta: float) -> Epsilon:
    return lambda factor: max(min(bounds.quick(_scaled(history, factor), delta).values()) for history in paid)


def _tightly(paid: Sequence[History], delta: float) -> Epsilon:
    return lambda factor: bounds.largest([_scaled(history, factor) for history in paid], delta)


def _noisy(history: History) -> dict[Event, int]:
    return {event: count for event, count in history.items() if math.isfinite(event.noise)}


def _check_reachable(paid: Sequence[History], delta: float) -> None:
    laws = {event.law for history in paid for event in history}
    if "none" in laws:
        raise ConfigError("plan", "an exact answer", "no noise elsewhere can make up for it; give each release noise")
    if delta == 0 and laws - {"laplace"}:
        raise ConfigError(
            "delta", 0, "only Laplace noise under an l1 clip has a pure epsilon; choose it, or a delta such as 1e-5"
        )


def _scaled(history: History, factor: float) -> dict[Event, int]:
    return {event._replace(noise=event.noise * factor): count for event, count in history.items()}


def _out_of_reach(epsilon: float) -> ConfigError:
    return ConfigError("epsilon", epsilon, "no amount of noise reaches this target; ask for a larger epsilon or delta")


def _pure_factor(paid: Sequence[History], epsilon: float) -> float:
    """Pure epsilons add up."""
    answers = max(sum(history.values()) for history in paid)
    pure = max(math.fsum(count / event.noise for event, count in history.items()) for history in paid)
    factor = pure / epsilon * (1 + _LAST_BITS * (answers + 4))
    if factor > _WIDEST:
        raise _out_of_reach(epsilon)
    return factor


def _slope(epsilon: Epsilon, factor: float) -> float:
    """Power of the noise that epsilon falls with."""
    slope = math.log(max(epsilon(0.97 * factor), _NOTHING) / max(epsilon(factor), _NOTHING)) / -math.log(0.97)
    # delta alone may pay for everything from some noise on: epsilon falls to 0 there, and is no power of the noise
    if slope > 0.1:
        return min(slope, _STEEPEST)
    return 1.0


def _quick_factor(epsilon: Epsilon, goal: float, stride: float = _STRIDE) -> float:
    """The factor by the quick bound: it falls smoothly with the noise, so a root finder is at home."""

    def gap(log_factor: float) -> float:
        return math.log(min(max(epsilon(math.exp(log_factor)), 1e-300), 1e300) / goal)

    low = high = 0.0
    while gap(high) > 0:
        low, high = high, high + stride
        if high > math.log(_WIDEST):
            raise _out_of_reach(goal)
    while gap(low) <= 0:
        low, high = low - stride, low
    found = gaussian.root(gap, low, high, 1e-4)
    while gap(found) > 0:
        found += 1e-4
    return math.exp(found)


def _tight_factor(epsilon: Epsilon, start: float, goal: float, slope: float) -> float:
    """Lower the factor to what the tight bound needs, in as few evaluations as possible.

    Epsilon is close to a power of the noise, ``-slope``.
    """
    best, best_value, over, over_value = start, epsilon(start), 0.0, math.inf
    aim, leap, tries = goal * (1 - _TOLERANCE / 2), 1.0, 0
    while best_value < goal * (1 - _TOLERANCE) and best > over * (1 + _TOLERANCE):
        if over > 0:
            slope = math.log(over_value / max(best_value, _NOTHING)) / math.log(best / over)
        guess = best * max(best_value / aim, 0.1) ** (1 / slope)
        edge = 0.05 * (best - over) if over > 0 else 0.0
        guess = min(max(guess, over + edge), best - edge, leap * best)
        if over > 0 and (tries > _STRAIGHT or not 0.01 * goal < best_value <= over_value < 100 * goal):
            guess = math.sqrt(best * over)  # epsilon is nowhere near a power of the noise
        tries, value = tries + 1, epsilon(guess)
        if value <= goal:
            best, best_value = guess, value
            if over == 0 and value < 0.9 * goal:
                leap = min(0.9, leap * leap)
            else:
                leap = 1.0
        else:
            over, over_value, leap = guess, value, 1.0
    return best
