"""Proximal maps `prox(x, step) = argmin_u h(u) + ||u - x||^2 / (2 step)` of regularisers and indicators, row by row.

Each h is `strong_convexity / 2 ||x||^2` plus a convex `remainder`. Source: Parikh and Boyd, 2014.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedpriv.settings.checks import Positive, validate_arguments


class Proximal(Protocol):
    """A convex function with a proximal map."""

    @property
    def strong_convexity(self) -> float:
        """Coefficient of the quadratic term `strong_convexity / 2 ||x||^2`."""
        ...

    @property
    def remainder(self) -> Proximal:
        """The function without its quadratic term."""
        ...

    def value(self, x: Tensor) -> Tensor:
        """Returns `h` of each row, `[..., dim] -> [...]`; 0 for an indicator, assuming that rows are in its set."""
        ...

    def prox(self, x: Tensor, step: float | Tensor) -> Tensor:
        """Returns the proximal map of each row. `step >= 0` is a number or `[..., 1]`; step 0 projects onto the domain
        of h.
        """
        ...


@validate_arguments("regularizer")
@dataclass(frozen=True)
class Zero:
    """No regulariser: `h = 0`.

    Examples:
        >>> import torch
        >>> from fedpriv.strategies import Zero
        >>> Zero().prox(torch.tensor([[1.0, -2.0]]), 0.5).tolist()
        [[1.0, -2.0]]
    """

    @property
    def strong_convexity(self) -> float:
        """0."""
        return 0.0

    @property
    def remainder(self) -> Zero:
        """The function itself: it has no strongly convex part."""
        return self

    def value(self, x: Tensor) -> Tensor:
        """0."""
        return x.new_zeros(x.shape[:-1])

    def prox(self, x: Tensor, step: float | Tensor) -> Tensor:
        """Returns the point itself."""
        return x


@validate_arguments("regularizer.l2")
@dataclass(frozen=True)
class L2:
    """Squared l2 norm: `h = lam/2 ||x||_2^2`.

    Args:
        lam: Weight; positive.

    Examples:
        >>> import torch
        >>> from fedpriv.strategies import L2
        >>> L2(lam=2.0).prox(torch.tensor([[1.0, -2.0]]), 0.5).tolist()
        [[0.5, -1.0]]
    """

    lam: Positive

    @property
    def strong_convexity(self) -> float:
        """`lam`."""
        return self.lam

    @property
    def remainder(self) -> Zero:
        """Zero."""
        return Zero()

    def value(self, x: Tensor) -> Tensor:
        """`lam/2 ||x||^2`."""
        return self.lam / 2 * x.square().sum(-1)

    def prox(self, x: Tensor, step: float | Tensor) -> Tensor:
        """Shrinks each row."""
        return x / (1 + self.lam * step)


@validate_arguments("regularizer.l1")
@dataclass(frozen=True)
class L1:
    """l1 norm: `h = lam ||x||_1`.

    Args:
        lam: Weight; positive.

    Examples:
        >>> import torch
        >>> from fedpriv.strategies import L1
        >>> L1(lam=1.0).prox(torch.tensor([[1.0, -2.0, 0.25]]), 0.5).tolist()
        [[0.5, -1.5, 0.0]]
    """

    lam: Positive

    @property
    def strong_convexity(self) -> float:
        """0."""
        return 0.0

    @property
    def remainder(self) -> L1:
        """The function itself: it has no strongly convex part."""
        return self

    def value(self, x: Tensor) -> Tensor:
        """`lam ||x||_1`."""
        return self.lam * x.abs().sum(-1)

    def prox(self, x: Tensor, step: float | Tensor) -> Tensor:
        """Applies a soft threshold."""
        return x.sign() * (x.abs() - self.lam * step).clamp_min(0)


@validate_arguments("regularizer.elastic_net")
@dataclass(frozen=True)
class ElasticNet:
    """l1 and squared l2 norm: `h = l1 ||x||_1 + l2/2 ||x||_2^2`.

    Args:
        l1: Weight of the l1 norm; positive.
        l2: Weight of the squared l2 norm; positive.

    Examples:
        >>> import torch
        >>> from fedpriv.strategies import ElasticNet
        >>> ElasticNet(l1=1.0, l2=2.0).prox(torch.tensor([[1.0, -2.0]]), 0.5).tolist()
        [[0.25, -0.75]]
    """

    l1: Positive
    l2: Positive

    @property
    def strong_convexity(self) -> float:
        """`l2`."""
        return self.l2

    @property
    def remainder(self) -> L1:
        """The l1 term."""
        return L1(self.l1)

    def value(self, x: Tensor) -> Tensor:
        """Returns the sum of both terms."""
        return L1(self.l1).value(x) + L2(self.l2).value(x)

    def prox(self, x: Tensor, step: float | Tensor) -> Tensor:
        """Applies a soft threshold, then shrinks."""
        return L2(self.l2).prox(L1(self.l1).prox(x, step), step)


@validate_arguments("regularizer.ball")
@dataclass(frozen=True)
class Ball:
    """The constraint `||x||_2 <= radius`, as an indicator function.

    Args:
        radius: Largest l2 norm; positive.

    Examples:
        >>> import torch
        >>> from fedpriv.strategies import Ball
        >>> Ball(radius=5.0).prox(torch.tensor([[6.0, 8.0]]), 0.5).tolist()
        [[3.0, 4.0]]
    """

    radius: Positive

    @property
    def strong_convexity(self) -> float:
        """0."""
        return 0.0

    @property
    def remainder(self) -> Ball:
        """The function itself: it has no strongly convex part."""
        return self

    def value(self, x: Tensor) -> Tensor:
        """0."""
        return x.new_zeros(x.shape[:-1])

    def prox(self, x: Tensor, step: float | Tensor) -> Tensor:
        """Scales rows that are too long."""
        return x * (self.radius / x.norm(dim=-1, keepdim=True).clamp_min(self.radius))


@validate_arguments("regularizer.box")
@dataclass(frozen=True)
class Box:
    """The constraint that x is in `[-bound, bound]^dim`, as an indicator function.

    Args:
        bound: Largest absolute value of an entry; positive.

    Examples:
        >>> import torch
        >>> from fedpriv.strategies import Box
        >>> Box(bound=1.0).prox(torch.tensor([[3.0, -0.5]]), 0.5).tolist()
        [[1.0, -0.5]]
    """

    bound: Positive

    @property
    def strong_convexity(self) -> float:
        """0."""
        return 0.0

    @property
    def remainder(self) -> Box:
        """The function itself: it has no strongly convex part."""
        return self

    def value(self, x: Tensor) -> Tensor:
        """0."""
        return x.new_zeros(x.shape[:-1])

    def prox(self, x: Tensor, step: float | Tensor) -> Tensor:
        """Clamps each entry."""
        return x.clamp(-self.bound, self.bound)


@validate_arguments("regularizer.simplex")
@dataclass(frozen=True)
class Simplex:
    """The constraint `x >= 0, sum(x) = total`, as an indicator function.

    Args:
        total: Sum of the entries; 1 by default.

    Examples:
        >>> import torch
        >>> from fedpriv.strategies import Simplex
        >>> Simplex().prox(torch.tensor([[1.0, 0.5, -1.0]]), 0.5).tolist()
        [[0.75, 0.25, 0.0]]
    """

    total: Positive = 1.0

    @property
    def strong_convexity(self) -> float:
        """0."""
        return 0.0

    @property
    def remainder(self) -> Simplex:
        """The function itself: it has no strongly convex part."""
        return self

    def value(self, x: Tensor) -> Tensor:
        """0."""
        return x.new_zeros(x.shape[:-1])

    def prox(self, x: Tensor, step: float | Tensor) -> Tensor:
        """Projects each row, by sorting (Duchi et al., 2008)."""
        ordered = x.sort(dim=-1, descending=True).values
        excess = ordered.cumsum(-1) - self.total
        count = torch.arange(1, x.shape[-1] + 1, device=x.device, dtype=x.dtype)
        support = (ordered * count > excess).sum(-1, keepdim=True).clamp_min(1)
        return (x - excess.gather(-1, support - 1) / support).clamp_min(0)
