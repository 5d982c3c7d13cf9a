"""Learning problems with constraints: what each client minimises, and what must hold on its data.

Client i has an objective f_i and constraint values c_i(w) in R^m, each `<= 0` or `= 0`. Both are torch functions of
(model, batch). Those that are sums of losses with coefficients (`LossSums`) can also be asked privately: a sum of
losses that are clipped to [0, B] has a known sensitivity; a function of anything cannot have one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv.checks import Finite, NonNegative, Probability, Ratio, checked
from fedpriv.errors import ConfigError
from fedpriv.plugins import Entry, Registry
from fedpriv.problems.loss_sums import Constraint, Count, LossSums, Model


def _summed(term: LossSums, model: Model, inputs: Tensor, targets: Tensor) -> Tensor:
    losses = model.losses(inputs, targets)
    statistics = term.weights(inputs, targets).to(losses).T @ losses
    return term.matrix.to(losses) @ statistics - term.offset.to(losses)


class _Single:
    """One sum, at most a bound."""

    equality: tuple[bool, ...] = (False,)

    @property
    def total(self) -> Tensor:
        """A mean: 1."""
        return torch.ones(1)

    @property
    def matrix(self) -> Tensor:
        """`[1, 1]`."""
        return torch.ones(1, 1)


@checked("problem.constraints")
@dataclass(frozen=True)
class LossAtMost(_Single):
    """Mean loss of all examples at most `bound`."""

    bound: Finite

    def weights(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """`1 / m`."""
        return torch.full((len(targets), 1), 1 / len(targets), dtype=torch.float64)

    def largest(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """`1 / m`."""
        return torch.tensor([1 / len(targets)])

    @property
    def offset(self) -> Tensor:
        """The bound."""
        return torch.tensor([self.bound], dtype=torch.float64)

    @property
    def counts_are_public(self) -> bool:
        """Sizes are public anyway."""
        return False

    def values(self, model: Model, inputs: Tensor, targets: Tensor) -> Tensor:
        """See `Constraint.values`."""
        return _summed(self, model, inputs, targets)

    def sums(self) -> LossSums:
        """Itself."""
        return self


@checked("problem.constraints")
@dataclass(frozen=True)
class ClassLossAtMost(_Single):
    """Mean loss of the examples of one class at most `bound`: Neyman-Pearson classification.

    Args:
        label: The class.
        bound: Largest mean loss.
        fraction: Its public fraction; None counts (see `Count`).
    """

    label: int
    bound: Finite
    fraction: Probability | None = None

    def weights(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """`1 / m_label` for the class's examples, else 0."""
        members = targets == self.label
        return (members.double() / Count(self.fraction).of(members, f"label {self.label}")).unsqueeze(1)

    def largest(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """`1 / m_label`."""
        return torch.tensor([1 / Count(self.fraction).of(targets == self.label, f"label {self.label}")])

    @property
    def offset(self) -> Tensor:
        """The bound."""
        return torch.tensor([self.bound], dtype=torch.float64)

    @property
    def counts_are_public(self) -> bool:
        """Without a fraction."""
        return self.fraction is None

    def values(self, model: Model, inputs: Tensor, targets: Tensor) -> Tensor:
        """See `Constraint.values`."""
        return _summed(self, model, inputs, targets)

    def sums(self) -> LossSums:
        """Itself."""
        return self


@checked("problem.constraints")
@dataclass(frozen=True)
class GroupLossGap:
    """Mean loss of group 1 minus that of group 0 within `+- at_most`: loss parity. Not convex.

    Args:
        feature: The input feature that tells the groups apart (index into the flattened input; -1 is the last).
        at_most: Largest absolute gap.
        threshold: Group 1 has a feature above it.
        fraction: Public fraction of group 1; None counts (see `Count`).
    """

    feature: int
    at_most: NonNegative
    threshold: Finite = 0.5
    fraction: Ratio | None = None

    @property
    def equality(self) -> tuple[bool, ...]:
        """`gap - at_most <= 0` and `-gap - at_most <= 0`."""
        return (False, False)

    def _fractions(self) -> tuple[Count, Count]:
        return Count(self.fraction), Count(None if self.fraction is None else 1 - self.fraction)

    def _counts(self, inputs: Tensor) -> tuple[Tensor, float, float]:
        flat, where = inputs.flatten(1), f"feature {self.feature}"
        if not -flat.shape[1] <= self.feature < flat.shape[1]:
            raise ConfigError("feature", self.feature, f"an input has {flat.shape[1]}: 0 is the first, -1 the last")
        ones = flat[:, self.feature] > self.threshold
        first, second = self._fractions()
        return ones, first.of(ones, f"{where} > {self.threshold}"), second.of(~ones, f"{where} <= {self.threshold}")

    def weights(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """`1 / m_1` in group 1, `-1 / m_0` in group 0."""
        ones, first, second = self._counts(inputs)
        return (ones.double() / first - (~ones).double() / second).unsqueeze(1)

    def largest(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The smaller group's."""
        _, first, second = self._counts(inputs)
        return torch.tensor([1 / min(first, second)])

    @property
    def total(self) -> Tensor:
        """A difference of means: 0."""
        return torch.zeros(1)

    @property
    def matrix(self) -> Tensor:
        """One gap, two bounds: it is asked, and paid for, once."""
        return torch.tensor([[1.0], [-1.0]])

    @property
    def offset(self) -> Tensor:
        """The bound, twice."""
        return torch.tensor([self.at_most, self.at_most], dtype=torch.float64)

    @property
    def counts_are_public(self) -> bool:
        """Without a fraction."""
        return self.fraction is None

    def values(self, model: Model, inputs: Tensor, targets: Tensor) -> Tensor:
        """See `Constraint.values`."""
        return _summed(self, model, inputs, targets)

    def sums(self) -> LossSums:
        """Itself."""
        return self


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

    def sums(self) -> LossSums | None:
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

    def sums(self) -> LossSums | None:
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
