"""What the noise of private constraint values does to a run, before it starts."""

from __future__ import annotations

import math

import torch

from fedpriv.clients.layout import Layout
from fedpriv.config.building import Outline, make_model
from fedpriv.config.schema import Config
from fedpriv.privacy.clipping import Clip
from fedpriv.runs.planning import Plan
from fedpriv.runs.training import Training


def statistics_notes(config: Config, seen: Outline, plan: Plan) -> list[str]:
    """Sentences about the noise of constraint values, the split of the budget, and a beta that is too large.

    Only where constraints state public fractions: else the noise depends on counts that a plan does not look up.
    """
    asked = [record for record in plan.records if record.query == "statistic:constraints"]
    problem = config.problem.build()
    if not asked or problem.counts_are_public or not problem.constraints:
        return []
    privacy = plan.privacy
    clip, fewest = Clip(1.0, privacy.clip.norm), min(seen.sizes)
    table = problem.table(torch.zeros(fewest, *seen.input_shape), torch.zeros(fewest, dtype=torch.long))
    if table is None:
        return []
    reach = float(clip.norms(table.largest.double())) * privacy.statistics.bound / 2
    noise = asked[0].noise_multiplier
    multiplier = max(noise) if isinstance(noise, tuple) else noise
    deviation = multiplier * privacy.sensitivity_of(clip) * reach * privacy.mechanism.deviation
    beta = float(config.strategy.options.get("beta", 1.0))
    share = suggested_share(config, seen, reach, beta, fewest, privacy.clip.bound)
    note = (
        f"noise of a constraint value: standard deviation {deviation:.3g} for the smallest client ({fewest} "
        f"examples); values take {privacy.statistics.share:.0%} of each round's budget, suggested: {share:.0%}"
    )
    return [note, *_drowned(config, deviation)]


def noise_notes(config: Config, training: Training) -> list[str]:
    """As a run begins: what to say of a beta that is too large, declared counts and drawn batches included."""
    plan = training.plan
    if not plan.privacy.private or all(record.query != "statistic:constraints" for record in plan.records):
        return []
    return _drowned(config, float(training.oracle.statistic_deviation(0).max()))


def _drowned(config: Config, deviation: float) -> list[str]:
    options = config.strategy.options
    if not {"beta", "largest"} <= {*options}:
        return []  # a user's own strategy
    beta, largest = float(options["beta"]), float(options["largest"])
    if beta * deviation <= largest / 10:
        return []
    return [
        f"beta = {beta:g} drowns the multipliers in noise: a step of theirs has standard deviation "
        f"{beta * deviation:.3g} where their cap is {largest:g}; use a beta of at most "
        f"{largest / 10 / deviation:.2g}, a larger share for values, fewer rounds or more examples a client"
    ]


def suggested_share(config: Config, seen: Outline, reach: float, beta: float, examples: int, clip: float) -> float:
    """The share with the least noise in a step.

    A step's noise is the gradient's, of squared norm `dim (clip / m)^2 / (1 - share)`, and that of the multipliers
    times a constraint's gradient, of norm at most about the clip: `(beta reach clip)^2 / share`. With numerators a^2
    and b^2 the sum is least at b / (a + b).
    """
    dim = Layout.of(make_model(config, seen)[0]).dim
    a, b = math.sqrt(dim) * clip / examples, beta * reach * clip
    return b / (a + b)
