"""The epsilon of runs against each adversary, for an example, a client and a group."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from fedpriv.errors import check_count
from fedpriv.privacy.accounting import bounds
from fedpriv.privacy.accounting.events import Event, History, PrivacyCost
from fedpriv.privacy.adversaries import ADVERSARIES, COLLUDERS, AdversaryView, amplification, simulated, view
from fedpriv.privacy.composition import Guarantee, RunCost, charges_of, in_any_slot, promise_of, together

_Key = frozenset[frozenset[tuple[Event, int]]]
Price = Callable[[Sequence[History]], tuple[float, str]]
"""Epsilon of what several units went through, for the worst of them, and the bound that won."""


@dataclass(frozen=True)
class Cell:
    """What holds for one unit against one adversary.

    Attributes:
        adversary: Who looks.
        unit: What is protected: `"sample"`, `"client"`, or a group.
        epsilon: An upper bound; infinite where none is known.
        accountant: The bound that won; `"none"` where there is none.
        relation: Which data sets are neighbours.
        bound_of: What this is the bound of, where no smaller one is known for the cell itself; empty otherwise.
        amplification: What lowers it by secret sampling.
        assumes: What must hold, in words.
        simulated: Whether a protocol that it rests on was only simulated.
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


@dataclass(frozen=True)
class _Column:
    """A unit, and how many units of each run it stands for; None where that is not known."""

    unit: str
    promise: Guarantee
    groups: tuple[int | tuple[int, ...] | None, ...]
    bound_of: str = ""
    several: bool = False
    missing: str = ""


def matrix(
    runs: Sequence[RunCost],
    delta: float,
    accountant: str | None = None,
    *,
    colluders: int = 1,
    group: int = 10,
    price: Price | None = None,
) -> tuple[Cell, ...]:
    """The bounds for every adversary of `ADVERSARIES` and every unit, of all runs together.

    Args:
        runs: What they released.
        delta: Failure probability of all together.
        accountant: As for `composition.compose`.
        colluders: Number of clients that collude.
        group: Number of units in a group.
        price: Prices histories otherwise than by the smallest bound, as of a search whose trials stay hidden.

    Raises:
        ConfigError: an argument or a record is out of range.
        PrivacyError: the runs protect nothing in common, or their trust is not known.
    """
    check_count("colluders", colluders, "give the number of clients that tell each other what they know, e.g. 3")
    check_count("group", group, "give the number of units that change together, e.g. 10")
    columns = _columns(runs, promise_of(runs), group)

    def smallest(histories: Sequence[History]) -> tuple[float, str]:
        return _worst(frozenset(frozenset(history.items()) for history in histories), delta, accountant)

    found = list[Cell]()
    for adversary in ADVERSARIES:
        views = [view(run.records, run.n_clients, adversary, colluders) for run in runs]
        if adversary == COLLUDERS:
            said = f"{colluders} {COLLUDERS}"
        else:
            said = adversary
        found += [_cell(said, column, runs, views, price or smallest) for column in columns]
    return tuple(found)


def _columns(runs: Sequence[RunCost], promise: Guarantee, group: int) -> list[_Column]:
    units = [next(iter(run.kinds))[0] if run.kinds else promise.unit for run in runs]
    if "client" in units:
        whole = replace(promise, relation="replace_one")
    else:
        whole = promise
    alike = len({run.n_clients for run in runs}) == 1 or promise.unit == "client"
    sizes = tuple(1 if unit == "client" else run.sizes for unit, run in zip(units, runs, strict=True))
    if None in sizes:
        missing = "how many examples a client has is not on record"
    else:
        missing = ""
    if alike:
        missing = missing
    else:
        missing = "the runs have other clients"
    if None in sizes or promise.unit == "client":
        of_clients = ""
    else:
        of_clients = "all examples of a client"
    return [
        _Column("sample", whole, (1,) * len(runs), "the whole client" if "client" in units else ""),
        _Column("client", promise, (None,) * len(runs) if missing else sizes, of_clients, missing=missing),
        _Column(f"group of {group} {promise.unit}s", promise, (group,) * len(runs), several=group > 1),
    ]


def _cell(
    adversary: str, column: _Column, runs: Sequence[RunCost], views: Sequence[AdversaryView], price: Price
) -> Cell:
    promise, stronger = column.promise, [column.bound_of, *(one.bound_of for one in views)]
    assumes = [column.missing, *(one.assumes for one in views)]
    charges = list[Counter[PrivacyCost]]()
    for run, group, one in zip(runs, column.groups, views, strict=True):
        if group is not None and one.records is not None:
            charges.append(charges_of(run, one.records, promise, group))
    epsilon, name = math.inf, "none"
    if len(charges) == len(runs):
        epsilon, name = price(_histories(charges, runs, column))
    records = [record for run in runs for record in run.records]
    alone = all(group == 1 for group in column.groups)
    amplified = [run.records if alone else [in_any_slot(one) for one in run.records] for run in runs]
    return Cell(
        adversary,
        column.unit,
        epsilon,
        name,
        promise.relation + (f"({promise.shared})" if promise.shared else ""),
        "; ".join(dict.fromkeys(said for said in stronger if said)) if math.isfinite(epsilon) else "",
        "; ".join(dict.fromkeys(amplification(told, run.n_clients) for run, told in zip(runs, amplified, strict=True))),
        "; ".join(dict.fromkeys(said for said in assumes if said)),
        simulated(records),
    )


def _histories(charges: Sequence[Counter[PrivacyCost]], runs: Sequence[RunCost], column: _Column) -> list[History]:
    # members of a group may be at several clients: at one is worst for Gaussian answers that are not sampled, since
    # squares of shifts are convex, and at one that costs at least what each client costs for all others
    exact = all(event.composes_exactly for each in charges for charge in each for event in charge.events)
    aligned = column.promise.aligned and (exact or not column.several)
    found = together(charges, [run.n_clients for run in runs], aligned=aligned)
    return [history for _, history in found]


@lru_cache(maxsize=64)
def _worst(histories: _Key, delta: float, accountant: str | None) -> tuple[float, str]:
    return bounds.worst([dict(sorted(history)) for history in histories], delta, only=accountant)
