"""Compares the final model's noise for independent noise, hidden by secret draws, and correlated noise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedpriv.errors import FedprivError
from fedpriv.network import CyclicCohort, Star
from fedpriv.planning import Plan, RunSketch, align_columns, compute_responses
from fedpriv.privacy import (
    BLT,
    BSR,
    INDEPENDENT,
    Allocation,
    Banded,
    Central,
    CorrelatedNoise,
    Cyclic,
    FixedSize,
    FullBatch,
    Independent,
    Noise,
    Poisson,
    Privacy,
    invert_column,
)
from fedpriv.randomness import Randomness

Array = NDArray[np.float64]
_BUFFERS = 4


@dataclass(frozen=True)
class NoiseOption:
    """Noise settings with the same epsilon and the same expected batch or cohort.

    Attributes:
        settings: Settings for the configuration.
        left: Standard deviation of the noise in the final model, relative to the planned settings.
        needs: Conditions beyond the assumptions of the planned run; None if there are none.
    """

    settings: str
    left: float
    needs: str | None = None


@dataclass(frozen=True)
class NoisesForecast:
    """Remaining noise of other settings in the final model.

    Attributes:
        choices: The least noise first; the planned settings have 1.
        suggested: The settings with the least noise and no further conditions; None if they are the planned ones.
    """

    choices: tuple[NoiseOption, ...]
    suggested: str | None

    def lines(self) -> list[str]:
        """Formats the choices as a table: a heading, and a line for each setting."""
        cells = [[f"{choice.left:.3g}", choice.settings, choice.needs or ""] for choice in self.choices]
        heading = (
            "standard deviation of the noise in the final model, relative to the planned settings, at the same epsilon"
        )
        lines = [heading, *(f"  {text}" for text in align_columns(cells))]
        if self.suggested is not None:
            lines.append(f"  suggested: {self.suggested}")
        return lines


def forecast_noises(draft: RunSketch, plan: Plan) -> NoisesForecast | None:
    """Compares the noise of a planned run with the noise of other batches or cohorts and other matrices.

    Only the strategy's linear response to the noise is compared: a plan cannot determine how often clipping occurs, or
    the effect of noise on the model's accuracy.

    Args:
        draft: The run.
        plan: Its plan.

    Returns:
        None if there is no choice: no Gaussian noise of equal size in one query a round, full participation and full
        batches in every round, or a strategy that is not linear in the query results.
    """
    blocks = _blocks(draft)
    if not plan.privacy.private or blocks < 2 or plan.records.rounds.tolist() != list(range(draft.rounds)):
        return None
    target = plan.comparable_epsilon
    if target is None:
        return None
    impulse_responses = compute_responses(
        draft.strategy, plan.privacy, draft.network, draft.rounds, Randomness(draft.seed)
    )
    if impulse_responses is None:
        return None
    final_response = impulse_responses[-1]  # the factor of each round's noise in the final model
    planned = _final_deviation(final_response, plan)
    choices = [NoiseOption("as planned", 1.0)]
    for words, needs, other in _list_alternatives(draft, blocks):
        noise = other.privacy.noise
        if isinstance(noise, Banded):  # the strategy's response was already computed
            noise = CorrelatedNoise(noise.factor(draft.rounds, blocks, lambda: impulse_responses), blocks)
        alternative = replace(other, privacy=replace(other.privacy, epsilon=target, noise_multiplier=None, noise=noise))
        if other.privacy == draft.privacy and other.network is draft.network:
            continue
        try:
            deviation = _final_deviation(final_response, alternative.plan())
            deviation *= _batch_fraction(draft) / _batch_fraction(other)
        except FedprivError:  # these settings cannot be combined
            continue
        choices.append(NoiseOption(words, deviation / planned, needs))
    if len(choices) == 1:
        return None
    choices.sort(key=lambda choice: choice.left)
    best = next(choice for choice in choices if choice.needs is None)
    return NoisesForecast(tuple(choices), best.settings if best.left < 1 else None)


def _blocks(draft: RunSketch) -> int:
    """Returns the number of blocks in which privacy units would alternate, with batches or cohorts as planned.

    1 if every unit takes part in every round.
    """
    privacy = draft.privacy
    network = draft.network
    if privacy.unit == "client":
        active = privacy.cohort_rate
        if isinstance(network, Star):
            active *= network.active_fraction
        if privacy.sampling == FullBatch():
            return round(1 / active)
        return 1
    if not network.everyone:
        return 1
    match privacy.sampling:
        case Cyclic(blocks, rate):
            return round(blocks / rate)
        case Poisson(rate):
            return round(1 / rate)
        case Allocation(batches):
            return batches
        case FixedSize(size):
            return max(round(min(draft.outline.sizes) / size), 1)
        case _:
            return 1


def _batch_fraction(draft: RunSketch) -> float:
    """Returns the expected fraction of a client's examples in one batch, by which the noise of a mean is divided."""
    match draft.privacy.sampling:
        case Cyclic(blocks, rate):
            return rate / blocks
        case Poisson(rate):
            return rate
        case Allocation(batches):
            return 1 / batches
        case FixedSize(size):
            return min(size / min(draft.outline.sizes), 1.0)
        case _:
            return 1.0


def _list_alternatives(draft: RunSketch, blocks: int) -> Iterator[tuple[str, str | None, RunSketch]]:
    """Yields other settings: as text, their conditions (None if there are none), and the draft with them."""
    band = min(blocks, draft.rounds)
    matrices: Sequence[tuple[str, Noise]] = (
        ("", Independent()),
        (_words(band), BSR(band)),
        (f", noise: {{correlated: {{banded: {{band: {band}}}}}}}", Banded(band)),
        (f", noise: {{correlated: {{blt: {{buffers: {_BUFFERS}}}}}}}", BLT(_BUFFERS)),
    )
    cyclic = f"{{cyclic: {{blocks: {blocks}}}}}"
    privacy = replace(draft.privacy, noise=Independent())
    if privacy.unit == "sample":
        for words, noise in matrices:
            yield (
                f"sampling: {cyclic}{words}",
                None,
                _with(draft, replace(privacy, sampling=Cyclic(blocks), noise=noise)),
            )
        if isinstance(privacy.sampling, Poisson):
            rate = privacy.sampling.rate
        else:
            rate = 1 / blocks
        # a run that already draws in secret needs nothing more for other secret draws
        if isinstance(privacy.sampling, Poisson | Allocation):
            secret = None
        else:
            secret = "only the client sees which examples are drawn"
        words = f"sampling: {{poisson: {{rate: {rate:.4g}}}}}"
        yield words, secret, _with(draft, replace(privacy, sampling=Poisson(rate)))
        words = f"sampling: {{allocation: {{batches: {blocks}}}}}"
        yield words, secret, _with(draft, replace(privacy, sampling=Allocation(blocks)))
        more_work = f"a round computes on all examples, {blocks} times as many"
        yield "sampling: full", more_work, _with(draft, replace(privacy, sampling=FullBatch()))
        # between both: few blocks, a band of as many rounds, and the rate in a block that keeps the batch size
        fewer = round(blocks**0.5)
        words = f"sampling: {{cyclic: {{blocks: {fewer}, rate: {fewer * rate:.4g}}}}}{_words(fewer)}"
        yield words, secret, _with(draft, replace(privacy, sampling=Cyclic(fewer, fewer * rate), noise=BSR(fewer)))
        return
    if not isinstance(draft.network, Star):
        return
    n_clients = draft.network.n_clients
    taking_turns = Star(n_clients, CyclicCohort(blocks))
    central = isinstance(privacy.trust, Central)
    if central:
        turns = replace(privacy, trust=Central())
    else:
        turns = privacy
    for words, noise in matrices:
        yield f"network.cohort: {cyclic}{words}", None, _with(draft, replace(turns, noise=noise), taking_turns)
    if central:
        words = f"trust: {{central: {{cohort_rate: {1 / blocks:.4g}}}}}"
        if privacy.cohort_rate < 1:
            secret = None
        else:
            secret = "only the server sees who is drawn"
        other = replace(privacy, trust=Central(cohort_rate=1 / blocks))
        yield words, secret, _with(draft, other, Star(n_clients))
        other = replace(privacy, trust=Central(cohort_rounds=blocks))
        words = f"trust: {{central: {{cohort_rounds: {blocks}}}}}"
        yield words, secret, _with(draft, other, Star(n_clients))


def _words(band: int) -> str:
    return f", noise: {{correlated: {{bsr: {{band: {band}}}}}}}"


def _with(draft: RunSketch, privacy: Privacy, network: Star | None = None) -> RunSketch:
    return replace(draft, privacy=privacy, network=network or draft.network)


def _final_deviation(final_response: Array, plan: Plan) -> float:
    """Returns the standard deviation of the noise in the final model, in units of a query's sensitivity."""
    noise = plan.privacy.over_time
    factor = INDEPENDENT if noise is None else noise.factor
    multiplier = plan.privacy.noise_multiplier
    assert multiplier is not None
    accumulated = np.convolve(final_response[::-1], invert_column(factor.column(len(final_response))))[
        : len(final_response)
    ]
    return float(multiplier * np.linalg.norm(accumulated))
