"""Warns about settings of a client's loader that a run does not use."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, WeightedRandomSampler

from fedpriv.clients import overlaps
from fedpriv.clients.client import Client
from fedpriv.clients.client_set import as_client_set
from fedpriv.clients.reading import is_plain
from fedpriv.data.nested import leaves, plain
from fedpriv.privacy.settings import Privacy
from fedpriv.randomness.borrowed import GeneratorStates, global_generators

T = TypeVar("T")

_FROZEN = "its random transform has run once for every example, when the data were read, and is frozen"
_CONSTRAINED = f"{_FROZEN}, for constraints are about examples as they are. Use a fixed transform"
_LOCAL_GENERATOR = (
    f"{_FROZEN}, for it draws from a generator of its own. Draw from torch's, NumPy's or Python's global generator, "
    "which are seeded for each example whenever it is drawn, or give the clients an Augmentation"
)

_MAX_TRIED = 16
"""Number of examples that are read twice: a random transform by a fair coin goes unnoticed in 2^-16 of runs."""


def ignored(clients: Sequence[Client], privacy: Privacy) -> list[str]:
    """Returns warnings about unused loader settings, and about examples that do not stay apart.

    That are random transforms that are frozen, `collate_fn`s that mix examples, and views of one memory. Reads at most
    48 examples twice; those of a `TensorDataset` are not read.

    Args:
        clients: The clients of this process.
        privacy: The privacy settings.
    """
    roster = as_client_set(clients)
    validated = [(index, clients[index]) for index in roster.validated_clients]
    constrained = any(not problem.is_mean_loss for problem in roster.problems)
    datasets = [client.loader.dataset for _, client in validated]
    return [
        *_settings_note(validated),
        *_reading_note(validated, constrained=constrained),
        *overlaps.note_on_items(datasets, privacy),
    ]


def _settings_note(clients: Sequence[tuple[int, Client]]) -> list[str]:
    settings = list(dict.fromkeys(name for _, client in clients for name in _unused(client.loader)))
    if not settings:
        return []
    note = (
        f"not used of the clients' loaders: {', '.join(settings)}. fedpriv draws its own batches, in secret: Privacy("
        f"sampling={_shuffled(clients)}) has every example in one batch of an epoch, as shuffling has, Poisson(rate) "
        "takes each with that probability, FullBatch() takes all"
    )
    if any(_has_weights(client.loader) for _, client in clients):
        note += (
            ". The weights of the sampler are lost: each example is drawn with the same probability, so that classes "
            "stay as unbalanced as they are. Give the weights of classes to the loss instead, "
            "torch.nn.CrossEntropyLoss(weight=w)"
        )
    return [note]


def _has_weights(loader: DataLoader[Any]) -> bool:
    """Whether a loader's sampler draws some examples more often than others."""
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
    return isinstance(sampler, WeightedRandomSampler) and len(sampler.weights.unique()) > 1


def _shuffled(clients: Sequence[tuple[int, Client]]) -> str:
    """The sampling with about as many batches an epoch as the loaders have."""
    for _, client in clients:
        size = client.loader.batch_size
        if size not in (None, 1) and len(client) > size:
            return f"Allocation(batches={math.ceil(len(client) / size)})"
    return "Allocation(batches)"


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
    tried = _evenly_spaced([(i, client) for i, client in clients if not is_plain(client.loader)], _MAX_TRIED)
    if constrained:
        # any random transform gets a warning: another seed gives another example
        seeds = (0, 1)
        reason = _CONSTRAINED
    else:
        # draws from the global generators are repeated: an example that still differs has another generator
        seeds = (0, 0)
        reason = _LOCAL_GENERATOR
    for index, client in tried:
        for example in _evenly_spaced(range(len(client)), _MAX_TRIED // len(tried)):
            first, second = (_collated(client.loader, example, seed=seed) for seed in seeds)
            if not _equal(first.tensors, second.tensors):
                return [f"an example of client {index} is another one when it is read again: {reason}"]
    for index, client in tried:
        last = len(client) - 1
        first_alone = _collated(client.loader, 0)
        last_alone = _collated(client.loader, last)
        together = _collated(client.loader, 0, last)
        joined = [torch.cat(pair) for pair in zip(first_alone.tensors, last_alone.tensors, strict=True)]
        if not together.random and not _equal(together.tensors, joined):
            return [
                f"the collate_fn of client {index} makes something else of two examples together than of each alone. "
                "fedpriv collates each alone, so that no example changes another"
            ]
    return []


class _Collated(NamedTuple):
    tensors: list[Tensor]
    random: bool  # whether the global generators were drawn from


def _collated(loader: DataLoader[Any], *indices: int, seed: int = 0) -> _Collated:
    """Returns all tensors of the examples, collated together, with the global generators at this seed."""
    with global_generators() as begin:
        begin(seed)
        before = GeneratorStates.current()
        tensors = leaves(plain(loader.collate_fn([loader.dataset[index] for index in indices])) or ())
        return _Collated(tensors, before.has_changed)


def _equal(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    return len(first) == len(second) and all(map(torch.equal, first, second))


def _evenly_spaced(items: Sequence[T], count: int) -> Sequence[T]:
    """Returns at most `count` of the items, evenly spaced."""
    return items[:: max(1, -(-len(items) // count))]
