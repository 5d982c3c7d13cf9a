"""Computes the amount of noise with which the planned releases meet a target epsilon."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from fedpriv.errors import ConfigError, PrivacyError
from fedpriv.privacy.accounting import bounds, gaussian
from fedpriv.privacy.accounting.accountant import check_target
from fedpriv.privacy.accounting.epochs import count_costs
from fedpriv.privacy.accounting.events import Event, History, PrivacyCost, group_histories, round_noise_levels
from fedpriv.privacy.record_table import list_kinds

if TYPE_CHECKING:
    from fedpriv.privacy.record import Record

_MARGIN = 1e-6  # below the target, so that the run's accountant agrees for any last bits
_LAST_BITS = 2.0**-52  # of each term of the sum in the run's accountant
_TOLERANCE = 5e-4
_WIDEST = 1e12
_LEAST_REMAINING_FACTOR, _LARGEST_REMAINING_FACTOR = 1e-6, 1e6  # range in which `calibrate_rest` searches
_NOTHING = 1e-300  # represents 0 in logarithms
_STRIDE, _SHORT_STRIDE = 2.0, 0.4  # of the logarithm of the noise; bounds of epochs are slow far from the target
_STEEPEST = 5.0  # power of the noise that is believed: a smaller one makes a larger step
_STRAIGHT = 12  # secant steps before halving
_ROUGH_LEVELS, _ROUGH_WIDTH = 60, 0.08  # more noise levels than these are rounded to a dozen for a first guess

Epsilon = Callable[[float], float]


def calibrate(plan: Sequence[Record], n_clients: int, epsilon: float, delta: float) -> float:
    """Returns the smallest noise with which the planned releases meet a target.

    Args:
        plan: The planned releases; their noise multipliers are relative, ``1 / share``.
        n_clients: Number of clients.
        epsilon: Target for all planned releases together, for the client with the largest epsilon; positive.
        delta: Failure probability in [0, 1).

    Returns:
        The number by which all noise multipliers must be multiplied. With this number, epsilon is never above the
        target, and the noise is at most 0.1 % larger than needed. The number is 1 if no release in the plan has a cost.

    Raises:
        ConfigError: If the target is out of range, or no noise of the planned kind can meet it.
        PrivacyError: If the plan protects different units or relations.
    """
    check_target(n_clients, delta, epsilon)
    if len({(record.unit, record.relation) for record in list_kinds(plan)}) > 1:
        raise PrivacyError(
            "the plan's queries differ in privacy unit or neighbouring relation, so they have no common privacy "
            "cost: plan and account for each kind separately"
        )
    paid = [_without_free_events(history) for _, history in group_histories(count_costs(plan, n_clients), n_clients)]
    paid = [history for history in paid if history]
    _check_reachable(paid, delta)
    if not paid:
        return 1.0
    if delta == 0 and all(event.selection == "full" for history in paid for event in history):
        return _pure_factor(paid, epsilon)
    goal = epsilon * (1 - _MARGIN)
    if all(event.composes_exactly for history in paid for event in history):
        mu2 = max(sum(count / event.noise**2 for event, count in history.items()) for history in paid)
        ratio = gaussian.compute_ratio(goal, delta)
        if not (math.isfinite(mu2) and mu2 <= (ratio * _WIDEST) ** 2):
            raise _unreachable(epsilon)
        return math.sqrt(mu2) / ratio
    if delta == 0:
        return _quick_factor(_quick_epsilon(paid, delta), goal)

    # start from the quick bound, which needs more noise than the tight one
    rough = [round_noise_levels(history, max_levels=_ROUGH_LEVELS, width=_ROUGH_WIDTH) for history in paid]
    quick = _quick_epsilon(rough, delta)
    if any(event.is_epoch for history in paid for event in history):
        stride = _SHORT_STRIDE
    else:
        stride = _STRIDE
    start = _quick_factor(quick, goal, stride)
    slope = _slope(quick, start)
    # rounded noise levels also need more noise, and their tight bound takes a fraction of the time
    if rough != paid:
        start = _tight_factor(_tight_epsilon(rough, delta), start, goal, slope)
        slope = _slope(_tight_epsilon(rough, delta), start)
    return _tight_factor(_tight_epsilon(paid, delta), start, goal, slope)


def calibrate_rest(
    spent: Sequence[Record], plan: Sequence[Record], n_clients: int, epsilon: float, delta: float
) -> float:
    """Returns the smallest noise with which planned releases meet a target together with earlier ones.

    Args:
        spent: The releases made so far.
        plan: The planned releases; their noise multipliers are relative, ``1 / share``.
        n_clients: Number of clients.
        epsilon: Target for all releases together, for the client with the largest epsilon; positive.
        delta: Failure probability in [0, 1).

    Returns:
        The number by which the noise multipliers of the plan must be multiplied, at most 0.1 % larger than needed.

    Raises:
        ConfigError: If the target is out of range or already spent, or no noise of the planned kind can meet it.
        PrivacyError: If the releases protect different units or relations.
    """
    check_target(n_clients, delta, epsilon)
    if len({(record.unit, record.relation) for record in (*list_kinds(spent), *list_kinds(plan))}) > 1:
        raise PrivacyError(
            "the released and the planned queries differ in privacy unit or neighbouring relation, so they have no "
            "common privacy cost: use the same ones for both"
        )
    spent_costs = count_costs(spent, n_clients)
    planned_costs = count_costs(plan, n_clients)
    goal = epsilon * (1 - _MARGIN)

    def total_epsilon(factor: float) -> float:
        scaled = Counter[PrivacyCost]()
        for charge, count in planned_costs.items():
            events = tuple(event._replace(noise=event.noise * factor) for event in charge.events)
            scaled[replace(charge, events=events)] += count
        return bounds.compute_largest_epsilon(
            [history for _, history in group_histories(spent_costs + scaled, n_clients)], delta
        )

    _check_reachable(
        [_without_free_events(history) for _, history in group_histories(spent_costs + planned_costs, n_clients)], delta
    )
    # bracket the solution between `low`, which is too little noise, and `high`, which is enough
    high = 1.0
    while total_epsilon(high) > goal:
        high *= 4
        if high > _LARGEST_REMAINING_FACTOR:
            raise _unreachable(epsilon)
    low = high / 4
    while low > _LEAST_REMAINING_FACTOR and total_epsilon(low) <= goal:
        low, high = low / 4, low

    # epsilon may jump with the noise where rounding of levels changes, so halving is safer than a root finder
    while high > low * (1 + _TOLERANCE):
        middle = math.sqrt(low * high)
        if total_epsilon(middle) <= goal:
            high = middle
        else:
            low = middle
    return high


def estimate_sufficient_factor(history: History, epsilon: float, delta: float) -> float:
    """Returns a factor for the noise of a history with which it meets a target. The factor is computed from the quick
    bounds, so it is somewhat larger than needed.

    Raises:
        ConfigError: If the target is out of range, or no noise of this kind can meet it.
    """
    check_target(1, delta, epsilon)
    _check_reachable([history], delta)
    return _quick_factor(_quick_epsilon([history], delta), epsilon)


def delta_warning(delta: float, n: int) -> str | None:
    """Returns a warning if delta is so large that an algorithm that publishes one unit's data in full would meet the
    guarantee.

    Args:
        delta: The delta of the guarantee.
        n: Number of units (records or clients) that it protects.

    Returns:
        A sentence for the user; None when delta is below 1 / n.
    """
    if delta * n < 1:
        return None
    return (
        f"delta={delta} is not below 1/{n}: a mechanism that publishes one of the {n} records at random would "
        f"meet such a guarantee. Choose delta well below {1 / n:.1g}"
    )


def _quick_epsilon(paid: Sequence[History], delta: float) -> Epsilon:
    """Returns the quick bound on epsilon, as a function of the factor of all noise."""
    return lambda factor: max(
        min(bounds.compute_quick_epsilons(_scaled(history, factor), delta).values()) for history in paid
    )


def _tight_epsilon(paid: Sequence[History], delta: float) -> Epsilon:
    """Returns the tight bound on epsilon, as a function of the factor of all noise."""
    return lambda factor: bounds.compute_largest_epsilon([_scaled(history, factor) for history in paid], delta)


def _without_free_events(history: History) -> dict[Event, int]:
    """Returns the history without events of infinite noise, which cost nothing."""
    return {event: count for event, count in history.items() if math.isfinite(event.noise)}


def _check_reachable(paid: Sequence[History], delta: float) -> None:
    laws = {event.law for history in paid for event in history}
    if "none" in laws:
        raise ConfigError(
            "plan",
            "an exact query result",
            "noise on other query results cannot compensate for one without noise; add noise to every query result",
        )
    if delta == 0 and laws - {"laplace"}:
        raise ConfigError(
            "delta",
            0,
            "delta=0 (pure epsilon) is possible only for Laplace noise with an l1 clip; use that noise, or a delta "
            "such as 1e-5",
        )


def _scaled(history: History, factor: float) -> dict[Event, int]:
    return {event._replace(noise=event.noise * factor): count for event, count in history.items()}


def _unreachable(epsilon: float) -> ConfigError:
    return ConfigError(
        "epsilon", epsilon, "no amount of noise reaches this target epsilon; use a larger epsilon or delta"
    )


def _pure_factor(paid: Sequence[History], epsilon: float) -> float:
    """Returns the factor at delta 0, where epsilons add up."""
    answers = max(sum(history.values()) for history in paid)
    pure = max(math.fsum(count / event.noise for event, count in history.items()) for history in paid)
    factor = pure / epsilon * (1 + _LAST_BITS * (answers + 4))
    if factor > _WIDEST:
        raise _unreachable(epsilon)
    return factor


def _slope(epsilon: Epsilon, factor: float) -> float:
    """Returns the power s for which epsilon falls like ``noise ** -s`` near `factor`."""
    slope = math.log(max(epsilon(0.97 * factor), _NOTHING) / max(epsilon(factor), _NOTHING)) / -math.log(0.97)
    # delta alone may pay for everything from some noise on: epsilon falls to 0 there, and is no power of the noise
    if slope > 0.1:
        return min(slope, _STEEPEST)
    return 1.0


def _quick_factor(epsilon: Epsilon, goal: float, stride: float = _STRIDE) -> float:
    """Returns the factor with which the quick bound meets the target. A root finder can be used, because the bound
    falls smoothly with the noise.
    """

    def gap(log_factor: float) -> float:
        return math.log(min(max(epsilon(math.exp(log_factor)), 1e-300), 1e300) / goal)

    low = high = 0.0
    while gap(high) > 0:
        low, high = high, high + stride
        if high > math.log(_WIDEST):
            raise _unreachable(goal)
    while gap(low) <= 0:
        low, high = low - stride, low
    log_root = gaussian.find_root(gap, low, high, 1e-4)
    while gap(log_root) > 0:
        log_root += 1e-4
    return math.exp(log_root)


def _tight_factor(epsilon: Epsilon, start: float, goal: float, slope: float) -> float:
    """Lowers the factor as far as the tight bound allows, in as few evaluations as possible.

    Epsilon is approximately proportional to ``noise ** -slope``. Each step assumes this power, or the power through the
    two ends of the bracket, to choose the next factor. `best` is the smallest factor known to meet the goal;
    `too_small` the largest one known not to, or 0 as long as there is none.
    """
    best, best_epsilon = start, epsilon(start)
    too_small, too_small_epsilon = 0.0, math.inf
    aim = goal * (1 - _TOLERANCE / 2)
    leap = 1.0  # the guess is at least this share of `best`
    tries = 0
    while best_epsilon < goal * (1 - _TOLERANCE) and best > too_small * (1 + _TOLERANCE):
        if too_small > 0:
            slope = math.log(too_small_epsilon / max(best_epsilon, _NOTHING)) / math.log(best / too_small)
        guess = best * max(best_epsilon / aim, 0.1) ** (1 / slope)
        # the guess stays off both ends of the bracket, so that each step shrinks it
        if too_small > 0:
            edge = 0.05 * (best - too_small)
        else:
            edge = 0.0
        guess = min(max(guess, too_small + edge), best - edge, leap * best)
        if too_small > 0 and (tries > _STRAIGHT or not 0.01 * goal < best_epsilon <= too_small_epsilon < 100 * goal):
            guess = math.sqrt(best * too_small)  # epsilon is nowhere near a power of the noise
        tries += 1
        guess_epsilon = epsilon(guess)
        if guess_epsilon <= goal:
            best, best_epsilon = guess, guess_epsilon
            if too_small == 0 and guess_epsilon < 0.9 * goal:
                leap = min(0.9, leap * leap)
            else:
                leap = 1.0
        else:
            too_small, too_small_epsilon = guess, guess_epsilon
            leap = 1.0
    return best
