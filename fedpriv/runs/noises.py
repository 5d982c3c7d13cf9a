"""Which noise leaves least in the final model: independent, hidden by secret draws, or cancelling over rounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from fedpriv.engines.local import begin, simulate
from fedpriv.errors import FedprivError
from fedpriv.network.graph import Graph
from fedpriv.network.local import CyclicCohort, Everyone, Star
from fedpriv.oracle.impulse import ImpulseOracle
from fedpriv.privacy.correlated import INDEPENDENT, inverse
from fedpriv.privacy.matrices import BLT, BSR
from fedpriv.privacy.settings import Central, Cyclic, FixedSize, FullBatch, Independent, Noise, Poisson, Privacy
from fedpriv.randomness.streams import Randomness
from fedpriv.runs.planning import Draft, Plan

Array = NDArray[np.float64]
_MOST_ROUNDS = 2000  # in which noise is followed
_MOST_NUMBERS = 5_000_000  # of all nodes' models
_BUFFERS = 4


@dataclass(frozen=True)
class Choice:
    """Settings of noise, at the same epsilon and the same expected batch or cohort.

    Attributes:
        settings: What to write into the configuration.
        left: Standard deviation of the noise in the final model, over that of the planned settings.
        needs: What must be true beyond what the planned run assumes; None if nothing.
    """

    settings: str
    left: float
    needs: str | None = None


@dataclass(frozen=True)
class NoisesForecast:
    """What other noise would leave in the final model.

    Attributes:
        choices: The least noise first; the planned settings have 1.
        suggested: The settings with the least noise of those that need nothing else; None if they are the planned ones.
    """

    choices: tuple[Choice, ...]
    suggested: str | None


def forecast_of_noises(draft: Draft, plan: Plan) -> NoisesForecast | None:
    """Compare the noise of a planned run with that of other batches or cohorts and other matrices.

    What is compared is what the strategy's linear part does with the noise: how often clipping cuts, and what a model
    makes of it, no plan can know.

    Args:
        draft: The run.
        plan: Its plan.

    Returns:
        None where there is nothing to choose: no Gaussian noise of equal size in one answer a round, everyone and
        everything in every round, or a strategy that is not linear in the answers.
    """
    blocks = _blocks(draft)
    asked = [record.round for record in plan.records]
    if not plan.privacy.private or blocks < 2 or asked != list(range(draft.rounds)) or draft.rounds > _MOST_ROUNDS:
        return None
    passed = _passed_on(draft, plan)
    if passed is None:
        return None
    target = plan.spent().epsilon
    planned = _left(passed, plan)
    choices = [Choice("as planned", 1.0)]
    for words, needs, other in _others(draft, blocks):
        asking = replace(other, privacy=replace(other.privacy, epsilon=target, noise_multiplier=None))
        if other.privacy == draft.privacy and other.network is draft.network:
            continue
        try:
            found = asking.plan()
        except FedprivError:  # these settings do not go together
            continue
        choices.append(Choice(words, _left(passed, found) / planned, needs))
    if len(choices) == 1:
        return None
    choices.sort(key=lambda choice: choice.left)
    best = next(choice for choice in choices if choice.needs is None)
    return NoisesForecast(tuple(choices), best.settings if best.left < 1 else None)


def _blocks(draft: Draft) -> int:
    """In how many parts units would take turns, with batches or cohorts of the planned size; 1: it is no part."""
    privacy, network = draft.privacy, draft.network
    if privacy.unit == "client":
        active = privacy.cohort_rate * (network.active_fraction if isinstance(network, Star) else 1.0)
        return round(1 / active) if privacy.sampling == FullBatch() else 1
    if not network.everyone:
        return 1
    match privacy.sampling:
        case Cyclic(blocks, rate):
            return round(blocks / rate)
        case Poisson(rate):
            return round(1 / rate)
        case FixedSize(size):
            return max(round(min(draft.outline.sizes) / size), 1)
        case _:
            return 1


def _others(draft: Draft, blocks: int) -> Iterator[tuple[str, str | None, Draft]]:
    """Settings in words, what they need, and the draft with them."""
    band = min(blocks, draft.rounds)
    matrices: Sequence[tuple[str, Noise]] = (
        ("", Independent()),
        (_words(band), BSR(band)),
        (f", noise: {{time: {{blt: {{buffers: {_BUFFERS}}}}}}}", BLT(_BUFFERS)),
    )
    cyclic, privacy = f"{{cyclic: {{blocks: {blocks}}}}}", replace(draft.privacy, noise=Independent())
    if privacy.unit == "sample":
        for words, noise in matrices:
            yield (
                f"sampling: {cyclic}{words}",
                None,
                _with(draft, replace(privacy, sampling=Cyclic(blocks), noise=noise)),
            )
        rate = privacy.sampling.rate if isinstance(privacy.sampling, Poisson) else 1 / blocks
        secret = "nobody but the client sees which examples are drawn"
        words = f"sampling: {{poisson: {{rate: {rate:.4g}}}}}"
        yield words, secret, _with(draft, replace(privacy, sampling=Poisson(rate)))
        slots = round(blocks**0.5)  # a band of as many rounds, and as much of a slot drawn as makes the same batch
        words = f"sampling: {{cyclic: {{blocks: {slots}, rate: {slots * rate:.4g}}}}}{_words(slots)}"
        yield words, secret, _with(draft, replace(privacy, sampling=Cyclic(slots, slots * rate), noise=BSR(slots)))
        return
    if not isinstance(draft.network, Star):
        return
    n_clients, taking_turns = draft.network.n_clients, Star(draft.network.n_clients, CyclicCohort(blocks))
    central = isinstance(privacy.trust, Central)
    turns = replace(privacy, trust=Central()) if central else privacy
    for words, noise in matrices:
        yield f"network.cohort: {cyclic}{words}", None, _with(draft, replace(turns, noise=noise), taking_turns)
    if central:
        words, secret = (
            f"trust: {{central: {{cohort_rate: {1 / blocks:.4g}}}}}",
            "nobody but the server sees who is drawn",
        )
        other = replace(privacy, trust=Central(cohort_rate=1 / blocks))
        yield words, secret, _with(draft, other, Star(n_clients))


def _words(band: int) -> str:
    return f", noise: {{time: {{bsr: {{band: {band}}}}}}}"


def _with(draft: Draft, privacy: Privacy, network: Star | None = None) -> Draft:
    return replace(draft, privacy=privacy, network=network or draft.network)


def _passed_on(draft: Draft, plan: Plan) -> Array | None:
    """How much of the noise of each round is left in the final model, `[rounds]`; None where that has no meaning."""
    network = draft.network if isinstance(draft.network, Graph) else Star(1, Everyone())
    if network.n_clients * draft.rounds > _MOST_NUMBERS:
        return None
    try:
        once, twice = (_response(draft, plan.privacy, network, size) for size in (1.0, 2.0))
    except (FedprivError, ArithmeticError):
        return None
    return once if np.allclose(twice, 2 * once, rtol=1e-6, atol=0) and np.isfinite(once).all() and once.any() else None


def _response(draft: Draft, privacy: Privacy, network: Star | Graph, size: float) -> Array:
    """The final model, averaged over nodes, where the answer of round t is `size` times the t-th unit vector."""
    alone = replace(privacy, epsilon=None, noise_multiplier=1.0, sampling=FullBatch(), noise=Independent())
    oracle = ImpulseOracle(alone, network.n_clients, size)
    start = torch.zeros(1, draft.rounds, dtype=torch.float64).expand(network.n_clients, -1)
    progress = begin(draft.strategy, start)
    for done in simulate(draft.strategy, oracle, network, progress, Randomness(draft.seed), rounds=draft.rounds):
        progress = done.progress
    return progress.models.mean(0).numpy()


def _left(passed: Array, plan: Plan) -> float:
    """Standard deviation in the final model, in units of an answer's sensitivity."""
    noise = plan.privacy.over_time
    factor, multiplier = (INDEPENDENT if noise is None else noise.factor), plan.privacy.noise_multiplier
    assert multiplier is not None
    turned = np.convolve(passed[::-1], inverse(factor.column(len(passed))))[: len(passed)]
    return float(multiplier * np.linalg.norm(turned))
