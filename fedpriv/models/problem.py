"""One client's problem, an objective and constraints, and its form as sums of losses on the client's examples."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedpriv.data.nested import Nested, first
from fedpriv.errors import ConfigError
from fedpriv.models.constraints import Constraint, LossSum, mean_loss
from fedpriv.settings.checks import checked


@checked("problem")
@dataclass(frozen=True)
class Problem:
    """Objective and constraints of one client.

    Args:
        objective: The client's objective f_i, by default its mean loss; None for a server, which has none. The run
            minimises the mean of the clients' objectives.
        constraints: Constraints on its data, e.g. `(LossAtMost(0.5),)`.
    """

    objective: Constraint | None = field(default_factory=mean_loss)
    constraints: tuple[Constraint, ...] = ()

    def __post_init__(self) -> None:
        lone = not hasattr(self.constraints, "__len__")
        if lone or not all(hasattr(term, "equality") for term in self.constraints):
            fix = "give a tuple of constraints; wrap a function of your own: fedpriv.Function(f)"
            raise ConfigError("problem.constraints", self.constraints, fix)
        if self.objective is not None and len(self.objective.equality) != 1:
            raise ConfigError("problem.objective", self.objective, "must have one value")

    @property
    def parts(self) -> tuple[Constraint, ...]:
        """The objective, if there is one, and the constraints."""
        return (*(() if self.objective is None else (self.objective,)), *self.constraints)

    @property
    def equality(self) -> tuple[bool, ...]:
        """For each constraint value, whether it must be zero (else at most zero)."""
        return tuple(flag for constraint in self.constraints for flag in constraint.equality)

    @property
    def is_mean_loss(self) -> bool:
        """Whether it is the default, the mean loss without constraints, which every strategy can minimise."""
        return not self.constraints and self.objective == mean_loss()

    @property
    def counts_are_public(self) -> bool:
        """Whether private answers use a client's exact numbers of examples in groups, which then count as public."""
        sums = _sums(self.parts)
        return sums is not None and any(term.counts_are_public for term in sums)

    def table(self, inputs: Nested, targets: Nested) -> LossTable | None:
        """Objective and constraints on a client's examples; None if one of them is no sum of losses.

        Raises:
            DataError: a group has no example, and no public fraction.
        """
        sums = _sums(self.parts)
        if sums is None:
            return None
        ahead = len(self.parts) - len(self.constraints)  # the objective stands before the constraints
        found, terms = [term.coefficients(inputs, targets) for term in sums], sums[ahead:]
        one = first(targets)
        nothing = torch.zeros(len(one), dtype=torch.float64, device=one.device)
        return LossTable(
            objective=found[0][0] if ahead else nothing,
            weights=torch.stack([nothing, *(own for own, _ in found[ahead:])], 1)[:, 1:],
            largest=torch.tensor([largest for _, largest in found[ahead:]]),
            total=torch.tensor([term.total for term in terms]),
            matrix=torch.block_diag(torch.zeros(0, 0), *(torch.tensor(term.signs).unsqueeze(1) for term in terms)),
            offset=torch.tensor([term.bound for term in terms for _ in term.signs], dtype=torch.float64),
        )


@dataclass(frozen=True)
class LossTable:
    """A client's objective `objective @ losses` and constraints `matrix @ (losses @ weights) - offset`.

    Attributes:
        objective: Coefficients of the objective, `[b]`, zeros without one; the bound of an objective is dropped.
        weights: Coefficients of the q sums from which constraint values are computed, `[b, q]`.
        largest: Largest absolute coefficient that any example could have, `[q]`; public.
        total: Sum of the coefficients over a client with the declared counts, `[q]`; public.
        matrix: Constraint values by sum, `[m, q]`.
        offset: Bounds of the constraint values, `[m]`.
    """

    objective: Tensor
    weights: Tensor
    largest: Tensor
    total: Tensor
    matrix: Tensor
    offset: Tensor


def _sums(parts: tuple[Constraint, ...]) -> list[LossSum] | None:
    """The parts as sums of losses; None if one is none."""
    found = [part.sums() for part in parts]
    known = [term for term in found if term is not None]
    if len(known) == len(found):
        return known
    return None
