"""Warn about settings of a client's loader that a run does not use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

from fedpriv.clients.client import Client
from fedpriv.clients.reading import is_plain
from fedpriv.clients.roster import roster_of
from fedpriv.nested import leaves, plain

T = TypeVar("T")

_TRIED = 16  # examples that are read twice: a coin that is tossed for each shows itself in all but 2^-16 of runs


def ignored(clients: Sequence[Client]) -> list[str]:
    """Warnings about loader settings that are not used, random transforms, and `collate_fn`s that mix examples.

    Reads at most 48 examples twice; those of a `TensorDataset` are not read.
    """
    looked_at = [(index, clients[index]) for index in roster_of(clients).looked_at]
    return [*_settings_note(looked_at), *_reading_note(looked_at)]


def _settings_note(clients: Sequence[tuple[int, Client]]) -> list[str]:
    settings = list(dict.fromkeys(name for _, client in clients for name in _unused(client.loader)))
    if not settings:
        return []
    return [
        f"not used of the clients' loaders: {', '.join(settings)}. fedpriv draws its own batches: Privacy(sampling="
        "Poisson(rate)) takes each example with that probability, FullBatch() takes all"
    ]


def _unused(loader: DataLoader[Any]) -> Iterator[str]:
    if loader.batch_size is None and loader.batch_sampler is not None:
        yield f"batch_sampler={type(loader.batch_sampler).__name__}"
        return
    if loader.batch_size not in (None, 1):
        yield f"batch_size={loader.batch_size}"
    sampler: object = loader.sampler
    if type(sampler) is RandomSampler:
        yield "shuffle=True"
    elif type(sampler) is not SequentialSampler:
        yield f"sampler={type(sampler).__name__}"
    if loader.drop_last:
        yield "drop_last=True"


def _reading_note(clients: Sequence[tuple[int, Client]]) -> list[str]:
    drawn = _spread([(i, client) for i, client in clients if not is_plain(client.loader)], _TRIED)
    for index, client in drawn:
        for at in _spread(range(len(client)), _TRIED // len(drawn)):
            if not _equal(_collated(client.loader, at), _collated(client.loader, at)):
                return [
                    f"an example of client {index} is another one when it is read again: its random transform has run "
                    "once for every example, when the data were read, and is frozen. Use a fixed transform; randomness "
                    "in every step takes a layer of the model, as torch.nn.Dropout"
                ]
    for index, client in drawn:
        ends = 0, len(client) - 1
        alone = [torch.cat(both) for both in zip(*(_collated(client.loader, at) for at in ends), strict=True)]
        if not _equal(_collated(client.loader, *ends), alone):
            return [
                f"the collate_fn of client {index} makes something else of two examples together than of each alone. "
                "fedpriv collates each alone, so that no example changes another"
            ]
    return []


def _collated(loader: DataLoader[Any], *at: int) -> list[Tensor]:
    """All tensors of the examples, collated together."""
    return leaves(plain(loader.collate_fn([loader.dataset[index] for index in at])) or ())


def _equal(these: Sequence[Tensor], those: Sequence[Tensor]) -> bool:
    return len(these) == len(those) and all(map(torch.equal, these, those))


def _spread(items: Sequence[T], most: int) -> Sequence[T]:
    """At most so many of the items, evenly."""
    return items[:: max(1, -(-len(items) // most))]
