"""Rows with named columns, such as rows of Hugging Face `datasets` and flwr-datasets, as pairs (input, target)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from fedpriv.errors import ConfigError, DataError, summarize_error
from fedpriv.models import Nested
from fedpriv.settings import suggest_nearest, validate_arguments


class NamedRows(Protocol):
    """Rows by index, each a mapping from columns to values: a `datasets.Dataset`, or a list of dicts."""

    def __len__(self) -> int:
        """Number of rows."""
        ...

    def __getitem__(self, index: int, /) -> Any:  # noqa: ANN401 - a mapping, which is checked when it is read
        """Returns a row."""
        ...


@validate_arguments("data")
@dataclass(frozen=True)
class RowDataset(Dataset[tuple[Nested, Tensor]]):
    """Pairs (input, target) of rows with named columns, each read when it is used.

    A number, a list of numbers, an array or a tensor becomes a tensor with the same numbers. A Pillow image, as decoded
    by `datasets`, becomes float32 `[channels, height, width]` in [0, 1].

    Args:
        rows: A `datasets.Dataset`, a partition of flwr-datasets, a list of dicts, or another object with a length and a
            mapping for each index.
        inputs: The column of the input; or several columns, which are passed to the model by name: `model(**inputs)`.
        target: The column of the target.

    Raises:
        ConfigError: If there is no such column.
        DataError: If a value is not a number, an array, or a grey or RGB image. The error is raised when the value is
            read.

    Examples:
        >>> rows = [{"pixels": [0.0, 1.0], "digit": 3}]
        >>> RowDataset(rows, inputs="pixels", target="digit")[0]
        (tensor([0., 1.]), tensor(3))
    """

    rows: NamedRows
    inputs: str | Sequence[str]
    target: str

    def __post_init__(self) -> None:
        if len(self) == 0:
            raise DataError("a data set of rows is empty: pass at least one row")
        first = self.rows[0]
        if not isinstance(first, Mapping):
            raise DataError(
                f"row 0 is a {type(first).__name__}: rows must be mappings from column names to values, like a dict"
            )
        for name in (*self._names, self.target):
            if name not in first:
                raise ConfigError(
                    "column", name, f"is not a column of the rows{suggest_nearest(name, map(str, first))}"
                )

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Nested, Tensor]:
        """Returns the pair of a row."""
        row = self.rows[index]
        tensors = {name: _tensor(row[name], f"row {index}: column {name}") for name in (*self._names, self.target)}
        target = tensors[self.target]
        if isinstance(self.inputs, str):
            return tensors[self.inputs], target
        return {name: tensors[name] for name in self.inputs}, target

    @property
    def _names(self) -> Sequence[str]:
        if isinstance(self.inputs, str):
            return (self.inputs,)
        return self.inputs


def _tensor(value: object, name: str) -> Tensor:
    """Converts the value of a column to a tensor; errors call it `name`."""
    from PIL.Image import Image

    if isinstance(value, Image):
        if value.mode not in ("L", "RGB"):
            fix = 'cast the column: dataset.cast_column(name, datasets.Image(mode="RGB"))'
            raise DataError(f"{name} is an image of mode {value.mode}, but only L and RGB can be used: {fix}")
        pixels = torch.from_numpy(np.array(value)).float() / 255
        if pixels.ndim == 2:
            return pixels.unsqueeze(0)
        return pixels.permute(2, 0, 1).contiguous()
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        fix = "use numbers, lists of numbers of one length, arrays, tensors or images"
        raise DataError(f"{name} cannot be converted to a tensor ({summarize_error(error)}): {fix}") from error
