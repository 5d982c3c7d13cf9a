"""Check that each example is at one client, once, and not in the test data: epsilon is for one occurrence."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset

from fedpriv.clients.client import Client
from fedpriv.clients.client_set import as_client_set
from fedpriv.clients.population import Population
from fedpriv.clients.reading import pair_of
from fedpriv.data.base import ExactOnly, size
from fedpriv.data.nested import Nested, each, leaves
from fedpriv.errors import PrivacyError
from fedpriv.privacy.settings import Privacy

Places = NDArray[np.int64]
_TEST = -1


@dataclass(frozen=True)
class DuplicateCounts:
    """Numbers of examples with equal content, which may be two people or one person twice. Exact, so not private.

    Attributes:
        examples: Training examples that equal another one.
        apart: Training examples that equal one of another client.
        tested: Training examples that equal a test example.
    """

    examples: int
    apart: int
    tested: int


def check_clients(clients: Sequence[Client], test: Dataset[Any] | None, privacy: Privacy) -> None:
    """`check_datasets` for the clients' data sets; those that are read when they are drawn are then checked one by one.

    A client without an objective is the server, whose data are public and may be the test data.
    """
    roster = as_client_set(clients)
    roster.examine_with(lambda client, dataset: _check_alone(client, dataset, privacy))
    if privacy.private:
        public = [i for i, problem in enumerate(roster.problems) if problem.objective is None]
        _check_owners({client: roster.dataset(client) for client in roster.looked_at}, test, privacy, public)


def _check_alone(client: int, dataset: Dataset[Any], privacy: Privacy) -> None:
    # the rows of a TensorDataset are different ones
    if privacy.private and type(dataset) is not TensorDataset:
        _check_owners({client: dataset}, None, privacy, ())


def check_datasets(
    datasets: Sequence[Dataset[Any]], test: Dataset[Any] | None, privacy: Privacy, *, public: Sequence[int] = ()
) -> None:
    """Refuse a private run in which an example occurs more than once, or also in the test data.

    Examples are told apart by data set and index, also through `Subset` and `ConcatDataset`, or by their place in
    memory in a `TensorDataset`; contents are not compared, see `count_duplicates`.

    Args:
        datasets: The clients' data.
        test: Public test data.
        privacy: The privacy settings; runs without privacy are not checked.
        public: Clients whose data are public.

    Raises:
        PrivacyError: an example is at two clients, twice at one (for unit sample) or in the test data; or the data
            were prepared by looking at all of them.
    """
    if privacy.private:
        _check_owners(dict(enumerate(datasets)), test, privacy, public)


def _check_owners(
    datasets: Mapping[int, Dataset[Any]], test: Dataset[Any] | None, privacy: Privacy, public: Sequence[int]
) -> None:
    found: dict[Hashable, list[tuple[int, Places]]] = {}
    for owner, dataset in [*datasets.items(), *([] if test is None else [(_TEST, test)])]:
        for source, places in _places(dataset, np.arange(size(dataset)), owner):
            found.setdefault(source, []).append((owner, places))
    for parts in found.values():
        owners = np.concatenate([np.full(len(places), owner) for owner, places in parts])
        _check_source(owners, np.concatenate([places for _, places in parts]), privacy, public)


def example_fingerprints(population: Population) -> list[list[bytes]]:
    """A fingerprint of each example of each client here: equal contents have equal ones."""
    return [_digests(*population.examples_of(client)) for client in range(len(population))]


def check_test(population: Population, test: Dataset[Any], examples: Sequence[list[bytes]]) -> None:
    """Refuse a private run that is tested on a copy of its own training data.

    Args:
        population: Clients of the run, for the formats of numbers.
        test: Public test data.
        examples: The `example_fingerprints` of all clients.

    Raises:
        PrivacyError: the test examples have the same contents as the training examples.
    """
    if Counter(_digests_of_test(population, test)) == Counter(chain.from_iterable(examples)):
        raise PrivacyError(
            f"the {size(test)} test examples are copies of the training examples, so every metric is an answer about "
            "them without noise: hold a part of the data out, or leave test data out"
        )


def count_duplicates(
    population: Population, test: Dataset[Any] | None, examples: Sequence[list[bytes]]
) -> DuplicateCounts:
    """Count training examples with equal input and target; reads the test data once. Arguments: see `check_test`."""
    digests = list(chain.from_iterable(examples))
    counts, holders = Counter(digests), Counter(digest for own in examples for digest in {*own})
    if test is not None:
        tested = set(_digests_of_test(population, test))
    else:
        tested = set[bytes]()
    return DuplicateCounts(
        examples=sum(counts[digest] > 1 for digest in digests),
        apart=sum(holders[digest] > 1 for digest in digests),
        tested=sum(digest in tested for digest in digests),
    )


def _places(dataset: Dataset[Any], index: Places, owner: int) -> Iterator[tuple[Hashable, Places]]:
    """Where these examples lie: a source and places in it, equal for the same example however it is reached."""
    if isinstance(dataset, ExactOnly) and owner != _TEST:
        raise PrivacyError(
            f"the data of client {owner} are for exact runs alone: they were prepared by looking at all of them, or "
            "some are there twice. Take protocol: held_out, or train without privacy (privacy.at: none)"
        )
    index = np.where(index < 0, index + size(dataset), index)
    if isinstance(dataset, Subset):
        yield from _places(dataset.dataset, np.asarray(dataset.indices, dtype=np.int64)[index], owner)
    elif isinstance(dataset, ConcatDataset):
        for part, (low, high) in zip(dataset.datasets, pairwise([0, *dataset.cumulative_sizes]), strict=True):
            yield from _places(part, index[(index >= low) & (index < high)] - low, owner)
    elif isinstance(dataset, TensorDataset) and _has_rows(dataset.tensors[0]):
        rows = dataset.tensors[0]
        yield ("memory", str(rows.device)), rows.data_ptr() + index * rows.stride(0) * rows.element_size()
    else:
        yield id(dataset), index


def _has_rows(tensor: Tensor) -> bool:
    """Each row has a place in memory of its own."""
    return tensor.layout == torch.strided and tensor.numel() > 0 and (len(tensor) == 1 or tensor.stride(0) != 0)


def _check_source(owners: Places, places: Places, privacy: Privacy, public: Sequence[int]) -> None:
    order = np.lexsort((owners, places))
    owners, places = owners[order], places[order]
    same = places[1:] == places[:-1]
    before, after = owners[:-1][same], owners[1:][same]  # the test data come first
    tested = (before == _TEST) & (after != _TEST) & ~np.isin(after, public)
    if tested.any():
        raise PrivacyError(
            f"{int(tested.sum())} test examples are training examples (the first of client {after[tested][0]}), so "
            "every metric is an answer about them without noise: hold them out, or leave test data out"
        )
    train = before != _TEST
    apart, twice = train & (before != after), train & (before == after)
    if apart.any():
        raise PrivacyError(
            f"{int(apart.sum())} examples are at two clients (the first at {before[apart][0]} and {after[apart][0]}), "
            "and an epsilon is for one: give each example, known by its data set and index, to one client"
        )
    if twice.any() and privacy.unit == "sample":
        raise PrivacyError(
            f"client {before[twice][0]} has an example twice ({int(twice.sum())} repeats in all), and unit: sample "
            "counts it once: list each index once, or protect whole clients (unit: client)"
        )


def _digests_of_test(population: Population, test: Dataset[Any]) -> list[bytes]:
    """In the number formats that the clients' examples have."""
    found: list[bytes] = []
    x, y = population.first_examples(1)
    for inputs, targets in map(pair_of, DataLoader(test, batch_size=1000)):
        found += _digests(*each(lambda own, like: own.to(like.dtype), (inputs, targets), (x, y)))
    return found


def _digests(inputs: Nested, targets: Nested) -> list[bytes]:
    """A fingerprint of each example."""
    tensors = leaves((inputs, targets))
    parts = [tensor.detach().cpu().contiguous().numpy().reshape(len(tensor), -1) for tensor in tensors]
    rows = np.concatenate([np.ascontiguousarray(part).view(np.uint8) for part in parts], 1)
    return [hashlib.blake2b(row, digest_size=16).digest() for row in rows]
