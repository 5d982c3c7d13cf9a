"""Neighbouring data sets that pull an answer as far apart as clipping lets them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import torch
from torch import Tensor

from fedpriv.audit.observed_release import ObservedRelease
from fedpriv.audit.target import AuditTarget, Data
from fedpriv.clients.client import Pair
from fedpriv.clients.population import Population
from fedpriv.data.nested import each, first
from fedpriv.oracle.sampler import BatchSampler
from fedpriv.privacy.settings import Privacy
from fedpriv.randomness.streams import Randomness

_LONG = 1e3  # factor on an example's inputs
_TRIES = 500  # seeds, until one draws the example


@dataclass(frozen=True)
class Neighbours:
    """Data sets in which one unit of one client is another.

    Attributes:
        client: Whose.
        data: The data sets. With relation add_remove and unit sample the first lacks the example.
        unit: What differs.
        relation: What neighbours are.
    """

    client: int
    data: Sequence[Data]
    unit: str
    relation: str

    def row(self, clients: Sequence[int]) -> int | None:
        """Which row is the client's; None if it sent nothing."""
        if self.client in clients:
            return clients.index(self.client)
        return None

    def compared(self, heard: ObservedRelease, answers: Sequence[Tensor]) -> ObservedRelease:
        """The release with how far the unit moved it, and how far it moved rows of other clients."""
        record, whose = heard.record, heard.whose(len(self.data[0]))
        order = 1 if record.norm == "l1" else 2
        added = self.relation == "add_remove"
        if added and self.unit == "sample":
            pairs = [(answers[0], one) for one in answers[1:]]
        else:
            pairs = [*combinations(answers, 2)]
        moved = torch.stack([torch.linalg.vector_norm(a - b, order, dim=1) for a, b in pairs]).amax(0)
        if added and self.unit == "client":
            moved = moved / 2  # two values of a client: each as far as it can be from no client at all
        rest = [row for row, client in enumerate(whose) if client not in (-1, self.client)]
        return replace(heard, moved=moved, others=float(moved[rest].max()) if rest else 0.0)


def around(subject: AuditTarget, data: Data, privacy: Privacy, client: int) -> tuple[Neighbours, Randomness]:
    """Neighbours that differ in a client's last example, or in the whole client, and streams that draw it at once.

    Args:
        subject: The run.
        data: The clients' data.
        privacy: Its promise.
        client: Whose unit differs.
    """
    drawn = _drawing(subject, subject.population(data), privacy, client)
    forged = [*_forged(data[client])]
    if privacy.unit == "client":
        sets = [each(lambda one, like: one.expand_as(like).clone(), example, data[client]) for example in forged]
    else:
        before = each(lambda rows: rows[:-1], data[client])
        sets = [each(lambda rows, one: torch.cat([rows, one]), before, example) for example in forged]
        if privacy.relation == "add_remove" and len(first(before[0])):
            sets = [before, *sets]
    changed = [[*data[:client], one, *data[client + 1 :]] for one in sets]
    return Neighbours(client, changed, privacy.unit, privacy.relation), drawn


def _forged(examples: Pair) -> Iterator[Pair]:
    """Examples with gradients in several directions, far longer than any clip: `[1, ...]`."""
    inputs, targets = examples
    x, y = (each(lambda rows: rows[-1:], part) for part in examples)
    labels = y, each(_other, targets)
    for sign in (1.0, -1.0):
        far = each(lambda one: sign * _LONG * (one + (one == 0)) if one.is_floating_point() else one, x)  # noqa: B023
        yield from ((far, label) for label in labels)
    yield each(lambda rows: rows[:1], inputs), labels[0]


def _other(targets: Tensor) -> Tensor:
    """A target that is not the last one's: another class, or a number far away."""
    last = targets[-1:]
    if targets.is_floating_point():
        return last - _LONG
    if bool((last != targets.max()).all()):
        return targets.max().expand_as(last).clone()
    return targets.min().expand_as(last).clone()


def _drawing(subject: AuditTarget, population: Population, privacy: Privacy, client: int) -> Randomness:
    """Streams by which the client's last example is in the first batch; any streams if chance does not bring it."""
    last, randomness = int(population.starts[client] + population.counts[client]) - 1, Randomness()
    for _ in range(_TRIES):
        randomness, draws = Randomness(), None
        cohort = subject.network.participants(0, randomness)
        if client in cohort.tolist():
            draws = BatchSampler(population, randomness, privacy.cohort_rate, privacy.cohort_rounds)
            draws.begin_round(0, cohort)
            found = draws.batches(privacy.sampling, 0)
            if any(bool((batch.examples[batch.mask] == last).any()) for batch in found if batch.examples is not None):
                return randomness
    return randomness
