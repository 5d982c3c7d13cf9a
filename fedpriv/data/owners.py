"""Numbers for the owners of examples, by their public names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import PurePath

import torch
from torch import Tensor


def encode_names(*columns: Sequence[str]) -> tuple[list[Tensor], dict[int, str]]:
    """Numbers names: the number of a name is its position among all distinct names in sorted order.

    Args:
        *columns: The names of train examples' owners, of test examples' owners, and so on.

    Returns:
        For each column its numbers, int64 `[n]`, and the name of each number.

    Examples:
        >>> encode_names(["south", "north"], ["north"])
        ([tensor([1, 0]), tensor([0])], {0: 'north', 1: 'south'})
    """
    names = sorted({name for column in columns for name in column})
    numbers = {name: number for number, name in enumerate(names)}
    return [torch.tensor([numbers[name] for name in column]) for column in columns], dict(enumerate(names))


def shorten_paths(paths: Sequence[str]) -> list[str]:
    """Shortens paths to their distinguishing parts: without the common folder, and without a common suffix.

    Examples:
        >>> shorten_paths(["sites/north/data.csv", "sites/south/data.csv"])
        ['north/data', 'south/data']
    """
    pure_paths = [PurePath(path) for path in paths]
    folder = os.path.commonpath([path.parent for path in pure_paths])
    if len({path.suffix for path in pure_paths}) == 1:
        return [path.with_suffix("").relative_to(folder).as_posix() for path in pure_paths]
    return [path.relative_to(folder).as_posix() for path in pure_paths]
