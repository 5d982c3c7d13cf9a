"""What a constraint is, and what can be asked of it privately: sums of losses with coefficients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from fedpriv.checks import Probability, checked
from fedpriv.errors import DataError


class Model(Protocol):
    """A client's model at some parameters."""

    @property
    def params(self) -> Tensor:
        """The parameters, `[dim]`."""
        ...

    def __call__(self, inputs: Tensor) -> Tensor:
        """Outputs, `[b, ...] -> [b, ...]`."""
        ...

    def losses(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The client's loss of each example, `[b]`."""
        ...


@checked("problem.constraints")
@dataclass(frozen=True)
class Count:
    """Number of a client's examples in a group: counted and so declared public, or a public fraction of all.

    Args:
        fraction: The group's public fraction; None counts the client's own examples, which makes the count public.
    """

    fraction: Probability | None = None

    def of(self, members: Tensor, group: str) -> float:
        """The number, from the group's members `[b]` (boolean) among the client's examples.

        Raises:
            DataError: the group is empty and no fraction is given.
        """
        if self.fraction is not None:
            return self.fraction * len(members)
        count = int(members.sum())
        if count == 0:
            raise DataError(
                f"no example with {group}: its mean loss does not exist. Divide the data so that each client "
                "has some, leave the constraint out there, or state the group's public fraction"
            )
        return float(count)


class LossSums(Protocol):
    """Sums of losses with coefficients that are functions of one example and of public counts.

    `values = matrix @ sum_e weights[e] * loss[e] - offset`.
    """

    def weights(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Coefficients `[b, q]` of a client's examples (all of them)."""
        ...

    def largest(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Bound `[q]` on the absolute coefficients of any example that could be there; public."""
        ...

    @property
    def total(self) -> Tensor:
        """Sum of the coefficients over a client whose counts are as declared, `[q]`; public."""
        ...

    @property
    def matrix(self) -> Tensor:
        """`[m, q]`."""
        ...

    @property
    def offset(self) -> Tensor:
        """`[m]`."""
        ...

    @property
    def counts_are_public(self) -> bool:
        """Whether it counts the client's examples and so makes the counts public."""
        ...


class Constraint(Protocol):
    """Values that must not be positive (or must be zero) at a solution."""

    @property
    def equality(self) -> tuple[bool, ...]:
        """For each value whether it must be zero."""
        ...

    def values(self, model: Model, inputs: Tensor, targets: Tensor) -> Tensor:
        """The values `[m]` on a client's examples, differentiable."""
        ...

    def sums(self) -> LossSums | None:
        """The values as sums of losses; None if they are not, and then no private answer exists."""
        ...
