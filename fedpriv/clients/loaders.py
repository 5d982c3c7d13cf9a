"""Warn about settings of a client's loader that a run does not use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

from fedpriv.clients.client import Client
from fedpriv.clients.client_set import as_client_set
from fedpriv.clients.reading import is_plain
from fedpriv.data.nested import leaves, plain
from fedpriv.randomness.borrowed import GeneratorStates, global_generators

T = TypeVar("T")

_FROZEN = "its random transform has run once for every example, when the data were read, and is frozen"
_CONSTRAINED = f"{_FROZEN}, for constraints are about examples as they are. Use a fixed transform"
_OWN = (
    f"{_FROZEN}, for it draws from a generator of its own. Draw from torch's, NumPy's or Python's global generator, "
    "which are seeded for each example whenever it is drawn, or give the clients an Augmentation"
)

_TRIED = 16  # examples that are read twice: a coin that is tossed for each shows itself in all but 2^-16 of runs


def ignored(clients: Sequence[Client]) -> list[str]:
    """Warnings about loader settings that are not used, random transforms, and `collate_fn`s that mix examples.

    Reads at most 48 examples twice; those of a `TensorDataset` are not read.
    """
    roster = as_client_set(clients)
    looked_at = [(index, clients[index]) for index in roster.looked_at]
    constrained = any(not problem.is_mean_loss for problem in roster.problems)
    return [*_settings_note(looked_at), *_reading_note(looked_at, constrained=constrained)]


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


def _reading_note(clients: Sequence[tuple[int, Client]], *, constrained: bool) -> list[str]:
    drawn = _spread([(i, client) for i, client in clients if not is_plain(client.loader)], _TRIED)
    if constrained:
        seeds, why = ((0, 1), _CONSTRAINED)
    else:
        seeds, why = ((0, 0), _OWN)
    for index, client in drawn:
        for at in _spread(range(len(client)), _TRIED // len(drawn)):
            one, other = (_collated(client.loader, at, seed=seed) for seed in seeds)
            if not _equal(one.tensors, other.tensors):
                return [f"an example of client {index} is another one when it is read again: {why}"]
    for index, client in drawn:
        ends = 0, len(client) - 1
        *alone, both = (_collated(client.loader, *at) for at in ((ends[0],), (ends[1],), ends))
        each_alone = [torch.cat(pair) for pair in zip(*(one.tensors for one in alone), strict=True)]
        if not both.random and not _equal(both.tensors, each_alone):
            return [
                f"the collate_fn of client {index} makes something else of two examples together than of each alone. "
                "fedpriv collates each alone, so that no example changes another"
            ]
    return []


class _Collated(NamedTuple):
    tensors: list[Tensor]
    random: bool  # whether the global generators were drawn from


def _collated(loader: DataLoader[Any], *at: int, seed: int = 0) -> _Collated:
    """All tensors of the examples, collated together, with the global generators at this seed."""
    with global_generators() as begin:
        begin(seed)
        before = GeneratorStates.current()
        found = leaves(plain(loader.collate_fn([loader.dataset[index] for index in at])) or ())
        return _Collated(found, before.has_changed)


def _equal(these: Sequence[Tensor], those: Sequence[Tensor]) -> bool:
    return len(these) == len(those) and all(map(torch.equal, these, those))


def _spread(items: Sequence[T], most: int) -> Sequence[T]:
    """At most so many of the items, evenly."""
    return items[:: max(1, -(-len(items) // most))]
