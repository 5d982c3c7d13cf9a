"""What runs are charged in a budget, and what a budget of these terms can charge at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from fedpriv.errors import PrivacyError
from fedpriv.privacy.accounting import bounds, gaussian
from fedpriv.privacy.accounting.events import Event, History, PrivacyCost
from fedpriv.privacy.accounting.spent import PrivacySpent
from fedpriv.privacy.budget_file import BudgetLines, BudgetTerms, Reserved, from_plain
from fedpriv.privacy.composition import Guarantee, RunCost, charges_of, together

_STEPS = 8  # of the search for what is left: to less than a hundredth of the limit


@dataclass(frozen=True)
class Share:
    """What one run is charged.

    Attributes:
        name: What the run is called.
        charges: What it releases, priced for the budget's unit and relation.
        n_clients: Number of clients.
        data: Text that is the same for runs whose clients hold the same examples; None if that is not known.
        trust: Who is trusted, as printed.
    """

    name: str
    charges: Counter[PrivacyCost]
    n_clients: int
    data: str | None
    trust: str


def shares_of(lines: BudgetLines) -> dict[str, Share]:
    """What each run is charged, by the name of its noise."""
    found = dict[str, Share]()
    for change in lines.changes:
        if isinstance(change, Reserved):
            charges = from_plain(change.charges)
            found[change.reserve] = Share(change.run, charges, change.n_clients, change.data, change.trust)
        elif change.charges is not None:
            found[change.close] = replace(found[change.close], charges=from_plain(change.charges))
    return found


def share_of(run: RunCost, terms: BudgetTerms) -> Share:
    """A run's plan, priced for what a budget promises.

    Raises:
        PrivacyError: the run protects something else, or reveals what no epsilon covers.
    """
    for unit, relation, shared in run.kinds:
        if unit != terms.unit and (unit, terms.relation) != ("client", "replace_one"):
            raise PrivacyError(f"{run.name} protects one {unit}, and the budget one {terms.unit}")
        if (relation, terms.relation) == ("replace_one", "add_remove"):
            raise PrivacyError(f"{run.name} has relation replace_one, and the budget add_remove")
        more = _parts(shared) - _parts(terms.shared)
        # one example of another value changes no size
        more -= {"sizes public"} if (terms.unit, terms.relation) == ("sample", "replace_one") else set()
        if more:
            said, fix = ", ".join(sorted(more)), "take a budget that says so (--shared), or other settings"
            raise PrivacyError(f"{run.name} promises {relation}({said}), which is less than the budget: {fix}")
    if run.not_covered:
        raise PrivacyError(f"{run.name} reveals what no epsilon covers ({', '.join(run.not_covered)}): leave it out")
    promise = Guarantee(terms.unit, terms.relation, terms.shared, aligned=False)
    trust = "+".join(dict.fromkeys(record.trust for record in run.records)) or "local"
    return Share(run.name, charges_of(run, run.records, promise), run.n_clients, run.data, trust)


def check_clients(shares: Sequence[Share], terms: BudgetTerms) -> None:
    """Refuse runs whose whole clients are not the same.

    Raises:
        PrivacyError: there are other numbers of them, so that one client's data may be several clients' elsewhere.
    """
    if terms.unit == "client" and len({one.n_clients for one in shares}) > 1:
        said = ", ".join(f"{one.name} {one.n_clients}" for one in shares)
        raise PrivacyError(f"the budget protects whole clients, and runs have other ones ({said}): take one for each")


def epsilon_of(shares: Sequence[Share], terms: BudgetTerms, enough: float = 0.0) -> tuple[float, str]:
    """The price of runs together, and the bound that won; up to `enough` without tight bounds."""
    return bounds.worst(_histories(shares), terms.delta, enough, _only(terms))


def spent_by(shares: Sequence[Share], terms: BudgetTerms) -> PrivacySpent:
    """The price of runs together, with its conditions."""
    epsilon, name = epsilon_of(shares, terms)
    relation = terms.relation + (f"({terms.shared})" if terms.shared else "")
    trust = "+".join(dict.fromkeys(part for one in shares for part in one.trust.split("+"))) or "local"
    n_clients = max((one.n_clients for one in shares), default=1)
    return PrivacySpent(epsilon, terms.delta, terms.unit, relation, trust, name, (epsilon,) * n_clients, ())


def left_of(shares: Sequence[Share], terms: BudgetTerms) -> float:
    """Epsilon of one more run that fits, rounded down: of Gaussian noise, or of Laplace where only that has a price."""
    histories = _histories(shares) or [{}]
    pure = _only(terms) == "pure"

    def fits(epsilon: float) -> bool:
        if pure:
            one = Event("laplace", 1 / epsilon)
        else:
            one = Event("gaussian", 1 / gaussian.ratio_of(epsilon, terms.delta))
        more = [{**history, one: history.get(one, 0) + 1} for history in histories]
        return bounds.worst(more, terms.delta, terms.epsilon, _only(terms))[0] <= terms.epsilon

    return _largest(fits, terms.epsilon)


def _only(terms: BudgetTerms) -> str | None:
    """The one bound to look at: at delta 0 no other one is as small."""
    if terms.delta == 0:
        return "pure"
    return terms.accountant


def _histories(shares: Sequence[Share]) -> list[History]:
    if not shares:
        return []
    known = len(shares) == 1 or shares[0].data is not None
    aligned = known and len({(one.data, one.n_clients) for one in shares}) == 1
    found = together([one.charges for one in shares], [one.n_clients for one in shares], aligned=aligned)
    return [history for _, history in found]


def _largest(fits: Callable[[float], bool], limit: float) -> float:
    """The largest number up to the limit that fits, from below; 0 where hardly any does."""
    if fits(limit):
        return limit
    low, high = 0.0, limit
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if fits(middle):
            low, high = (middle, high)
        else:
            low, high = (low, middle)
    return low


def _parts(shared: str) -> set[str]:
    return {part for part in shared.split(", ") if part}
