"""The privacy cost of a search, before anything is released."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fedpriv.config import Config
from fedpriv.config.building import load_plan
from fedpriv.errors import BudgetExhausted, ConfigError, PrivacyError
from fedpriv.planning import Plan
from fedpriv.privacy import RunCost, compose
from fedpriv.privacy.accounting import (
    PrivacySpent,
    count_costs,
    group_histories,
    make_dominating_history,
    round_up,
    search,
)
from fedpriv.tuning.settings import SearchSettings


@dataclass(frozen=True)
class SearchCost:
    """The privacy cost of a search.

    Attributes:
        spent: The cost of the whole search.
        one_trial: The cost of one trial alone.
        rests_on: The assumptions of the cost, as text.
    """

    spent: PrivacySpent
    one_trial: PrivacySpent
    rests_on: str


def plan_trial(config: Config) -> Plan:
    """Returns the releases of one trial.

    Raises:
        ConfigError: If a setting of the trial cannot be used.
    """
    return load_plan(config, config.seed or 0)


def compute_search_cost(settings: SearchSettings, plans: Sequence[Plan], data: str | None = None) -> SearchCost:
    """Returns the privacy cost of a whole search.

    Guarantee: an upper bound. If every trial is visible, it is the cost of all releases of all trials together: the
    settings of a trial may depend on earlier scores, but its noise may not. If the number is secret, see
    `accounting.search`.

    Args:
        settings: The settings of the search.
        plans: The plans of the trials, in order; a single plan represents all trials, which then cost the same.
        data: The settings that determine the clients' examples, which are then the same in all trials. None if nothing
            determines them, as for files that may change while the search is stopped: a unit may then be at the worst
            client of each trial.

    Raises:
        PrivacyError: If the cost of a secret number of trials is unknown for this adversary.
        BudgetExhausted: If the cost is above `settings.epsilon`.
    """
    one_trial = plans[0].spent()
    if settings.secret_trials is None:
        runs = [
            RunCost(
                f"trial {number}",
                plan.records,
                plan.n_clients,
                data,
                not_covered=plan.not_covered,
                float64_noise=plan.float64_noise,
            )
            for number, plan in enumerate(_plans_of_all_trials(settings, plans))
        ]
        spent = compose(runs, plans[0].privacy.delta)
        rests_on = "all results of all trials may be seen; the number of trials and their noise are fixed in advance"
    else:
        spent = _compute_hidden_cost(settings, plans[0], one_trial, data)
        rests_on = (
            "only the best trial's model and settings are published: not the number of trials (a secret "
            f"{settings.secret_trials} draw, {settings.trials} on average), their duration, or the other trials"
        )
    if settings.epsilon is not None and spent.epsilon > settings.epsilon:
        raise BudgetExhausted(
            f"the search would cost epsilon={_format_epsilon(spent.epsilon)} at delta={spent.delta:g}, more than its "
            f"limit of {settings.epsilon:g} (one trial costs epsilon={_format_epsilon(one_trial.epsilon)}); nothing "
            "was released. Use fewer trials, or more noise in each trial (a smaller privacy.epsilon), or raise the "
            "limit"
        )
    return SearchCost(spent, one_trial, rests_on)


def _compute_hidden_cost(
    settings: SearchSettings, plan: Plan, one_trial: PrivacySpent, data: str | None
) -> PrivacySpent:
    """Returns the cost of a search with a number of trials that is a secret draw."""
    trusts = {record.trust.partition("+")[0].partition("(")[0] for record in plan.records}
    if trusts != {"central"}:
        raise PrivacyError(
            "a secret number of trials (--secret-trials) gives no protection against observers of messages, which the "
            f"guarantee includes under trust: {', '.join(sorted(trusts))}. Use trust: central, or leave "
            "--secret-trials out, so that all trials are charged"
        )
    costs = count_costs(plan.records, plan.n_clients)
    client_histories = [history for _, history in group_histories(costs, plan.n_clients)]
    if data is None:
        client_histories = [make_dominating_history(client_histories)]
    epsilon = search.compute_hidden_epsilon(settings.number, client_histories, plan.privacy.delta)
    # a trial's other outputs besides its model are never published
    return replace(one_trial, epsilon=epsilon, accountant="rdp", per_client=(epsilon,) * plan.n_clients, not_covered=())


def _plans_of_all_trials(settings: SearchSettings, plans: Sequence[Plan]) -> list[Plan]:
    if len(plans) == 1:
        return list(plans) * settings.trials
    return list(plans)


def compute_reserved_cost(
    settings: SearchSettings, plans: Sequence[Plan], data: str | None, name: str, run_name: str
) -> RunCost:
    """Returns the cost of all releases of all trials, as charged to a lifetime budget."""
    # each trial draws separate batches: the epochs of different trials are different
    records = [
        replace(record, attempt=trial)
        for trial, plan in enumerate(_plans_of_all_trials(settings, plans))
        for record in plan.records
    ]
    return RunCost(
        name,
        records,
        plans[0].n_clients,
        data,
        not_covered=tuple(dict.fromkeys(fact for plan in plans for fact in plan.not_covered)),
        run_name=run_name,
        float64_noise=tuple(dict.fromkeys(kind for plan in plans for kind in plan.float64_noise)),
    )


def check_same_cost(plan: Plan, first: Plan, chosen: Mapping[str, object]) -> None:
    """Raises an error for a trial with another cost than the first, if the total holds only for equal costs.

    Args:
        plan: The plan of the trial.
        first: The plan of the first trial.
        chosen: The settings that were chosen for the trial.

    Raises:
        ConfigError: If the costs differ; the error names the chosen settings.
    """
    costs = (plan.n_clients, plan.privacy.delta, count_costs(plan.records, plan.n_clients))
    if costs == (first.n_clients, first.privacy.delta, count_costs(first.records, first.n_clients)):
        return
    fix = (
        "would give this trial a different privacy cost from the first trial, because it changes the noise or the "
        "queries. A search that learns from scores, or hides its number of trials, has a known privacy cost only if "
        "all trials cost the same: leave out fields such as rounds, privacy.epsilon and local steps, or use --sampler "
        "random without --secret-trials"
    )
    raise ConfigError("space", dict(chosen), fix)


def _format_epsilon(epsilon: float) -> str:
    if math.isfinite(epsilon):
        return round_up(epsilon)
    return "inf"
