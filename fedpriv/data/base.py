"""Data sets: validated train and test examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard, cast

import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from fedpriv.clients import size
from fedpriv.data.transforms import TransformName, apply
from fedpriv.errors import DataError
from fedpriv.settings import RegistryEntry, validate_arguments

ReadColumns = Callable[[Sequence[str], Mapping[str, Any]], Mapping[str, Sequence[str]]]
"""Returns columns by name, as text in the order of the train examples, from their names and the data set's options."""
_NO_TARGET = -100  # torch's mark for a position in a sequence without a target


@validate_arguments("data")
@dataclass(frozen=True)
class Split:
    """Train and test examples of one task, checked by `check_dataset`.

    Args:
        train: Examples `(x, y)`, to be divided among the clients.
        test: Examples `(x, y)`, which count as public.
        n_classes: Labels are in `[0, n_classes)`; None if targets are numbers (regression).
        writers: int64 `[n_train]`, the owner of each train example (e.g. its writer); None if unknown.
        description: The contents and size of the data, in one line.
        test_writers: int64 `[n_test]`, the owner of each test example; None if unknown.
        target_scale: In regression, the size of one unit of the encoded target, in units of the original target; it is
            public.
        writer_names: The public name of each number in `writers`, used for clients in reports; empty if there are no
            names.

    Raises:
        DataError: If an example cannot be used, or `writers` or `test_writers` does not fit its examples.
    """

    train: Dataset[Any]
    test: Dataset[Any]
    n_classes: int | None
    writers: Tensor | None
    description: str
    test_writers: Tensor | None = field(default=None, kw_only=True)
    target_scale: float = field(default=1.0, kw_only=True)
    writer_names: Mapping[int, str] = field(default_factory=dict[int, str], kw_only=True)

    def __post_init__(self) -> None:
        check_dataset(self.train, self.n_classes, name="train")
        check_dataset(self.test, self.n_classes, name="test")
        if self.writers is not None and len(self.writers) != size(self.train):
            raise DataError(f"writers has {len(self.writers)} entries for {size(self.train)} train examples")
        if self.test_writers is not None and len(self.test_writers) != size(self.test):
            raise DataError(f"test_writers has {len(self.test_writers)} entries for {size(self.test)} test examples")


@validate_arguments("data")
@dataclass(frozen=True)
class DataFacts:
    """Public facts of a data set that do not depend on its loading options.

    Attributes:
        n_train: Number of train examples.
        shape: Shape of one input that is not flattened.
        n_classes: Number of classes; None if targets are numbers.
    """

    n_train: int
    shape: tuple[int, ...]
    n_classes: int | None


@validate_arguments("data")
@dataclass(frozen=True)
class DatasetEntry(RegistryEntry[Split]):
    """A row of the table of data sets.

    Args:
        build: Loads the data set.
        description: One line about it.
        facts: The public facts of the data set, if they never change, or a function of its options that returns them.
            With them a run can be planned without reading the data.
        columns: Reads columns of the table from which the train examples were made; None if there is no table.
    """

    facts: DataFacts | Callable[..., DataFacts | None] | None = None
    columns: ReadColumns | None = None

    def facts_of(self, options: Mapping[str, Any]) -> DataFacts | None:
        """Returns the public facts of the data set with these options; None if they are not known."""
        if callable(self.facts):
            return self.facts(**options)
        return self.facts


@validate_arguments("labels_of")
def labels_of(dataset: Dataset[Any]) -> Tensor:
    """Returns the targets `[n]`, int64 if they are labels, or `[n, length]` if they are sequences.

    A data set that is not a `TensorDataset` is read once in full.
    """
    if _is_plain(dataset):
        return dataset.tensors[1]
    return torch.stack([torch.as_tensor(dataset[index][1]).reshape(()) for index in range(size(dataset))])


@validate_arguments("check_dataset")
def check_dataset(dataset: Dataset[Any], n_classes: int | None, *, name: str = "dataset") -> None:
    """Raises an error for examples that would silently break training; reads every example once.

    Args:
        dataset: Map-style examples `(x, y)`: x a tensor, y a class number, or a number if there are no classes. In a
            `TensorDataset` y may be a sequence of class numbers, where -100 marks positions that do not count.
        n_classes: Labels must be in `[0, n_classes)`. None is regression, for which targets must be finite.
        name: Name of the data in errors.

    Raises:
        DataError: If there are no examples, an input is not a finite tensor, or a target cannot be used; the message
            contains the index.
    """
    if size(dataset) == 0:
        raise DataError(f"{name} is empty: pass at least one example")
    if _is_plain(dataset):
        inputs, targets = dataset.tensors
        _check_examples(inputs, targets, n_classes, name, first=0)
        return
    for index in range(size(dataset)):
        example = dataset[index]
        if not (isinstance(example, (tuple, list)) and len(example) == 2 and isinstance(example[0], Tensor)):
            raise DataError(
                f"{name}[{index}] is a {type(example).__name__}: each example must be a pair (tensor, label)"
            )
        _check_examples(example[0][None], torch.as_tensor(example[1]).reshape(1), n_classes, name, first=index)


def as_inputs(pixels: Tensor, *, flat: bool, transforms: Sequence[TransformName]) -> Tensor:
    """Converts images to model inputs.

    Args:
        pixels: float32 `[n, channels, height, width]` in [0, 1].
        flat: Return `[n, channels * height * width]` instead.
        transforms: Names of functions of single images, applied in order; see `fedpriv.data.transforms`.
    """
    images = apply(pixels, transforms)
    # [n, c, h, w] -> [n, c*h*w]
    if flat:
        return images.flatten(1)
    return images


def _is_plain(dataset: Dataset[Any]) -> TypeGuard[TensorDataset]:
    """True if the examples are pairs in tensors; a user-defined subclass may change them when they are read."""
    return type(dataset).__getitem__ is TensorDataset.__getitem__ and len(cast("TensorDataset", dataset).tensors) == 2


def _check_examples(inputs: Tensor, labels: Tensor, n_classes: int | None, name: str, *, first: int) -> None:
    if inputs.dim() > 1:
        finite = torch.isfinite(inputs).flatten(1).all(1)
    else:
        finite = torch.isfinite(inputs)
    if not finite.all():
        index = int((~finite).nonzero()[0, 0])
        raise DataError(
            f"{name}[{first + index}] has an input that is NaN or infinite: leave out or correct that example"
        )
    if n_classes is None:
        _check_numbers(labels, name, first)
        return
    if labels.is_floating_point() or labels.dim() == 0:
        raise DataError(
            f"{name} has labels of type {labels.dtype} and shape {tuple(labels.shape)}: use int64 labels of shape [n]"
        )
    wrong = (labels < 0) | (labels >= n_classes)
    if labels.dim() > 1:
        wrong &= labels != _NO_TARGET
    if wrong.any():
        position = tuple(wrong.nonzero()[0].tolist())
        fix = "number the classes from 0, or correct n_classes"
        label = int(labels[position])
        raise DataError(
            f"{name}[{first + position[0]}] has label {label}, but labels must be from 0 to {n_classes - 1}: {fix}"
        )


def _check_numbers(targets: Tensor, name: str, first: int) -> None:
    if not targets.is_floating_point() or targets.dim() != 1:
        fix = "use float targets of shape [n], or set n_classes if the targets are classes"
        raise DataError(f"{name} has targets of type {targets.dtype} and shape {tuple(targets.shape)}: {fix}")
    broken = (~torch.isfinite(targets)).nonzero()
    if len(broken):
        raise DataError(
            f"{name}[{first + int(broken[0, 0])}] has a target that is NaN or infinite: leave out or correct that "
            "example"
        )
