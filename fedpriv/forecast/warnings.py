"""Warnings before a run: conditions that weaken its privacy, and effects of its settings."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from fedpriv.clients import Layout
from fedpriv.forecast.claim import Claim
from fedpriv.models import check_released_buffers
from fedpriv.planning import Plan, RunSketch, as_graph, reach_warnings
from fedpriv.privacy import Clip, Gaussian, Laplace, variance_inflation
from fedpriv.strategies import ConstraintNoise, RunInfo

if TYPE_CHECKING:
    from fedpriv.runs import Training


def collect_draft_warnings(draft: RunSketch, plan: Plan, claim: Claim | None = None) -> list[str]:
    """Returns the warnings for a planned run: conditions that weaken its privacy, and effects of its settings.

    Args:
        draft: The run.
        plan: Its plan.
        claim: The paper's privacy claim, if the run follows a published variant.
    """
    privacy = plan.privacy
    noise = _constraint_noise(draft, plan)
    warnings: list[str] = []
    if claim is not None:
        warnings += [
            f"the published variant is not private: {claim.why_not}",
            f"the paper's epsilon of {claim.stated_epsilon:g} is for {claim.scope}; if the paper's assumptions held, "
            f"the whole run would cost epsilon={claim.basic_total:g} by basic composition and "
            f"epsilon={claim.tight_total:.4g} by the tightest bound",
        ]
    elif not privacy.private:
        warnings.append("the run has no privacy guarantee: its query results are exact or their noise is not private")
    if privacy.private:
        warnings += plan.warnings(draft.outline.sizes)
        if noise is not None:
            warnings.append(_constraint_noise_warning(noise, privacy.statistics.share))
        warnings += _laplace_warnings(draft, plan)
        start_norm = float(Layout.of(draft.model).row_of(draft.model).norm())
        warnings += reach_warnings(draft.strategy, plan.privacy, draft.network, draft.rounds, start_norm)
    warnings += draft.strategy.advice(RunInfo(draft.rounds, as_graph(draft.network), noise))
    if privacy.private:
        warnings += check_released_buffers(draft.model)
    return warnings


def collect_start_warnings(training: Training) -> list[str]:
    """Returns the warnings for a run that begins, without those that only matter while it is being planned."""
    plan = training.plan
    noise = None
    if plan.privacy.private and "statistic:constraints" in plan.queries:
        noise = ConstraintNoise(float(training.oracle.engine.statistic_deviation(0).max()))
    outlook = RunInfo(training.rounds, as_graph(training.network), noise)
    return [*training.warnings, *training.strategy.advice(outlook)]


def _constraint_noise(draft: RunSketch, plan: Plan) -> ConstraintNoise | None:
    """Returns the noise of a constraint value at the smallest client.

    None if the run releases no private constraint values, or if their groups give no public fractions: the noise then
    depends on counts of the data, which a plan does not read.
    """
    privacy = plan.privacy
    outline = draft.outline
    problem = draft.problems[0]
    constraint_records = [kind for kind in plan.records.kinds if kind.query == "statistic:constraints"]
    if not privacy.private or not constraint_records or problem.counts_are_public or not problem.constraints:
        return None
    clip = Clip(1.0, privacy.clip.norm)
    fewest = min(outline.sizes)
    table = problem.table(torch.zeros(fewest, *outline.input_shape), torch.zeros(fewest, dtype=torch.long))
    assert table is not None, "only sums of losses have private values"
    reach = float(clip.norms(1 / (table.share * fewest))) * privacy.statistics.bound / 2
    noise = constraint_records[0].noise_multiplier
    largest = max(noise) if isinstance(noise, tuple) else noise
    multiplier = largest * max(variance_inflation(constraint_records[0].pairs, plan.n_clients))
    deviation = multiplier * privacy.sensitivity_of(clip) * reach * privacy.mechanism.deviation
    return ConstraintNoise(deviation, reach, fewest, Layout.of(draft.model).dim)


def _constraint_noise_warning(noise: ConstraintNoise, share: float) -> str:
    return (
        f"the noise of a constraint value has standard deviation {noise.deviation:.3g} at the smallest client "
        f"({noise.examples} examples); constraint values use {share:.0%} of each round's privacy budget"
    )


def _laplace_warnings(draft: RunSketch, plan: Plan) -> list[str]:
    """Warns if Gaussian noise would be smaller than Laplace noise at equal (epsilon, delta), e.g. over many rounds."""
    privacy = plan.privacy
    if not isinstance(privacy.mechanism, Laplace) or privacy.delta == 0:
        return []
    assert privacy.noise_multiplier is not None
    target = plan.comparable_epsilon
    if target is None:
        return []
    clip = Clip(privacy.clip.bound, "l2")
    other = replace(privacy, epsilon=target, noise_multiplier=None, mechanism=Gaussian(), clip=clip)
    gaussian = draft.plan(other).privacy.noise_multiplier
    assert gaussian is not None
    # the standard deviation of Laplace noise of scale b is sqrt(2) b
    ratio = gaussian / (math.sqrt(2) * privacy.noise_multiplier)
    if ratio >= 1:
        return []
    return [
        f"mechanism: gaussian with an l2 clip of the same bound would need {1 - ratio:.0%} less noise than laplace "
        "(standard deviation per coordinate) for the same epsilon, and an l2 clip changes a dense gradient less than "
        "an l1 clip"
    ]
