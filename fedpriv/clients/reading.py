"""Reads the examples of a data set, each alone, into tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset, default_collate

from fedpriv.errors import DataError, summarize_error
from fedpriv.models.nested import Nested, concatenate_trees, first_leaf, format_structure, list_leaves, to_plain_tree
from fedpriv.randomness.global_rng import GeneratorStates

_MAX_EXAMPLES = 2**31  # examples; more fit into no memory
_PIECE = 256  # examples that are read in a row
Pair = tuple[Nested, Nested]


class Source(Protocol):
    """The part of a `DataLoader` that is used to read examples."""

    @property
    def dataset(self) -> Dataset[Any]:
        """The data set."""
        ...

    @property
    def collate_fn(self) -> Callable[[list[Any]], Any]:
        """Collates a list of examples to tensors."""
        ...

    @property
    def num_workers(self) -> int:
        """Number of processes that read examples; 0 reads in this one."""
        ...


@dataclass(frozen=True)
class Unbatched:
    """A data set without a loader."""

    dataset: Dataset[Any]
    collate_fn: Callable[[list[Any]], Any] = default_collate
    num_workers: int = 0


class Read(NamedTuple):
    """All examples of a source.

    Attributes:
        pair: Inputs `[m, ...]` and targets `[m, ...]`.
        random: True if reading the examples drew from torch's, NumPy's or Python's global generator. In this case the
            examples may differ when they are read again.
    """

    pair: Pair
    random: bool


def count_examples_of(dataset: Dataset[Any]) -> int:
    """Returns the number of examples of a map-style data set.

    Raises:
        DataError: If the data set streams (even if it has a length) or has no length.
    """
    if isinstance(dataset, IterableDataset):
        raise DataError(
            "a client's data set must be map-style, not streaming, since its size is public and private batches are "
            "drawn by index: collect the examples into a TensorDataset first"
        )
    try:
        length = len(cast("TensorDataset", dataset))
    except Exception as error:  # a user's data set can raise anything
        fix = "pass a data set whose len() is its number of examples"
        raise DataError(f"len() of a client's data set raises {summarize_error(error)}: {fix}") from error
    if length > _MAX_EXAMPLES:
        raise DataError(
            f"a client's data set has {length} examples, but at most {_MAX_EXAMPLES} are allowed: divide them among "
            "clients"
        )
    return length


def read_all(source: Source, length: int) -> Read:
    """Reads all examples in order; there must be `length` of them.

    Raises:
        DataError: If an example is no (input, target) pair, is not finite, or cannot be read.
    """
    try:
        (inputs, targets), random = _read(source)
    except DataError:
        raise
    except Exception as error:  # a user's data set or collate_fn can raise anything
        fix = "each index below the length of the data set must give a pair (input, target) that collates to tensors"
        raise DataError(f"the examples cannot be read ({summarize_error(error)}): {fix}") from error
    counts = len(first_leaf(inputs)), len(first_leaf(targets))
    if counts != (length, length):
        problem = f"the data set has length {length}, but gives {counts[0]} inputs and {counts[1]} targets"
        raise DataError(f"{problem}: its length must be the number of examples, since sums are divided by the length")
    for name, tree in (("inputs", inputs), ("targets", targets)):
        for tensor in list_leaves(tree):
            if tensor.layout != torch.strided or tensor.is_meta or tensor.is_complex():
                kind = f"{tensor.dtype} tensors of layout {tensor.layout} on {tensor.device}"
                raise DataError(
                    f"a client's {name} are {kind}: use dense tensors of real numbers, and not on the device meta"
                )
    check_finite(inputs, targets)
    return Read((inputs, targets), random)


def read_one(source: Source, position: int, like: Pair) -> Pair:
    """Reads the example at a position again: input `[1, ...]` and target `[1, ...]`.

    Args:
        source: The source from which the example is read.
        position: Its index in the data set.
        like: Inputs and targets of other examples; nesting and shapes must be equal.

    Raises:
        DataError: If its nesting or shapes differ, or it cannot be read.
    """
    try:
        pair = split_pair(source.collate_fn([source.dataset[position]]), 1)
    except DataError:
        raise
    except Exception as error:  # a user's data set or collate_fn can raise anything
        fix = "correct the data set or its transforms, which must work at every call"
        raise DataError(f"an example cannot be read again ({summarize_error(error)}): {fix}") from error
    shapes = [[tuple(tensor.shape[1:]) for tensor in list_leaves(some_pair)] for some_pair in (pair, like)]
    if format_structure(pair) != format_structure(like) or shapes[0] != shapes[1]:
        problem = f"an example has shapes {shapes[0]} when it is read again, but had shapes {shapes[1]} before"
        raise DataError(f"{problem}: make the data set and its transforms return the same shapes at every call")
    return pair


def check_finite(inputs: Nested, targets: Nested) -> None:
    """Raises an error for examples with NaN or infinity.

    Raises:
        DataError: If there is such an example; the message names it.
    """
    for name, tree in (("input", inputs), ("target", targets)):
        broken = [row for row in map(find_nonfinite_row, list_leaves(tree)) if row is not None]
        if broken:
            raise DataError(f"{name} {broken[0]} is not finite (NaN or infinity): clean or drop that example")


def find_nonfinite_row(rows: Tensor) -> int | None:
    """Returns the index of the first row with a number that is not finite; None if there is none."""
    if not rows.is_floating_point() or torch.isfinite(rows).all():
        return None
    return int(torch.isfinite(rows.reshape(len(rows), -1)).all(1).logical_not().nonzero()[0])


def is_plain(loader: Source) -> bool:
    """Returns True if the loader's examples are rows of tensors, unchanged by a user's class or `collate_fn`."""
    dataset = loader.dataset
    while isinstance(dataset, Subset) and type(dataset).__getitem__ is Subset.__getitem__:
        dataset = dataset.dataset
    if not isinstance(dataset, TensorDataset) or type(dataset).__getitem__ is not TensorDataset.__getitem__:
        return False
    return len(dataset.tensors) == 2 and loader.collate_fn is default_collate


def _read(loader: Source) -> Read:
    if is_plain(loader):
        return Read(_tensors(loader.dataset), random=False)
    pieces = _Pieces(loader.dataset, len(cast("TensorDataset", loader.dataset)), loader.collate_fn)
    pieces_read = list(DataLoader(pieces, batch_size=None, num_workers=loader.num_workers, collate_fn=_identity))
    pairs = [pair for piece, _ in pieces_read for pair in piece]
    _check_one_shape("inputs", [inputs for inputs, _ in pairs])
    _check_one_shape("targets", [targets for _, targets in pairs])
    read = Read(concatenate_trees(pairs), random=any(random for _, random in pieces_read))
    if not read.random:
        _check_repeats(loader, read.pair)
    return read


def _check_repeats(source: Source, pair: Pair) -> None:
    """Raises an error if the examples of a data set depend on earlier reads, because one example could then change
    others.
    """
    length = len(first_leaf(pair))
    for position in dict.fromkeys((length - 1, 0)):
        again = read_one(source, position, pair)
        expected = [leaf[position] for leaf in list_leaves(pair)]
        if not all(torch.equal(new[0], old) for new, old in zip(list_leaves(again), expected, strict=True)):
            raise DataError(
                f"example {position} changes when it is read again, although the data set drew no number from the "
                "global generators of torch, NumPy or Python. The data set must not keep a state that depends on "
                "earlier examples (with a running mean or scale, one example would change others), and must draw "
                "random numbers from torch's global generator"
            )


def _check_one_shape(name: str, column: Sequence[Nested]) -> None:
    if len({format_structure(value) for value in column}) > 1:
        raise DataError(
            f"the {name} of different examples are nested differently: use the same dict keys and tuple positions in "
            "each example"
        )
    for tensors in zip(*map(list_leaves, column), strict=True):
        shapes = {tuple(value.shape[1:]) for value in tensors}
        if len(shapes) > 1:
            raise DataError(
                f"the {name} of different examples have different shapes, e.g. {sorted(shapes)[:3]}: use one public "
                "shape. If lengths differ, pad each example to a length that you choose, in the data set or in a "
                "collate_fn (which receives one example at a time, so that the longest example of a batch changes no "
                "other example), and pass the model a mask"
            )


@dataclass(frozen=True)
class _Pieces(Dataset[tuple[list[Pair], bool]]):
    """A data set of pieces of another data set. A piece contains examples, each read and collated alone, and a flag
    that is True if reading them drew random numbers.

    If examples were read or collated together, one example could change others, and clipping would not bound its
    influence.
    """

    dataset: Dataset[Any]
    length: int
    collate: Callable[[list[Any]], Any]

    def __len__(self) -> int:
        return -(-self.length // _PIECE)

    def __getitem__(self, index: int) -> tuple[list[Pair], bool]:
        before = GeneratorStates.current()
        positions = range(index * _PIECE, min((index + 1) * _PIECE, self.length))
        examples = [self.dataset[position] for position in positions]
        if self.collate is default_collate:  # it treats each example alone
            return _stacked(examples), before.has_changed
        return [split_pair(self.collate([example]), 1) for example in examples], before.has_changed


def _identity(piece: Any) -> Any:  # noqa: ANN401 - torch types it as a list
    return piece


def _stacked(examples: list[Any]) -> list[Pair]:
    try:
        return [split_pair(default_collate(examples), len(examples))]
    except RuntimeError:  # shapes that differ; `_check_one_shape` names them if each example alone can be collated
        return [split_pair(default_collate([example]), 1) for example in examples]


def _is_text(labels: object) -> bool:
    """True for strings, the output of `default_collate` for labels that are words."""
    return isinstance(labels, tuple | list) and len(labels) > 0 and isinstance(labels[0], str)


def split_pair(batch: object, count: int | None = None) -> Pair:
    """Splits a batch into inputs and targets.

    If there are more than two tensors, the last tensor is the target, and the model gets the others as arguments: `(x1,
    x2, y)` becomes `((x1, x2), y)`.

    Args:
        batch: The return value of a loader.
        count: Number of examples that the batch must contain; by default the number of rows of its first tensor.

    Raises:
        DataError: If it is no pair of tensors, or of dicts and tuples of tensors, with a row for each example.
    """
    pair = to_plain_tree(batch)
    if isinstance(pair, tuple) and len(pair) > 2:
        pair = pair[:-1], pair[-1]
    if isinstance(pair, Tensor) or (isinstance(pair, tuple) and len(pair) == 1):
        raise DataError(
            "a loader returned inputs without targets: use pairs (input, target), e.g. TensorDataset(inputs, "
            "targets); for a model that learns from inputs alone, TensorDataset(inputs, inputs)"
        )
    if isinstance(batch, tuple | list) and len(batch) == 2 and _is_text(batch[1]):
        raise DataError(
            "a loader returned labels that are text, but labels must be numbers: number the classes from 0, e.g. with "
            "{'no': 0, 'yes': 1}[label]"
        )
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise DataError(
            f"a loader returned a {type(batch).__name__}; fedpriv needs batches (inputs, targets) of tensors, "
            "or of dicts and tuples of tensors: use a collate_fn that returns such a pair, e.g. (batch, "
            "batch['labels'])"
        )
    shapes = [tuple(tensor.shape) for tensor in list_leaves(pair)]
    if count is None and shapes[0]:
        count = shapes[0][0]
    if any(shape[:1] != (count,) for shape in shapes):
        problem = f"a loader returned tensors of shapes {' and '.join(map(str, shapes))} for {count} of its examples"
        raise DataError(
            f"{problem}: each tensor must have one row per example, since the influence of an example is bounded "
            "through its row"
        )
    return pair


def _tensors(dataset: Dataset[Any]) -> tuple[Tensor, Tensor]:
    """Returns the tensors of a (subset of a) TensorDataset, without reading it item by item."""
    if isinstance(dataset, Subset):
        inputs, targets = _tensors(dataset.dataset)
        index = torch.as_tensor(dataset.indices)
        return inputs[index], targets[index]
    inputs, targets = cast("TensorDataset", dataset).tensors
    return inputs, targets
