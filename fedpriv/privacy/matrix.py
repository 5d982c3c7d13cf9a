"""Computes the epsilon of runs against each adversary, for one example, one client and a group of units."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from fedpriv.errors import check_count
from fedpriv.privacy.accounting import bounds
from fedpriv.privacy.accounting.events import Event, History, PrivacyCost
from fedpriv.privacy.adversaries import (
    ADVERSARIES,
    COLLUDERS,
    AdversaryView,
    compute_view,
    describe_amplification,
    format_colluders,
    is_simulated,
)
from fedpriv.privacy.composition import (
    Guarantee,
    RunCost,
    common_guarantee,
    merge_histories,
    privacy_costs,
    without_amplification,
    without_shared_draws,
)

_Key = frozenset[frozenset[tuple[Event, int]]]
CostFunction = Callable[[Sequence[History]], tuple[float, str]]
"""Returns the largest epsilon of several units' histories, and the name of its bound."""


@dataclass(frozen=True)
class Cell:
    """The guarantee for one unit against one adversary.

    Attributes:
        adversary: The adversary.
        unit: Privacy unit: `"sample"`, `"client"`, or a group.
        epsilon: An upper bound; infinite if none is known.
        accountant: Name of the bound from which epsilon is computed; `"none"` if there is none.
        relation: Neighbouring relation.
        bound_of: The stronger adversary or larger unit for which the bound was computed, if no smaller bound is known
            for this cell; empty otherwise.
        amplification: The secret sampling that lowers epsilon, in words.
        assumes: The assumptions of the bound, in words.
        simulated: True if a protocol that the bound relies on was only simulated.
    """

    adversary: str
    unit: str
    epsilon: float
    accountant: str
    relation: str
    bound_of: str
    amplification: str
    assumes: str
    simulated: bool

    @property
    def adversary_kind(self) -> str:
        """The adversary, one of `ADVERSARIES`, without a number of clients."""
        if self.adversary.removesuffix("s").endswith(COLLUDERS.removesuffix("s")):
            return COLLUDERS
        return self.adversary

    def with_colluders(self, count: int) -> Cell:
        """Returns the same bound for another adversary: this many colluding clients."""
        return replace(self, adversary=format_colluders(count))


@dataclass(frozen=True)
class _Column:
    """One unit of protection. It consists of a number of privacy units of each run.

    Attributes:
        unit: Name of the unit, as printed.
        promise: The guarantee of all runs together.
        groups: For each run, the number of its units that change together, or one number for each client; None if it
                is not known.
        bound_of: The larger unit for which the bound was computed; empty if the bound was computed for the unit itself.
        several: True if the unit is a group of several units, which may be at different clients.
        missing: Reason why the number of units is not known; empty if it is known.
    """

    unit: str
    promise: Guarantee
    groups: tuple[int | tuple[int, ...] | None, ...]
    bound_of: str = ""
    several: bool = False
    missing: str = ""


def compute_bound_matrix(
    runs: Sequence[RunCost],
    delta: float,
    accountant: str | None = None,
    *,
    colluders: int = 1,
    group: int = 10,
    cost_function: CostFunction | None = None,
) -> tuple[Cell, ...]:
    """Returns the bounds for every adversary of `ADVERSARIES` and every unit, of all runs together.

    Args:
        runs: The releases of each run.
        delta: Failure probability of all runs together.
        accountant: As for `composition.compose`.
        colluders: Number of clients that collude.
        group: Number of units in a group.
        cost_function: Computes the cost of histories if it is not the smallest bound, e.g. for a search with a secret
            number of trials.

    Raises:
        ConfigError: If an argument or a record is out of range.
        PrivacyError: If the runs have no guarantee in common, or their trust is not known.
    """
    check_count("colluders", colluders, "must be the number of clients that share all their information, e.g. 3")
    check_count("group", group, "must be the number of privacy units that change together, e.g. 10")
    runs = without_shared_draws(runs)
    columns = _columns(runs, common_guarantee(runs), group)

    def smallest(histories: Sequence[History]) -> tuple[float, str]:
        return _worst(frozenset(frozenset(history.items()) for history in histories), delta, accountant)

    cells = list[Cell]()
    for adversary in ADVERSARIES:
        views = [compute_view(run.records, run.n_clients, adversary, colluders) for run in runs]
        if adversary == COLLUDERS:
            name = format_colluders(colluders)
        else:
            name = adversary
        cells += [_cell(name, column, runs, views, cost_function or smallest) for column in columns]
    return tuple(cells)


def _columns(runs: Sequence[RunCost], promise: Guarantee, group: int) -> list[_Column]:
    """Returns the columns of the matrix: one example, one client, and a group of units."""
    units = [next(iter(run.kinds))[0] if run.kinds else promise.unit for run in runs]

    # an example: of a run that protects whole clients, one client represents it and changes to another value
    if "client" in units:
        sample = _Column(
            "sample", replace(promise, relation="replace_one"), (1,) * len(runs), bound_of="the whole client"
        )
    else:
        sample = _Column("sample", promise, (1,) * len(runs))

    # a client: one unit, or all its examples as a group
    sizes = tuple(1 if unit == "client" else run.sizes for unit, run in zip(units, runs, strict=True))
    if len({run.n_clients for run in runs}) > 1:
        missing = "the runs have different clients"
    elif None in sizes:
        missing = "the number of examples of each client is not recorded"
    else:
        missing = ""
    if None in sizes or promise.unit == "client":
        bound_of = ""
    else:
        bound_of = "all examples of a client"
    groups = (None,) * len(runs) if missing else sizes
    client = _Column("client", promise, groups, bound_of=bound_of, missing=missing)

    several = _Column(f"group of {group} {promise.unit}s", promise, (group,) * len(runs), several=group > 1)
    return [sample, client, several]


def _cell(
    adversary: str,
    column: _Column,
    runs: Sequence[RunCost],
    views: Sequence[AdversaryView],
    cost_function: CostFunction,
) -> Cell:
    """Returns the bound for one unit against one adversary."""
    promise = column.promise

    # there is a bound only if there is one for every run
    charges = list[Counter[PrivacyCost]]()
    for run, group, adversary_view in zip(runs, column.groups, views, strict=True):
        if group is not None and adversary_view.records is not None:
            charges.append(privacy_costs(run, adversary_view.records, promise, group))
    if len(charges) == len(runs):
        epsilon, accountant = cost_function(_histories(charges, runs, column))
    else:
        epsilon, accountant = math.inf, "none"

    if math.isfinite(epsilon):
        bound_of = _joined([column.bound_of, *(adversary_view.bound_of for adversary_view in views)])
    else:
        bound_of = ""
    is_single_unit = all(group == 1 for group in column.groups)
    amplifications = list[str]()
    for run in runs:
        records = run.records if is_single_unit else [without_amplification(record) for record in run.records]
        amplifications.append(describe_amplification(records, run.n_clients))
    return Cell(
        adversary=adversary,
        unit=column.unit,
        epsilon=epsilon,
        accountant=accountant,
        relation=promise.relation + (f"({promise.shared})" if promise.shared else ""),
        bound_of=bound_of,
        amplification=_joined(amplifications),
        assumes=_joined([column.missing, *(adversary_view.assumes for adversary_view in views)]),
        simulated=is_simulated([record for run in runs for record in run.records]),
    )


def _joined(texts: Sequence[str]) -> str:
    """Returns the distinct nonempty texts, joined in order."""
    return "; ".join(dict.fromkeys(text for text in texts if text))


def _histories(charges: Sequence[Counter[PrivacyCost]], runs: Sequence[RunCost], column: _Column) -> list[History]:
    # members of a group may be at several clients: at one is worst for Gaussian releases that are not sampled, since
    # squares of shifts are convex, and at one that costs at least as much as each client for all others
    exact = all(event.composes_exactly for each in charges for charge in each for event in charge.events)
    aligned = column.promise.aligned and (exact or not column.several)
    groups = merge_histories(charges, [run.n_clients for run in runs], aligned=aligned)
    return [history for _, history in groups]


@lru_cache(maxsize=64)
def _worst(histories: _Key, delta: float, accountant: str | None) -> tuple[float, str]:
    return bounds.compute_worst_epsilon([dict(sorted(history)) for history in histories], delta, only=accountant)
