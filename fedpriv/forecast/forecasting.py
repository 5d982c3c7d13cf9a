"""The privacy cost and the traffic of a run, computed before it starts and without its data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import torch
from torch import nn

from fedpriv.clients import (
    Client,
    Layout,
    PublicDataInfo,
    as_client_set,
    check_clients,
    count_frozen_parameters,
    public_sizes,
)
from fedpriv.errors import ConfigError, format_count
from fedpriv.forecast.claim import Claim, NoiseClaim
from fedpriv.forecast.noises import NoisesForecast, forecast_noises
from fedpriv.forecast.pairs import PairsForecast, forecast_pairs
from fedpriv.forecast.warnings import collect_draft_warnings
from fedpriv.models import Problem
from fedpriv.network import Graph, GraphFacts, Star, graph_line
from fedpriv.planning import (
    Compute,
    Plan,
    RunSketch,
    check_compute,
    check_problem,
    choose_network,
    notebook_display,
    suggest_argument,
    warn_of_missing_network,
)
from fedpriv.privacy import (
    Allocation,
    Cyclic,
    FixedSize,
    Gaussian,
    Pairwise,
    PerClient,
    Poisson,
    Privacy,
    Sampling,
    SamplingName,
    Uniform,
)
from fedpriv.privacy.accounting import PrivacySpent, account
from fedpriv.randomness import Randomness
from fedpriv.settings import Count, validate_arguments
from fedpriv.strategies import Strategy

Formula = Callable[[float, int, int, float], NoiseClaim]
RoundTimer = Callable[[RunSketch, Plan, Compute], tuple[float, str]]
"""Noise in the notation of a paper: deviation over the clip, rounds, examples of a client, active fraction."""

_SAMPLED: dict[SamplingName, SamplingName] = {
    "full": "poisson",
    "poisson": "poisson",
    "without_replacement": "without_replacement",
}


@dataclass(frozen=True)
class Forecast:
    """The cost of a run before it starts, as `plan` returns it.

    Attributes:
        strategy: The algorithm.
        rounds: Number of rounds.
        n_clients: Number of clients.
        examples: Fewest and most examples of a client.
        releases: Number of releases.
        noise_multiplier: Noise scale divided by sensitivity, in a round whose schedule share is 1; None without noise.
        spent: Epsilon of the whole run.
        first_round: Epsilon of the first round alone.
        parameters: Number of the model's trained parameters, which is the number of values in a message.
        frozen: Number of parameters that are not trained, and so neither sent nor noised.
        floats_per_round: Number of values that all participants together send and receive in a round, on average.
        bytes_per_round: `floats_per_round` in bytes.
        network: Properties of the graph; None for a network with a server.
        batches: Description of the sampling of examples.
        if_activity_hidden: Epsilon under the assumption of some papers that inactive nodes also send noise, so that the
            active ones are secret. In fedpriv inactive nodes are silent, so this epsilon is not guaranteed. None if all
            nodes are always active.
        seconds_per_round: Time of a round in seconds, measured on synthetic data of the same shape; None if not
            measured.
        backend: Backend with which the round was measured, and the reasons against faster backends; None if not
            measured.
        claim: The paper's privacy claim for a published variant.
        formula: The epsilon of the paper's noise formula for this noise; None where it does not apply.
        over_time: Description of correlated noise; None if the noise of rounds is independent.
        pairs: Noise that remains where pairs of clients add noise that cancels; None without pairwise noise.
        noises: Noise in the final model under alternative noise settings; None without alternatives.
        warnings: Warnings for the user.
        before: Number of releases of an earlier run that the run counts, with their epsilon; None if there are none.

    Examples:
        >>> import fedpriv
        >>> planned = fedpriv.plan([100] * 4, fedpriv.fedavg(0.1), fedpriv.Privacy(epsilon=1.0), rounds=5)
        >>> isinstance(planned, fedpriv.Forecast), planned.rounds, planned.examples
        (True, 5, (100, 100))
    """

    strategy: str
    rounds: int
    n_clients: int
    examples: tuple[int, int]
    releases: int
    noise_multiplier: float | None
    spent: PrivacySpent
    first_round: PrivacySpent
    parameters: int
    frozen: int
    floats_per_round: int
    bytes_per_round: int
    network: GraphFacts | None
    batches: str
    if_activity_hidden: float | None
    seconds_per_round: float | None
    backend: str | None
    claim: Claim | None
    formula: NoiseClaim | None
    over_time: str | None
    pairs: PairsForecast | None
    noises: NoisesForecast | None
    warnings: tuple[str, ...]
    before: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the forecast as values for JSON; infinity is `"inf"`."""
        return _plain(asdict(self))

    def rows(self) -> dict[str, str]:
        """Returns the output of `fedpriv plan`: the name and the text of each row."""
        smallest, largest = self.examples
        examples = f"{smallest}" if smallest == largest else f"{smallest} to {largest}"
        rows = {
            "strategy": f"{self.strategy}, {format_count(self.rounds, 'round')}",
            "clients": f"{self.n_clients}, with {examples} examples each",
            "privacy": str(self.spent),
            "one round": str(self.first_round),
            "noise multiplier": "none" if self.noise_multiplier is None else f"{self.noise_multiplier:.4g}",
            "batches": self.batches,
            "releases": str(self.releases),
        }
        if self.before is not None:
            rows["before round 1"] = self.before
        if self.parameters:
            a_round = format_bytes(self.bytes_per_round)
            whole = format_bytes(self.bytes_per_round * self.rounds)
            rows["messages"] = (
                f"{self.parameters:,} numbers each; {self.floats_per_round:,} numbers per round ({a_round}), "
                f"{whole} in the whole run"
            )
        if self.frozen:
            rows["parameters"] = f"{self.parameters:,} trained, {self.frozen:,} frozen"
        if self.over_time is not None:
            rows["noise"] = self.over_time
        if self.network is not None:
            rows["graph"] = graph_line(self.network)
        if self.if_activity_hidden is not None:
            rows["anyone who sees messages"] = (
                f"epsilon={self.spent.epsilon:.4g}, since it is visible which nodes are silent"
            )
            rows["final model only"] = (
                f"epsilon<={self.spent.epsilon:.4g}; amplified by sampling of nodes it would be "
                f"{self.if_activity_hidden:.4g}, which holds only if inactive nodes add noise too (not claimed)"
            )
        if self.formula is not None:
            rows["by the paper's formula"] = (
                f"this noise would be stated as epsilon={self.formula.stated_epsilon:.4g} "
                f"({self.formula.paper}, {self.formula.assumes}); its true privacy cost is "
                f"{self.spent.epsilon:.4g}"
            )
        if self.seconds_per_round is not None:
            whole = self.seconds_per_round * self.rounds
            rows["time"] = f"about {self.seconds_per_round:.3g} s per round, {whole:.3g} s in all, without evaluation"
        if self.backend is not None:
            rows["gradients"] = self.backend
        if self.claim is not None:
            rows["the paper's claim"] = f"{self.claim.stated} ({self.claim.paper})"
            views = "; ".join(f"{view}: {epsilon:.4g}" for view, epsilon in self.claim.views)
            if views:
                rows["its noise costs"] = f"epsilon at delta={self.spent.delta:g}, {views}"
        if self.pairs is not None:
            rows |= _format_collusion_cost(self.pairs)
        return rows

    def tables(self) -> list[list[str]]:
        """Returns tables of the noise that other settings would leave in the model, each a heading and lines."""
        return [comparison.lines() for comparison in (self.pairs, self.noises) if comparison is not None]

    def __str__(self) -> str:
        rows = self.rows()
        width = max(len(name) for name in rows)
        lines = [f"{name:<{width}}  {value}" for name, value in rows.items()]
        lines += [line for table in self.tables() for line in table]
        return "\n".join([*lines, *(f"warning: {warning}" for warning in self.warnings)])

    def _repr_html_(self) -> str:
        return notebook_display.format_card(
            f"plan of {self.strategy}", {**self.rows(), "warnings": " ".join(self.warnings)}
        )


def forecast(
    draft: RunSketch,
    *,
    compute: Compute | None = None,
    compare: bool = False,
    time_round: RoundTimer | None = None,
    claim: Claim | None = None,
    formula: Formula | None = None,
) -> Forecast:
    """Computes a run's epsilon, noise and traffic without training.

    Args:
        draft: The run.
        compute: Settings of speed.
        compare: True if the run is compared with a centralised solver.
        time_round: Measures a round on synthetic data of the same shape; returns the seconds and the backend.
        claim: The paper's privacy claim for a published variant.
        formula: The paper's noise formula, for runs that draw one example a round.

    Raises:
        ConfigError: If the run cannot work, or no noise reaches its target.
    """
    compute = compute or Compute()
    plan = draft.plan().on(compute.planned_device)
    network = draft.network
    check_compute(compute, draft.strategy, network, plan.privacy, draft.model, draft.loss)
    check_problem(draft.strategy, draft.problems, plan.privacy, plan.queries, compare=compare)
    parameters = Layout.of(draft.model).dim
    sizes = draft.outline.sizes
    floats = round(parameters * network.expected_rows)
    if time_round is None:
        seconds, backend = None, None
    else:
        seconds, backend = time_round(draft, plan, compute)
    return Forecast(
        strategy=draft.strategy.name,
        rounds=draft.rounds,
        n_clients=len(sizes),
        examples=(min(sizes), max(sizes)),
        releases=len(plan.records),
        noise_multiplier=plan.privacy.noise_multiplier,
        spent=plan.spent(),
        first_round=account(plan.records.in_round(0), plan.n_clients, plan.privacy.delta),
        parameters=parameters,
        frozen=count_frozen_parameters(draft.model),
        floats_per_round=floats,
        bytes_per_round=floats * torch.finfo(getattr(torch, compute.dtype)).bits // 8,
        network=network.facts(),
        batches=_format_batches(plan.privacy.sampling, min(sizes)),
        if_activity_hidden=_epsilon_with_hidden_activity(plan, network.active_fraction),
        seconds_per_round=seconds,
        backend=backend,
        claim=claim,
        formula=None if formula is None else _formula_claim(formula, draft, plan),
        over_time=_format_correlated_noise(plan, parameters),
        pairs=forecast_pairs(plan, network, Randomness(draft.seed)),
        noises=forecast_noises(draft, plan),
        warnings=tuple(collect_draft_warnings(draft, plan, claim)),
        before=_format_before(plan),
    )


@validate_arguments("", suggest_argument)
def plan(
    clients: Sequence[Client] | Sequence[int],
    strategy: Strategy,
    privacy: Privacy,
    *,
    rounds: Count,
    network: Star | Graph | None = None,
    model: nn.Module | None = None,
    seed: int = 0,
    compute: Compute | None = None,
) -> Forecast:
    """Computes the epsilon, noise, number of releases and traffic of a run, without training or reading an example.

    Args:
        clients: The clients, or the number of examples of each client if there are no data yet.
        strategy: The algorithm, as for `train`.
        privacy: The privacy settings, as for `train`.
        rounds: Number of rounds.
        network: The network, as for `train`; a server and all clients by default.
        model: The model, from which the size of messages is computed; by default the model of the clients.
        seed: Public seed of cohorts and links; 0 by default.
        compute: Settings of the computation.

    Returns:
        The forecast. It prints like the output of `fedpriv plan`; see `Forecast` for its attributes.

    Raises:
        ConfigError: If the run cannot work, or no noise reaches its target.

    Examples:
        >>> import fedpriv
        >>> privacy = fedpriv.Privacy(epsilon=3, sampling=fedpriv.Poisson(rate=0.1))
        >>> planned = fedpriv.plan([500] * 10, fedpriv.fedavg(0.5), privacy, rounds=20)
        >>> planned.releases, planned.spent.epsilon <= 3
        (20, True)
    """
    if len(clients) == 0:
        raise ConfigError(
            "clients",
            clients,
            "must contain at least one client: pass clients, or the number of examples of each client",
        )
    sizes = [int(size) for size in clients if isinstance(size, int)]
    problems = [Problem()]
    sizes_declared = False
    loss: nn.Module = nn.Identity()
    if len(sizes) < len(clients):  # clients with data: only their public sizes are used
        owners = cast("Sequence[Client]", clients)
        check_clients(owners)
        client_set = as_client_set(owners)
        sizes = public_sizes(owners, privacy)
        problems = list(client_set.problems)
        sizes_declared = client_set.sizes_declared
        model = model or owners[0].model
        loss = cast("nn.Module", owners[0].loss)
    if min(sizes) < 1:
        raise ConfigError("clients", min(sizes), "must be at least 1, as the number of examples of a client")
    outline = PublicDataInfo(tuple(sizes), (), None)
    draft = RunSketch(
        strategy,
        privacy,
        choose_network(len(sizes), network),
        rounds,
        outline,
        problems,
        model or nn.Identity(),
        loss,
        seed,
        sizes_declared=sizes_declared,
    )
    result = forecast(draft, compute=compute)
    if network is not None:
        return result
    by_network = warn_of_missing_network(strategy, len(sizes), "python")
    return replace(result, warnings=(*result.warnings, *by_network))


def _format_before(plan: Plan) -> str | None:
    """Returns the releases of an earlier run that a run counts, and their cost, in words; None if there are none."""
    if plan.first is None or plan.first.rounds:
        return None
    cost = account(plan.first.records, plan.n_clients, plan.privacy.delta)
    return f"{format_count(len(plan.first.records), 'release')}, {cost}; included in privacy"


def _format_batches(sampling: Sampling, fewest: int) -> str:
    if isinstance(sampling, Poisson):
        return f"each example with probability {sampling.rate:g} (Poisson)"
    if isinstance(sampling, Cyclic):
        if sampling.rate < 1:
            subsampling = f", each of its examples with probability {sampling.rate:g} (Poisson)"
        else:
            subsampling = ""
        return f"{sampling.blocks} fixed blocks of each client's examples, one per round in turn (cyclic){subsampling}"
    if isinstance(sampling, Allocation):
        return f"each example in one of {sampling.batches} batches of an epoch, drawn in secret (random allocation)"
    if sampling == FixedSize(1):
        return "exactly one example, drawn uniformly as by Liu, Johansson and Shi; accounted as without replacement"
    if isinstance(sampling, FixedSize):
        if fewest < sampling.size:
            exception = "; all examples of a client that has fewer"
        else:
            exception = ""
        return f"exactly {sampling.size} examples, without replacement{exception}"
    return "all examples"


def _format_correlated_noise(plan: Plan, parameters: int) -> str | None:
    """Returns the correlation of the noise and the memory of its history, in words; None if it is independent.

    The history has rows of float64, for each client or for the sum.
    """
    noise = plan.privacy.over_time
    if noise is None:
        return None
    if plan.privacy.trust.sums_only:
        rows = 1
    else:
        rows = plan.n_clients
    history_bytes = (len(noise.factor.band) or len(noise.factor.scales)) * rows * parameters * 8
    if noise.separation == 1:
        participation = "every round"
    else:
        participation = f"one of {noise.separation} rounds"
    if history_bytes:
        kind = f"cancels over rounds, needs {history_bytes / 1e6:.3g} MB of memory"
    else:
        kind = "independent"
    return f"{kind}; each {plan.privacy.unit} takes part in {participation}"


def _epsilon_with_hidden_activity(plan: Plan, active_fraction: float) -> float | None:
    """Returns the epsilon that would hold if inactive nodes also sent noise, so that the active nodes were secret.

    None if that changes nothing, or if no bound is known. In this calculation every node takes part in every round,
    and each record is sampled with the product of the fraction of active nodes and its sampling rate (the largest rate
    if clients have different ones).
    """
    kinds = plan.records.kinds
    units = {kind.unit for kind in kinds}
    if active_fraction == 1 or not plan.privacy.private or units != {"sample"}:
        return None
    if isinstance(plan.privacy.trust, Pairwise):  # the set of participants determines how well they hide each other
        return None
    if any(kind.sampling == "allocation" for kind in kinds):  # the cost of both together is unknown
        return None
    # a round without participants has no rates; the query's rates are taken from the last round that has some
    last = {number: position for position, number in enumerate(plan.records.numbers)}
    in_order = [kinds[number] for number in sorted(last, key=last.__getitem__)]
    rates = {kind.query: _largest(kind.rate) for kind in in_order if kind.rate}
    hidden = tuple(
        replace(kind, clients=None, sampling=_SAMPLED[kind.sampling], rate=active_fraction * rates.get(kind.query, 1.0))
        for kind in kinds
    )
    return account(plan.records.for_all_clients(hidden), plan.n_clients, plan.privacy.delta).epsilon


def _largest(rate: PerClient) -> float:
    if isinstance(rate, tuple):
        return max(rate)
    return rate


def _formula_claim(formula: Formula, draft: RunSketch, plan: Plan) -> NoiseClaim | None:
    """Returns the epsilon that the paper's formula gives for the run's noise; None if the formula does not apply.

    The formulas hold for equal clients, Gaussian noise of one size, and one example a round (exactly or in
    expectation).
    """
    privacy = plan.privacy
    sampling = privacy.sampling
    examples = min(draft.outline.sizes)
    one_each = sampling == FixedSize(1) or (
        isinstance(sampling, Poisson) and math.isclose(sampling.rate * examples, 1, rel_tol=0.01)
    )
    if not one_each or not privacy.private or privacy.unit != "sample" or isinstance(privacy.trust, Pairwise):
        return None
    if privacy.noise_multiplier is None or privacy.mechanism != Gaussian() or privacy.schedule != Uniform():
        return None
    noise = privacy.noise_multiplier * privacy.sensitivity / privacy.clip.bound
    return formula(noise, draft.rounds, examples, draft.network.active_fraction)


def _plain(value: Any) -> Any:  # noqa: ANN401 - a JSON value
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and math.isinf(value):
        return "inf"
    return value


def _format_collusion_cost(forecast: PairsForecast) -> dict[str, str]:
    rows = dict[str, str]()
    for case in forecast.if_others:
        name = f"if {case.colluders or 'none'} collude"
        rows[name] = "no bound is known" if case.spent is None else str(case.spent)
    return rows


def format_bytes(n_bytes: float) -> str:
    """Formats a number of bytes with a unit, e.g. `1.5 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.3g} TB"
