"""One client's problem, an objective and constraints, and its form as sums of losses on the client's examples."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedpriv.errors import ConfigError
from fedpriv.models.constraints import Constraint, LossSum, mean_loss
from fedpriv.models.nested import Nested, first_leaf
from fedpriv.settings.checks import validate_arguments


@validate_arguments("problem")
@dataclass(frozen=True)
class Problem:
    """Objective and constraints of one client.

    Args:
        objective: The client's objective f_i, by default its mean loss; None for a server without an objective. The run
            minimises the mean of the clients' objectives.
        constraints: Constraints on the client's data, e.g. `(LossAtMost(0.5),)`; none by default.

    Raises:
        ConfigError: If the objective or a constraint cannot be used.

    Examples:
        >>> import fedpriv
        >>> fedpriv.Problem().is_mean_loss
        True
    """

    objective: Constraint | None = field(default_factory=mean_loss)
    constraints: tuple[Constraint, ...] = ()

    def __post_init__(self) -> None:
        is_sequence = hasattr(self.constraints, "__len__")
        if not is_sequence or not all(hasattr(term, "equality") for term in self.constraints):
            fix = (
                "must be a tuple of constraints; to use your own function f as a constraint, write fedpriv.Function(f)"
            )
            raise ConfigError("problem.constraints", self.constraints, fix)
        if self.objective is not None and len(self.objective.equality) != 1:
            raise ConfigError("problem.objective", self.objective, "must compute exactly one value")

    @property
    def terms(self) -> tuple[Constraint, ...]:
        """The objective, if there is one, and the constraints."""
        if self.objective is None:
            return self.constraints
        return (self.objective, *self.constraints)

    @property
    def equality(self) -> tuple[bool, ...]:
        """For each constraint value, True if it must be zero (else it must be at most zero)."""
        return tuple(flag for constraint in self.constraints for flag in constraint.equality)

    @property
    def is_mean_loss(self) -> bool:
        """True for the default problem, the mean loss without constraints, which every strategy can minimise."""
        return not self.constraints and self.objective == mean_loss()

    @property
    def counts_are_public(self) -> bool:
        """True if private queries use a client's exact number of examples in a group; the numbers are then public."""
        sums = _sums(self.terms)
        return sums is not None and any(term.counts_are_public for term in sums)

    def table(self, inputs: Nested, targets: Nested) -> LossTable | None:
        """Returns objective and constraints on a client's examples; None if one of them is no sum of losses.

        Raises:
            DataError: If a group has neither an example nor a public fraction.
        """
        sums = _sums(self.terms)
        if sums is None:
            return None
        first_target = first_leaf(targets)
        zeros = torch.zeros(len(first_target), dtype=torch.float64, device=first_target.device)
        # coefficients of each term, and the share of its smallest group; the objective comes first
        coefficients = [term.coefficients(inputs, targets) for term in sums]
        if self.objective is None:
            objective = zeros
        else:
            objective = coefficients[0][0]
            coefficients = coefficients[1:]
            sums = sums[1:]
        return LossTable(
            objective=objective,
            # the first column makes the stack work without constraints too
            weights=torch.stack([zeros, *(weights for weights, _ in coefficients)], 1)[:, 1:],
            share=torch.tensor([share for _, share in coefficients], dtype=torch.float64),
            total=torch.tensor([term.total for term in sums]),
            matrix=torch.block_diag(torch.zeros(0, 0), *(torch.tensor(term.signs).unsqueeze(1) for term in sums)),
            offset=torch.tensor([term.bound for term in sums for _ in term.signs], dtype=torch.float64),
        )


@dataclass(frozen=True)
class LossTable:
    """A client's objective `objective @ losses` and constraints `matrix @ (losses @ weights) - offset`.

    Attributes:
        objective: Coefficients of the objective, `[b]`, zeros if there is no objective; its bound is dropped.
        weights: Coefficients of the q sums from which constraint values are computed, `[b, q]`.
        share: Share of the smallest group of each sum, `[q]`; public. The largest absolute coefficient that any of n
            examples could have is `1 / (share n)`.
        total: Sum of the coefficients over a client with the declared counts, `[q]`; public.
        matrix: Constraint values by sum, `[m, q]`.
        offset: Bounds of the constraint values, `[m]`.
    """

    objective: Tensor
    weights: Tensor
    share: Tensor
    total: Tensor
    matrix: Tensor
    offset: Tensor


def _sums(terms: tuple[Constraint, ...]) -> list[LossSum] | None:
    """Returns the terms as sums of losses; None if one of them is no such sum."""
    sums: list[LossSum] = []
    for term in terms:
        losses = term.sums()
        if losses is None:
            return None
        sums.append(losses)
    return sums
