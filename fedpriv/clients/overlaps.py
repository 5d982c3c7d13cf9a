"""Warns about examples that share numbers in memory, as sliding windows over one series do.

An epsilon covers one example. If a number is part of six examples, its epsilon is the larger epsilon of a group of six
examples, for any model. Only memory addresses are compared, so copies of equal numbers are not detected.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import Dataset, TensorDataset

from fedpriv.clients.components import components
from fedpriv.clients.datasets import size
from fedpriv.errors import PrivacyError
from fedpriv.privacy.settings import Privacy
from fedpriv.randomness.global_rng import global_generators

Addresses = NDArray[np.int64]


@dataclass(frozen=True)
class _Spans:
    """The memory addresses of examples.

    Attributes:
        starts: First byte of each example, `[k]`.
        ends: The byte after the last byte of each example, `[k]`.
        owners: Number of the client of each example, `[k]`.
    """

    starts: Addresses
    ends: Addresses
    owners: Addresses

    @staticmethod
    def joined(spans: Sequence[_Spans]) -> _Spans:
        """Returns all spans, sorted by `starts`."""
        columns = [np.concatenate([getattr(some, name) for some in spans]) for name in ("starts", "ends", "owners")]
        order = np.argsort(columns[0], kind="stable")
        return _Spans(columns[0][order], columns[1][order], columns[2][order])

    def most_examples(self) -> int:
        """Returns the largest number of examples that contain the same byte."""
        ended = np.searchsorted(np.sort(self.ends), self.starts, side="right")
        return int((np.arange(1, len(self.starts) + 1) - ended).max(initial=1))

    def is_between_owners(self) -> bool:
        """True if examples of different clients overlap."""
        reached = np.maximum.accumulate(self.ends)
        return bool(((self.starts[1:] < reached[:-1]) & (self.owners[1:] != self.owners[:-1])).any())


def check_memory(datasets: Mapping[int, Dataset[Any]], test: Dataset[Any] | None, privacy: Privacy) -> list[str]:
    """Returns a warning if rows of the clients' tensors overlap in memory, so that examples share numbers.

    No examples are read.

    Args:
        datasets: The data of each client, without the server's public data.
        test: Public test data.
        privacy: The privacy settings of a private run.

    Raises:
        PrivacyError: If a test example shares numbers with a training example.
    """
    parts = dict[str, list[_Spans]]()
    for client, dataset in datasets.items():
        for device, some in _overlapping(dataset, client):
            parts.setdefault(device, []).append(some)
    spans = {device: _Spans.joined(some) for device, some in parts.items()}
    if test is not None:
        _check_test(test, spans)
    examples = max((some.most_examples() for some in spans.values()), default=1)
    return _notes(examples, privacy, between_clients=any(some.is_between_owners() for some in spans.values()))


def describe_overlap(datasets: Sequence[Dataset[Any]], privacy: Privacy) -> list[str]:
    """Returns a warning if examples of a custom data set are overlapping views of one memory.

    It reads two consecutive examples of one data set for each class of data sets.

    Args:
        datasets: The data of clients of this process.
        privacy: The privacy settings.
    """
    if not privacy.private or privacy.unit == "client":
        return []
    seen: set[type[Dataset[Any]]] = {TensorDataset}
    examples = 1
    for client, dataset in enumerate(datasets):
        for base, index in components(dataset, np.arange(size(dataset)), client):
            ordered = np.unique(index)
            if type(base) not in seen and len(ordered) > 1:
                seen.add(type(base))
                nearest = int(np.diff(ordered).argmin())
                examples = max(examples, _examples_with_one_number(base, *map(int, ordered[nearest : nearest + 2])))
    return _notes(examples, privacy, between_clients=False)


def _notes(examples: int, privacy: Privacy, *, between_clients: bool) -> list[str]:
    cut = "If the examples are windows of a series, divide the series among clients before you cut it into windows"
    if privacy.unit == "client" and between_clients:
        return [
            "examples of several clients share numbers in memory, so one number can be in the data of several clients, "
            f"but epsilon covers the data of one client. {cut}"
        ]
    if privacy.unit == "client" or examples < 2:
        return []
    note = (
        f"one number can be part of up to {examples} examples, because their rows overlap in memory, like sliding "
        "windows. Epsilon covers one example. Unless the number is public, the epsilon that covers the number is that "
        f"of a group of {examples} examples (fedpriv account RUN --group {examples}). Use windows that do not overlap, "
        "or protect whole clients (unit: client)"
    )
    if between_clients:
        note += f". Examples of several clients also share numbers. {cut}"
    return [note]


def _check_test(test: Dataset[Any], training: Mapping[str, _Spans]) -> None:
    """Raises an error if test inputs share numbers with training examples.

    Raises:
        PrivacyError: If there are shared numbers.
    """
    shared = 0
    for device, spans in _overlapping(test, None):
        if device in training:
            # training spans that begin before a test span ends, less those that end before it begins
            begun = np.searchsorted(training[device].starts, spans.ends, side="left")
            ended = np.searchsorted(np.sort(training[device].ends), spans.starts, side="right")
            shared += int((begun > ended).sum())
    if shared:
        raise PrivacyError(
            f"{shared} test examples share numbers with training examples, like overlapping windows of one series, so "
            "every test metric would reveal these training examples without noise: remove the overlapping test "
            "examples, or leave test data out"
        )


def _overlapping(dataset: Dataset[Any], owner: int | None) -> Iterator[tuple[str, _Spans]]:
    """Yields, for each block of memory in which rows of a tensor overlap, its device and the addresses of the examples.

    Args:
        dataset: The data set.
        owner: Number of its client; None for public test data, where only inputs are compared.
    """
    for base, index in components(dataset, np.arange(size(dataset)), owner):
        if not isinstance(base, TensorDataset):
            continue
        tensors = base.tensors
        if owner is None:
            tensors = tensors[:1]
        dense = [tensor for tensor in tensors if _is_dense(tensor)]
        if dense and dense[-1] is base.tensors[-1] and dense[-1].stride(0) == 0:
            dense.pop()  # an expanded target is often a constant
        memories = {_memory(tensor) for tensor in dense if tensor.numel() > _count_places(tensor)}
        for memory in memories:
            rows = [tensor for tensor in dense if _memory(tensor) == memory]
            starts = [row.data_ptr() + index * row.stride(0) * row.element_size() for row in rows]
            ends = [
                start + _count_places(row[:1]) * row.element_size() for start, row in zip(starts, rows, strict=True)
            ]
            owners = np.full(len(index), owner or 0)
            yield str(rows[0].device), _Spans(np.min(starts, axis=0), np.max(ends, axis=0), owners)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _count_places(tensor: Tensor) -> int:
    """Returns the number of memory positions from the first to the last number of a tensor."""
    return 1 + sum(stride * (count - 1) for stride, count in zip(tensor.stride(), tensor.shape, strict=True))


def _is_dense(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and not tensor.is_meta and tensor.numel() > 0


def _examples_with_one_number(dataset: Dataset[Any], first: int, second: int) -> int:
    """Returns the number of examples that contain the same number, if all consecutive examples share as much memory as
    these two; 1 if they share none.

    Examples that cannot be read are ignored, because they raise an error elsewhere.
    """
    with global_generators() as begin:
        begin(0)
        try:
            items = [dataset[first], dataset[second]]  # both are kept: memory that is freed would be used again
        except Exception:
            return 1
    pieces = [[*_pieces(item)] for item in items]
    shared_by = 1
    for (start, length), (other, _) in zip(*pieces, strict=False):
        step = abs(other - start)
        if 0 < step < length:
            shared_by = max(shared_by, math.ceil(length / step))
    return shared_by


def _pieces(item: object) -> Iterator[tuple[int, int]]:
    """Yields address and number of bytes of each tensor and array of an example that is one piece of memory."""
    for leaf in tree_leaves(item):
        if isinstance(leaf, Tensor) and _is_dense(leaf) and leaf.is_contiguous():
            yield leaf.data_ptr(), leaf.numel() * leaf.element_size()
        elif isinstance(leaf, np.ndarray) and leaf.flags.c_contiguous:
            yield leaf.ctypes.data, leaf.nbytes
