"""Tests each client's model on a public test set of that client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, IterableDataset

from fedpriv.errors import ConfigError
from fedpriv.evaluation import metrics
from fedpriv.evaluation.evaluator import Batches, Evaluator

Tests = Mapping[int, Dataset[Any]]
"""The test set of each client that has one."""


def index_tests(tests: Sequence[Dataset[Any] | None] | None, n_clients: int) -> Tests:
    """Returns the test sets, with the client's index as key.

    Raises:
        ConfigError: If there is not one entry for each client, if all entries are None, or if a test set streams.
    """
    if tests is None:
        return {}
    if len(tests) != n_clients:
        fix = f"must have one entry for each of the {n_clients} clients: its test set, or None for a client without one"
        raise ConfigError("client_tests", len(tests), fix)
    tests_by_client = {client: test for client, test in enumerate(tests) if test is not None}
    for client, test in tests_by_client.items():
        if isinstance(test, IterableDataset):
            fix = "is a streaming data set: collect its examples first, torch.utils.data.TensorDataset(inputs, targets)"
            raise ConfigError(f"client_tests[{client}]", f"a {type(test).__name__}", fix)
    if not tests_by_client:
        raise ConfigError(
            "client_tests", [], "contains no test set: leave it out, or pass the test set of at least one client"
        )
    return tests_by_client


def validate_names(names: Sequence[str] | None, n_clients: int) -> tuple[str, ...]:
    """Returns the public names of the clients, validated; empty if they have none.

    Raises:
        ConfigError: If there is not one name for each client, if a name is not a text, or if two names are equal.
    """
    if names is None:
        return ()
    if len(names) != n_clients:
        raise ConfigError("client_names", len(names), f"must have one name for each of the {n_clients} clients")
    for index, name in enumerate(names):
        if not isinstance(name, str) or not name.strip():  # pyright: ignore[reportUnnecessaryIsInstance] - a user's
            raise ConfigError(f"client_names[{index}]", name, "must be text that is not empty")
    if len(set(names)) < n_clients:
        repeated = next(name for name in names if [*names].count(name) > 1)
        raise ConfigError("client_names", repeated, "is the name of several clients: give each client a different name")
    return tuple(names)


def concatenate(test: Dataset[Any] | None, tests: Tests) -> Dataset[Any] | None:
    """Returns all public test examples as one data set; examples that are in two sets occur twice."""
    datasets = [*tests.values()]
    if test is not None:
        datasets.insert(0, test)
    if len(datasets) == 1:
        return datasets[0]
    if datasets:
        return ConcatDataset(datasets)
    return None


def list_reported_names(names: Sequence[str], tests: Tests) -> list[str]:
    """Returns the names of all metrics on public data in a round's report.

    Args:
        names: The names of the model's test metrics.
        tests: The test sets of clients; empty if they have none.
    """
    reported = [*names]
    if tests:
        tested = [row.name for row in metrics.TESTED if row.name in names]
        reported += [f"client_{name}_{statistic}" for name in tested for statistic in metrics.CLIENT_PARTS]
    return reported


class ClientTests:
    """Tests the clients' models, each on its client's own test set.

    Args:
        evaluate: Tests models.
        tests: The test sets.
    """

    def __init__(self, evaluate: Evaluator, tests: Tests) -> None:
        self._evaluate = evaluate
        self._batches: dict[int, Batches] = {client: evaluate.batches_of(test) for client, test in tests.items()}

    def __call__(self, models: Tensor) -> dict[str, dict[str, float]]:
        """Returns `{"client_test_accuracy": {"min": ...}}` from models `[n, dim]`, or `[1, dim]` where all have one."""
        metrics_of_clients = [*self.each(models).values()]
        names = dict.fromkeys(
            name for values in metrics_of_clients for name in values
        )  # a test set of one class has no AUROC
        return {
            f"client_{name}": summarize_quantiles([values[name] for values in metrics_of_clients if name in values])
            for name in names
        }

    def each(self, models: Tensor) -> dict[int, dict[str, float]]:
        """Returns the test metrics of each client that has a test set, by its index; models as for `__call__`."""
        rows = models
        if len(models) == 1:
            rows = models.expand(max(self._batches) + 1, -1)
        return {client: self._evaluate.on(rows[client], batches) for client, batches in self._batches.items()}


def summarize_quantiles(values: Sequence[float]) -> dict[str, float]:
    """Returns the smallest value, 10 % quantile, median, 90 % quantile, largest value and mean; quantiles are
    interpolated between two values.
    """
    tensor = torch.tensor(values, dtype=torch.float64)
    levels = torch.tensor([0, 0.1, 0.5, 0.9, 1], dtype=torch.float64)
    low, p10, median, p90, high = tensor.quantile(levels).tolist()
    return {"min": low, "p10": p10, "median": median, "p90": p90, "max": high, "mean": float(tensor.mean())}
