"""DP-AccMD: accelerated mirror descent on a centrally symmetric convex set (Wang, Ye, Xu, 2017, algorithm 3).

Problem: min_{x in C} F(x), F convex and L-smooth in the 2-norm, so L D^2-smooth in the norm with unit ball C (D the
2-norm diameter of C). With w 1-strongly convex in that norm and B_w its Bregman divergence, y_0 = z_0 = x_0 and
k = 0, 1, ...:

    a = (k + 2) / (4 L D^2),  r = 1 / (2 a L D^2) = 2 / (k + 2)
    x = r z_k + (1 - r) y_k;                       g~ = private gradient at x, one query
    z_{k+1} = argmin_{z in C} B_w(z, z_k) + a <g~, z>
    y_{k+1} = argmin_{y in C} L D^2 / 2 ||y - x||_C^2 + <g~, y>

On the l1 ball y_{k+1} = x + r (z_{k+1} - z_k), which is cheap; the paper's proof compares its argmin with this point,
so the theorem holds for it. The paper leaves the gradient of the y-step without noise (`published`): y_1 is then a
function of the exact gradient, and not private.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from fedpriv.errors import ConfigError
from fedpriv.settings import Positive, validate_arguments
from fedpriv.strategies import Ball, Memory, Network, Oracle, Strategy


class MirrorSet(Protocol):
    """A set C with its mirror map."""

    @property
    def diameter(self) -> float:
        """2-norm diameter D."""
        ...

    def project(self, x: Tensor) -> Tensor:
        """Returns a point of C for each row; rows in C do not change."""
        ...

    def mirror_step(self, z: Tensor, slope: Tensor) -> Tensor:
        """Returns `argmin_{u in C} B_w(u, z) + <slope, u>`."""
        ...

    def descend(self, x: Tensor, slope: Tensor, coupled: Tensor) -> Tensor:
        """Returns `argmin_{y in C} ||y - x||_C^2 / 2 + <slope, y>`, or `coupled`, which is sufficient for the proof."""
        ...


@validate_arguments("strategy")
@dataclass(frozen=True)
class EuclideanBall:
    """The set `||x||_2 <= radius`, with the mirror map `w = ||x||_2^2 / (2 radius^2)`.

    Args:
        radius: Largest l2 norm of the model; positive.

    Examples:
        >>> import fedpriv
        >>> fedpriv.EuclideanBall(3.0).diameter
        6.0
    """

    radius: Positive

    @property
    def diameter(self) -> float:
        """Twice the radius."""
        return 2 * self.radius

    def project(self, x: Tensor) -> Tensor:
        """Returns the nearest point."""
        return Ball(self.radius).prox(x, 1.0)

    def mirror_step(self, z: Tensor, slope: Tensor) -> Tensor:
        """Makes a projected gradient step."""
        return self.project(z - self.radius**2 * slope)

    def descend(self, x: Tensor, slope: Tensor, coupled: Tensor) -> Tensor:
        """Makes a projected gradient step."""
        return self.project(x - self.radius**2 * slope)


@validate_arguments("strategy")
@dataclass(frozen=True)
class L1Ball:
    """The set `||x||_1 <= radius`, with the mirror map `w = kappa ||x||_p^2 / (2 radius^2)`, `p = 1 + 1 / ln(dim)`.

    `||x||_p^2 / 2` is (p - 1)-strongly convex in the p-norm and `||x||_1 <= dim^(1 - 1/p) ||x||_p`, hence
    `kappa = dim^(2 - 2/p) / (p - 1)` (Ben-Tal, Margalit, Nemirovski, 2001).

    Args:
        radius: Largest l1 norm of the model; positive.

    Examples:
        >>> import fedpriv, torch
        >>> fedpriv.L1Ball(1.0).project(torch.tensor([[3.0, 1.0]])).tolist()
        [[0.75, 0.25]]
    """

    radius: Positive

    @property
    def diameter(self) -> float:
        """Twice the radius."""
        return 2 * self.radius

    def project(self, x: Tensor) -> Tensor:
        """Scales down rows that are too long."""
        return x * (self.radius / x.abs().sum(-1, keepdim=True).clamp_min(self.radius))

    def mirror_step(self, z: Tensor, slope: Tensor) -> Tensor:
        """Applies a soft threshold in the dual, so that the primal norm is at most the radius."""
        p, scale = self._geometry(z.shape[-1])
        dual = _power_gradient(z.double(), p) - slope.double() / scale
        q = p / (p - 1)
        low = torch.zeros_like(dual[..., :1])
        high = dual.abs().amax(-1, keepdim=True)
        outside = _power_gradient(dual, q).abs().sum(-1, keepdim=True) > self.radius
        for _ in range(80):  # bisection on the threshold: the norm falls with it
            middle = (low + high) / 2
            too_long = _power_gradient(_soft(dual, middle), q).abs().sum(-1, keepdim=True) > self.radius
            low = torch.where(too_long, middle, low)
            high = torch.where(too_long, high, middle)
        return _power_gradient(_soft(dual, torch.where(outside, high, 0 * high)), q).to(z.dtype)

    def descend(self, x: Tensor, slope: Tensor, coupled: Tensor) -> Tensor:
        """Returns the coupled point."""
        return coupled

    def _geometry(self, dim: int) -> tuple[float, float]:
        """Returns `p` and `kappa / radius^2`."""
        if dim < 3:
            p = 2.0
        else:
            p = 1 + 1 / math.log(dim)
        return p, dim ** (2 - 2 / p) / (p - 1) / self.radius**2


@dataclass(frozen=True)
class SendMirrorGradient:
    """Sends the private gradient at x; receives x and the solution y side by side, `[k, 2 dim]`."""

    receives: ClassVar[tuple[str, ...]] = ("point", "solution")
    sends: ClassVar[tuple[str, ...]] = ("gradient",)
    memory: ClassVar[Memory] = "none"  # nothing survives a round
    linear: ClassVar[bool] = True  # the query result itself, twice

    def init(self, params: Tensor) -> None:
        """Has no state."""

    def __call__(self, received: Tensor, state: None, oracle: Oracle) -> tuple[Tensor, None]:
        """Queries one private gradient, for both steps."""
        gradient = oracle.gradient(received.chunk(2, 1)[0])
        return torch.cat([gradient, gradient], 1), state


@dataclass(frozen=True)
class SendTwoGradients:
    """Queries two gradients, as published: the paper adds no noise to the gradient of the y-step. Not private."""

    receives: ClassVar[tuple[str, ...]] = ("point", "solution")
    sends: ClassVar[tuple[str, ...]] = ("gradient",)
    memory: ClassVar[Memory] = "none"  # nothing survives a round
    linear: ClassVar[bool] = False  # secure sums allow one query a round

    def init(self, params: Tensor) -> None:
        """Has no state."""

    def __call__(self, received: Tensor, state: None, oracle: Oracle) -> tuple[Tensor, None]:
        """Queries two gradients."""
        point = received.chunk(2, 1)[0]
        return torch.cat([oracle.full_gradient(point), oracle.gradient(point)], 1), state


@dataclass(frozen=True)
class MirrorState:
    """The server's state.

    Attributes:
        x: Point of the next gradient, `[1, dim]`.
        y: The solution so far, `[1, dim]`.
        z: The mirror step's point, `[1, dim]`.
        k: Steps so far.
    """

    x: Tensor
    y: Tensor
    z: Tensor
    k: int


@dataclass(frozen=True)
class MirrorStep:
    """Makes the mirror step and the y-step on the mean message, two gradients side by side, `[1, 2 dim]`."""

    receives: ClassVar[tuple[str, ...]] = ("gradient",)
    sends: ClassVar[tuple[str, ...]] = ("point", "solution")
    is_sum: ClassVar[bool] = True

    feasible: MirrorSet
    smoothness: float

    def init(self, params: Tensor) -> tuple[Tensor, MirrorState]:
        """Starts all clients from the first client's model, projected onto C."""
        x = self.feasible.project(params[:1].clone())
        received = torch.cat([x, x], 1).expand(len(params), -1)
        return received, MirrorState(x, x, x, 0)

    def __call__(self, message: Tensor, network: Network, state: MirrorState) -> tuple[Tensor, MirrorState]:
        """Makes both steps, and computes the next x."""
        mean = network.mean(message)
        k = state.k
        for_y, for_z = mean[:1].chunk(2, 1)
        smooth = self.smoothness * self.feasible.diameter**2
        r = 2 / (k + 2)
        x = state.x
        z_old = state.z
        z = self.feasible.mirror_step(z_old, (k + 2) / (4 * smooth) * for_z)
        y = self.feasible.descend(x, for_y / smooth, x + r * (z - z_old))
        following = 2 / (k + 3)
        x = following * z + (1 - following) * y
        received = torch.cat([x, y], 1).expand(len(mean), -1)
        return received, MirrorState(x, y, z, k + 1)


@dataclass(frozen=True)
class ReportSolution:
    """Reports `y`."""

    def init(self, received: Tensor) -> None:
        """Has no state."""

    def __call__(self, received: Tensor, state: None) -> tuple[Tensor, None]:
        """Returns the second half of the server's row."""
        return received.chunk(2, 1)[1], state


@validate_arguments("strategy")
def accelerated_mirror_descent(feasible: MirrorSet, smoothness: Positive, *, published: bool = False) -> Strategy:
    """Creates DP-AccMD: accelerated mirror descent on a ball, with a server (Wang, Ye, Xu, 2017, algorithm 3).

    Args:
        feasible: Set C of allowed models: `EuclideanBall(radius)` or `L1Ball(radius)`.
        smoothness: Smoothness L of the mean loss in the 2-norm; 1/4 for the logistic loss of rows of norm 1.
        published: True leaves one of the two gradients without noise, as in the paper. This is not private and needs
            `Privacy(published=Published(exact_queries=...))`. False by default.

    Returns:
        The strategy.

    Raises:
        ConfigError: If smoothness or the set's size is not positive.

    Examples:
        >>> import fedpriv
        >>> strategy = fedpriv.accelerated_mirror_descent(fedpriv.L1Ball(2.0), smoothness=0.25)
        >>> fedpriv.plan([100] * 4, strategy, fedpriv.Privacy(epsilon=1.0), rounds=5).releases
        5
    """
    if not (math.isfinite(feasible.diameter) and feasible.diameter > 0):
        raise ConfigError("strategy.radius", feasible.diameter / 2, "must be a positive, finite number")
    if published:
        local = SendTwoGradients()
    else:
        local = SendMirrorGradient()
    return Strategy(local, MirrorStep(feasible, smoothness), ReportSolution(), "dp_accmd")


def _power_gradient(x: Tensor, p: float) -> Tensor:
    """Returns the gradient of `||x||_p^2 / 2`, `sign(x) |x|^(p-1) ||x||_p^(2-p)`."""
    # scaled by the largest entry against underflow
    largest = x.abs().amax(-1, keepdim=True)
    ratio = x.abs() / largest.clamp_min(torch.finfo(x.dtype).tiny)
    total = ratio.pow(p).sum(-1, keepdim=True).clamp_min(1.0)
    return torch.where(largest > 0, x.sign() * ratio.pow(p - 1) * largest * total ** ((2 - p) / p), 0 * x)


def _soft(x: Tensor, threshold: Tensor) -> Tensor:
    """Applies a soft threshold to each entry."""
    return x.sign() * (x.abs() - threshold).clamp_min(0)
