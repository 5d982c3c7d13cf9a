"""One client's problem: its objective and its constraints, and how they stack up as sums of losses."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedpriv.errors import ConfigError
from fedpriv.problems.constraints import MEAN_LOSS
from fedpriv.problems.loss_sums import Constraint, LossSums


@dataclass(frozen=True)
class Problem:
    """What one client brings to a run.

    Args:
        objective: Its share f_i of the objective, one value; None for none (the server). By default its mean loss. The
            run minimises the mean of the clients' objectives.
        constraints: What must hold on its data.
    """

    objective: Constraint | None = field(default_factory=lambda: MEAN_LOSS)
    constraints: tuple[Constraint, ...] = ()

    def __post_init__(self) -> None:
        lone = not hasattr(self.constraints, "__len__")
        if lone or not all(hasattr(term, "equality") for term in self.constraints):
            fix = "give a tuple of constraints; wrap a function of your own: fedpriv.Function(f)"
            raise ConfigError("problem.constraints", self.constraints, fix)
        if self.objective is not None and len(self.objective.equality) != 1:
            raise ConfigError("problem.objective", self.objective, "must have one value")

    @property
    def equality(self) -> tuple[bool, ...]:
        """For each constraint value whether it must be zero."""
        return tuple(flag for constraint in self.constraints for flag in constraint.equality)

    @property
    def is_mean_loss(self) -> bool:
        """Whether it is the default one, which every strategy minimises."""
        return not self.constraints and self.objective == MEAN_LOSS

    def stacked(self) -> Stacked | None:
        """Objective and constraints as one table of loss sums; None if one of them is no such sum."""
        terms = [term.sums() for term in self.constraints]
        objective = None if self.objective is None else self.objective.sums()
        known = [term for term in terms if term is not None]
        if len(known) < len(terms) or (objective is None and self.objective is not None):
            return None
        return Stacked(objective, tuple(known))


@dataclass(frozen=True)
class Stacked:
    """Several loss sums side by side."""

    objective: LossSums | None
    terms: tuple[LossSums, ...]

    def objective_weights(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """`[b]`."""
        if self.objective is None:
            return torch.zeros(len(targets), dtype=torch.float64)
        return self.objective.weights(inputs, targets)[:, 0]

    def weights(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """`[b, q]`."""
        return torch.cat([torch.zeros(len(targets), 0), *(t.weights(inputs, targets) for t in self.terms)], 1)

    def largest(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """`[q]`."""
        return torch.cat([torch.zeros(0), *(t.largest(inputs, targets) for t in self.terms)])

    def total(self) -> Tensor:
        """`[q]`."""
        return torch.cat([torch.zeros(0), *(t.total for t in self.terms)])

    def matrix(self) -> Tensor:
        """`[m, q]`."""
        return torch.block_diag(*(t.matrix for t in self.terms)) if self.terms else torch.zeros(0, 0)

    def offset(self) -> Tensor:
        """`[m]`; the objective has none, its own offset is dropped."""
        return torch.cat([torch.zeros(0), *(t.offset for t in self.terms)])

    def counts_are_public(self) -> bool:
        """Whether any term counts examples."""
        every = (*self.terms, *(() if self.objective is None else (self.objective,)))
        return any(term.counts_are_public for term in every)
