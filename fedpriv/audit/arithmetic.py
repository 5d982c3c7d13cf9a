"""Check 2: clipped sums move by no more than was priced, in the arithmetic that runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from fedpriv.audit.check_result import CheckResult, summarize
from fedpriv.audit.neighbours import around
from fedpriv.audit.observed_release import ObservedRelease
from fedpriv.audit.probing import Trace, listen
from fedpriv.audit.target import AuditTarget, Data
from fedpriv.clients.index_batches import IndexBatches
from fedpriv.oracle.clipped_sums import ClippedSums
from fedpriv.privacy.clipping import ROUNDING

NAME = "arithmetic"
_ROUNDS = 2
_EXAMPLES = 256  # of one client that are added up one by one
_EXACT = 1e-6  # relative error of what is measured here
_FLOAT64 = 2.0**-44  # relative error of a sum in float64, with room for other orders
_FLOAT32 = 2.0**-24


def arithmetic(subject: AuditTarget, data: Data) -> CheckResult:
    """Measure how far one unit moves an answer, and how exactly examples are added up."""
    privacy, sizes = subject.plan().privacy, subject.sizes
    victims = {int(np.argmax(sizes)), int(np.argmin(sizes))}
    broken, reached, transcript = list[str](), 0.0, None
    for victim in sorted(victims):
        near, randomness = around(subject, data, privacy, victim)
        transcript = listen(subject, data, _ROUNDS, near, randomness)
        found = [_reached(heard, transcript.heard, len(data), near.client) for heard in transcript.heard]
        reached = max([reached, *found])
        broken += _too_far(found, transcript.heard)
    assert transcript is not None
    error, depth = _error_of_sums(transcript, data, int(np.argmax(sizes)))
    broken += _inexact(error, depth, max(sizes))
    held = (
        f"one unit moved an answer by at most {reached:.4g} of what its noise was priced for; "
        f"sums of clipped examples are exact to {error:.1g} ({type(transcript.backend).__name__}, "
        f"{subject.compute.dtype}, chunk {transcript.population.chunk}, {transcript.population.device})"
    )
    power = f"the neighbours that were tried reach {reached:.1%} of the priced sensitivity; others may reach more"
    return summarize(NAME, sorted({*broken}), held, power, reached=reached, error_of_sums=error)


def _reached(heard: ObservedRelease, all_heard: Sequence[ObservedRelease], n_clients: int, client: int) -> float:
    """How far the unit moved the answer, over the sensitivity that its noise was priced for."""
    if heard.moved is None:
        return 0.0
    whose = heard.whose(n_clients)
    if whose == [-1]:
        row = 0
    elif client in whose:
        row = whose.index(client)
    else:
        row = None
    if row is None:
        return 0.0
    # with noise that is correlated in time only the first round's is unit noise times a scale
    if heard.record.time is not None:
        level = all_heard[0].level
    else:
        level = heard.level
    scale = float(level[row].median())
    if scale > 0:
        return float(heard.moved[row]) * heard.multiplier(row) / scale
    return math.inf


def _too_far(found: Sequence[float], heard: Sequence[ObservedRelease]) -> Iterator[str]:
    worst = max(found, default=0.0)
    if worst > 1 + _EXACT:
        query = heard[int(np.argmax(found))].record.query
        yield (
            f"one unit moves a {query} by {worst:.4g} times the sensitivity that its noise was priced for (not clipped "
            "unit by unit, divided by another number than the noise, or weighted after clipping)"
        )
    if any(one.others > 0 for one in heard):
        yield "data of one client change the row of another client"


def _error_of_sums(transcript: Trace, data: Data, client: int) -> tuple[float, int]:
    """Relative error of a client's sum of clipped gradients against its examples added up exactly, and their number."""
    population, clip = transcript.population, transcript.plan.privacy.clip
    sums, row = ClippedSums(transcript.backend, len(data), population.device), population.params[client : client + 1]
    who, count = torch.tensor([client]), min(int(population.counts[client]), _EXAMPLES)

    def of(places: Sequence[int]) -> Tensor:
        chosen = IndexBatches.listed([np.asarray(places, dtype=np.int64)])
        return sums.gradients(population.drawn_batches(who, chosen), who, row, clip=clip)[0].cpu()

    alone, whole = [of([place]) for place in range(count)], of(range(count))
    columns = torch.stack(alone).T.tolist()
    exact = torch.tensor([math.fsum(column) for column in columns], dtype=torch.float64)
    long = sum(float(torch.linalg.vector_norm(one)) for one in alone)
    return float(torch.linalg.vector_norm(whole - exact)) / max(long, 1e-300), count


def _inexact(error: float, count: int, largest: int) -> Iterator[str]:
    if error > 1e-3:
        yield (
            f"a sum over {count} examples is not that of its clipped examples (relative difference {error:.2g}): "
            "the batch is clipped, or examples mix"
        )
    elif error > _FLOAT64:
        worst = largest**2 * _FLOAT32
        if worst > ROUNDING / 4:
            yield (
                f"sums are not added up in float64 (relative error {error:.1g}): with {largest} examples rounding may "
                f"add {worst:.2g} of the clip bound, of which {ROUNDING / 4:.1g} is priced"
            )
