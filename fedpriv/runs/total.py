"""The epsilon of several runs on the same data."""

from __future__ import annotations

from collections.abc import Sequence

from fedpriv.errors import ConfigError
from fedpriv.privacy.accounting.spent import PrivacySpent
from fedpriv.privacy.composition import RunCost, compose
from fedpriv.runs.results import Result
from fedpriv.settings.checks import validate_arguments


@validate_arguments("total")
def total(
    results: Sequence[Result | RunCost], *, delta: float | None = None, accountant: str | None = None
) -> PrivacySpent:
    """Computes the joint privacy cost of several runs on the same data, which is less than the sum of their costs.

    Guarantee: an upper bound for every unit that all of the runs protect, for any position of the unit in each run,
    against an observer of each run as its `trust` allows. The number of runs and their noise must not depend on the
    results of earlier runs; if they do, use the sum of the epsilons and the sum of the deltas. If no unit is in all
    runs, the true cost is lower.

    Args:
        results: For each run the result of `train`; for a training with Opacus, the result of
            `fedpriv.from_opacus(...)`.
        delta: Failure probability of all runs together; by default the smallest delta of the runs.
        accountant: The bound to use, `"gaussian"`, `"pld"`, `"rdp"` or `"pure"`; None (default) uses the smallest
            bound.

    Returns:
        The total cost: epsilon with its delta, unit, relation and accountant.

    Raises:
        ConfigError: If there are no results, or an argument is out of range.
        PrivacyError: If the runs protect different kinds of units, or different whole clients.

    Examples:
        >>> import fedpriv
        >>> history = [(1.5, 0.01, 100)]
        >>> costs = [fedpriv.from_opacus(history, name, poisson_sampling=True) for name in ("first", "second")]
        >>> one, both = (fedpriv.total(runs, delta=1e-5).epsilon for runs in (costs[:1], costs))
        >>> one < both < 2 * one
        True
    """
    if not results:
        raise ConfigError("results", [], "needs the results of at least one run")
    for index, result in enumerate(results):
        if not isinstance(result, Result | RunCost):  # pyright: ignore[reportUnnecessaryIsInstance]
            fix = (
                "must be a result that train returned, or fedpriv.from_opacus(...); epsilons alone do not suffice "
                "for a tight total"
            )
            raise ConfigError(f"results[{index}]", result, fix)
    runs = [_cost_of(result, number) for number, result in enumerate(results, start=1)]
    if delta is None:
        deltas = [result.spent.delta for result in results if isinstance(result, Result)]
        if not deltas:
            raise ConfigError(
                "delta", None, "set delta, e.g. delta=1e-5, because the costs from other libraries have no delta"
            )
        delta = min(deltas)
    return compose(runs, delta, accountant)


def _cost_of(result: Result | RunCost, number: int) -> RunCost:
    """Returns the releases of a run, labelled with the number of the run among the results."""
    if isinstance(result, RunCost):
        return result
    return RunCost(
        f"run {number}",
        result.charged,
        len(result.spent.per_client),
        not_covered=result.spent.not_covered,
        float64_noise=result.spent.float64_noise,
        run_name=result.run_name or None,
    )
