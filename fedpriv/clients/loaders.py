"""Warns about settings of a client's loader that a run does not use."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, WeightedRandomSampler, default_collate

from fedpriv.clients import overlaps
from fedpriv.clients.client import Client
from fedpriv.clients.client_set import as_client_set
from fedpriv.models.nested import list_leaves, to_plain_tree
from fedpriv.privacy.settings import Privacy
from fedpriv.randomness.global_rng import GeneratorStates, global_generators

_FROZEN = (
    "a random transform was applied only once to every example, when the data were read, because constraints need "
    "fixed examples; the random views stay the same in all rounds. To avoid this, use a transform without randomness"
)


def list_ignored_settings(clients: Sequence[Client], privacy: Privacy, *, is_random: bool) -> list[str]:
    """Returns warnings about unused loader settings, and about a `collate_fn` that makes examples depend on each other.

    Args:
        clients: The clients of this process.
        privacy: The privacy settings.
        is_random: True if examples draw random numbers when they are read.
    """
    roster = as_client_set(clients)
    validated = [(index, clients[index]) for index in roster.validated_clients]
    notes = _settings_note(validated)
    if is_random and any(not problem.is_mean_loss for problem in roster.problems):
        notes.append(_FROZEN)
    datasets = [client.loader.dataset for _, client in validated]
    return [*notes, *_collate_note(validated), *overlaps.describe_overlap(datasets, privacy)]


def _settings_note(clients: Sequence[tuple[int, Client]]) -> list[str]:
    settings = list(dict.fromkeys(name for _, client in clients for name in _unused(client.loader)))
    if not settings:
        return []
    note = (
        f"these settings of the clients' loaders are ignored: {', '.join(settings)}. fedpriv draws the batches itself, "
        f"in secret. Choose how: Privacy(sampling={_shuffled(clients)}) puts every example into one batch of an epoch, "
        "like shuffling; Poisson(rate) draws each example with that probability; FullBatch() uses all"
    )
    if any(_has_weights(client.loader) for _, client in clients):
        note += (
            ". The sampler's weights are ignored too: every example is drawn with the same probability, so "
            "classes stay unbalanced. Give class weights to the loss instead, "
            "torch.nn.CrossEntropyLoss(weight=w)"
        )
    return [note]


def _has_weights(loader: DataLoader[Any]) -> bool:
    """True if a loader's sampler draws some examples more often than others."""
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
    return isinstance(sampler, WeightedRandomSampler) and len(sampler.weights.unique()) > 1


def _shuffled(clients: Sequence[tuple[int, Client]]) -> str:
    """Returns the sampling that has about as many batches in an epoch as the loaders."""
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


def _collate_note(clients: Sequence[tuple[int, Client]]) -> list[str]:
    """Returns a warning if a `collate_fn` makes one example depend on others; each function is tested once."""
    tried = {id(default_collate)}
    for index, client in clients:
        if id(client.loader.collate_fn) in tried:
            continue
        tried.add(id(client.loader.collate_fn))
        if _collate_mixes_examples(client.loader, len(client) - 1):
            return [
                f"the collate_fn of client {index} returns other values for two examples together than for each alone. "
                "fedpriv calls it with one example at a time, so that no example changes another; check that this is "
                "what you want"
            ]
    return []


def _collate_mixes_examples(loader: DataLoader[Any], last: int) -> bool:
    """True if the first and the last example differ when read together; False if they are random."""
    with global_generators() as begin:
        begin(0)
        before = GeneratorStates.current()
        ends = [loader.dataset[0], loader.dataset[last]]
        together, *alone = [
            list_leaves(to_plain_tree(loader.collate_fn(some)) or ()) for some in (ends, ends[:1], ends[1:])
        ]
        if before.has_changed:
            return False
    apart = [torch.cat(pair) for pair in zip(*alone, strict=True)]
    return len(together) != len(apart) or not all(map(torch.equal, together, apart))
