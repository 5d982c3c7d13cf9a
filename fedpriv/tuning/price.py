"""What a search costs, before anything is released."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fedpriv.config import Config
from fedpriv.config.building import planned
from fedpriv.errors import BudgetExhausted, ConfigError, PrivacyError
from fedpriv.planning.plan import Plan
from fedpriv.privacy.accounting import search
from fedpriv.privacy.accounting.epochs import costs_of
from fedpriv.privacy.accounting.events import PrivacyCost, histories
from fedpriv.privacy.accounting.spent import PrivacySpent, round_up
from fedpriv.privacy.composition import RunCost, compose
from fedpriv.privacy.record import Record
from fedpriv.tuning.settings import SearchSettings


@dataclass(frozen=True)
class SearchPrice:
    """What a search costs.

    Attributes:
        spent: The whole search.
        one: One trial alone.
        rests_on: What must hold, in words.
    """

    spent: PrivacySpent
    one: PrivacySpent
    rests_on: str


def plan_of(config: Config) -> Plan:
    """The releases of one trial.

    Raises:
        ConfigError: it cannot work.
    """
    return planned(config, config.seed or 0)


def price_of(settings: SearchSettings, plans: Sequence[Plan]) -> SearchPrice:
    """The price of a whole search.

    Guarantee: an upper bound. If every trial is seen, it is that of all answers of all trials together: each trial's
    settings may depend on the scores before, and its noise not. If the number is hidden, see `accounting.search`.

    Args:
        settings: Of the search.
        plans: Of the trials, in order; one that stands for all where they cost alike.

    Raises:
        PrivacyError: a hidden number of trials has no price for this adversary.
        BudgetExhausted: it is more than `settings.epsilon`.
    """
    one = plans[0].spent()
    if settings.hidden is None:
        runs = [_spending(f"trial {k}", plan) for k, plan in enumerate(_all(settings, plans))]
        spent = compose(runs, plans[0].privacy.delta)
        rests_on = "all answers of all trials may be seen; the number of trials and their noise are fixed beforehand"
    else:
        spent = _hidden(settings, plans[0], one)
        rests_on = (
            "only the best trial's model and settings are ever seen: not how many trials there were (a secret "
            f"{settings.hidden} draw, {settings.trials} on average), how long they took, or the others"
        )
    if settings.epsilon is not None and spent.epsilon > settings.epsilon:
        raise BudgetExhausted(
            f"the search would cost epsilon={_text(spent.epsilon)} at delta={spent.delta:g}, more than "
            f"{settings.epsilon:g}, and a trial {_text(one.epsilon)}; nothing was released. Use fewer trials, or more "
            "noise in each (a smaller privacy.epsilon)"
        )
    return SearchPrice(spent, one, rests_on)


def _hidden(settings: SearchSettings, plan: Plan, one: PrivacySpent) -> PrivacySpent:
    trusts = {record.trust.partition("+")[0].partition("(")[0] for record in plan.records}
    if trusts != {"central"}:
        raise PrivacyError(
            "a hidden number of trials hides nothing from who sees messages, as under trust: "
            f"{', '.join(sorted(trusts))}. Use trust: central, or leave --hidden out: then all trials are paid for"
        )
    found = [history for _, history in histories(charges_of(plan.records, plan.n_clients), plan.n_clients)]
    epsilon = search.hidden(settings.number, found, plan.privacy.delta)
    return replace(one, epsilon=epsilon, accountant="rdp", per_client=(epsilon,) * plan.n_clients)


def _all(settings: SearchSettings, plans: Sequence[Plan]) -> list[Plan]:
    return list(plans) * (settings.trials if len(plans) == 1 else 1)


def reservation(settings: SearchSettings, plans: Sequence[Plan], data: str | None, name: str, noise: str) -> RunCost:
    """All answers of all trials, as a lifetime budget charges them."""
    records = [record for plan in _all(settings, plans) for record in plan.records]
    return RunCost(name, records, plans[0].n_clients, data, noise=noise)


def charges_of(records: Sequence[Record], n_clients: int) -> Counter[PrivacyCost]:
    """What records cost, whatever their order."""
    return Counter(costs_of(records, n_clients))


def check_alike(plan: Plan, first: Plan, chosen: Mapping[str, object]) -> None:
    """Refuse a trial that costs other than the first, where the price needs all to cost alike.

    Raises:
        ConfigError: names what was chosen.
    """
    if (plan.n_clients, plan.privacy.delta) == (first.n_clients, first.privacy.delta) and charges_of(
        plan.records, plan.n_clients
    ) == charges_of(first.records, first.n_clients):
        return
    fix = (
        "would give this trial another noise, or other answers, than the first. A search that learns from scores, or "
        "hides its number of trials, has a price if all trials cost alike: leave out fields such as rounds, "
        "privacy.epsilon and local steps, or let the sampler be random and all trials be seen"
    )
    raise ConfigError("space", dict(chosen), fix)


def _text(epsilon: float) -> str:
    if math.isfinite(epsilon):
        return round_up(epsilon)
    return "inf"


def _spending(name: str, plan: Plan) -> RunCost:
    return RunCost(name, plan.records, plan.n_clients, "the same in all trials")
