"""Public test sets of single clients: how well does each client's model serve that client?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset

from fedpriv.errors import ConfigError
from fedpriv.evaluation import metrics
from fedpriv.evaluation.evaluator import Batches, Evaluator

Tests = Mapping[int, Dataset[Any]]
"""The test set of each client that has one."""


def by_client(tests: Sequence[Dataset[Any] | None] | None, n_clients: int) -> Tests:
    """The test sets by client.

    Raises:
        ConfigError: there is not one entry for each client, or not one test set.
    """
    if tests is None:
        return {}
    if len(tests) != n_clients:
        fix = f"give one test set for each of the {n_clients} clients, None where there is none"
        raise ConfigError("client_tests", len(tests), fix)
    found = {client: test for client, test in enumerate(tests) if test is not None}
    if not found:
        raise ConfigError("client_tests", [], "no client has a test set: leave it out")
    return found


def checked_names(names: Sequence[str] | None, n_clients: int) -> tuple[str, ...]:
    """The public names of the clients; none if they have none.

    Raises:
        ConfigError: there is not one for each client, one is no text, or two are alike.
    """
    if names is None:
        return ()
    if len(names) != n_clients:
        raise ConfigError("client_names", len(names), f"give one name for each of the {n_clients} clients")
    for place, name in enumerate(names):
        if not isinstance(name, str) or not name.strip():  # pyright: ignore[reportUnnecessaryIsInstance] - a user's
            raise ConfigError(f"client_names[{place}]", name, "give a text")
    if len(set(names)) < n_clients:
        twice = next(name for name in names if [*names].count(name) > 1)
        raise ConfigError("client_names", twice, "is the name of several clients: give each its own")
    return tuple(names)


def together(test: Dataset[Any] | None, tests: Tests) -> Dataset[Any] | None:
    """All public test examples, those that are in two sets twice."""
    parts = [*([] if test is None else [test]), *tests.values()]
    if len(parts) == 1:
        return parts[0]
    if parts:
        return ConcatDataset(parts)
    return None


def known_of(names: Sequence[str], tests: Tests) -> list[str]:
    """Names of all metrics on public data in a round's report, from those of the model's own."""
    spreads = [f"client_{row.name}_{part}" for row in metrics.TESTED for part in metrics.CLIENT_PARTS if tests]
    return [*names, *(spread for spread in spreads if spread.removeprefix("client_").rpartition("_")[0] in names)]


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
        """`{"client_test_accuracy": {"min": ..., ...}}` from models `[n, dim]`, or `[1, dim]` where all have one."""
        found = [*self.each(models).values()]
        names = dict.fromkeys(name for one in found for name in one)  # a test set of one class has no AUROC
        return {f"client_{name}": spread([one[name] for one in found if name in one]) for name in names}

    def each(self, models: Tensor) -> dict[int, dict[str, float]]:
        """The test metrics of each client that has a test set, from models as above."""
        if len(models) > 1:
            rows = models
        else:
            rows = models.expand(max(self._batches) + 1, -1)
        return {client: self._evaluate.on(rows[client], batches) for client, batches in self._batches.items()}


def spread(values: Sequence[float]) -> dict[str, float]:
    """Least, 10 % quantile, median, 90 % quantile, largest, and mean; quantiles lie between two values."""
    found = torch.tensor(values, dtype=torch.float64)
    at = torch.tensor([0, 0.1, 0.5, 0.9, 1], dtype=torch.float64)
    low, p10, median, p90, high = found.quantile(at).tolist()
    return {"min": low, "p10": p10, "median": median, "p90": p90, "max": high, "mean": float(found.mean())}
