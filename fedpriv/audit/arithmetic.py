"""Arithmetic check: changes of clipped sums are within the sensitivity of their noise, in the run's arithmetic."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from fedpriv.audit.check_result import CheckResult, summarize
from fedpriv.audit.neighbours import make_neighbours
from fedpriv.audit.observed_release import ObservedRelease
from fedpriv.audit.probing import Trace, trace_run
from fedpriv.audit.target import AuditTarget, Data
from fedpriv.clients import IndexBatches
from fedpriv.oracle import ClippedSums
from fedpriv.privacy import ROUNDING

NAME = "arithmetic"
_ROUNDS = 2
_EXAMPLES = 256  # of one client, at most, that are added up one by one
_EXACT = 1e-6  # relative error of the measurements
_FLOAT64 = 2.0**-44  # relative error of a sum in float64, with a margin for other orders
_FLOAT32 = 2.0**-24


def check_arithmetic(subject: AuditTarget, data: Data) -> CheckResult:
    """Measures the change of a query result due to one privacy unit, and the rounding error of sums of examples."""
    privacy = subject.plan().privacy
    sizes = subject.sizes
    broken: list[str] = []
    reached = 0.0
    trace = None

    # the largest and the smallest client: weights and rounding differ most between them
    for victim in sorted({int(np.argmax(sizes)), int(np.argmin(sizes))}):
        near, randomness = make_neighbours(subject, data, privacy, victim)
        trace = trace_run(subject, data, _ROUNDS, near, randomness)
        shares = [_moved_share(release, trace.releases, len(data), near.client) for release in trace.releases]
        reached = max([reached, *shares])
        broken += _excess_movements(shares, trace.releases)
    assert trace is not None

    error, depth = _error_of_sums(trace, data, int(np.argmax(sizes)))
    broken += _inexact_sums(error, depth, max(sizes))
    evidence = (
        f"one privacy unit changed a query result by at most {reached:.4g} of the sensitivity that its noise is "
        f"calibrated to; sums of clipped examples are exact to {error:.1g} ({type(trace.backend).__name__}, "
        f"{subject.compute.dtype}, chunk {trace.population.chunk}, {trace.population.device})"
    )
    power = (
        f"the tested neighbouring data sets reach {reached:.1%} of the assumed sensitivity; other data sets may reach "
        "more"
    )
    return summarize(NAME, sorted({*broken}), evidence, power, reached=reached, error_of_sums=error)


def _moved_share(
    release: ObservedRelease, all_releases: Sequence[ObservedRelease], n_clients: int, client: int
) -> float:
    """Returns the change of a release due to the unit, over the sensitivity for which its noise was calibrated."""
    if release.moved is None:
        return 0.0
    clients = release.row_clients(n_clients)
    if clients == [-1]:
        row = 0
    elif client in clients:
        row = clients.index(client)
    else:
        return 0.0
    # with noise that is correlated over time only, the noise of the first round is unit noise times a scale
    if release.record.time is not None:
        level = all_releases[0].level
    else:
        level = release.level
    scale = float(level[row].median())
    if scale > 0:
        return float(release.moved[row]) * release.multiplier(row) / scale
    return math.inf


def _excess_movements(shares: Sequence[float], releases: Sequence[ObservedRelease]) -> Iterator[str]:
    """Yields a text if a unit changes a release by more than its sensitivity, or changes rows of other clients."""
    worst = max(shares, default=0.0)
    if worst > 1 + _EXACT:
        query = releases[int(np.argmax(shares))].record.query
        yield (
            f"one privacy unit changes a {query} by {worst:.4g} times the sensitivity that its noise is "
            "calibrated to (possible causes: not clipped per unit, divided by another number than the noise, "
            "or weighted after clipping)"
        )
    if any(release.others > 0 for release in releases):
        yield "one client's data change another client's row"


def _error_of_sums(trace: Trace, data: Data, client: int) -> tuple[float, int]:
    """Returns the relative error of a client's sum of clipped gradients, and the number of examples in it.

    The reference is the exact sum of the clipped gradients of single examples.
    """
    population = trace.population
    clip = trace.plan.privacy.clip
    sums = ClippedSums(trace.backend, len(data), population.device)
    params = population.params[client : client + 1]
    clients = torch.tensor([client])
    count = min(int(population.counts[client]), _EXAMPLES)

    def sum_gradients(examples: Sequence[int]) -> Tensor:
        chosen = IndexBatches.listed([np.asarray(examples, dtype=np.int64)])
        return sums.gradients(population.drawn_batches(clients, chosen), clients, params, clip=clip)[0].cpu()

    single = [sum_gradients([example]) for example in range(count)]
    total = sum_gradients(range(count))
    columns = torch.stack(single).T.tolist()
    exact = torch.tensor([math.fsum(column) for column in columns], dtype=torch.float64)
    length = sum(float(torch.linalg.vector_norm(gradient)) for gradient in single)
    return float(torch.linalg.vector_norm(total - exact)) / max(length, 1e-300), count


def _inexact_sums(error: float, count: int, largest: int) -> Iterator[str]:
    """Yields a text if a sum over `count` examples has a larger error than float64 sums."""
    if error > 1e-3:
        yield (
            f"a sum over {count} examples differs from the sum of its clipped examples (relative difference "
            f"{error:.2g}): the batch is clipped as a whole, or examples mix"
        )
    elif error > _FLOAT64:
        worst = largest**2 * _FLOAT32
        if worst > ROUNDING / 4:
            yield (
                f"sums are not accumulated in float64 (relative error {error:.1g}): with {largest} examples, "
                f"rounding may add {worst:.2g} of the clip bound, and the privacy accounting covers "
                f"{ROUNDING / 4:.1g}"
            )
