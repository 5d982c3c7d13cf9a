"""Batches check: batches are drawn as the accountant assumes: in secret, anew each time, and with random sizes.

The draws are repeated with other secret seeds, for several rounds or epochs. The assumptions of the accountant are
compared with the draws:

* Poisson: every example joins a batch independently, so that sizes are binomial;
* random allocation: every example is in exactly one batch of an epoch, uniformly, so that sizes are multinomial. Other
  epochs, and other queries of a round, have other assignments;
* both: the draws cannot be computed from the public seed alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from fedpriv.audit.check_result import CheckResult, summarize
from fedpriv.audit.target import AuditTarget, Data
from fedpriv.clients import Population
from fedpriv.oracle import BatchSampler
from fedpriv.privacy import Allocation, Poisson, Sampling
from fedpriv.randomness import Randomness

NAME = "batches"
_SEEDS = 60  # secret seeds
_EPOCHS = 2
_ROUNDS = 40  # of Poisson batches, for each seed
_MOST_WORK = 20_000_000  # examples that are inspected
_SURE = 6.0  # deviations
Membership = NDArray[np.int64]
"""The batch of each example in an epoch `[examples]`, or True for examples in the batch of a round."""


def check_batches(subject: AuditTarget, data: Data) -> CheckResult:
    """Draws the batches of some rounds or epochs repeatedly, and compares them with the assumed distribution."""
    privacy, sampling = subject.privacy, subject.privacy.sampling
    if privacy.unit == "client" or not isinstance(sampling, Allocation | Poisson):
        no_draws = "the privacy cost assumes no secret sampling of examples"
        return CheckResult(NAME, "held", no_draws, "this check covers Poisson sampling and random allocation")
    population = subject.population(data)
    if isinstance(sampling, Allocation):
        broken, draws = _check_allocation(population, sampling)
    else:
        broken, draws = _check_poisson(population, sampling)
    return summarize(
        NAME,
        broken,
        f"{draws} batches follow the sampling that the privacy accounting assumes",
        _power(draws),
        draws=draws,
    )


def _power(draws: int) -> str:
    return f"batch sizes with a variance that is wrong by more than {_SURE * math.sqrt(2 / draws):.0%} would be found"


def _check_allocation(population: Population, sampling: Allocation) -> tuple[list[str], int]:
    """Returns the problems in the epochs of random allocation, and the number of drawn batches."""
    k, examples = sampling.batches, int(population.counts.sum())
    n_seeds = max(2, min(_SEEDS, _MOST_WORK // (examples * k * _EPOCHS)))
    epochs = [_batches_by_epoch(population, sampling, Randomness(0), _EPOCHS) for _ in range(n_seeds)]
    if any(assigned is None for of_seed in epochs for assigned in of_seed):
        return [
            "an example is in several batches of an epoch, or in none; the privacy accounting assumes exactly one"
        ], n_seeds * _EPOCHS * k
    whole = [[assigned for assigned in of_seed if assigned is not None] for of_seed in epochs]
    broken = list(_check_repeated_draws(whole, "epochs"))
    other_answer = _batches_by_epoch(population, sampling, Randomness(0, secret_seed=1), 1, index=1)[0]
    first_answer = _batches_by_epoch(population, sampling, Randomness(0, secret_seed=1), 1)[0]
    if other_answer is not None and first_answer is not None and _is_same(first_answer, other_answer):
        broken.append(
            "several query results of one round use one assignment; the privacy accounting assumes one per assignment"
        )

    statistic, variance = 0.0, 0.0  # Pearson's statistic of the sizes of batches; its mean is k - 1
    for of_seed in whole:
        for assigned in of_seed:
            for owned in _split_by_client(assigned, population):
                sizes = np.bincount(owned, minlength=k)
                statistic += float(((sizes - len(owned) / k) ** 2).sum() / (len(owned) / k)) - (k - 1)
                variance += 2 * (k - 1) * (len(owned) - 1) / len(owned)
    broken += _check_sizes(statistic, variance)
    return broken, n_seeds * _EPOCHS * k


def _check_poisson(population: Population, sampling: Poisson) -> tuple[list[str], int]:
    """Returns the problems in Poisson batches, and the number of drawn batches."""
    examples, rate = int(population.counts.sum()), sampling.rate
    if rate == 1:
        return [], 1
    n_seeds = max(2, min(_SEEDS, _MOST_WORK // (examples * _ROUNDS)))
    whole = [_membership_by_round(population, sampling, Randomness(0)) for _ in range(n_seeds)]
    broken, statistic, variance, total = list(_check_repeated_draws(whole, "rounds")), 0.0, 0.0, 0.0
    for of_seed in whole:
        for marks in of_seed:
            for owned in _split_by_client(marks, population):
                spread = len(owned) * rate * (1 - rate)
                surplus = float(owned.sum()) - len(owned) * rate
                total += surplus
                statistic += surplus**2 / spread - 1
                variance += 2 + (1 - 6 * rate * (1 - rate)) / spread
    draws = n_seeds * _ROUNDS
    deviation = math.sqrt(draws * examples * rate * (1 - rate))
    if abs(total) > _SURE * deviation:
        seen = rate + total / (draws * examples)
        broken.append(f"an example is drawn with probability {seen:.4g}; the privacy accounting assumes {rate:.4g}")
    return [*broken, *_check_sizes(statistic, variance)], draws


def _batches_by_epoch(
    population: Population, sampling: Allocation, randomness: Randomness, epochs: int, index: int = 0
) -> list[Membership | None]:
    """Returns the batch of each example in each epoch; None if an epoch has an example twice or not at all."""
    assigned = list[Membership | None]()
    for epoch in range(epochs):
        batch_of = np.full(int(population.counts.sum()), -1)
        times = np.zeros(len(batch_of), dtype=np.int64)
        for batch in range(sampling.batches):
            drawn = _list_drawn_examples(population, sampling, randomness, epoch * sampling.batches + batch, index)
            batch_of[drawn] = batch
            times[drawn] += 1
        if (times == 1).all():
            assigned.append(batch_of)
        else:
            assigned.append(None)
    return assigned


def _membership_by_round(population: Population, sampling: Poisson, randomness: Randomness) -> list[Membership]:
    """Returns True for the examples in the batch of each round."""
    marks = list[Membership]()
    for round_index in range(_ROUNDS):
        mark = np.zeros(int(population.counts.sum()), dtype=np.int64)
        mark[_list_drawn_examples(population, sampling, randomness, round_index, 0)] = 1
        marks.append(mark)
    return marks


def _list_drawn_examples(
    population: Population, sampling: Sampling, randomness: Randomness, round_index: int, index: int
) -> NDArray[np.int64]:
    """Returns the numbers of the drawn examples, client by client."""
    sampler = BatchSampler(population, randomness, 1.0)
    sampler.begin_round(round_index, torch.arange(len(population)))
    chosen = sampler.positions(sampling, index)
    sizes = population.counts.numpy()
    return chosen.positions + (sizes.cumsum() - sizes).repeat(chosen.counts)


def _split_by_client(of_examples: Membership, population: Population) -> Iterator[Membership]:
    """Yields the part of each client that has two examples or more."""
    for owned in np.split(of_examples, population.counts.numpy().cumsum()[:-1]):
        if len(owned) > 1:
            yield owned


def _is_same(first: Membership, second: Membership) -> bool:
    """True if two draws are equal and this is unlikely to occur by chance."""
    return len(first) > 30 and bool((first == second).all())


def _check_repeated_draws(of_seeds: Sequence[Sequence[Membership]], period: str) -> Iterator[str]:
    """Yields a text for draws that do not depend on the secret seed, or that are repeated."""
    if _is_same(of_seeds[0][0], of_seeds[1][0]):
        yield "batches are drawn from the public seed: anyone can compute which examples are in a batch"
    if any(_is_same(before, after) for of_seed in of_seeds for before, after in pairwise(of_seed)):
        yield f"several {period} use the same draws; the privacy accounting assumes new draws in each"


def _check_sizes(statistic: float, variance: float) -> Iterator[str]:
    """Yields a text if batch sizes vary less or more than for independent draws."""
    deviations = statistic / math.sqrt(variance) if variance else 0.0
    if deviations < -_SURE:
        yield (
            f"batch sizes vary less than with independent draws ({-deviations:.0f} standard deviations). Anyone who "
            "has all other examples can infer one from the size of a fixed-size batch, and the privacy cost of such "
            "batches differs"
        )
    if deviations > _SURE:
        yield (
            f"batch sizes vary more than with independent draws ({deviations:.0f} standard deviations), so some "
            "examples are drawn together"
        )
