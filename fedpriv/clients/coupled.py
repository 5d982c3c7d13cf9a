"""Clients with constraints that hold in sum, `sum_i c_i(w) <= 0`, by a slack for each client (He, Peng, Sun, 2024)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from fedpriv.clients.client import Client, Loss, make_clients
from fedpriv.errors import ConfigError
from fedpriv.models.constraints import Constraint, Function, Model, mean_loss
from fedpriv.models.nested import Nested, map_tree
from fedpriv.models.problem import Problem
from fedpriv.settings.checks import validate_arguments


class WithSlacks(nn.Module):
    """A model with slacks, which are trained and do not change its outputs.

    Attributes:
        slacks: `[n, m]`, for n clients and m constraint values.
        model: The model.
    """

    def __init__(self, model: nn.Module, n_clients: int, count: int) -> None:
        super().__init__()
        self.slacks = nn.Parameter(torch.zeros(n_clients, count))  # the first parameters of `Model.params`
        self.model = model

    def forward(self, *inputs: Nested, **named: Nested) -> Any:  # noqa: ANN401 - whatever a model gives
        """Returns the model's outputs."""
        return self.model(*inputs, **named)


@validate_arguments("", values=False)
def make_coupled_clients(
    model: nn.Module,
    loss: Loss,
    datasets: Sequence[Dataset[Any] | DataLoader[Any]],
    constraint: Constraint,
    *,
    objective: Constraint | None = None,
    weights: Sequence[float] | None = None,
) -> list[Client]:
    """Creates clients with constraints that hold in sum: `sum_i weights_i c_i(w) <= 0` (or `= 0`), for `proximal_al`.

    Each client keeps `weights_i c_i(w) <= s_i` with its own slack s_i, and a last client without data and objective
    keeps `sum_i s_i <= 0` (He, Peng and Sun, 2024, eq 4). The slacks are the first parameters of the trained model;
    its attribute `model` is your model. Like all runs of `proximal_al`, these are not private.

    Args:
        model: See `make_clients`.
        loss: See `make_clients`.
        datasets: A data set for each client.
        constraint: The constraint; its values are added up over clients.
        objective: Every client's objective; by default its mean loss.
        weights: Factor of each client's values; 1 by default. With the client's share of all examples, a sum of mean
            losses is the mean loss of all examples.

    Returns:
        The clients, in the order of `datasets`, and one more.

    Raises:
        ConfigError: If the numbers of weights and of data sets differ.

    Examples:
        >>> import fedpriv, torch
        >>> from torch import nn
        >>> data = [torch.utils.data.TensorDataset(torch.ones(4, 1), torch.full((4, 1), y)) for y in (1.0, 5.0)]
        >>> at_most = fedpriv.Function(lambda model, x, y: (model(x).mean() - y.mean() + 1).view(1))  # in sum: w <= 2
        >>> clients = fedpriv.make_coupled_clients(nn.Linear(1, 1, bias=False), nn.MSELoss(), data, at_most)
        >>> result = fedpriv.train(clients, fedpriv.proximal_al(), fedpriv.Privacy(noise_on="none"), rounds=300)
        >>> round(result.params[-1].item(), 2)  # without the constraint 3; for each client alone at most 0
        2.0
    """
    n_clients = len(datasets)
    count = len(constraint.equality)
    factors = [1.0] * n_clients if weights is None else list(weights)
    if len(factors) != n_clients:
        fix = f"must have one number for each of the {n_clients} data sets"
        raise ConfigError("make_coupled_clients.weights", f"{len(factors)} numbers", fix)
    whole = WithSlacks(model, n_clients, count)
    goal = mean_loss() if objective is None else objective
    clients: list[Client] = []
    for number, (dataset, factor) in enumerate(zip(datasets, factors, strict=True)):
        own = Function(_below_slack(constraint, factor, number, count), tuple(constraint.equality))
        clients += make_clients(whole, loss, [dataset], Problem(goal, (own,)))

    def total(bound: Model, inputs: Nested, targets: Nested) -> Tensor:
        """Returns the sums of the slacks."""
        return bound.params[: n_clients * count].view(n_clients, count).sum(0)

    inputs, targets = map_tree(lambda rows: torch.zeros_like(rows[0]), clients[0].examples())
    server = Problem(None, (Function(total, tuple(constraint.equality)),))
    return clients + make_clients(whole, loss, [_OneExample((inputs, targets))], server)


class _OneExample(Dataset[Any]):
    """A data set with one example, for a client without data."""

    def __init__(self, example: tuple[Nested, Nested]) -> None:
        self.example = example

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> tuple[Nested, Nested]:
        return self.example


def _below_slack(constraint: Constraint, factor: float, number: int, count: int) -> Callable[[Model, Any, Any], Tensor]:
    """Returns the values of a client's constraint minus its slack."""

    def below_slack(bound: Model, inputs: Nested, targets: Nested) -> Tensor:
        slacks = bound.params[number * count : (number + 1) * count]
        return factor * constraint.values(bound, inputs, targets) - slacks

    return below_slack
