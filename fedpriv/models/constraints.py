"""Constraints: values `c_i(w)` on a client's examples, each `<= 0` or `= 0` at a solution.

Values are torch functions of (model, examples). Sums of losses (`LossSum`) can also be queried privately, because a sum
of losses that are clipped to [0, B] has a known sensitivity. Other functions have no known sensitivity. An objective
has the same form as a constraint with one value; its bound is ignored.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from fedpriv.errors import ConfigError, DataError
from fedpriv.models.example_function import apply_to_each
from fedpriv.models.nested import Nested, first_leaf
from fedpriv.settings.checks import Finite, NonNegative, Probability, Ratio, Whole, validate_arguments
from fedpriv.settings.plugins import Registry, RegistryEntry, resolve_function


class Model(Protocol):
    """A client's model with given parameters."""

    @property
    def params(self) -> Tensor:
        """The parameters, `[dim]`."""
        ...

    def __call__(self, inputs: Nested) -> Any:  # noqa: ANN401 - whatever a model gives
        """Returns the outputs, `[b, ...] -> [b, ...]`."""
        ...

    def losses(self, inputs: Nested, targets: Nested) -> Tensor:
        """Returns the client's loss of each example, `[b]`."""
        ...


class Constraint(Protocol):
    """Values that must not be positive (or must be zero) at a solution."""

    @property
    def equality(self) -> tuple[bool, ...]:
        """For each value, True if it must be zero (else it must be at most zero)."""
        ...

    def values(self, model: Model, inputs: Nested, targets: Nested) -> Tensor:
        """Returns the values `[m]` on a client's examples, differentiable in the model's parameters."""
        ...

    def sums(self) -> LossSum | None:
        """Returns the values as a sum of losses; None if they are no sum of losses, so that no private query exists."""
        ...


@dataclass(frozen=True)
class Group:
    """A group of a client's examples, and the sign of its mean loss in a sum.

    Args:
        name: Text that completes the phrase "no example with" in error messages.
        members: Maps a client's inputs and targets to flags `[b]`, True for members of the group. A flag must depend on
            its example only.
        fraction: Public fraction of examples in the group. None counts the examples of each client in the group, and
            these counts become public.
        sign: Factor of the group's mean loss, 1 or -1.
    """

    name: str
    members: Callable[[Any, Any], Tensor]
    fraction: float | None
    sign: float = 1.0

    def share(self, members: Tensor) -> float:
        """Returns the public fraction of a client's examples in the group or, without one, the mean of `members [b]`.

        Raises:
            DataError: If the group is empty and no fraction is given.
        """
        if self.fraction is not None:
            return self.fraction
        count = int(members.sum())
        if count == 0:
            raise DataError(
                f"there is no example with {self.name}, so the mean loss of this group is undefined. Divide the "
                "data so that each client has such examples, leave out the constraint at this client, or set the "
                "group's public fraction"
            )
        return count / len(members)


@dataclass(frozen=True)
class LossSum:
    """A sum of losses, each times a coefficient that depends on its example and public counts only.

    The sum is `s = sum_g sign_g * (mean loss of group g)`, and the constraint's values are `signs * s - bound`.

    Args:
        groups: Disjoint groups of examples.
        bound: Bound of the values.
        signs: Sign of each value. All values are computed from one private query.
    """

    groups: tuple[Group, ...]
    bound: float
    signs: tuple[float, ...] = (1.0,)

    @property
    def counts_are_public(self) -> bool:
        """True if a client's number of examples in a group is used, and so becomes public."""
        return any(group.fraction is None for group in self.groups)

    @property
    def total(self) -> float:
        """Sum of the coefficients of a client's examples if it has the declared counts; the sum is public."""
        return sum(group.sign for group in self.groups)

    def coefficients(self, inputs: Nested, targets: Nested) -> tuple[Tensor, float]:
        """Returns the coefficients of a client's examples, `[b]`, and the share of its smallest group (public).

        The largest possible coefficient of a client with n examples is `1 / (share n)`.
        """
        coefficients: list[Tensor] = []
        shares: list[float] = []
        for group in self.groups:
            members = group.members(inputs, targets)
            share = group.share(members)
            coefficients.append(group.sign * members.double() / (share * len(members)))
            shares.append(share)
        return torch.stack(coefficients).sum(0), min(shares)


class OfLosses(ABC):
    """A constraint that is a sum of losses."""

    @property
    def equality(self) -> tuple[bool, ...]:
        """False for each value: they must not be positive."""
        return (False,) * len(self.sums().signs)

    def values(self, model: Model, inputs: Nested, targets: Nested) -> Tensor:
        """See `Constraint.values`."""
        term = self.sums()
        losses = model.losses(inputs, targets)
        total = term.coefficients(inputs, targets)[0].unsqueeze(1).to(losses).T @ losses
        return losses.new_tensor(term.signs) * total - term.bound

    @abstractmethod
    def sums(self) -> LossSum:
        """Returns the sum."""


def _everyone(inputs: Nested, targets: Nested) -> Tensor:
    """Returns True for each example."""
    first_target = first_leaf(targets)
    return torch.ones(len(first_target), dtype=torch.bool, device=first_target.device)


@validate_arguments("problem.constraints")
@dataclass(frozen=True)
class LossAtMost(OfLosses):
    """The mean loss of a client's examples is at most `bound`.

    Args:
        bound: Largest mean loss.

    Examples:
        >>> import fedpriv
        >>> fedpriv.Problem(constraints=(fedpriv.LossAtMost(0.5),)).equality
        (False,)
    """

    bound: Finite

    def sums(self) -> LossSum:
        """Returns a sum with one group, all examples, with a public number."""
        return LossSum((Group("any label", _everyone, 1.0),), self.bound)


@validate_arguments("problem.constraints")
@dataclass(frozen=True)
class ClassLossAtMost(OfLosses):
    """The mean loss of the examples of one class is at most `bound` (Neyman-Pearson classification).

    Args:
        label: Number of the class.
        bound: Largest mean loss.
        fraction: Public fraction of examples of this class, in (0, 1]. None uses each client's true count, which
            private runs allow only with `Statistics(public_counts=True)`.

    Examples:
        >>> import fedpriv
        >>> constraint = fedpriv.ClassLossAtMost(label=1, bound=0.4, fraction=0.25)
        >>> fedpriv.Problem(objective=fedpriv.class_loss(0, fraction=0.75), constraints=(constraint,)).equality
        (False,)
    """

    label: Whole
    bound: Finite
    fraction: Probability | None = None

    def sums(self) -> LossSum:
        """Returns a sum with one group, the examples of the class."""
        return LossSum((Group(f"label {self.label}", lambda _, y: y == self.label, self.fraction),), self.bound)


@validate_arguments("problem.constraints")
@dataclass(frozen=True)
class SubsetLossAtMost(OfLosses):
    """The mean loss of the examples that your function selects is at most `bound`; also for private runs.

    Args:
        members: `members(inputs, targets)` returns True or False in a tensor, for one example in a batch of one. It
            must consist of torch operations, without `if` on values: its operations are recorded on zeros and applied
            to each example by itself, so that no example decides about another.
        bound: Largest mean loss.
        fraction: Public fraction of selected examples, in (0, 1]. None uses each client's true count, which private
            runs allow only with `Statistics(public_counts=True)`.

    Examples:
        >>> import fedpriv
        >>> def is_elderly(inputs, targets):
        ...     return inputs[:, 0] > 65
        >>> constraint = fedpriv.SubsetLossAtMost(is_elderly, bound=0.4, fraction=0.2)
        >>> fedpriv.Problem(constraints=(constraint,)).equality
        (False,)
    """

    members: Callable[[Any, Any], Tensor]
    bound: Finite
    fraction: Probability | None = None

    def sums(self) -> LossSum:
        """Returns a sum with one group, the selected examples."""
        name = getattr(self.members, "__name__", "members")
        return LossSum((Group(f"{name} true", self._select, self.fraction),), self.bound)

    def _select(self, inputs: Nested, targets: Nested) -> Tensor:
        return apply_to_each(self.members, inputs, targets, "problem.constraints.SubsetLossAtMost")


@validate_arguments("problem.constraints")
@dataclass(frozen=True)
class GroupLossGap(OfLosses):
    """The mean losses of two groups differ by at most `at_most` (loss parity, a fairness constraint).

    This constraint is not convex.

    Args:
        feature: Index, in the flattened input, of the feature that defines the groups (-1 is the last feature).
        at_most: Largest absolute difference.
        threshold: Examples with a larger value of the feature are group 1, all others group 0; 0.5 by default.
        fraction: Public fraction of examples in group 1. None uses each client's true counts, which private runs
            allow only with `Statistics(public_counts=True)`.

    Examples:
        >>> import fedpriv
        >>> gap = fedpriv.GroupLossGap(feature=0, at_most=0.1, fraction=0.5)
        >>> fedpriv.Problem(constraints=(gap,)).equality  # gap <= at_most and -gap <= at_most
        (False, False)
    """

    feature: int
    at_most: NonNegative
    threshold: Finite = 0.5
    fraction: Ratio | None = None

    def sums(self) -> LossSum:
        """Returns a sum with two groups and two values: `gap - at_most <= 0` and `-gap - at_most <= 0`."""
        if self.fraction is None:
            other_fraction = None
        else:
            other_fraction = 1 - self.fraction
        where = f"feature {self.feature}"
        ones = Group(f"{where} > {self.threshold}", lambda x, _: self._above(x), self.fraction)
        zeros = Group(f"{where} <= {self.threshold}", lambda x, _: ~self._above(x), other_fraction, -1.0)
        return LossSum((ones, zeros), self.at_most, (1.0, -1.0))

    def _above(self, inputs: Tensor) -> Tensor:
        flat = inputs.flatten(1)
        if not -flat.shape[1] <= self.feature < flat.shape[1]:
            raise ConfigError(
                "feature",
                self.feature,
                f"must be a column of the inputs, from 0 (the first) to {flat.shape[1] - 1} (the last), or -1 for the "
                "last",
            )
        return flat[:, self.feature] > self.threshold


@validate_arguments("problem.constraints")
@dataclass(frozen=True)
class LinearEquality:
    """The parameters w satisfy `coefficients @ w + offset = 0`. It uses no data.

    Args:
        coefficients: Matrix `[m, dim]`.
        offset: Vector `[m]`.

    Examples:
        >>> import fedpriv, torch
        >>> sum_is_one = fedpriv.LinearEquality(torch.ones(1, 3), torch.tensor([-1.0]))
        >>> fedpriv.Problem(constraints=(sum_is_one,)).equality
        (True,)
    """

    coefficients: Tensor
    offset: Tensor

    @property
    def equality(self) -> tuple[bool, ...]:
        """True for each value: they must be zero."""
        return (True,) * len(self.offset)

    def values(self, model: Model, inputs: Nested, targets: Nested) -> Tensor:
        """See `Constraint.values`.

        Raises:
            ConfigError: If the shapes do not fit each other, or the model's parameters.
        """
        expected = (len(self.offset), len(model.params))
        if self.coefficients.shape != expected:
            fix = f"must have shape {expected}: one row per entry of offset, and one column per parameter of the model"
            raise ConfigError("constraints.LinearEquality", f"coefficients of shape {(*self.coefficients.shape,)}", fix)
        return self.coefficients.to(model.params) @ model.params + self.offset.to(model.params)

    def sums(self) -> LossSum | None:
        """Returns None: the values are no sum of losses."""
        return None


@validate_arguments("problem.constraints")
@dataclass(frozen=True)
class Function:
    """A custom constraint (or, with one value, objective): `function(model, inputs, targets) -> [m]`.

    It can be used only in runs without privacy, because the contribution of one example is not bounded.

    Args:
        function: Computes the values. `model` is a `Model`: `model(inputs)` returns outputs, and
            `model.losses(inputs, targets)` losses `[b]`.
        equality: For each value, True if the value must be zero and False if it must be at most zero. The default
            (False,) is for one value that must be at most zero.

    Examples:
        >>> import fedpriv
        >>> small = fedpriv.Function(lambda model, inputs, targets: model.params.square().sum()[None] - 1.0)
        >>> fedpriv.Problem(constraints=(small,)).equality
        (False,)
    """

    function: Callable[[Model, Any, Any], Tensor]
    equality: tuple[bool, ...] = (False,)

    def values(self, model: Model, inputs: Nested, targets: Nested) -> Tensor:
        """See `Constraint.values`.

        Raises:
            ConfigError: If the function does not return one number for each entry of `equality`, or they have no
                gradient.
        """
        values = self.function(model, inputs, targets)
        name = getattr(self.function, "__name__", "function")
        count = len(self.equality)
        if torch.is_tensor(values):
            shape = tuple(values.shape)
        else:
            shape = type(values).__name__
        if shape != (count,):
            fix = f"must be a tensor of shape ({count},): return one value per entry of equality"
            raise ConfigError(f"constraints.{name}", f"shape {shape}", fix)
        if torch.is_grad_enabled() and model.params.requires_grad and not values.requires_grad:
            fix = (
                "returns values without a gradient, so training cannot satisfy the constraint: compute them from the "
                "model by differentiable operations (no detach, item, argmax or comparison)"
            )
            raise ConfigError(f"constraints.{name}", "(function)", fix)
        return values

    def sums(self) -> LossSum | None:
        """Returns None: nothing bounds an example's contribution."""
        return None


@validate_arguments("problem.objective")
def class_loss(label: Whole, fraction: Probability | None = None) -> ClassLossAtMost:
    """Creates an objective for Neyman-Pearson classification: the mean loss of the examples with this label.

    Args:
        label: Number of the class.
        fraction: Public fraction of examples of this class, as for `ClassLossAtMost`; None uses each client's true
            count.

    Returns:
        The objective, for `Problem`.

    Examples:
        >>> import fedpriv
        >>> fedpriv.Problem(objective=fedpriv.class_loss(0, fraction=0.75)).is_mean_loss
        False
    """
    return ClassLossAtMost(label, 0.0, fraction)


def mean_loss() -> Constraint:
    """Returns the default objective: the mean loss of a client's examples."""
    return LossAtMost(0.0)


def _objective(function: str) -> Constraint:
    """Returns the objective of a function of (model, inputs, targets), named `package.module:name`."""
    return Function(_resolve(function, "problem.objective.function"))


def _constraint(function: str, equality: tuple[bool, ...] = (False,)) -> Constraint:
    """Returns the constraint of a function of (model, inputs, targets), named `package.module:name`."""
    return Function(_resolve(function, "problem.constraints.function"), equality)


def _resolve(function: str, field: str) -> Callable[..., Tensor]:
    return resolve_function(function, Tensor, field, ("the model", "inputs", "targets"))


_OBJECTIVES = {
    "mean_loss": RegistryEntry(mean_loss, "mean loss of a client's examples"),
    "class_loss": RegistryEntry(class_loss, "mean loss of one class (Neyman-Pearson)"),
    "function": RegistryEntry(_objective, "the user's function of (model, inputs, targets), without privacy"),
}
_CONSTRAINTS = {
    "loss_at_most": RegistryEntry(LossAtMost, "mean loss of a client's examples at most a bound"),
    "class_loss_at_most": RegistryEntry(ClassLossAtMost, "mean loss of one class at most a bound (Neyman-Pearson)"),
    "group_loss_gap": RegistryEntry(GroupLossGap, "mean losses of two groups differ by at most a bound (fairness)"),
    "function": RegistryEntry(_constraint, "the user's function of (model, inputs, targets), without privacy"),
}
OBJECTIVES = Registry(_OBJECTIVES, (Constraint,))
CONSTRAINTS = Registry(_CONSTRAINTS, (Constraint,))
