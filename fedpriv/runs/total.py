"""The epsilon of several runs on the same data."""

from __future__ import annotations

from collections.abc import Sequence

from fedpriv.errors import ConfigError
from fedpriv.privacy.accounting.spent import PrivacySpent
from fedpriv.privacy.composition import RunCost, compose
from fedpriv.runs.results import Result
from fedpriv.settings.checks import checked


@checked("total")
def total(
    results: Sequence[Result | RunCost], *, delta: float | None = None, accountant: str | None = None
) -> PrivacySpent:
    """Computes the total cost of several runs on the same data, which is less than the sum of their costs.

    Guarantee: an upper bound for every privacy unit that all of them protect, wherever it is in each run, against an
    adversary with the view that each run's `trust` allows. The number of runs and their noise must not depend on the
    results of earlier ones; if they do, the sum of the epsilons and the sum of the deltas hold. Runs on data without
    common privacy units cost less.

    Args:
        results: The result of `train` for each run; a training with Opacus is a `fedpriv.from_opacus(...)`.
        delta: Failure probability of all together; the smallest of the runs' own by default.
        accountant: The one bound to use, `"gaussian"`, `"pld"`, `"rdp"` or `"pure"`; None takes the smallest.

    Raises:
        ConfigError: If there are no results, or an argument is out of range.
        PrivacyError: If the runs have different kinds of privacy units, or protect whole clients that are not the same.
    """
    if not results:
        raise ConfigError("results", [], "give the results of at least one run")
    for index, result in enumerate(results):
        if not isinstance(result, Result | RunCost):  # pyright: ignore[reportUnnecessaryIsInstance]
            fix = "give what train returned, or fedpriv.from_opacus(...): epsilons alone only add up"
            raise ConfigError(f"results[{index}]", result, fix)
    runs = [_cost_of(result, number) for number, result in enumerate(results, start=1)]
    if delta is None:
        deltas = [result.spent.delta for result in results if isinstance(result, Result)]
        if not deltas:
            raise ConfigError(
                "delta", None, "name a delta, e.g. delta=1e-5: costs from elsewhere have none of their own"
            )
        delta = min(deltas)
    return compose(runs, delta, accountant)


def _cost_of(result: Result | RunCost, number: int) -> RunCost:
    """Returns the releases of a run, named by its number among the results."""
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
