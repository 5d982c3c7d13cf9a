"""Checks that each example belongs to one client, occurs there once, and is not in the test data, because epsilon
covers one occurrence only.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from fedpriv.clients import overlaps
from fedpriv.clients.client import Client
from fedpriv.clients.client_set import as_client_set
from fedpriv.clients.components import components
from fedpriv.clients.datasets import size
from fedpriv.clients.population import Population
from fedpriv.clients.reading import split_pair
from fedpriv.errors import PrivacyError, format_count
from fedpriv.models.nested import Nested, list_leaves, map_tree
from fedpriv.privacy.settings import Privacy

Integers = NDArray[np.int64]
_TEST = -1


@dataclass(frozen=True)
class DuplicateCounts:
    """Numbers of examples with equal content. They may belong to two persons, or twice to the same person. The numbers
    have no noise, so they are not private.

    Attributes:
        examples: Number of training examples that equal another training example.
        apart: Number of training examples that equal a training example of another client.
        tested: Number of training examples that equal a test example.
    """

    examples: int
    apart: int
    tested: int


def check_ownership(clients: Sequence[Client], test: Dataset[Any] | None, privacy: Privacy) -> list[str]:
    """Runs `check_datasets` on the clients' data sets. The data sets of lazy clients are checked one by one when they
    are read.

    A client without an objective represents the server. Its data are public and may be the same as the test data.

    Returns:
        A warning if examples share numbers in memory.

    Raises:
        PrivacyError: See `check_datasets`; also if test examples share numbers in memory with training examples.
    """
    roster = as_client_set(clients)
    roster.examine_with(lambda client, dataset: _check_alone(client, dataset, privacy))
    if not privacy.private:
        return []
    public = [i for i, problem in enumerate(roster.problems) if problem.objective is None]
    datasets = {client: roster.dataset(client) for client in roster.validated_clients}
    _check_owners(datasets, test, privacy, public)
    owned = {client: dataset for client, dataset in datasets.items() if client not in public}
    return overlaps.check_memory(owned, test, privacy)


def _check_alone(client: int, dataset: Dataset[Any], privacy: Privacy) -> None:
    # the rows of a TensorDataset are different examples
    if privacy.private and type(dataset) is not TensorDataset:
        _check_owners({client: dataset}, None, privacy, ())


def check_datasets(
    datasets: Sequence[Dataset[Any]], test: Dataset[Any] | None, privacy: Privacy, *, public: Sequence[int] = ()
) -> None:
    """Raises an error if an example of a private run occurs more than once, or also in the test data.

    Examples are identified by data set and index, also through `Subset` and `ConcatDataset`, or in a `TensorDataset`
    by their memory address; contents are not compared, see `count_duplicates`.

    Args:
        datasets: The clients' data.
        test: Public test data.
        privacy: The privacy settings; runs without privacy are not checked.
        public: Clients with public data.

    Raises:
        PrivacyError: If an example belongs to two clients, occurs twice at one client (for the unit sample) or is in
            the test data; or if the data were prepared with statistics of all clients' data.
    """
    if privacy.private:
        _check_owners(dict(enumerate(datasets)), test, privacy, public)


def _check_owners(
    datasets: Mapping[int, Dataset[Any]], test: Dataset[Any] | None, privacy: Privacy, public: Sequence[int]
) -> None:
    sources: dict[Hashable, list[tuple[int, Integers]]] = {}
    owned_datasets = [*datasets.items()]
    if test is not None:
        owned_datasets.append((_TEST, test))
    for owner, dataset in owned_datasets:
        for source, positions in _locate(dataset, np.arange(size(dataset)), owner):
            sources.setdefault(source, []).append((owner, positions))
    for occurrences in sources.values():
        owners = np.concatenate([np.full(len(positions), owner) for owner, positions in occurrences])
        _check_source(owners, np.concatenate([positions for _, positions in occurrences]), privacy, public)


def example_fingerprints(population: Population) -> list[list[bytes]]:
    """Returns a fingerprint of each example of each client in this process; equal contents have equal fingerprints."""
    return [_digests(*population.examples_of(client)) for client in range(len(population))]


def check_test(population: Population, test: Dataset[Any], examples: Sequence[list[bytes]]) -> None:
    """Raises an error if the test data of a private run are a copy of its training data.

    Args:
        population: Clients of the run, for the formats of numbers.
        test: Public test data.
        examples: The `example_fingerprints` of all clients.

    Raises:
        PrivacyError: If the test examples have the same contents as the training examples.
    """
    if Counter(_test_digests(population, test)) == Counter(chain.from_iterable(examples)):
        raise PrivacyError(
            f"the {size(test)} test examples are copies of the training examples, so every test metric would "
            "reveal the training examples without noise: hold out part of the data for tests, or leave test data out"
        )


def count_duplicates(
    population: Population, test: Dataset[Any] | None, examples: Sequence[list[bytes]]
) -> DuplicateCounts:
    """Counts training examples with equal input and target; reads the test data once. Arguments: see `check_test`."""
    digests = list(chain.from_iterable(examples))
    counts = Counter(digests)
    holders = Counter(digest for client_digests in examples for digest in {*client_digests})
    tested: set[bytes] = set()
    if test is not None:
        tested = set(_test_digests(population, test))
    return DuplicateCounts(
        examples=sum(counts[digest] > 1 for digest in digests),
        apart=sum(holders[digest] > 1 for digest in digests),
        tested=sum(digest in tested for digest in digests),
    )


def _locate(dataset: Dataset[Any], index: Integers, owner: int) -> Iterator[tuple[Hashable, Integers]]:
    """Yields the locations of these examples as a source and positions in it. Two occurrences of the same example have
    the same location.
    """
    for base, positions in components(dataset, index, None if owner == _TEST else owner):
        if isinstance(base, TensorDataset) and _has_rows(base.tensors[0]):
            rows = base.tensors[0]
            yield ("memory", str(rows.device)), rows.data_ptr() + positions * rows.stride(0) * rows.element_size()
        else:
            yield id(base), positions


def _has_rows(tensor: Tensor) -> bool:
    """Returns True if each row has its own memory address."""
    return tensor.layout == torch.strided and tensor.numel() > 0 and (len(tensor) == 1 or tensor.stride(0) != 0)


def _check_source(owners: Integers, positions: Integers, privacy: Privacy, public: Sequence[int]) -> None:
    """Raises an error if an example in a source has two owners, or occurs twice at one owner. `owners` and `positions`
    have an entry for each occurrence.
    """
    order = np.lexsort((owners, positions))
    owners = owners[order]
    positions = positions[order]
    # pairs of occurrences of the same example, by owner; test data have the smallest number and come first
    same = positions[1:] == positions[:-1]
    before = owners[:-1][same]
    after = owners[1:][same]
    tested = (before == _TEST) & (after != _TEST) & ~np.isin(after, public)
    if tested.any():
        raise PrivacyError(
            f"{int(tested.sum())} test examples are also training examples (the first of client {after[tested][0]}), "
            "so every test metric would reveal them without noise: leave them out of the training data, or leave test "
            "data out"
        )
    train = before != _TEST
    split = train & (before != after)
    twice = train & (before == after)
    if split.any():
        raise PrivacyError(
            f"{int(split.sum())} examples belong to two clients (the first to {before[split][0]} and "
            f"{after[split][0]}), but epsilon covers an example only at one client: assign each example (a data "
            "set and an index) to one client"
        )
    if twice.any() and privacy.unit == "sample":
        raise PrivacyError(
            f"client {before[twice][0]} has an example twice ({format_count(int(twice.sum()), 'repeated example')} in "
            "all), but with unit: sample, epsilon covers each copy alone: list each index once, or protect whole "
            "clients (unit: client)"
        )


def _test_digests(population: Population, test: Dataset[Any]) -> list[bytes]:
    """Returns the digests of test examples, converted to the types of the clients' examples."""
    digests: list[bytes] = []
    x, y = population.first_examples(1)
    for inputs, targets in map(split_pair, DataLoader(test, batch_size=1000)):
        digests += _digests(*map_tree(lambda values, like: values.to(like.dtype), (inputs, targets), (x, y)))
    return digests


def _digests(inputs: Nested, targets: Nested) -> list[bytes]:
    """Returns a digest of each example."""
    tensors = list_leaves((inputs, targets))
    arrays = [tensor.detach().cpu().contiguous().numpy().reshape(len(tensor), -1) for tensor in tensors]
    rows = np.concatenate([np.ascontiguousarray(array).view(np.uint8) for array in arrays], 1)
    return [hashlib.blake2b(row, digest_size=16).digest() for row in rows]
