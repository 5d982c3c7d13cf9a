"""Objectives and constraints of the clients as differentiable functions of their rows, batched where shapes allow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import vmap

from fedpriv.clients.batch import Batch
from fedpriv.clients.client import Loss
from fedpriv.errors import ConfigError, DataError
from fedpriv.oracle.backends.functional import Functional
from fedpriv.oracle.backends.linear import LinearBackend
from fedpriv.problems.problem import Problem, Stacked


@dataclass(frozen=True)
class Share:
    """One client's problem and examples.

    Attributes:
        problem: What it minimises and what must hold.
        inputs: `[m, ...]`.
        targets: `[m, ...]`.
        public_size: The size that others are told.
    """

    problem: Problem
    inputs: Tensor
    targets: Tensor
    public_size: int

    @property
    def scale(self) -> float:
        """What turns a division by the number of examples into one by the public size."""
        return len(self.targets) / self.public_size


class ProblemValues:
    """All clients' objectives and constraints.

    A client with fewer constraints than others has zeros in the rest of its row.

    Args:
        model: The clients' model; its own parameters are not used.
        loss: The clients' loss.
        shares: Of every client.
        dtype: Floating point type of the rows.

    Attributes:
        width: Number of constraint values of the client that has most.
        equality: Which values must be zero, `[n, width]` boolean.
    """

    def __init__(self, model: nn.Module, loss: Loss, shares: Sequence[Share], dtype: torch.dtype) -> None:
        functional = Functional(model, loss)
        self.width = max(len(share.problem.equality) for share in shares)
        self.equality = torch.zeros(len(shares), self.width, dtype=torch.bool, device=shares[0].inputs.device)
        self._stacks = [share.problem.stacked() for share in shares]
        self._shares = tuple(shares)
        self._owners = max(sum(share.problem.objective is not None for share in shares), 1)
        alike: dict[tuple[int, int, bool], list[int]] = {}
        for row, share in enumerate(shares):
            flags = share.problem.equality
            self.equality[row, : len(flags)] = torch.tensor(flags, dtype=torch.bool)
            summed = self._stacks[row] is not None
            # clients with the same problem and number of examples are one block; a user's function takes them in turn
            key = (id(share.problem), len(share.targets) if summed else row, summed)
            alike.setdefault(key, []).append(row)
        self._blocks: list[_SumBlock | _FunctionBlock] = [
            self._block(functional, rows, dtype) for rows in alike.values()
        ]

    def __call__(self, params: Tensor) -> tuple[Tensor, Tensor]:
        """Objective and constraints of each row: `[n, dim] -> [n], [n, width]`, differentiable row by row.

        The objectives add up to the mean of the clients' objectives.
        """
        objective: list[Tensor] = []
        constraints: list[Tensor] = []
        order: list[int] = []
        for block in self._blocks:
            found, values = block(params[block.rows])
            objective.append(found)
            constraints.append(nn.functional.pad(values, (0, self.width - values.shape[1])))
            order += block.rows
        if order == list(range(len(params))):
            return torch.cat(objective) / self._owners, torch.cat(constraints)
        back = torch.tensor(order).argsort().to(params.device)
        return torch.cat(objective)[back] / self._owners, torch.cat(constraints)[back]

    def sums(self) -> list[Stacked]:
        """Every client's problem as sums of losses.

        Raises:
            ConfigError: a client has a constraint or an objective that is no such sum.
        """
        known = [stack for stack in self._stacks if stack is not None]
        if len(known) < len(self._stacks):
            fix = (
                "a private run needs constraints and objectives that are sums of losses (LossAtMost, ClassLossAtMost, "
                "GroupLossGap): nothing bounds what one example adds to another function. Use at: none for an exact run"
            )
            raise ConfigError("problem.constraints", "Function or LinearEquality", fix)
        return known

    def _block(self, functional: Functional, rows: list[int], dtype: torch.dtype) -> _SumBlock | _FunctionBlock:
        stack = self._stacks[rows[0]]
        if stack is None:
            return _FunctionBlock(functional, rows, self._shares[rows[0]])
        shares = [self._shares[row] for row in rows]
        weights = [of_client(row, stack.weights, share) for row, share in zip(rows, shares, strict=True)]
        objective = [of_client(row, stack.objective_weights, share) for row, share in zip(rows, shares, strict=True)]
        device = shares[0].inputs.device
        return _SumBlock(
            functional,
            rows,
            torch.stack([share.inputs for share in shares]),
            torch.stack([share.targets for share in shares]),
            torch.stack(objective).to(device, dtype),
            torch.stack(weights).to(device, dtype),
            stack.matrix().to(device, dtype),
            stack.offset().to(device, dtype),
            LinearBackend.supports(functional.model),
        )


def of_client(row: int, function: Callable[[Tensor, Tensor], Tensor], share: Share) -> Tensor:
    """A function of a client's examples, its errors naming the client."""
    try:
        return function(share.inputs, share.targets)
    except DataError as error:
        raise DataError(f"client {row}: {error}") from error


@dataclass(frozen=True)
class _SumBlock:
    """Clients with the same sums of losses and equally many examples."""

    functional: Functional
    rows: list[int]
    inputs: Tensor  # [g, m, ...]
    targets: Tensor  # [g, m, ...]
    objective: Tensor  # [g, m]
    weights: Tensor  # [g, m, q]
    matrix: Tensor  # [c, q]
    offset: Tensor  # [c]
    linear: bool  # the model is one linear layer: no vmap needed

    def __call__(self, params: Tensor) -> tuple[Tensor, Tensor]:
        outputs = self._outputs(self.functional.unflatten(params))
        losses = self.functional.losses(outputs.flatten(0, 1), self.targets.flatten(0, 1))
        losses = losses.unflatten(0, self.targets.shape[:2])  # [g * m] -> [g, m]
        statistics = torch.einsum("gmq,gm->gq", self.weights, losses)
        return (self.objective * losses).sum(1), statistics @ self.matrix.T - self.offset

    def _outputs(self, names: dict[str, Tensor]) -> Tensor:
        if self.linear:
            weight, *bias = names.values()
            outputs = torch.bmm(self.inputs.flatten(2), weight.mT)
            return outputs + bias[0].unsqueeze(1) if bias else outputs
        if len(self.rows) == 1:
            single = {name: value[0] for name, value in names.items()}
            return self.functional.outputs(single, self.inputs[0]).unsqueeze(0)
        return vmap(self.functional.outputs)(names, self.inputs)


@dataclass(frozen=True)
class _FunctionBlock:
    """One client with functions of its user's own."""

    functional: Functional
    rows: list[int]
    share: Share

    def __call__(self, params: Tensor) -> tuple[Tensor, Tensor]:
        model = BoundModel(self.functional, params[0])
        problem, x, y = self.share.problem, self.share.inputs, self.share.targets
        objective = params.new_zeros(1) if problem.objective is None else problem.objective.values(model, x, y)
        values = [constraint.values(model, x, y) for constraint in problem.constraints]
        return objective, torch.cat([params.new_zeros(0), *values]).unsqueeze(0)


@dataclass(frozen=True)
class BoundModel:
    """The model at one row of parameters; see `fedpriv.problems.loss_sums.Model`."""

    functional: Functional
    params: Tensor

    def __call__(self, inputs: Tensor) -> Tensor:
        """Outputs of the batch."""
        return self.functional.outputs(self.functional.unflatten(self.params), inputs)

    def losses(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Loss of each example."""
        return self.functional.losses(self(inputs), targets)


class LossWeights:
    """Coefficients of every example's loss in its client's objective and constraints: what private answers are made of.

    Args:
        stacks: Every client's problem as sums of losses.
        shares: Every client's examples.
        device: Where the weights live.
        dtype: Their type.

    Attributes:
        largest: Bound on the coefficients of an example, `[n, q]`; public.
        total: Sum of a client's coefficients, as declared, `[n, q]`; public.
        matrix: `[n, m, q]`: from sums to constraint values.
        offset: `[n, m]`.
    """

    def __init__(
        self, stacks: Sequence[Stacked], shares: Sequence[Share], device: torch.device, dtype: torch.dtype
    ) -> None:
        pairs = list(zip(stacks, shares, strict=True))
        cells = [of_client(i, s.weights, share) * share.scale for i, (s, share) in enumerate(pairs)]
        width, height = max(c.shape[1] for c in cells), max(len(s.offset()) for s in stacks)
        self._weights = torch.cat([_pad(c, width) for c in cells]).to(device, dtype)
        own = [s.objective_weights(share.inputs, share.targets) * share.scale for s, share in pairs]
        # the server has no objective: the others' mean is that of all rows times this factor
        self._objective = torch.cat(own).to(device, dtype) * (
            len(stacks) / max(sum(s.objective is not None for s in stacks), 1)
        )
        self._owner = torch.repeat_interleave(torch.tensor([len(share.targets) for share in shares])).to(device)
        self._sizes = torch.tensor([float(share.public_size) for share in shares], device=device, dtype=dtype)
        reach = [_pad(s.largest(share.inputs, share.targets) * share.scale, width) for s, share in pairs]
        self.largest = torch.stack(reach).to(device, dtype)
        self.total = torch.stack([_pad(s.total(), width) for s in stacks]).to(device, dtype)
        self.matrix = torch.stack([_pad(_pad(s.matrix(), width).T, height).T for s in stacks]).to(device, dtype)
        self.offset = torch.stack([_pad(s.offset(), height) for s in stacks]).to(device, dtype)

    def of_statistics(self, batch: Batch) -> Tensor:
        """Coefficients `[k, b, q]` of a batch's examples."""
        assert batch.examples is not None
        return self._weights[batch.examples]

    def of_lagrangian(self, multipliers: Tensor) -> Tensor:
        """Factor of each example's loss, `[n_examples]`, for multipliers `[n, m]`; the mean over a client's examples of
        factor times gradient is the gradient of `f_i + <multipliers_i, c_i>`.
        """
        prices = torch.einsum("nmq,nm->nq", self.matrix, multipliers)
        return self._sizes[self._owner] * (self._objective + (self._weights * prices[self._owner]).sum(1))

    def values(self, statistics: Tensor) -> Tensor:
        """Constraint values `[n, m]` from sums `[n, q]`."""
        return torch.einsum("nmq,nq->nm", self.matrix, statistics) - self.offset


def losses_of(functional: Functional, params: Tensor, batch: Batch) -> Tensor:
    """Loss of each example of a batch at its client's row: `[k, dim] -> [k, b]`.

    Each example passes through the model as a batch of one, as for its gradient: a model that mixes the examples of a
    batch, which cannot be told from outside, has nothing to mix, and an example's loss depends on no other.
    """

    def of_one(names: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional.outputs(names, x.unsqueeze(0)).squeeze(0)

    with torch.no_grad():
        of_examples = vmap(of_one, in_dims=(None, 0), randomness="different")
        outputs = vmap(of_examples, randomness="different")(functional.unflatten(params), batch.inputs)
        losses = functional.losses(outputs.flatten(0, 1), batch.targets.flatten(0, 1))
    return losses.unflatten(0, batch.mask.shape)


def _pad(values: Tensor, width: int) -> Tensor:
    return nn.functional.pad(values.double(), (0, width - values.shape[-1]))
