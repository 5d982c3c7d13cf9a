"""Computes objectives and constraints without noise, as differentiable functions of the clients' parameters.

They are used only in runs without privacy (with infinite epsilon) and in the reports of these runs. Clients with
examples of equal shape are computed together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedpriv.clients.population import Population
from fedpriv.models.batching import vmap
from fedpriv.models.nested import Nested, first_leaf, map_tree
from fedpriv.models.problem import LossTable, Problem
from fedpriv.oracle.backends.functional import Functional
from fedpriv.oracle.backends.linear import LinearBackend
from fedpriv.oracle.constraints import make_loss_tables


class ProblemValues:
    """Computes all clients' objectives and constraints.

    A client with fewer constraints than others has zeros in the rest of its row.

    Args:
        population: The clients.

    Attributes:
        equality: True for values that must be zero, `[n, width]`.
        width: Largest number of constraint values of a client.
    """

    def __init__(self, population: Population) -> None:
        self.equality = population.equality
        self.width = self.equality.shape[1]
        self._n_objectives = population.shard.n_objectives
        loss_tables = make_loss_tables(population)
        # clients with the same problem and number of examples form one block; a user's function has one block per
        # client
        # (a problem is a sum of losses either for all its clients or for none)
        row_groups: dict[tuple[int, int], list[int]] = {}
        for row, (problem, table) in enumerate(zip(population.problems, loss_tables, strict=True)):
            if table is None:
                key = id(problem), row
            else:
                key = id(problem), len(table.weights)
            row_groups.setdefault(key, []).append(row)
        self._blocks = [_block(population, rows, [loss_tables[row] for row in rows]) for rows in row_groups.values()]

    def __call__(self, params: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the objective and constraints of each row: `[n, dim] -> [n], [n, width]`, differentiable row by row.

        The objectives add up to the mean of the clients' objectives.
        """
        objective = [params.new_zeros(0)]
        constraints = [params.new_zeros(0, self.width)]
        order: list[int] = []
        for block in self._blocks:
            block_objective, values = block(params[block.rows])
            objective.append(block_objective)
            constraints.append(nn.functional.pad(values, (0, self.width - values.shape[1])))
            order += block.rows
        if order == list(range(len(params))):
            return torch.cat(objective) / self._n_objectives, torch.cat(constraints)
        inverse = torch.tensor(order).argsort().to(params.device)
        return torch.cat(objective)[inverse] / self._n_objectives, torch.cat(constraints)[inverse]


def _block(population: Population, rows: list[int], tables: list[LossTable | None]) -> _SumBlock | _FunctionBlock:
    functional = Functional(population.model, population.loss)
    like = population.params
    sums = [table for table in tables if table is not None]
    if not sums:
        return _FunctionBlock(functional, rows, population.problems[rows[0]], *population.examples_of(rows[0]))
    examples = [population.examples_of(row) for row in rows]
    return _SumBlock(
        functional,
        rows,
        *map_tree(lambda *tensors: torch.stack(tensors), *examples),
        torch.stack([table.objective for table in sums]).to(like),
        torch.stack([table.weights for table in sums]).to(like),
        sums[0].matrix.to(like),
        sums[0].offset.to(like),
        LinearBackend.supports(functional.model),
    )


@dataclass(frozen=True)
class _SumBlock:
    """Clients with the same objective and constraints (as sums of losses) and the same number of examples."""

    functional: Functional
    rows: list[int]
    inputs: Nested  # [g, m, ...]
    targets: Nested  # [g, m, ...]
    objective: Tensor  # [g, m]
    weights: Tensor  # [g, m, q]
    matrix: Tensor  # [c, q]
    offset: Tensor  # [c]
    linear: bool  # the model is one linear layer: no vmap needed

    def __call__(self, params: Tensor) -> tuple[Tensor, Tensor]:
        losses = self._losses(self.functional.unflatten(params))
        statistics = torch.einsum("gmq,gm->gq", self.weights, losses)
        return (self.objective * losses).sum(1), statistics @ self.matrix.T - self.offset

    def _losses(self, names: dict[str, Tensor]) -> Tensor:
        """Returns the loss of each example, `[g, m]`."""
        outputs = self._outputs(names)
        if not isinstance(outputs, Tensor):
            return vmap(self.functional.batch_losses)(names, self.inputs, self.targets)
        losses = self.functional.losses(outputs.flatten(0, 1), map_tree(lambda y: y.flatten(0, 1), self.targets))
        return losses.unflatten(0, outputs.shape[:2])  # [g * m] -> [g, m]

    def _outputs(self, names: dict[str, Tensor]) -> Any:  # noqa: ANN401 - whatever a model gives
        if self.linear:
            weight, *bias = names.values()
            outputs = torch.bmm(first_leaf(self.inputs).flatten(2), weight.mT)
            if bias:
                return outputs + bias[0].unsqueeze(1)
            return outputs
        if len(self.rows) == 1:
            single = {name: value[0] for name, value in names.items()}
            outputs = self.functional.outputs(single, map_tree(lambda rows: rows[0], self.inputs))
            if isinstance(outputs, Tensor):
                return outputs.unsqueeze(0)
            return outputs
        return vmap(self.functional.outputs)(names, self.inputs)


@dataclass(frozen=True)
class _FunctionBlock:
    """One client with an objective and constraints that are user-written functions."""

    functional: Functional
    rows: list[int]
    problem: Problem
    inputs: Nested  # [m, ...]
    targets: Nested  # [m, ...]

    def __call__(self, params: Tensor) -> tuple[Tensor, Tensor]:
        model = BoundModel(self.functional, params[0])
        problem = self.problem
        x = self.inputs
        y = self.targets
        if problem.objective is None:
            objective = params.new_zeros(1)
        else:
            objective = problem.objective.values(model, x, y)
        values = [constraint.values(model, x, y) for constraint in problem.constraints]
        return objective, torch.cat([params.new_zeros(0), *values]).unsqueeze(0)


@dataclass(frozen=True)
class BoundModel:
    """The model at one row of parameters; see `fedpriv.models.constraints.Model`."""

    functional: Functional
    params: Tensor

    def __call__(self, inputs: Nested) -> Any:  # noqa: ANN401 - whatever a model gives
        """Returns the outputs of the batch."""
        return self.functional.outputs(self.functional.unflatten(self.params), inputs)

    def losses(self, inputs: Nested, targets: Nested) -> Tensor:
        """Returns the loss of each example."""
        return self.functional.batch_losses(self.functional.unflatten(self.params), inputs, targets)
