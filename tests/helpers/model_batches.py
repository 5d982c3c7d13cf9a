"""Clients and batches for each kind of model."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from model_kinds import (
    CLASSES,
    Kind,
    inputs,
)
from torch import nn

import fedpriv as fp
from fedpriv.clients.batch import Batch
from fedpriv.models.nested import Rows, map_tree


def clients(kind: Kind, model: nn.Module, examples: int = 6) -> list[fp.Client]:
    return fp.make_clients(
        model, kind.loss, [Rows(inputs(kind.inputs, examples), torch.randint(0, CLASSES, (examples,))) for _ in "ab"]
    )


def batch(kind: Kind, dtype: torch.dtype) -> Batch:
    """Three examples of each of two clients."""
    x = map_tree(lambda t: t.to(dtype) if t.is_floating_point() else t, inputs(kind.inputs, 6))
    cells = torch.arange(6).reshape(2, 3)
    return Batch(
        torch.arange(2),
        map_tree(lambda t: t.unflatten(0, (2, 3)), x),
        torch.randint(0, CLASSES, (2, 3)),
        torch.ones_like(cells, dtype=torch.bool),
    )


def single(whole: Batch) -> Iterator[Batch]:
    """Its examples, one of each client at a time."""
    for at in range(3):
        one = slice(at, at + 1)
        x, y = (map_tree(lambda t, one=one: t[:, one], part) for part in (whole.inputs, whole.targets))
        yield Batch(whole.rows, x, y, whole.mask[:, one])
