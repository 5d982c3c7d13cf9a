"""What a run will cost, before it starts."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch.utils.data import TensorDataset

from fedpriv import models
from fedpriv.config.building import Outline, make_model, outline
from fedpriv.config.files import fingerprint
from fedpriv.config.schema import Config, check_cohort
from fedpriv.config.strategies import STRATEGIES
from fedpriv.network.local import Star
from fedpriv.planning import Plan, make_plan
from fedpriv.privacy.accountant import account
from fedpriv.privacy.calibration import delta_warning
from fedpriv.privacy.claims import Claim
from fedpriv.privacy.clipping import Clip
from fedpriv.privacy.mechanisms import Gaussian, Laplace
from fedpriv.privacy.randomness import Randomness
from fedpriv.privacy.settings import Privacy
from fedpriv.privacy.spent import Spent
from fedpriv.training import Training, make_clients


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
        seconds_per_round: Measured on made-up data of the same shape; None when not asked for.
        claim: What the paper says of its published variant.
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
    seconds_per_round: float | None
    claim: Claim | None
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
    plan = _plan(config, seen, config.promise())
    parameters = sum(p.numel() for p in make_model(config, seen.input_shape, seen.n_classes).parameters())
    floats = round(2 * parameters * config.network.cohort.build().expected(len(seen.sizes)))
    recipe = config.recipe()
    claim = _claim(config)
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
        seconds_per_round=_seconds(config, seen, plan) if timed else None,
        claim=claim,
        warnings=tuple(_warnings(config, seen, plan, claim)),
    )


def _plan(config: Config, seen: Outline, privacy: Privacy) -> Plan:
    star = Star(len(seen.sizes), config.network.cohort.build())
    randomness = Randomness(config.seed or 0, run=fingerprint(config))
    return make_plan(config.recipe().strategy, privacy, seen.sizes, star, rounds=config.rounds, randomness=randomness)


def _claim(config: Config) -> Claim | None:
    entry, epsilon_bar = STRATEGIES.get(config.strategy.name), config.privacy.epsilon_bar
    if (own := config.recipe().claim) is not None:
        return own
    if entry is None or entry.claim is None or epsilon_bar is None or math.isinf(epsilon_bar):
        return None
    return entry.claim(epsilon_bar, config.rounds, config.privacy.delta)


def _warnings(config: Config, seen: Outline, plan: Plan, claim: Claim | None) -> list[str]:
    privacy = plan.privacy
    if claim is not None:
        return [
            f"not private as published: {claim.why_not}",
            f"the paper's epsilon of {claim.stated_epsilon:g} is that of {claim.scope}; if its noise were sound, "
            f"the run would cost {claim.basic_total:g} by basic composition and {claim.tight_total:.4g} by the "
            "tightest bound",
        ]
    if not privacy.private:
        return ["the run makes no promise: its answers are exact or their noise is not private"]
    warnings: list[str] = []
    units = sum(seen.sizes) if privacy.unit == "sample" else len(seen.sizes)
    if said := delta_warning(privacy.delta, units):
        warnings.append(said)
    if isinstance(privacy.mechanism, Laplace) and privacy.delta > 0:
        warnings.extend(_laplace_warning(config, seen, plan))
    return warnings


def _laplace_warning(config: Config, seen: Outline, plan: Plan) -> list[str]:
    """Over many rounds Gaussian noise is smaller at the same (epsilon, delta)."""
    assert plan.privacy.noise_multiplier is not None
    target, clip = plan.spent().epsilon, Clip(plan.privacy.clip.bound, "l2")
    other = replace(plan.privacy, epsilon=target, noise_multiplier=None, mechanism=Gaussian(), clip=clip)
    gaussian = _plan(config, seen, other).privacy.noise_multiplier
    assert gaussian is not None
    # the standard deviation of Laplace noise of scale b is sqrt(2) b
    ratio = gaussian / (math.sqrt(2) * plan.privacy.noise_multiplier)
    if ratio >= 1:
        return []
    return [
        f"mechanism: gaussian with an l2 clip of the same bound needs {1 - ratio:.0%} less noise for the same epsilon "
        "(standard deviation per coordinate), and an l2 clip takes less away from a dense gradient than an l1 clip"
    ]


def _seconds(config: Config, seen: Outline, plan: Plan) -> float:
    """Time of a round, on made-up data: the first round also pays for what is done once."""
    made_up = [TensorDataset(torch.rand(m, *seen.input_shape), torch.randint(seen.n_classes, (m,))) for m in seen.sizes]
    model = make_model(config, seen.input_shape, seen.n_classes)
    clients = make_clients(model, models.resolve_loss(config.loss.name, **config.loss.options), made_up)
    privacy = replace(plan.privacy, epsilon=None)
    star = Star(len(clients), config.network.cohort.build())
    training = Training(
        clients, config.recipe().strategy, privacy, rounds=2, network=star, compute=config.compute.build()
    )
    first, second = (report.seconds for report in training)
    return second - first


def _plain(value: Any) -> Any:  # noqa: ANN401 - a JSON value
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return "inf" if isinstance(value, float) and math.isinf(value) else value
