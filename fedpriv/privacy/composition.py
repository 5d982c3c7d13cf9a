"""Computes the joint epsilon of several runs from their ledgers, for any delta, bound and group size.

Runs compose like the releases of one run: the histories of a unit are joined, and the cost of the joint history is
smaller than the sum of the costs. This holds if the number of runs and their noise do not depend on the releases of
earlier runs (they may be fixed beforehand, or depend on public data). Otherwise the sum of the epsilons and the sum of
the deltas must be used.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from fedpriv.errors import ConfigError, PrivacyError
from fedpriv.privacy.accounting import bounds
from fedpriv.privacy.accounting.accountant import check_target
from fedpriv.privacy.accounting.epochs import compute_costs
from fedpriv.privacy.accounting.events import History, PrivacyCost, group_histories
from fedpriv.privacy.accounting.groups import scale_to_group
from fedpriv.privacy.accounting.spent import PrivacySpent
from fedpriv.privacy.record import PerClient, Record, Relation, Unit

_MOST_SIZES = 1000  # up to this many clients, each has a group size; beyond, all have the largest


@dataclass(frozen=True)
class RunCost:
    """The releases of one run, and the facts that are needed to compose them with other runs.

    Attributes:
        name: Name of the run for messages, e.g. its folder.
        records: The records of its ledger and, if epsilon must count the whole plan, the rest of its planned releases.
        n_clients: Number of clients.
        data: Text that is equal for runs with the same examples at the same clients; None if it is not known.
        sizes: Public number of examples of each client; None if it is not known.
        not_covered: Further facts that the run revealed and that epsilon does not cover.
        run_name: Random name of the run, of its copies, and of runs that extend it; None if it is not known.
        float64_noise: Noise that is added in float64 and that the records do not mark as float64.
    """

    name: str
    records: Sequence[Record] = field(repr=False)
    n_clients: int
    data: str | None = None
    sizes: tuple[int, ...] | None = None
    not_covered: tuple[str, ...] = ()
    run_name: str | None = field(default=None, repr=False)
    float64_noise: tuple[str, ...] = ()

    @property
    def kinds(self) -> set[tuple[Unit, Relation, str]]:
        """The distinct (unit, relation, shared facts) of all records."""
        return {(record.unit, record.relation, record.shared) for record in self.records}


@dataclass(frozen=True)
class Guarantee:
    """The guarantee that several runs have in common.

    Attributes:
        unit: The smallest unit of any run, because a run that protects whole clients also protects their examples.
        relation: `"replace_one"` if any run has this relation. (A replacement is a removal and an addition, so runs
            with the relation add_remove also cover it.)
        shared: All facts that neighbouring data sets share in any run.
        aligned: True if client i is the same in all runs, with the same examples.
    """

    unit: Unit
    relation: Relation
    shared: str
    aligned: bool


def common_guarantee(runs: Sequence[RunCost]) -> Guarantee:
    """Returns the guarantee that runs have in common.

    Raises:
        ConfigError: If there are no runs.
        PrivacyError: If a run protects several kinds of units, or if runs that protect whole clients do not have the
            same clients.
    """
    if not runs:
        raise ConfigError("runs", [], "must contain at least one run")
    kinds = set[tuple[Unit, Relation, str]]()
    for run in runs:
        if len(run.kinds) > 1:
            raise PrivacyError(
                f"the releases of {run.name} differ in privacy unit or neighbouring relation, so they have no common "
                f"epsilon: {sorted(run.kinds)}"
            )
        kinds |= run.kinds
    units = {unit for unit, _, _ in kinds}
    relations = {relation for _, relation, _ in kinds}
    shared = dict.fromkeys(fact for _, _, text in sorted(kinds) for fact in text.split(", ") if fact)
    if "replace_one" in relations or len(units) > 1:
        relation: Relation = "replace_one"
    else:
        relation = "add_remove"
    aligned = len({(run.data, run.n_clients) for run in runs}) == 1 and (len(runs) == 1 or runs[0].data is not None)
    if "sample" in units or not units:
        unit: Unit = "sample"
    else:
        unit = "client"
    if unit == "client" and not aligned and len({run.n_clients for run in runs}) > 1:
        raise PrivacyError(
            f"{', '.join(run.name for run in runs)} protect whole clients, but different ones: they have "
            f"{', '.join(str(run.n_clients) for run in runs)} clients, so the data of one client may belong to "
            "several clients of another run. Account for each run separately"
        )
    return Guarantee(unit, relation, ", ".join(shared), aligned)


def without_shared_draws(runs: Sequence[RunCost]) -> list[RunCost]:
    """Returns runs that can be composed. If there are several copies of one run, only the first one keeps the
    amplification by random allocation.

    Each process has independent noise, so resumed copies compose like any runs. However, a copy may share the secret
    draw of the epoch in which it was made. Releases with a draw that was used before cost at most as much as if each
    unit were drawn in every round (docs/design/0010-allocation.md).
    """
    seen = set[str]()
    priced = list[RunCost]()
    for run in runs:
        if run.run_name is not None and run.run_name in seen:
            run = replace(run, records=[with_every_round_drawn(record) for record in run.records])
        if run.run_name is not None:
            seen.add(run.run_name)
        priced.append(run)
    return priced


def with_every_round_drawn(record: Record) -> Record:
    """Returns the record with the cost of a unit that is drawn in each round, instead of once per epoch of random
    allocation.
    """
    if record.batches is None:
        return record
    return replace(record, sampling="full", rate=1.0, batches=None)


def compose(runs: Sequence[RunCost], delta: float, accountant: str | None = None) -> PrivacySpent:
    """Returns the joint epsilon of all runs, against an observer of the values that the `trust` of each run exposes.

    Guarantee: an upper bound for every unit of the runs' common guarantee, if the number of runs and their noise do not
    depend on the releases of earlier ones. If runs may have different clients, the bound assumes that the unit belongs
    to the client with the highest cost in each run.

    Args:
        runs: The releases of each run.
        delta: Failure probability in [0, 1) of all runs together.
        accountant: The bound to use, `"gaussian"`, `"pld"`, `"rdp"` or `"pure"`; None uses the smallest bound.

    Raises:
        ConfigError: If an argument or a record is out of range.
        PrivacyError: If the runs have no guarantee in common.
    """
    check_target(1, delta, 1.0)
    check_accountant(accountant)
    runs = without_shared_draws(runs)
    promise = common_guarantee(runs)
    charges = [privacy_costs(run, run.records, promise) for run in runs]
    n_clients = max(run.n_clients for run in runs)
    groups = merge_histories(charges, [run.n_clients for run in runs], aligned=promise.aligned)
    epsilon, name = bounds.compute_worst_epsilon([history for _, history in groups], delta, only=accountant)
    per_client = [epsilon] * n_clients
    if len(groups) > 1:
        for members, history in groups:
            member_epsilon = min(epsilon, bounds.compute_worst_epsilon([history], delta, only=accountant)[0])
            for member in members:
                per_client[member] = member_epsilon
    reasons = (
        record.non_private or "a query result without noise"
        for run in runs
        for record in run.records
        if record.mechanism == "none" or record.non_private is not None
    )
    added_in_float64 = [kind for run in runs for kind in run.float64_noise]
    return PrivacySpent(
        epsilon,
        delta,
        promise.unit,
        promise.relation + (f"({promise.shared})" if promise.shared else ""),
        "+".join(dict.fromkeys(record.trust for run in runs for record in run.records)) or "local",
        name,
        tuple(per_client),
        tuple(dict.fromkeys(reasons)),
        tuple(dict.fromkeys(fact for run in runs for fact in run.not_covered)),
        tuple(dict.fromkeys(added_in_float64)),
    )


def check_accountant(name: str | None) -> None:
    """Raises an error for an unknown name of a bound.

    Raises:
        ConfigError: If `BOUNDS` does not contain the name.
    """
    if name is not None and name not in bounds.BOUNDS:
        raise ConfigError("accountant", name, f"must be {', '.join(bounds.BOUNDS)}, or be left out for the smallest")


def privacy_costs(
    run: RunCost, records: Iterable[Record], promise: Guarantee, group: int | Sequence[int] = 1
) -> Counter[PrivacyCost]:
    """Returns the cost of a run's records for a unit of a guarantee, or a group of units.

    Args:
        run: The run.
        records: The records of the run, or the records from which its cost for an adversary is computed.
        promise: The guarantee.
        group: Number of units (of the run, not of the guarantee) that change together, or one number for each client.
    """
    counted: Counter[PrivacyCost] = Counter()
    promised = list[Record]()
    for record in records:
        if group != 1:
            record = without_amplification(record)
        promised.append(convert_relation(record, promise))
    counted.update(compute_costs(promised, run.n_clients))
    if group == 1:
        return counted
    kinds = {(record.unit, record.trust.partition("+")[0]) for record in run.records}
    # each client adds independent noise: a group of k clients costs as much as k releases of one client
    if kinds == {("client", "local")} and isinstance(group, int):
        return Counter({charge: count * group for charge, count in counted.items()})
    grouped: Counter[PrivacyCost] = Counter()
    for charge, count in counted.items():
        grouped[_group_cost(charge, group, run.n_clients)] += count
    return grouped


def convert_relation(record: Record, promise: Guarantee) -> Record:
    """Returns a record converted to the relation of a guarantee.

    Under replace_one the sensitivity is twice as large as under add_remove, so the noise divided by the sensitivity is
    halved.
    """
    if record.relation == promise.relation or record.mechanism == "none":
        return record
    return replace(record, relation=promise.relation, noise_multiplier=_halved(record.noise_multiplier))


def without_amplification(record: Record) -> Record:
    """Returns a record converted to groups.

    If noise is correlated between rounds, members of a group may be in several blocks, and their releases overlap. In
    this case sampling does not lower the cost.
    """
    if record.time is None or record.sampling == "full":
        return record
    return replace(record, sampling="full", rate=1.0)


def _halved(noise: PerClient) -> PerClient:
    if isinstance(noise, tuple):
        return tuple(each / 2 for each in noise)
    return noise / 2


def _group_cost(charge: PrivacyCost, group: int | Sequence[int], n_clients: int) -> PrivacyCost:
    """Returns the cost of a release for groups of units, which have one size or a size for each client."""
    if isinstance(group, int):
        return PrivacyCost(charge.clients, tuple(scale_to_group(event, group) for event in charge.events))
    if len(set(group)) == 1 or n_clients > _MOST_SIZES:
        return _group_cost(charge, max(group), n_clients)
    if charge.clients is None:
        clients = range(n_clients)
    else:
        clients = charge.clients
    if len(charge.events) == 1:
        events = charge.events * len(clients)
    else:
        events = charge.events
    return PrivacyCost(charge.clients, tuple(scale_to_group(e, group[c]) for c, e in zip(clients, events, strict=True)))


def merge_histories(
    charges: Sequence[Counter[PrivacyCost]], n_clients: Sequence[int], *, aligned: bool
) -> list[tuple[list[int], History]]:
    """Returns the distinct histories of units over all runs, each with its clients.

    Args:
        charges: The charges of each run.
        n_clients: The number of clients of each run.
        aligned: True if client i is the same in all runs. If False, a unit is assumed to be at the client with the
            highest cost in each run.
    """
    if aligned:
        total: Counter[PrivacyCost] = Counter()
        for run_charges in charges:
            total.update(run_charges)
        return [*group_histories(total, n_clients[0])]
    worst: Counter[PrivacyCost] = Counter()
    for run_charges, n in zip(charges, n_clients, strict=True):
        history = bounds.make_dominating_history([unit_history for _, unit_history in group_histories(run_charges, n)])
        worst.update({PrivacyCost(None, (event,)): count for event, count in history.items()})
    return [*group_histories(worst, max(n_clients))]


def basic_composition(spents: Sequence[PrivacySpent]) -> tuple[float, float]:
    """Returns epsilon and delta of several runs by basic composition.

    They are the sum of the epsilons and the sum of the deltas, which are valid even if later runs depend on the
    releases of earlier runs.
    """
    return math.fsum(spent.epsilon for spent in spents), math.fsum(spent.delta for spent in spents)
