"""Finds examples that share numbers, by their place in memory, as sliding windows over one series do.

An epsilon is for one example. If one number is in six examples, it has the epsilon of a group of six, whatever the
model. Only addresses are compared: copies of equal numbers are not found.
"""

from __future__ import annotations

import math
from collections import Counter
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
from fedpriv.data.base import size
from fedpriv.errors import PrivacyError
from fedpriv.privacy.settings import Privacy
from fedpriv.randomness.borrowed import global_generators

Addresses = NDArray[np.int64]


@dataclass(frozen=True)
class _Spans:
    """Where examples are in memory: each span belongs to one example, which may have several.

    Attributes:
        starts: First bytes, `[k]`.
        ends: Bytes after the last ones, `[k]`.
        owner: Number of the client.
    """

    starts: Addresses
    ends: Addresses
    owner: int


def check_memory(datasets: Mapping[int, Dataset[Any]], test: Dataset[Any] | None, privacy: Privacy) -> list[str]:
    """Returns a warning if rows of the clients' tensors overlap in memory, so that examples share numbers.

    Reads no examples.

    Args:
        datasets: The data of each client; not those of the server, which are public.
        test: Public test data.
        privacy: The privacy settings of a private run.

    Raises:
        PrivacyError: a test example shares numbers with a training example.
    """
    by_device = dict[str, list[_Spans]]()
    expanded = Counter[int]()
    for client, dataset in datasets.items():
        for base, index in components(dataset, np.arange(size(dataset)), client):
            if isinstance(base, TensorDataset):
                for address in _one_row_for_all(base):
                    expanded[address] += len(index)
                for device, spans in _spans_of(base, index, client, base.tensors):
                    by_device.setdefault(device, []).append(spans)
    if test is not None:
        _check_test(test, by_device)
    examples = max(expanded.values(), default=1)
    between_clients = False
    for spans in by_device.values():
        examples = max(examples, _most_examples(spans))
        between_clients |= _is_between_owners(spans)
    return _notes(examples, privacy, between_clients=between_clients)


def note_on_items(datasets: Sequence[Dataset[Any]], privacy: Privacy) -> list[str]:
    """Returns a warning if examples of a user's own data set are overlapping views of one memory.

    Reads two neighbouring examples of one data set of each class.

    Args:
        datasets: The data of clients of this process.
        privacy: The privacy settings.
    """
    if not privacy.private or privacy.unit == "client":
        return []
    neighbours = dict[type, tuple[Dataset[Any], int, int]]()
    for client, dataset in enumerate(datasets):
        for base, index in components(dataset, np.arange(size(dataset)), client):
            if type(base) not in neighbours and len(index) > 1 and type(base) is not TensorDataset:
                neighbours[type(base)] = (base, *_closest(index))
    with global_generators() as begin:
        begin(0)
        examples = [_examples_with_one_number(*pair) for pair in neighbours.values()]
    return _notes(max(examples, default=1), privacy, between_clients=False)


def _notes(examples: int, privacy: Privacy, *, between_clients: bool) -> list[str]:
    cut = "Divide a series among clients before you cut it into windows"
    if privacy.unit == "client" and between_clients:
        return [
            f"examples of several clients share numbers in memory, and epsilon is for the data of one client. {cut}"
        ]
    if privacy.unit == "client" or examples < 2:
        return []
    note = (
        f"one number is in up to {examples} examples, whose rows overlap in memory, as those of sliding windows do. "
        f"Epsilon is for one example: unless that number is public, it has the larger epsilon of a group of {examples} "
        f"(fedpriv account RUN --group {examples}). Take windows that do not overlap, or protect whole clients (unit: "
        "client)"
    )
    if between_clients:
        note += f". Examples of several clients share numbers, too. {cut}"
    return [note]


def _check_test(test: Dataset[Any], training: Mapping[str, Sequence[_Spans]]) -> None:
    """Refuses test inputs that share numbers with training examples.

    Raises:
        PrivacyError: they do.
    """
    shared = 0
    for base, index in components(test, np.arange(size(test)), None):
        if not isinstance(base, TensorDataset):
            continue
        for device, spans in _spans_of(base, index, -1, base.tensors[:1]):
            trained = training.get(device, [])
            if not trained:
                continue
            starts = np.sort(np.concatenate([some.starts for some in trained]))
            ends = np.sort(np.concatenate([some.ends for some in trained]))
            # training spans that begin before a test span ends, less those that end before it begins
            begun = np.searchsorted(starts, spans.ends, side="left")
            over = np.searchsorted(ends, spans.starts, side="right")
            shared += int((begun > over).sum())
    if shared:
        raise PrivacyError(
            f"{shared} test examples share numbers with training examples, as windows over one series do, so every "
            "metric is an answer about them without noise: leave out the windows that overlap, or leave test data out"
        )


def _one_row_for_all(dataset: TensorDataset) -> Iterator[int]:
    """Yields the addresses of inputs that are one row of memory for all examples, as `expand` makes them."""
    for tensor in dataset.tensors[:-1]:
        if _is_dense(tensor) and len(tensor) > 1 and tensor.stride(0) == 0:
            yield tensor.data_ptr()


def _spans_of(
    dataset: TensorDataset, index: Addresses, owner: int, tensors: Sequence[Tensor]
) -> Iterator[tuple[str, _Spans]]:
    """Yields the device, and where on it the examples at `index` are."""
    columns = dict[str, list[tuple[Addresses, int]]]()
    for tensor in tensors:
        reach = _reach(tensor)
        if reach is not None:
            bytes_each = tensor.element_size()
            starts = tensor.data_ptr() + index * tensor.stride(0) * bytes_each
            columns.setdefault(str(tensor.device), []).append((starts, reach * bytes_each))
    for device, of_tensors in columns.items():
        starts = np.stack([starts for starts, _ in of_tensors], 1)
        lengths = np.array([length for _, length in of_tensors])
        yield device, _Spans(*_joined(starts, starts + lengths), owner)


def _reach(tensor: Tensor) -> int | None:
    """Returns how many numbers lie from the first to the last one of a row.

    None if rows are no spans of their own: all are the same one, or they are apart but interleaved, as columns are.
    """
    if not _is_dense(tensor) or (len(tensor) > 1 and tensor.stride(0) == 0):
        return None
    of_row = [(stride, count) for stride, count in zip(tensor.stride()[1:], tensor.shape[1:], strict=True) if stride]
    reach = 1 + sum(stride * (count - 1) for stride, count in of_row)
    if reach <= tensor.stride(0) or len(tensor) == 1:
        return reach
    # numbers of a tensor are apart if each stride passes all that smaller strides reach
    passed = 0
    for stride, count in sorted([(tensor.stride(0), len(tensor)), *of_row]):
        if count > 1 and stride <= passed:
            return reach
        passed += stride * (count - 1)
    return None


def _is_dense(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and not tensor.is_meta and tensor.numel() > 0


def _joined(starts: Addresses, ends: Addresses) -> tuple[Addresses, Addresses]:
    """Joins overlapping spans of one example: `[n, tensors] -> [k]`, so that its own tensors share no numbers."""
    order = np.argsort(starts, axis=1)
    starts = np.take_along_axis(starts, order, 1)
    ends = np.take_along_axis(ends, order, 1)
    kept = np.ones(starts.shape, dtype=bool)
    for column in range(1, starts.shape[1]):
        overlap = starts[:, column] < ends[:, column - 1]
        starts[overlap, column] = starts[overlap, column - 1]
        ends[overlap, column] = np.maximum(ends[overlap, column - 1], ends[overlap, column])
        kept[overlap, column - 1] = False
    return starts[kept], ends[kept]


def _distinct(spans: Sequence[_Spans]) -> tuple[Addresses, Addresses, Addresses]:
    """Returns starts, ends and owners of the distinct spans, by their starts.

    Equal spans are one: equal inputs are refused elsewhere (`ownership`), and equal targets are often constants.
    """
    starts = np.concatenate([some.starts for some in spans])
    ends = np.concatenate([some.ends for some in spans])
    owners = np.concatenate([np.full(len(some.starts), some.owner) for some in spans])
    order = np.lexsort((ends, starts))
    starts, ends, owners = starts[order], ends[order], owners[order]
    first = np.ones(len(starts), dtype=bool)
    first[1:] = (starts[1:] != starts[:-1]) | (ends[1:] != ends[:-1])
    return starts[first], ends[first], owners[first]


def _most_examples(spans: Sequence[_Spans]) -> int:
    """Returns the largest number of spans that one byte is in."""
    starts, ends, _ = _distinct(spans)
    over = np.searchsorted(np.sort(ends), starts, side="right")
    return int((np.arange(1, len(starts) + 1) - over).max(initial=1))


def _is_between_owners(spans: Sequence[_Spans]) -> bool:
    """Whether spans of different owners overlap."""
    starts, ends, owners = _distinct(spans)
    reached = np.maximum.accumulate(ends)
    return bool(((starts[1:] < reached[:-1]) & (owners[1:] != owners[:-1])).any())


def _closest(index: Addresses) -> tuple[int, int]:
    """Returns two different indices that are as close as any two."""
    ordered = np.unique(index)
    if len(ordered) < 2:
        return int(ordered[0]), int(ordered[0])
    nearest = int(np.diff(ordered).argmin())
    return int(ordered[nearest]), int(ordered[nearest + 1])


def _examples_with_one_number(dataset: Dataset[Any], first: int, second: int) -> int:
    """Returns how many examples hold one number, if all neighbours share as much memory as these two; 1 for none.

    An example that cannot be read is refused elsewhere.
    """
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
