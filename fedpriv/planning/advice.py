"""Warnings before a run: what weakens its privacy, and what its settings will do."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from fedpriv.clients.layout import Layout
from fedpriv.models import shipped
from fedpriv.network.graph import Graph
from fedpriv.network.rounds import RoundNetwork
from fedpriv.planning.claim import Claim
from fedpriv.planning.plan import Plan, RunSketch
from fedpriv.privacy.clipping import Clip
from fedpriv.privacy.mechanisms import Gaussian, Laplace
from fedpriv.privacy.pairwise import variance_inflation
from fedpriv.strategies.advice import ConstraintNoise, Outlook


def warnings_of_draft(draft: RunSketch, plan: Plan, claim: Claim | None = None) -> list[str]:
    """Warnings for a draft of a run; `claim` is the paper's privacy claim for a published variant."""
    privacy = plan.privacy
    noise = _constraint_noise(draft, plan)
    found: list[str] = []
    if claim is not None:
        found += [
            f"not private as published: {claim.why_not}",
            f"the paper's epsilon of {claim.stated_epsilon:g} is that of {claim.scope}; if what it assumes held, "
            f"the run would cost {claim.basic_total:g} by basic composition and {claim.tight_total:.4g} by the "
            "tightest bound",
        ]
    elif not privacy.private:
        found.append("the run makes no promise of privacy: its answers are exact or their noise is not private")
    if privacy.private:
        found += plan.warnings(draft.outline.sizes)
        found += [] if noise is None else [_deviation(noise, privacy.statistics.share)]
        found += _laplace(draft, plan)
    found += draft.strategy.advice(Outlook(draft.rounds, graph_of(draft.network), noise))
    return [*found, *(shipped(draft.model) if privacy.private else [])]


def graph_of(network: RoundNetwork) -> Graph | None:
    """The graph, where there is one and not a server."""
    if isinstance(network, Graph):
        return network
    return None


def _constraint_noise(draft: RunSketch, plan: Plan) -> ConstraintNoise | None:
    """Where constraints state public fractions: else the noise depends on counts that a plan does not look up."""
    privacy, seen, problem = plan.privacy, draft.outline, draft.problems[0]
    asked = [record for record in plan.records if record.query == "statistic:constraints"]
    if not privacy.private or not asked or problem.counts_are_public or not problem.constraints:
        return None
    clip, fewest = Clip(1.0, privacy.clip.norm), min(seen.sizes)
    table = problem.table(torch.zeros(fewest, *seen.input_shape), torch.zeros(fewest, dtype=torch.long))
    assert table is not None, "only sums of losses have private values"
    reach = float(clip.norms(table.largest.double())) * privacy.statistics.bound / 2
    noise = asked[0].noise_multiplier
    multiplier = (max(noise) if isinstance(noise, tuple) else noise) * max(
        variance_inflation(asked[0].pairs, plan.n_clients)
    )
    deviation = multiplier * privacy.sensitivity_of(clip) * reach * privacy.mechanism.deviation
    return ConstraintNoise(deviation, reach, fewest, Layout.of(draft.model).dim)


def _deviation(noise: ConstraintNoise, share: float) -> str:
    return (
        f"noise of a constraint value: standard deviation {noise.deviation:.3g} for the smallest client "
        f"({noise.examples} examples); values take {share:.0%} of each round's budget"
    )


def _laplace(draft: RunSketch, plan: Plan) -> list[str]:
    """Over many rounds Gaussian noise is smaller at the same (epsilon, delta)."""
    privacy = plan.privacy
    if not isinstance(privacy.mechanism, Laplace) or privacy.delta == 0:
        return []
    assert privacy.noise_multiplier is not None
    target, clip = plan.spent().epsilon, Clip(privacy.clip.bound, "l2")
    other = replace(privacy, epsilon=target, noise_multiplier=None, mechanism=Gaussian(), clip=clip)
    gaussian = draft.plan(other).privacy.noise_multiplier
    assert gaussian is not None
    # the standard deviation of Laplace noise of scale b is sqrt(2) b
    ratio = gaussian / (math.sqrt(2) * privacy.noise_multiplier)
    if ratio >= 1:
        return []
    return [
        f"mechanism: gaussian with an l2 clip of the same bound needs {1 - ratio:.0%} less noise for the same epsilon "
        "(standard deviation per coordinate), and an l2 clip takes less away from a dense gradient than an l1 clip"
    ]
