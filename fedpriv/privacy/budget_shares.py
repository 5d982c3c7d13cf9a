"""Computes the privacy costs of runs in a lifetime budget, for the guarantee of the budget."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from fedpriv.errors import PrivacyError
from fedpriv.privacy.accounting import bounds, gaussian
from fedpriv.privacy.accounting.events import EXACT, Event, History, PrivacyCost
from fedpriv.privacy.accounting.spent import PrivacySpent
from fedpriv.privacy.budget_file import BudgetLines, BudgetTerms, Reserved, from_plain
from fedpriv.privacy.composition import Guarantee, RunCost, merge_histories, privacy_costs

_NOT_NOTED = ("noise with rounding that version 0.2 did not record",)
_OF_ANY_DATA = re.compile("[0-9a-f]{32}")
"""Names of data from configurations of version 0.3 and earlier. These versions also named files with rows that may have
changed.
"""
VOIDED = "state"
"""The end of a run that has no bound on epsilon because its code kept information about earlier examples."""
_STEPS = 12  # halvings in the search for the remaining epsilon: to less than a thousandth of the limit


@dataclass(frozen=True)
class Share:
    """The privacy costs of one run.

    Attributes:
        name: Name of the run.
        charges: The costs of its releases, for the budget's unit and relation.
        n_clients: Number of clients.
        data: Text that is equal for runs with the same examples at the same clients; None if it is not known.
        trust: The trust assumption, as printed.
        float64_noise: Noise that the run adds in float64, in words.
    """

    name: str
    charges: Counter[PrivacyCost]
    n_clients: int
    data: str | None
    trust: str
    float64_noise: tuple[str, ...]


def compute_shares(lines: BudgetLines) -> dict[str, Share]:
    """Returns the share of each run in the budget, with the random name of the run as key."""
    shares = dict[str, Share]()
    for change in lines.changes:
        if isinstance(change, Reserved):
            charges = from_plain(change.charges)
            added_in_float64 = _NOT_NOTED if change.float64_noise is None else change.float64_noise
            data = change.data
            if data is not None and _OF_ANY_DATA.fullmatch(data):
                data = None
            shares[change.reserve] = Share(change.run, charges, change.n_clients, data, change.trust, added_in_float64)
        elif change.ended == VOIDED:
            share = shares[change.close]
            shares[change.close] = replace(share, charges=share.charges + Counter({PrivacyCost(None, (EXACT,)): 1}))
        elif change.charges is not None:
            shares[change.close] = replace(shares[change.close], charges=from_plain(change.charges))
    return shares


def compute_share(run: RunCost, terms: BudgetTerms) -> Share:
    """Returns the share of a run's plan, for the privacy unit and the neighbouring relation of a budget.

    Raises:
        PrivacyError: If the run protects another unit or relation, or reveals facts that no epsilon covers.
    """
    for unit, relation, shared in run.kinds:
        if unit != terms.unit and (unit, terms.relation) != ("client", "replace_one"):
            raise PrivacyError(
                f"{run.name} protects the privacy unit {unit}, but the budget requires the unit {terms.unit}: set "
                f"privacy.unit to {terms.unit!r}, or use a budget for the unit {unit}"
            )
        if (relation, terms.relation) == ("replace_one", "add_remove"):
            raise PrivacyError(
                f"{run.name} has the neighbouring relation replace_one, but the budget requires add_remove: set "
                "privacy.relation to 'add_remove', or use a budget for the relation replace_one"
            )
        undeclared = _facts(shared) - _facts(terms.shared)
        # one example of another value changes no size
        if (terms.unit, terms.relation) == ("sample", "replace_one"):
            undeclared.discard("sizes public")
        if undeclared:
            names = ", ".join(sorted(undeclared))
            fix = "use a budget with these conditions (--invariants), or other settings"
            raise PrivacyError(
                f"{run.name} guarantees only {relation}({names}), which has conditions that the budget does not "
                f"allow: {fix}"
            )
    if run.not_covered:
        raise PrivacyError(
            f"{run.name} reveals {', '.join(run.not_covered)}, which epsilon does not cover: leave out the setting "
            "that reveals this"
        )
    promise = Guarantee(terms.unit, terms.relation, terms.shared, aligned=False)
    trust = "+".join(dict.fromkeys(record.trust for record in run.records)) or "local"
    charges = privacy_costs(run, run.records, promise)
    return Share(run.name, charges, run.n_clients, run.data, trust, run.float64_noise)


def check_clients(shares: Sequence[Share], terms: BudgetTerms) -> None:
    """Raises an error for runs with different clients, if the budget protects whole clients.

    Raises:
        PrivacyError: If the numbers of clients differ, because the data of one client may then belong to several
            clients in another run.
    """
    if terms.unit == "client" and len({share.n_clients for share in shares}) > 1:
        counts = ", ".join(f"{share.name} {share.n_clients}" for share in shares)
        raise PrivacyError(
            f"the budget protects whole clients, but its runs have different numbers of clients ({counts}), so one "
            "client may be several clients of another run: use one budget for each set of clients"
        )


def compute_epsilon(shares: Sequence[Share], terms: BudgetTerms, enough: float = 0.0) -> tuple[float, str]:
    """Returns the joint epsilon of all runs, and the name of its bound; see `bounds.compute_worst_epsilon` for
    `enough`.
    """
    return bounds.compute_worst_epsilon(_histories(shares), terms.delta, enough, _only(terms))


def compute_spending(shares: Sequence[Share], terms: BudgetTerms) -> PrivacySpent:
    """Returns the joint epsilon of runs, with its conditions."""
    epsilon, name = compute_epsilon(shares, terms)
    relation = terms.relation + (f"({terms.shared})" if terms.shared else "")
    trusts = dict.fromkeys(trust for share in shares for trust in share.trust.split("+"))
    trust = "+".join(trusts) or "local"
    n_clients = max((share.n_clients for share in shares), default=1)
    added_in_float64 = dict.fromkeys(kind for share in shares for kind in share.float64_noise)
    return PrivacySpent(
        epsilon,
        terms.delta,
        terms.unit,
        relation,
        trust,
        name,
        (epsilon,) * n_clients,
        (),
        float64_noise=tuple(added_in_float64),
    )


def compute_remaining_epsilon(shares: Sequence[Share], terms: BudgetTerms) -> float:
    """Returns the epsilon of one more run that fits, rounded down.

    The run is assumed to have Gaussian noise without sampling, or Laplace noise if Gaussian noise has infinite epsilon.
    """
    histories = _histories(shares) or [{}]
    pure = _only(terms) == "pure"

    def fits(epsilon: float) -> bool:
        if pure:
            answer = Event("laplace", 1 / epsilon)
        else:
            answer = Event("gaussian", 1 / gaussian.compute_ratio(epsilon, terms.delta))
        extended = [{**history, answer: history.get(answer, 0) + 1} for history in histories]
        return bounds.compute_worst_epsilon(extended, terms.delta, terms.epsilon, _only(terms))[0] <= terms.epsilon

    return _largest(fits, terms.epsilon)


def _only(terms: BudgetTerms) -> str | None:
    """Returns the bound by which the cost of runs is computed, or None for the smallest bound. At delta 0, it is the
    bound for pure epsilon.
    """
    if terms.delta == 0:
        return "pure"
    return terms.accountant


def _histories(shares: Sequence[Share]) -> list[History]:
    if not shares:
        return []
    # client i is the same client in all runs only if they are known to hold the same examples
    data_are_known = len(shares) == 1 or shares[0].data is not None
    aligned = data_are_known and len({(share.data, share.n_clients) for share in shares}) == 1
    groups = merge_histories(
        [share.charges for share in shares], [share.n_clients for share in shares], aligned=aligned
    )
    return [history for _, history in groups]


def _largest(fits: Callable[[float], bool], limit: float) -> float:
    """Returns the largest number up to the limit that fits, rounded down; 0 if only negligible numbers fit."""
    if fits(limit):
        return limit
    low, high = 0.0, limit
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


def _facts(shared: str) -> set[str]:
    # versions up to 0.4 wrote "same slots" into the files of budgets
    return {fact.replace("same slots", "same blocks") for fact in shared.split(", ") if fact}
