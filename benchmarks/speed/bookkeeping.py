"""Lines of bookkeeping: admission of releases, composition of epsilons, and set-up of populations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from time import process_time

import numpy as np
import torch
from memory import peak_megabytes
from rows import OURS, PLAIN, Effort, Found, Row, interleaved, once
from subprocesses import apart
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.clients.population import Population
from fedpriv.models import Loss, SoftmaxRegression, cross_entropy
from fedpriv.privacy.accounting import pld
from fedpriv.privacy.accounting.accountant import Accountant, account
from fedpriv.privacy.accounting.milestones import Milestones
from fedpriv.privacy.record import Record

DELTA, RATE = 1e-5, 0.01
COHORT, MANY, FEW, LEVELS, REPORTS = 100, 100_000, 1_000, 20_000, 400


def admits(effort: Effort) -> Found:
    """Measures the counting of one release of a cohort."""
    cohort, many, few = effort.of(COHORT), effort.of(MANY, 100), effort.of(FEW, 100)
    return Found(interleaved({OURS: _admits(cohort, many), PLAIN: _admits(cohort, few)}, effort))


def _admits(cohort: int, clients: int) -> Callable[[], None]:
    accountant, rounds, draws = Accountant(clients, DELTA), count(), np.random.default_rng(0)

    def run() -> None:
        who = tuple(draws.choice(clients, cohort, replace=False).tolist())
        accountant.admit(_record(next(rounds), 50.0, who))

    return run


def final_accounting(effort: Effort) -> Found:
    """Measures the epsilon of rounds with distinct noise levels, Poisson sampling, and relation add_remove."""
    levels = np.geomspace(20, 60, effort.of(LEVELS)).tolist()
    records = [_record(index, level) for index, level in enumerate(levels)]
    found: dict[str, float] = {}

    def theirs() -> None:
        from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
        from dp_accounting.pld import PLDAccountant

        peer = PLDAccountant()
        for level in levels:
            peer.compose(PoissonSampledDpEvent(RATE, GaussianDpEvent(level)))
        found["dp-accounting"] = peer.get_epsilon(DELTA)

    def ours() -> None:
        found[OURS] = account(records, 1, DELTA).epsilon

    return Found(once({OURS: ours, PLAIN: theirs}), ", ".join(f"{who} {eps:.4g}" for who, eps in found.items()))


def reported_epsilons(effort: Effort) -> Found:
    """Measures the epsilons of all reports of a run with Poisson batches, against tight bounds for the same rounds."""
    records = [_record(index, 1.0) for index in range(effort.of(REPORTS, 20))]
    found: dict[str, list[float]] = {}

    def ours() -> None:
        pld._epsilon.cache_clear()  # noqa: SLF001 - each turn computes
        milestones = Milestones(records, 1, DELTA)
        found[OURS] = sorted({milestones.epsilon(rounds) for rounds in range(1, len(records) + 1)})

    marks = Milestones(records, 1, DELTA).marks

    def tight() -> None:
        pld._epsilon.cache_clear()  # noqa: SLF001 - each turn computes
        found[PLAIN] = [account(records[:mark], 1, DELTA).epsilon for mark in marks]

    costs = interleaved({OURS: ours, PLAIN: tight}, effort)
    worst = max(rough / exact for rough, exact in zip(found[OURS], found[PLAIN], strict=True))
    return Found(costs, f"{len(marks)} bounds, at most {worst:.4f} of the tight ones")


def _record(index: int, noise: float, clients: tuple[int, ...] | None = None) -> Record:
    drawn = {"sampling": "poisson", "rate": RATE, "clients": clients}
    return Record(index, "gradient", 0, "gaussian", noise, "sample", "add_remove", **drawn)


def population(unit: str, effort: Effort) -> Found:
    """Measures lazy clients with 4 examples of 20 numbers, softmax regression, and a process for each contender."""
    runs = {name: apart(set_up, name, effort.of(MANY, 20), effort=effort) for name in (OURS, PLAIN)}
    return Found({name: found[unit] for name, found in runs.items()})


def set_up(contender: str, clients: int) -> dict[str, float]:
    """Returns milliseconds and megabytes until the first round can begin, above the cost of the users' data sets."""
    torch.set_num_threads(1)
    x, y = torch.randn(clients, 4, 20), torch.randint(0, 2, (clients, 4))
    sets = [TensorDataset(*pair) for pair in zip(x, y, strict=True)]
    before, start = peak_megabytes(), process_time()
    kept = list(_population(sets) if contender == OURS else _tensors(sets))
    took = 1e3 * (process_time() - start)
    assert kept
    return {"ms": took, "MB": max(peak_megabytes() - before, 1.0)}


def _population(sets: list[TensorDataset]) -> Iterator[object]:
    clients = fp.lazy_clients(SoftmaxRegression(20, 2), Loss(cross_entropy), sets.__getitem__, [4] * len(sets))
    yield Population(clients)


def _tensors(sets: list[TensorDataset]) -> Iterator[object]:
    """Yields one model, and all examples in two tensors."""
    yield SoftmaxRegression(20, 2)
    yield from (torch.cat([one.tensors[part] for one in sets]) for part in (0, 1))


ROWS = (
    Row(f"admit a cohort of {COHORT} of {MANY} clients", f"of {FEW} clients", "1.1", admits),
    Row(
        f"population of {MANY} lazy clients, set-up",
        "one model, examples in two tensors",
        "1 s",
        partial(population, "ms"),
    ),
    Row("the same, memory", "the same", "100 MB", partial(population, "MB"), "MB"),
    Row(f"epsilons of the reports of {REPORTS} rounds", "all of them tight", ".3", reported_epsilons),
    Row(f"epsilon of {LEVELS} levels of noise, sampled", "dp-accounting", ".1", final_accounting),
)
