"""What a constraint is: values `c_i(w)` on a client's examples, each `<= 0` or `= 0`.

Values are torch functions of (model, examples). Those that are sums of losses (`LossSum`) can also be asked privately:
a sum of losses that are clipped to [0, B] has a known sensitivity; a function of anything cannot have one. An objective
is a constraint of one value whose bound is not looked at.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedpriv.checks import Finite, NonNegative, Probability, Ratio, checked
from fedpriv.errors import ConfigError, DataError
from fedpriv.plugins import Entry, Registry


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


class Constraint(Protocol):
    """Values that must not be positive (or must be zero) at a solution."""

    @property
    def equality(self) -> tuple[bool, ...]:
        """For each value whether it must be zero."""
        ...

    def values(self, model: Model, inputs: Tensor, targets: Tensor) -> Tensor:
        """The values `[m]` on a client's examples, differentiable."""
        ...

    def sums(self) -> LossSum | None:
        """The values as a sum of losses; None if they are not, and then no private answer exists."""
        ...


@dataclass(frozen=True)
class Group:
    """Some of a client's examples, and what their mean loss is multiplied by.

    Args:
        name: Completes "no example with".
        members: Which they are, from a client's inputs and targets: `[b]` boolean, each by its own example alone.
        fraction: Its public fraction of all examples; None counts the client's own, which makes the count public.
        sign: What its mean loss is multiplied by, 1 or -1.
    """

    name: str
    members: Callable[[Tensor, Tensor], Tensor]
    fraction: float | None
    sign: float = 1.0

    def size(self, members: Tensor) -> float:
        """Number of a client's examples in the group, of its members `[b]`.

        Raises:
            DataError: the group is empty and no fraction is given.
        """
        if self.fraction is not None:
            return self.fraction * len(members)
        count = int(members.sum())
        if count == 0:
            raise DataError(
                f"no example with {self.name}: its mean loss does not exist. Divide the data so that each client "
                "has some, leave the constraint out there, or state the group's public fraction"
            )
        return float(count)


@dataclass(frozen=True)
class LossSum:
    """A sum of losses, each times a coefficient that is a function of its example and of public counts.

    The sum is `s = sum_g sign_g * (mean loss of group g)`, and the constraint's values are `signs * s - bound`.

    Args:
        groups: Groups of examples, no two of which share one.
        bound: Of each value.
        signs: One for each value: several values of one sum are asked, and paid for, once.
    """

    groups: tuple[Group, ...]
    bound: float
    signs: tuple[float, ...] = (1.0,)

    @property
    def counts_are_public(self) -> bool:
        """Whether it counts a client's examples in a group and so makes the count public."""
        return any(group.fraction is None for group in self.groups)

    @property
    def total(self) -> float:
        """Sum of the coefficients over a client whose counts are as declared; public."""
        return sum(group.sign for group in self.groups)

    def coefficients(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, float]:
        """Of a client's examples (all of them), `[b]`; and the largest that any example could have, public."""
        members = [group.members(inputs, targets) for group in self.groups]
        sizes = [group.size(of) for group, of in zip(self.groups, members, strict=True)]
        parts = zip(self.groups, members, sizes, strict=True)
        return torch.stack([group.sign * of.double() / size for group, of, size in parts]).sum(0), 1 / min(sizes)


class OfLosses(ABC):
    """A constraint that is a sum of losses."""

    @property
    def equality(self) -> tuple[bool, ...]:
        """None must be zero."""
        return (False,) * len(self.sums().signs)

    def values(self, model: Model, inputs: Tensor, targets: Tensor) -> Tensor:
        """See `Constraint.values`."""
        term, losses = self.sums(), model.losses(inputs, targets)
        total = term.coefficients(inputs, targets)[0].unsqueeze(1).to(losses).T @ losses
        return losses.new_tensor(term.signs) * total - term.bound

    @abstractmethod
    def sums(self) -> LossSum:
        """The sum."""


def _everyone(inputs: Tensor, targets: Tensor) -> Tensor:
    return torch.ones(len(targets), dtype=torch.bool, device=targets.device)


@checked("problem.constraints")
@dataclass(frozen=True)
class LossAtMost(OfLosses):
    """Mean loss of all examples at most `bound`."""

    bound: Finite

    def sums(self) -> LossSum:
        """One group: everyone, for sizes are public anyway."""
        return LossSum((Group("any label", _everyone, 1.0),), self.bound)


@checked("problem.constraints")
@dataclass(frozen=True)
class ClassLossAtMost(OfLosses):
    """Mean loss of the examples of one class at most `bound`: Neyman-Pearson classification.

    Args:
        label: The class.
        bound: Largest mean loss.
        fraction: Its public fraction; None counts (see `Group`).
    """

    label: int
    bound: Finite
    fraction: Probability | None = None

    def sums(self) -> LossSum:
        """One group: the class."""
        return LossSum((Group(f"label {self.label}", lambda _, y: y == self.label, self.fraction),), self.bound)


@checked("problem.constraints")
@dataclass(frozen=True)
class GroupLossGap(OfLosses):
    """Mean loss of group 1 minus that of group 0 within `+- at_most`: loss parity. Not convex.

    Args:
        feature: The input feature that tells the groups apart (index into the flattened input; -1 is the last).
        at_most: Largest absolute gap.
        threshold: Group 1 has a feature above it.
        fraction: Public fraction of group 1; None counts (see `Group`).
    """

    feature: int
    at_most: NonNegative
    threshold: Finite = 0.5
    fraction: Ratio | None = None

    def sums(self) -> LossSum:
        """Two groups, and two values of their gap: `gap - at_most <= 0` and `-gap - at_most <= 0`."""
        rest = None if self.fraction is None else 1 - self.fraction
        where = f"feature {self.feature}"
        ones = Group(f"{where} > {self.threshold}", lambda x, _: self._above(x), self.fraction)
        zeros = Group(f"{where} <= {self.threshold}", lambda x, _: ~self._above(x), rest, -1.0)
        return LossSum((ones, zeros), self.at_most, (1.0, -1.0))

    def _above(self, inputs: Tensor) -> Tensor:
        flat = inputs.flatten(1)
        if not -flat.shape[1] <= self.feature < flat.shape[1]:
            raise ConfigError("feature", self.feature, f"an input has {flat.shape[1]}: 0 is the first, -1 the last")
        return flat[:, self.feature] > self.threshold


@dataclass(frozen=True)
class LinearEquality:
    """`coefficients @ w + offset = 0` for the parameters w: `[m, dim]` and `[m]`. It looks at no data."""

    coefficients: Tensor
    offset: Tensor

    @property
    def equality(self) -> tuple[bool, ...]:
        """All."""
        return (True,) * len(self.offset)

    def values(self, model: Model, inputs: Tensor, targets: Tensor) -> Tensor:
        """See `Constraint.values`.

        Raises:
            ConfigError: the shapes fit neither each other nor the model's parameters.
        """
        wanted = (len(self.offset), len(model.params))
        if self.coefficients.shape != wanted:
            fix = f"must be {wanted}: a row for each entry of offset, a column for each parameter of the model"
            raise ConfigError("constraints.LinearEquality", f"coefficients of shape {(*self.coefficients.shape,)}", fix)
        return self.coefficients.to(model.params) @ model.params + self.offset.to(model.params)

    def sums(self) -> LossSum | None:
        """None: it is no sum of losses."""
        return None


@dataclass(frozen=True)
class Function:
    """A user's own constraint (or, with one value, objective): `function(model, inputs, targets) -> [m]`."""

    function: Callable[[Model, Tensor, Tensor], Tensor]
    equality: tuple[bool, ...] = (False,)

    def values(self, model: Model, inputs: Tensor, targets: Tensor) -> Tensor:
        """See `Constraint.values`.

        Raises:
            ConfigError: the function does not return one number for each entry of `equality`, or its values have no
                gradient.
        """
        found = self.function(model, inputs, targets)
        name, count = getattr(self.function, "__name__", "function"), len(self.equality)
        shape = tuple(found.shape) if torch.is_tensor(found) else type(found).__name__
        if shape != (count,):
            fix = f"must be a tensor of shape ({count},): return one value for each entry of equality"
            raise ConfigError(f"constraints.{name}", f"shape {shape}", fix)
        if torch.is_grad_enabled() and model.params.requires_grad and not found.requires_grad:
            fix = (
                "its values have no gradient, so nothing could make them hold: compute them from the model by "
                "differentiable operations (no detach, item, argmax or comparison)"
            )
            raise ConfigError(f"constraints.{name}", "no gradient", fix)
        return found

    def sums(self) -> LossSum | None:
        """None: nothing bounds what one example adds to it."""
        return None


MEAN_LOSS = LossAtMost(0.0)


def class_loss(label: int, fraction: float | None = None) -> ClassLossAtMost:
    """The objective of Neyman-Pearson classification: mean loss of one class."""
    return ClassLossAtMost(label, 0.0, fraction)


def mean_loss() -> Constraint:
    """The default objective."""
    return MEAN_LOSS


_OBJECTIVES = {
    "mean_loss": Entry(mean_loss, "mean loss of a client's examples"),
    "class_loss": Entry(class_loss, "mean loss of one class (Neyman-Pearson)"),
}
_CONSTRAINTS = {
    "loss_at_most": Entry(LossAtMost, "mean loss of a client's examples at most a bound"),
    "class_loss_at_most": Entry(ClassLossAtMost, "mean loss of one class at most a bound (Neyman-Pearson)"),
    "group_loss_gap": Entry(GroupLossGap, "mean losses of two groups differ by at most a bound (fairness)"),
}
OBJECTIVES = Registry(_OBJECTIVES, (Constraint,))
CONSTRAINTS = Registry(_CONSTRAINTS, (Constraint,))
