"""Checks of the arguments of `train` and `Training`, and corrections for arguments of other libraries."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fedpriv.clients.arguments import check_dataset, unwrap_loader
from fedpriv.clients.client import Client
from fedpriv.clients.client_set import as_client_set
from fedpriv.errors import ConfigError
from fedpriv.network.local import Star
from fedpriv.oracle.query import QueryBuilder
from fedpriv.privacy.settings import Allocation, Cyclic, FixedSize, Privacy
from fedpriv.settings.translations import find_settings_called
from fedpriv.strategies.base import Strategy


def suggest_argument(word: str, value: object, arguments: Mapping[str, object]) -> str | None:
    """Returns the argument to write instead of a number of epochs or a batch size. It contains the value if the other
    arguments determine it.

    Args:
        word: The argument's name.
        value: Its value.
        arguments: The other arguments, by name.
    """
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        return None
    size = _examples_a_client(arguments.get("clients"))
    meant = {setting.parameter: setting for setting in find_settings_called(word)}
    if "rounds" in meant and "epochs" in meant["rounds"].also:
        return _rounds_for_epochs(value, size, arguments)
    if "batches" in meant and size is not None:
        name, number = _sampling_for_batch_size(value, size, arguments.get("privacy"))
        text = meant[name].in_call(f"{name}={number:.4g}")
        return f"write {text}, for the {size:g} examples of a client; {meant[name].note}"
    return None


def _sampling_for_batch_size(batch_size: float, size: float, privacy: object) -> tuple[str, float]:
    """Returns the argument for a sampling with batches of about this size, and its value.

    The kind of sampling is taken from the privacy settings; by default it is Poisson.
    """
    batches = max(round(size / batch_size), 1)
    if isinstance(privacy, Privacy):
        if isinstance(privacy.sampling, Allocation):
            return "batches", max(batches, 2)
        if isinstance(privacy.sampling, Cyclic):
            return "blocks", batches
        if isinstance(privacy.sampling, FixedSize):
            return "size", max(round(batch_size), 1)
    return "rate", min(batch_size / size, 1.0)


def _rounds_for_epochs(epochs: float, size: float | None, arguments: Mapping[str, object]) -> str | None:
    """Returns the number of rounds in `epochs` passes over the data; None if the arguments do not determine it."""
    privacy = arguments.get("privacy")
    strategy = arguments.get("strategy")
    network = arguments.get("network")
    if not isinstance(privacy, Privacy) or not isinstance(strategy, Strategy):
        return None

    if size is None and isinstance(privacy.sampling, FixedSize):
        return None
    examples = torch.tensor(size or 1.0, dtype=torch.float64)
    batch_fraction = float(QueryBuilder.expected_batch_size(privacy.sampling, examples) / examples)

    # batches of a client in one round, on average
    batches = privacy.cohort_rate * getattr(strategy.local_step, "local_steps", 1)
    if isinstance(network, Star):
        batches *= network.active_fraction

    passes = batch_fraction * batches
    rounds = max(math.ceil(epochs / passes - 1e-9), 1)
    return f"write rounds={rounds}, because one round uses {100 * passes:.3g} % of the examples here"


def _examples_a_client(clients: object) -> float | None:
    """Returns the mean public number of examples of a client; None if the argument is no sequence of clients."""
    is_list_of_clients = isinstance(clients, list | tuple) and all(isinstance(client, Client) for client in clients)
    if not (is_list_of_clients or hasattr(clients, "sizes")) or not clients:
        return None
    sizes: Sequence[int] = as_client_set(clients).sizes  # pyright: ignore[reportArgumentType] - clients, as was checked
    return float(sum(sizes)) / len(sizes)


def check_measuring(test: object, client_tests: Any, metrics: Any) -> None:  # noqa: ANN401 - whatever a user gives
    """Raises an error for test data that are no data sets, and metrics without names.

    Raises:
        ConfigError: If an argument is of another type; the message contains the line to write.
    """
    check_dataset("test", unwrap_loader("test", test))
    for index, dataset in enumerate(client_tests or ()):
        check_dataset(f"client_tests[{index}]", unwrap_loader(f"client_tests[{index}]", dataset))
    if metrics is not None and not isinstance(metrics, Mapping):
        name = getattr(metrics, "__name__", "f1")
        fix = f'give functions of (outputs, targets) by name, e.g. metrics={{"{name}": {name}}}'
        raise ConfigError("metrics", metrics, fix)


def check_sinks(sinks: Any) -> None:  # noqa: ANN401 - whatever a user gives
    """Raises an error for sinks that are not a list of objects with methods `write` and `close`.

    Raises:
        ConfigError: If an argument is of another type; the message contains the line to write.
    """
    if isinstance(sinks, str) or not isinstance(sinks, Sequence):
        if isinstance(sinks, str):
            text = repr(sinks)
        else:
            text = "'runs/a'"
        if hasattr(sinks, "write"):
            write = "[sink]"
        else:
            write = f"[fedpriv.sinks.TensorBoard({text})]"
        raise ConfigError("sinks", sinks, f"must be a list: sinks={write}")
    for index, sink in enumerate(sinks):
        if inspect.isclass(sink):
            raise ConfigError(
                f"sinks[{index}]", sink.__name__, f"is a class: pass an object, {sink.__name__}('runs/a')"
            )
        lacking = [name for name in ("write", "close") if not callable(getattr(sink, name, None))]
        if lacking:
            lines = {"write": "def write(self, report: RoundReport) -> None", "close": "def close(self) -> None"}
            fix = (
                f"is not a sink: add {' and '.join(lines[name] for name in lacking)}; or use "
                "fedpriv.sinks.TensorBoard(folder)"
            )
            raise ConfigError(f"sinks[{index}]", type(sink).__name__, fix)
