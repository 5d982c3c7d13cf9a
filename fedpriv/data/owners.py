"""Whose each example is, by names that are public."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import PurePath

import torch
from torch import Tensor


def numbered(*columns: Sequence[str]) -> tuple[list[Tensor], dict[int, str]]:
    """Numbers for names: the place of each among all different names in sorted order.

    Args:
        *columns: The names of train examples' owners, of test examples' owners, and so on.

    Returns:
        For each column its numbers, int64 `[n]`, and the name of each number.

    Example:
        >>> numbered(["south", "north"], ["north"])
        ([tensor([1, 0]), tensor([0])], {0: 'north', 1: 'south'})
    """
    names = sorted({name for column in columns for name in column})
    places = {name: place for place, name in enumerate(names)}
    return [torch.tensor([places[name] for name in column]) for column in columns], dict(enumerate(names))


def short(paths: Sequence[str]) -> list[str]:
    """What tells paths apart: without the folders that all are in, and without a suffix that all have.

    Example:
        >>> short(["sites/north/data.csv", "sites/south/data.csv"])
        ['north/data', 'south/data']
    """
    found = [PurePath(path) for path in paths]
    folder, alike = os.path.commonpath([path.parent for path in found]), len({path.suffix for path in found}) == 1
    return [(path.with_suffix("") if alike else path).relative_to(folder).as_posix() for path in found]
