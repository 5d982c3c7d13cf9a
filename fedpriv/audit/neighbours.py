"""Neighbouring data sets with query results that differ as much as clipping allows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import torch
from torch import Tensor

from fedpriv.audit.observed_release import ObservedRelease
from fedpriv.audit.target import AuditTarget, Data
from fedpriv.clients import Pair, Population
from fedpriv.models import first_leaf, map_tree
from fedpriv.oracle import BatchSampler
from fedpriv.privacy import Privacy
from fedpriv.randomness import Randomness

_FACTOR = 1e3  # on an example's inputs, for gradients longer than any clip
_TRIES = 500  # seeds that are tested until one draws the example


@dataclass(frozen=True)
class Neighbours:
    """Data sets that differ in one unit of one client.

    Attributes:
        client: Number of that client.
        data: The data sets. With neighbouring relation add_remove and privacy unit sample, the first lacks the example.
        unit: The privacy unit, which differs.
        relation: The neighbouring relation.
    """

    client: int
    data: Sequence[Data]
    unit: str
    relation: str

    def row(self, clients: Sequence[int]) -> int | None:
        """Returns the client's row among the rows of `clients`; None if it sent nothing."""
        if self.client in clients:
            return clients.index(self.client)
        return None

    def with_movements(self, release: ObservedRelease, answers: Sequence[Tensor]) -> ObservedRelease:
        """Returns the release with its change due to the unit, and the changes of other clients' rows.

        Args:
            release: The release on the true data.
            answers: The query result without noise on each of the data sets.
        """
        if release.record.norm == "l1":
            order = 1
        else:
            order = 2
        added = self.relation == "add_remove"
        if added and self.unit == "sample":
            pairs = [(answers[0], answer) for answer in answers[1:]]
        else:
            pairs = [*combinations(answers, 2)]
        moved = torch.stack([torch.linalg.vector_norm(a - b, order, dim=1) for a, b in pairs]).amax(0)
        if added and self.unit == "client":
            moved = moved / 2  # two values of a client: each at the largest distance from no client at all
        row_clients = release.row_clients(len(self.data[0]))
        other_rows = [row for row, client in enumerate(row_clients) if client not in (-1, self.client)]
        if other_rows:
            others = float(moved[other_rows].max())
        else:
            others = 0.0
        return replace(release, moved=moved, others=others)


def make_neighbours(subject: AuditTarget, data: Data, privacy: Privacy, client: int) -> tuple[Neighbours, Randomness]:
    """Creates data sets that differ in a client's last example, or in the whole client.

    Args:
        subject: The run.
        data: The clients' data.
        privacy: The privacy settings of the run.
        client: The client with the differing unit.

    Returns:
        The data sets, and random streams with which the first batch contains the differing example.
    """
    randomness = _drawing_streams(subject, subject.population(data), privacy, client)
    examples = [*_extreme_examples(data[client])]
    if privacy.unit == "client":
        # all examples of the client are the same
        sets = [map_tree(lambda row, rows: row.expand_as(rows).clone(), example, data[client]) for example in examples]
    else:
        without_last = map_tree(lambda rows: rows[:-1], data[client])
        sets = [map_tree(lambda rows, row: torch.cat([rows, row]), without_last, example) for example in examples]
        if privacy.relation == "add_remove" and len(first_leaf(without_last[0])):
            sets = [without_last, *sets]
    changed = [[*data[:client], changed_data, *data[client + 1 :]] for changed_data in sets]
    return Neighbours(client, changed, privacy.unit, privacy.relation), randomness


def _extreme_examples(examples: Pair) -> Iterator[Pair]:
    """Yields examples with gradients in several directions, far longer than any clip: `[1, ...]`."""
    inputs, targets = examples
    x, y = (map_tree(lambda rows: rows[-1:], rows) for rows in examples)
    labels = (y, map_tree(_other_target, targets))
    for sign in (1.0, -1.0):
        far = map_tree(lambda row: _scaled(row, sign * _FACTOR), x)  # noqa: B023 - called at once
        yield from ((far, label) for label in labels)
    yield map_tree(lambda rows: rows[:1], inputs), labels[0]


def _scaled(row: Tensor, factor: float) -> Tensor:
    """Multiplies numbers by the factor, with zeros replaced by ones; integers, such as tokens, are unchanged."""
    if row.is_floating_point():
        return factor * (row + (row == 0))
    return row


def _other_target(targets: Tensor) -> Tensor:
    """Returns a target that differs from the last example's: another class, or a distant number."""
    last = targets[-1:]
    if targets.is_floating_point():
        return last - _FACTOR
    if bool((last != targets.max()).all()):
        return targets.max().expand_as(last).clone()
    return targets.min().expand_as(last).clone()


def _drawing_streams(subject: AuditTarget, population: Population, privacy: Privacy, client: int) -> Randomness:
    """Returns streams that put the client's last example in the first batch, or any streams if none are found."""
    last = int(population.starts[client] + population.counts[client]) - 1
    randomness = Randomness()
    for _ in range(_TRIES):
        randomness = Randomness()
        cohort = subject.network.participants(0, randomness)
        if client not in cohort.tolist():
            continue
        sampler = BatchSampler(population, randomness, privacy.cohort_rate, privacy.cohort_rounds)
        sampler.begin_round(0, cohort)
        batches = sampler.batches(privacy.sampling, 0)
        if any(bool((batch.examples[batch.mask] == last).any()) for batch in batches if batch.examples is not None):
            return randomness
    return randomness
