"""What the user of a configuration should know before the run."""

from __future__ import annotations

import math
from dataclasses import replace

from fedpriv.config.building import Outline, plan_of
from fedpriv.config.schema import Config
from fedpriv.config.statistics import noise_notes, statistics_notes
from fedpriv.data.partition import LABEL_DEPENDENT
from fedpriv.engines.local import RoundNetwork
from fedpriv.network import mixing
from fedpriv.network.graph import Graph
from fedpriv.privacy.claims import Claim
from fedpriv.privacy.clipping import Clip
from fedpriv.privacy.mechanisms import Gaussian, Laplace
from fedpriv.privacy.settings import SECURE_IS_GONE
from fedpriv.runs.planning import Plan
from fedpriv.runs.training import Training
from fedpriv.strategies.base import Strategy
from fedpriv.strategies.svrg import SendDifference
from fedpriv.strategies.tracking import ImplicitTracking


def advice(
    config: Config, seen: Outline, plan: Plan, strategy: Strategy, network: RoundNetwork, claim: Claim | None
) -> list[str]:
    """Warnings, each a sentence or two with its numbers; `claim` is what the paper says of its published variant."""
    return [
        *_promise_warnings(config, seen, plan, claim),
        *_steps_warning(strategy, network),
        *_epochs_warning(strategy, config.rounds),
    ]


def at_start(config: Config, training: Training) -> list[str]:
    """The same for a run that begins, without what would take another plan or stands in its first lines."""
    return [
        *([f"privacy.secure {SECURE_IS_GONE}"] if config.privacy.secure is not None else []),
        *training.warnings,
        *(_partition_warning(config) if training.plan.privacy.private else []),
        *noise_notes(config, training),
        *_steps_warning(training.strategy, training.network),
        *_epochs_warning(training.strategy, config.rounds),
    ]


def _promise_warnings(config: Config, seen: Outline, plan: Plan, claim: Claim | None) -> list[str]:
    privacy = plan.privacy
    if claim is not None:
        return [
            f"not private as published: {claim.why_not}",
            f"the paper's epsilon of {claim.stated_epsilon:g} is that of {claim.scope}; if what it assumes held, "
            f"the run would cost {claim.basic_total:g} by basic composition and {claim.tight_total:.4g} by the "
            "tightest bound",
        ]
    if not privacy.private:
        return ["the run makes no promise: its answers are exact or their noise is not private"]
    costly = isinstance(privacy.mechanism, Laplace) and privacy.delta > 0
    laplace = _laplace_warning(config, seen, plan) if costly else []
    return [*plan.warnings(seen.sizes), *_partition_warning(config), *statistics_notes(config, seen, plan), *laplace]


def _partition_warning(config: Config) -> list[str]:
    kind = config.data.partition.kind
    if kind not in LABEL_DEPENDENT:
        return []
    return [
        f"data.partition.kind = {kind} looks at the labels: one other label would move other examples to other "
        "clients, and epsilon does not cover that. It simulates owners who hold their data already"
    ]


def _laplace_warning(config: Config, seen: Outline, plan: Plan) -> list[str]:
    """Over many rounds Gaussian noise is smaller at the same (epsilon, delta)."""
    assert plan.privacy.noise_multiplier is not None
    target, clip = plan.spent().epsilon, Clip(plan.privacy.clip.bound, "l2")
    other = replace(plan.privacy, epsilon=target, noise_multiplier=None, mechanism=Gaussian(), clip=clip)
    gaussian = plan_of(config, seen, other).privacy.noise_multiplier
    assert gaussian is not None
    # the standard deviation of Laplace noise of scale b is sqrt(2) b
    ratio = gaussian / (math.sqrt(2) * plan.privacy.noise_multiplier)
    if ratio >= 1:
        return []
    return [
        f"mechanism: gaussian with an l2 clip of the same bound needs {1 - ratio:.0%} less noise for the same epsilon "
        "(standard deviation per coordinate), and an l2 clip takes less away from a dense gradient than an l1 clip"
    ]


def _steps_warning(strategy: Strategy, network: RoundNetwork) -> list[str]:
    """Geometric steps of gradient tracking that fall more slowly than its proof allows: as in the paper itself."""
    step = strategy.local_step
    if not (isinstance(step, ImplicitTracking) and isinstance(network, Graph) and step.step_size.ratio < 1):
        return []
    proved = mixing.tracking_ratio(network.weights)
    if step.step_size.ratio <= proved:
        return []
    return [
        f"step_size.ratio = {step.step_size.ratio:g}: the paper's proof of convergence needs at most {proved:.2g} "
        "on this graph (its own experiments use .92 and more)"
    ]


def _epochs_warning(strategy: Strategy, rounds: int) -> list[str]:
    """Variance reduction reports the anchor, which moves when an epoch ends."""
    step = strategy.local_step
    if not isinstance(step, SendDifference):
        return []
    whole = step.epochs.whole(rounds)
    used, following = step.epochs.rounds(whole), step.epochs.rounds(whole + 1)
    if used == rounds:
        return []
    if not used:
        return [f"rounds = {rounds}: the first epoch ends after {following}, so the model stays where it starts"]
    return [
        f"rounds = {rounds}: epochs end after {used} and after {following}, so the last {rounds - used} rounds are "
        "paid for and not used"
    ]
