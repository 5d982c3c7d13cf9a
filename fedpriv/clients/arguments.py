"""Checks the user's clients, models, losses and data. The error for a common mistake contains the line to write.

No examples are read, so a check is fast and uses no data.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    default_collate,
)

from fedpriv.errors import ConfigError, DataError

_CLIENT = "fedpriv.Client(model, loss, loader)"
_CLIENTS = "fedpriv.make_clients(model, loss, datasets)"
_PAIRS = "torch.utils.data.TensorDataset(inputs, targets)"


def check_clients(clients: Any) -> None:  # noqa: ANN401 - whatever a user gives
    """Raises an error if an object is no sequence of clients.

    Raises:
        ConfigError: If the object is not a sequence of clients; the message shows how to make one from it.
    """
    from fedpriv.clients.client import Client  # here, because client.py imports this file

    if isinstance(clients, Client):
        raise ConfigError(
            "clients", _format_object(clients), "is one client, but must be a list of clients: pass [client]"
        )
    if isinstance(clients, nn.Module | DataLoader | Dataset) and not isinstance(clients, nn.ModuleList):
        raise ConfigError("clients", _format_object(clients), f"must be a list of clients: {_advice(clients)}")
    if isinstance(clients, Mapping):
        raise ConfigError("clients", _format_object(clients), "must be a list of clients: pass list(clients.values())")
    if isinstance(clients, Iterator):
        raise ConfigError(
            "clients", _format_object(clients), "is an iterator, which can be read only once: pass list(clients)"
        )
    if hasattr(clients, "iloc") and hasattr(clients, "columns"):  # a DataFrame of pandas, which is no dependency
        fix = f"must be a list of clients: write {_CLIENTS}, or fit the table with fedpriv.PrivateLogisticRegression"
        raise ConfigError("clients", _format_object(clients), fix)
    if isinstance(clients, str) or not isinstance(clients, Sequence | nn.ModuleList):
        raise ConfigError("clients", _format_object(clients), f"must be a list of clients: write {_CLIENTS}")
    # other sequences, such as lazy clients, are made by fedpriv
    if isinstance(clients, list | tuple):
        listed: list[Any] = list(clients)
    else:
        listed = []
    for index, client in enumerate(listed):
        if not isinstance(client, Client):
            raise ConfigError(f"clients[{index}]", _format_object(client), f"is not a client: {_advice(client)}")


def check_loss(field: str, loss: Any) -> None:  # noqa: ANN401 - whatever a user gives
    """Raises an error if a loss cannot be called with outputs and targets.

    Raises:
        ConfigError: If the loss is a class, a name, or not callable.
    """
    if inspect.isclass(loss):
        raise ConfigError(field, loss.__name__, f"is a class: pass an object of it, {loss.__name__}()")
    if isinstance(loss, str):
        fix = (
            f"must be a function: write fedpriv.models.resolve_loss({loss!r}), or pass a loss of torch, such as "
            "torch.nn.CrossEntropyLoss()"
        )
        raise ConfigError(field, loss, fix)
    if not callable(loss):
        fix = "must be a function of (outputs, targets), e.g. torch.nn.CrossEntropyLoss()"
        raise ConfigError(field, _format_object(loss), fix)


def check_loader(field: str, loader: Any) -> None:  # noqa: ANN401 - whatever a user gives
    """Raises an error if a client's training data are no loader.

    Raises:
        ConfigError: If the data are not a loader; the message shows how to make a loader from them.
    """
    if all(hasattr(loader, name) for name in ("dataset", "collate_fn", "sampler")):
        return
    write = "torch.utils.data.DataLoader(dataset)"
    if isinstance(loader, list | tuple | Tensor):
        write = f"torch.utils.data.DataLoader({_PAIRS})"
    raise ConfigError(field, _format_object(loader), f"is not a data loader: write {write}")


def check_sampler(loader: Any, n_examples: int) -> None:  # noqa: ANN401 - a loader, or what looks like one
    """Raises an error if a loader's sampler leaves examples out, because fedpriv draws from all examples of the data
    set.

    Raises:
        DataError: If the sampler draws from fewer examples; the message shows how to pass only these.
    """
    sampler = loader.sampler
    if getattr(loader, "batch_size", 1) is None:
        # a custom batch sampler, and the sampler that it takes examples from
        sampler = getattr(loader.batch_sampler, "sampler", sampler)
    count = _chosen_examples(sampler, n_examples)
    if count is not None:
        raise DataError(
            f"a loader's sampler draws from only {count} examples of its data set, but fedpriv would use all "
            f"{n_examples}: pass a loader of torch.utils.data.Subset(dataset, indices) instead"
        )


def _chosen_examples(sampler: Any, n_examples: int) -> int | None:  # noqa: ANN401 - whatever draws indices
    """Returns the number of examples from which a sampler draws if it is known to leave some out, else None."""
    if isinstance(sampler, SubsetRandomSampler):
        return len(sampler)
    if isinstance(sampler, WeightedRandomSampler):
        count = int((sampler.weights > 0).sum())
    elif isinstance(sampler, RandomSampler | SequentialSampler) or not isinstance(sampler, Sized):
        return None  # of all examples, however many it draws
    else:
        count = len(sampler)
    if count < n_examples:
        return count
    return None


def check_datasets(field: str, datasets: Any) -> None:  # noqa: ANN401 - whatever a user gives
    """Raises an error if an object is no sequence of data sets or loaders, one for each client.

    Raises:
        ConfigError: If it is one data set or loader, or has tensors in it.
    """
    if isinstance(datasets, DataLoader):
        raise ConfigError(
            field, _format_object(datasets), "is one loader: pass a list with one loader or data set per client"
        )
    if isinstance(datasets, Dataset):
        fix = "is one data set: pass a list with one per client, e.g. torch.utils.data.random_split(dataset, sizes)"
        raise ConfigError(field, _format_object(datasets), fix)
    if isinstance(datasets, str) or not isinstance(datasets, Sequence):
        raise ConfigError(
            field, _format_object(datasets), f"must be a list with one data set per client, e.g. [{_PAIRS}]"
        )
    for index, dataset in enumerate(datasets):
        if not isinstance(dataset, DataLoader):
            check_dataset(f"{field}[{index}]", dataset)


def check_dataset(field: str, dataset: Any) -> None:  # noqa: ANN401 - whatever a user gives
    """Raises an error for bare tensors or arrays instead of a data set.

    Raises:
        ConfigError: If it is a tensor or an array; the message shows how to make a data set from it.
    """
    is_pair = isinstance(dataset, tuple) and any(isinstance(value, Tensor) for value in dataset)
    if isinstance(dataset, Tensor) or is_pair:
        raise ConfigError(field, _format_object(dataset), f"is not a data set: write {_PAIRS}")
    if isinstance(dataset, np.ndarray) or (isinstance(dataset, tuple) and _has_array(dataset)):
        fix = f"is not a data set: write {_PAIRS}, with inputs=torch.from_numpy(X).float(), targets=torch.from_numpy(y)"
        raise ConfigError(field, _format_object(dataset), fix)
    if isinstance(dataset, str):
        raise ConfigError(
            field, dataset, f"must be a data set, not its name: load it, e.g. fedpriv.data.load({dataset!r}).test"
        )


def _has_array(values: tuple[object, ...]) -> bool:
    return any(isinstance(value, np.ndarray) for value in values)


def unwrap_loader(field: str, data: Any) -> Any:  # noqa: ANN401 - whatever a user gives
    """Returns the data set of a loader of test data; returns other objects unchanged.

    Raises:
        ConfigError: If the loader streams, leaves examples out, or has its own collate_fn or sampler.
    """
    if not isinstance(data, DataLoader):
        return data
    if isinstance(data.dataset, IterableDataset):
        fix = "is a streaming data set: collect its examples first, torch.utils.data.TensorDataset(inputs, targets)"
        raise ConfigError(field, _format_object(data), fix)
    if data.collate_fn is not default_collate:
        fix = (
            "has its own collate_fn, which fedpriv supports only in the loaders of clients: pass a data set of pairs "
            "(input, target) instead of the loader"
        )
        raise ConfigError(field, _format_object(data), fix)
    if not isinstance(data.sampler, SequentialSampler | RandomSampler):
        fix = (
            "has its own sampler, which fedpriv would ignore: pass a data set with the examples that the sampler "
            "draws, torch.utils.data.Subset(dataset, indices)"
        )
        raise ConfigError(field, _format_object(data), fix)
    return data.dataset


def _advice(value: object) -> str:
    """Returns the code to write instead of an object that is not a client."""
    if isinstance(value, DataLoader):
        return f"write {_CLIENT}, with a model and a loss"
    if isinstance(value, Dataset):
        return f"write {_CLIENTS}"
    if isinstance(value, nn.Module):
        return f"a client has a model, a loss and data: write {_CLIENT}, or {_CLIENTS}"
    return f"write {_CLIENT}"


def _format_object(value: object) -> str:
    """Returns a short text for an object in an error. For modules and data sets, which have long texts, it is the class
    name.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    return f"a {type(value).__name__}"
