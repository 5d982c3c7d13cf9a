"""What a run will cost, before it starts."""

from __future__ import annotations

import math
import time
import warnings
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch.utils.data import TensorDataset

from fedpriv.clients.client import make_clients
from fedpriv.clients.layout import Layout
from fedpriv.config.advice import advice
from fedpriv.config.building import Outline, make_model, outline, plan_of
from fedpriv.config.network import check_cohort
from fedpriv.config.schema import Config
from fedpriv.config.strategies import STRATEGIES
from fedpriv.errors import PromiseWarning
from fedpriv.models import shipped
from fedpriv.network.graph import Facts
from fedpriv.privacy.accounting.accountant import account
from fedpriv.privacy.accounting.spent import Spent
from fedpriv.privacy.claims import Claim, NoiseClaim
from fedpriv.privacy.mechanisms import Gaussian
from fedpriv.privacy.record import PerClient, SamplingName
from fedpriv.privacy.schedules import Uniform
from fedpriv.privacy.settings import FixedSize, Poisson, Sampling
from fedpriv.published.recipe import Recipe
from fedpriv.runs import fit
from fedpriv.runs.planning import Plan
from fedpriv.runs.training import Training

_SAMPLED: dict[SamplingName, SamplingName] = {
    "full": "poisson",
    "poisson": "poisson",
    "without_replacement": "without_replacement",
}


@dataclass(frozen=True)
class Forecast:
    """The cost of a run.

    Attributes:
        strategy: The algorithm.
        rounds: Number of rounds.
        n_clients: Number of clients.
        examples: Fewest and most examples of a client.
        releases: Number of noised answers.
        noise_multiplier: Noise over sensitivity in a round of share 1; None without noise.
        spent: Privacy of the whole run.
        first_round: Privacy of the first round alone.
        parameters: Numbers in a message.
        floats_per_round: Numbers sent and received by all participants, on average.
        bytes_per_round: The same in bytes.
        network: What is known of the graph; None on a star.
        batches: How the examples of an answer are drawn.
        if_activity_hidden: Epsilon if nobody learned who is active and inactive nodes sent noise too, so that
            sampling of nodes amplified. Papers claim it, even against whoever sees messages; here inactive nodes are
            silent, so no bound below `spent` is claimed against anybody. None where all nodes are active.
        seconds_per_round: Measured on made-up data of the same shape; None when not asked for.
        claim: What the paper says of its published variant.
        formula: What the paper's noise formula would call this run's noise; None where the formula does not apply.
        warnings: What the user should know.
    """

    strategy: str
    rounds: int
    n_clients: int
    examples: tuple[int, int]
    releases: int
    noise_multiplier: float | None
    spent: Spent
    first_round: Spent
    parameters: int
    floats_per_round: int
    bytes_per_round: int
    network: Facts | None
    batches: str
    if_activity_hidden: float | None
    seconds_per_round: float | None
    claim: Claim | None
    formula: NoiseClaim | None
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values; infinity is `"inf"`."""
        return _plain(asdict(self))


def forecast(config: Config, *, timed: bool = False) -> Forecast:
    """Price a run without training; its data are read only where their size is not known beforehand.

    Args:
        config: The run.
        timed: Measure a round on made-up data of the same shape.

    Raises:
        ConfigError: the run cannot be made, or its target cannot be reached.
    """
    seen = outline(config)
    check_cohort(config.network, len(seen.sizes))
    plan = plan_of(config, seen, config.promise(len(seen.sizes)))
    recipe = config.recipe(len(seen.sizes))
    server = config.problem.of_server()
    problems = [config.problem.build(), *([server] if server else [])]
    fit.check_problem(recipe.strategy, problems, plan.privacy, plan.asked, compare=config.problem.compare)
    model = make_model(config, seen)[0]
    parameters = Layout.of(model).dim
    network = config.network.build(len(seen.sizes))
    floats = round(parameters * network.expected_rows)
    claim = _claim(config, recipe)
    return Forecast(
        strategy=recipe.strategy.name,
        rounds=config.rounds,
        n_clients=len(seen.sizes),
        examples=(min(seen.sizes), max(seen.sizes)),
        releases=len(plan.records),
        noise_multiplier=plan.privacy.noise_multiplier,
        spent=plan.spent(),
        first_round=account([r for r in plan.records if r.round == 0], plan.n_clients, plan.privacy.delta),
        parameters=parameters,
        floats_per_round=floats,
        bytes_per_round=floats * torch.finfo(getattr(torch, config.compute.dtype)).bits // 8,
        network=network.facts(),
        batches=_batches(plan.privacy.sampling, min(seen.sizes)),
        if_activity_hidden=_if_hidden(plan, network.active_fraction),
        seconds_per_round=_seconds(config, seen, plan) if timed else None,
        claim=claim,
        formula=_formula(config, seen, plan, network.active_fraction),
        warnings=(
            *advice(config, seen, plan, recipe.strategy, network, claim),
            *(shipped(model) if plan.privacy.private else []),
        ),
    )


def _batches(sampling: Sampling, fewest: int) -> str:
    if isinstance(sampling, Poisson):
        return f"each example with probability {sampling.rate:g} (Poisson)"
    if sampling == FixedSize(1):
        return "exactly one example, uniformly, as Liu, Johansson and Shi draw it; priced as without replacement"
    if isinstance(sampling, FixedSize):
        smaller = "; all of them where a client has fewer" if fewest < sampling.size else ""
        return f"exactly {sampling.size} examples, without replacement{smaller}"
    return "all examples"


def _if_hidden(plan: Plan, active_fraction: float) -> float | None:
    """Every node in every round, each record with the product of both probabilities (the larger of unequal ones)."""
    units = {record.unit for record in plan.records}
    if active_fraction == 1 or not plan.privacy.private or units != {"sample"}:
        return None
    firsts = {(record.round, record.index): record for record in plan.records}
    # a round without anyone has no rates of its own
    rates = {record.query: _largest(record.rate) for record in plan.records if record.rate}
    hidden = [
        replace(r, clients=None, sampling=_SAMPLED[r.sampling], rate=active_fraction * rates.get(r.query, 1.0))
        for r in firsts.values()
    ]
    return account(hidden, plan.n_clients, plan.privacy.delta).epsilon


def _largest(rate: PerClient) -> float:
    return max(rate) if isinstance(rate, tuple) else rate


def _claim(config: Config, recipe: Recipe) -> Claim | None:
    epsilon_bar = config.privacy.epsilon_bar
    if recipe.claim is None or epsilon_bar is None or math.isinf(epsilon_bar):
        return None
    return recipe.claim(config.privacy.delta)


def _formula(config: Config, seen: Outline, plan: Plan, active_fraction: float) -> NoiseClaim | None:
    """Formulas are for equal clients, Gaussian noise of one size, and an example a round (also: one in expectation)."""
    entry, privacy, examples = STRATEGIES.get(config.strategy.name), plan.privacy, min(seen.sizes)
    sampling = privacy.sampling
    one_each = sampling == FixedSize(1) or (
        isinstance(sampling, Poisson) and math.isclose(sampling.rate * examples, 1, rel_tol=0.01)
    )
    if entry is None or entry.formula is None or not one_each or not privacy.private or privacy.unit != "sample":
        return None
    if privacy.noise_multiplier is None or privacy.mechanism != Gaussian() or privacy.schedule != Uniform():
        return None
    noise = privacy.noise_multiplier * privacy.sensitivity / privacy.clip.bound
    return entry.formula(noise, config.rounds, examples, active_fraction)


def _seconds(config: Config, seen: Outline, plan: Plan) -> float:
    """Time of a round, on made-up data: the first round also pays for what is done once."""
    classes = seen.n_classes
    targets = [torch.rand(m) if classes is None else torch.randint(classes, (m,)) for m in seen.sizes]
    made_up = [TensorDataset(torch.rand(len(y), *seen.input_shape), y) for y in targets]
    clients = make_clients(*make_model(config, seen), made_up)
    privacy = replace(plan.privacy, epsilon=None)
    network = config.network.build(len(clients))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PromiseWarning)  # of made-up data
        training = Training(
            clients,
            config.recipe(len(clients)).strategy,
            privacy,
            rounds=2,
            network=network,
            compute=config.compute.build(),
        )
    first, second = (time.monotonic() for _ in training)
    return second - first


def _plain(value: Any) -> Any:  # noqa: ANN401 - a JSON value
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return "inf" if isinstance(value, float) and math.isinf(value) else value
