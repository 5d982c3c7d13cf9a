"""Distributed dual averaging with node subsampling (Liu, Johansson and Shi, 2023).

Problem: min_x (1/n) sum_i F_i(x) + h(x). Node i holds a dual z_i, at first 0. Round t = 1, 2, ..., active nodes N_t:

    x_i = argmin <z_i, x> + iota A_t h(x) + gamma_t/2 ||x||^2,   A_t = a_1 + ... + a_t    (6)
    z_i <- sum_j W_ij (z_j + a_t g~_j),   g~_j a private subgradient at x_j,   i and j in N_t    (5)

    output: x~_i = (a_1 x_i^(1) + ... + a_T x_i^(T)) / A_T

iota is the expected fraction of active nodes. An inactive node computes nothing, sends nothing and keeps z_i, so the
round costs it no epsilon. There is no further amplification: an observer of messages can see the active nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedpriv.errors import ConfigError
from fedpriv.settings import NonNegative, Probability, RegistryEntry, validate_arguments
from fedpriv.strategies import L2, GossipAverage, Memory, MixedRows, Oracle, Proximal, Strategy

Inactive = Literal["lazy", "literal"]


@validate_arguments("strategy")
@dataclass(frozen=True)
class DualMap:
    """Maps the dual z to the primal x (eq 6), with the weights a_t and gamma_t.

    Args:
        regularizer: h.
        weight_power: `a_t = t**weight_power`: 1 for strongly convex h, 0 otherwise.
        gamma: `gamma_t = gamma t**gamma_power`; may be 0 where h is strongly convex.
        gamma_power: See `gamma`; 0.5 for convex h.
        active_fraction: iota, expected fraction of active nodes.

    Raises:
        ConfigError: If gamma is 0 though h is not strongly convex.
    """

    regularizer: Proximal = field(default_factory=lambda: L2(5e-4))
    weight_power: NonNegative = 1.0
    gamma: NonNegative = 0.0
    gamma_power: NonNegative = 0.0
    active_fraction: Probability = 1.0

    def __post_init__(self) -> None:
        if self.gamma == 0 and self.regularizer.strong_convexity == 0:
            fix = (
                "must be positive with this regularizer: 0 is allowed only with a strongly convex one (l2, elastic_net)"
            )
            raise ConfigError("strategy.gamma", self.gamma, fix)

    def weight(self, t: Tensor) -> Tensor:
        """Returns `a_t`."""
        return t**self.weight_power

    def primal(self, z: Tensor, total: Tensor, t: Tensor) -> Tensor:
        """Returns x by eq 6, for scalar or `[n, 1]` `A_t = total` and `t`."""
        scale = self.active_fraction * total
        curvature = self.gamma * t**self.gamma_power + self.regularizer.strong_convexity * scale
        # a scalar need not be copied to the rows' device
        scale, curvature = (value.to(z if value.ndim else z.dtype) for value in (scale, curvature))
        return self.regularizer.remainder.prox(-z / curvature, scale / curvature)


@dataclass(frozen=True)
class Clock:
    """A node's state: its position in the schedules.

    Attributes:
        t: The round, `[]` float64.
        total: A_t, `[]` float64.
        own_t: For `"literal"`: the round in which each node last computed its x, `[n, 1]` float64.
        own_total: A_t of that round, `[n, 1]` float64.
    """

    t: Tensor
    total: Tensor
    own_t: Tensor | None = None
    own_total: Tensor | None = None


@validate_arguments("strategy")
@dataclass(frozen=True)
class DualStep:
    """The client update of dual averaging.

    Args:
        dual_map: Maps z to x.
        inactive: `"lazy"`: x is recomputed when it is used, with the current schedules, as in the paper's proof.
            `"literal"`: a node keeps the x of its last active round, as in the paper's printed algorithm.
    """

    receives: ClassVar[tuple[str, ...]] = ("mixed_row",)
    sends: ClassVar[tuple[str, ...]] = ("row",)
    memory: ClassVar[Memory] = "none"  # it keeps only duals that it received
    linear: ClassVar[bool] = False  # neighbours see single rows
    period: ClassVar[int] = 1  # one gradient a round

    dual_map: DualMap
    inactive: Inactive = "lazy"

    def init(self, params: Tensor) -> Clock:
        """Returns the state before round 1."""
        zero = torch.zeros((), dtype=torch.float64)
        if self.inactive == "lazy":
            return Clock(zero, zero)
        ones = torch.ones(len(params), 1, dtype=torch.float64)
        return Clock(zero, zero, ones, self.dual_map.weight(ones))

    def __call__(self, received: Tensor, state: Clock, oracle: Oracle) -> tuple[Tensor, Clock]:
        """Computes one round of an active node; the message is `z_j + a_t g~_j`."""
        t = state.t + 1
        weight = self.dual_map.weight(t)
        total = state.total + weight
        new = Clock(t, total)
        if state.own_t is None or state.own_total is None:
            x = self.dual_map.primal(received, total, t)
        else:
            x = self.dual_map.primal(received, state.own_total, state.own_t)
            rows = torch.ones_like(state.own_t)
            new = Clock(t, total, (t + 1) * rows, (total + self.dual_map.weight(t + 1)) * rows)
        return received + float(weight) * oracle.gradient(x), new


@dataclass(frozen=True)
class Duals(GossipAverage):
    """Gossip that starts from zero duals."""

    def init(self, params: Tensor) -> tuple[Tensor, MixedRows]:
        """Sends `z_i = 0`."""
        zeros = torch.zeros_like(params)
        return zeros, MixedRows(zeros)


@dataclass(frozen=True)
class PrimalAverage:
    """The weighted average of primals so far.

    Attributes:
        average: x~, `[n, dim]`, or `[1, dim]` if all rows are equal.
        x: The newest primal, not yet in the average, `[n, dim]` or `[1, dim]`.
        t: The round of `x`, `[]` float64.
        total: A_t, `[]` float64.
        duals: For `"literal"`: the duals from which `x` was computed, `[n, dim]` or `[1, dim]`.
    """

    average: Tensor
    x: Tensor
    t: Tensor
    total: Tensor
    duals: Tensor | None = None


@dataclass(frozen=True)
class WeightedPrimals:
    """Reports `x~_i`, the average of `x_i^(1) ... x_i^(t)` weighted by `a_t`, from the released duals.

    Args:
        dual_map: Maps z to x.
        inactive: As in `DualStep`. With `"literal"` a node counts as inactive when its dual did not change.
    """

    dual_map: DualMap
    inactive: Inactive = "lazy"

    def init(self, received: Tensor) -> PrimalAverage:
        """Returns an empty average, and x of round 1."""
        t = torch.ones((), dtype=torch.float64)
        received = received[:1]  # all start from the same dual
        weight = self.dual_map.weight(t)
        x = self.dual_map.primal(received, weight, t)
        return PrimalAverage(torch.zeros_like(x), x, t, weight, None if self.inactive == "lazy" else received)

    def __call__(self, received: Tensor, state: PrimalAverage) -> tuple[Tensor, PrimalAverage]:
        """Adds the x of the round that has ended; then computes the next one. Equal rows are computed as one."""
        if received.stride(0) == 0:
            received = received[:1]
        t = state.t
        total = state.total
        share = float(self.dual_map.weight(t) / total)
        average = state.average + share * (state.x - state.average)
        following = total + self.dual_map.weight(t + 1)
        x = self.dual_map.primal(received, following, t + 1)
        if state.duals is None:
            return average, PrimalAverage(average, x, t + 1, following)
        moved = (received != state.duals).any(-1, keepdim=True)
        return average, PrimalAverage(average, x.where(moved, state.x), t + 1, following, received)


@validate_arguments("strategy")
def dual_averaging(
    regularizer: Proximal = L2(5e-4),
    *,
    weight_power: NonNegative = 1.0,
    gamma: NonNegative = 0.0,
    gamma_power: NonNegative = 0.0,
    active_fraction: Probability = 1.0,
    inactive: Inactive = "lazy",
) -> Strategy:
    """Creates dual averaging with node subsampling, on a graph or a star (Liu, Johansson and Shi, 2023).

    The strategy minimises the mean loss plus a regulariser h. Each node sends a dual variable instead of its model.

    Args:
        regularizer: h; `L2(5e-4)` by default.
        weight_power: Round t has weight `t**weight_power`: 1 for strongly convex h (rate O(1/t)), 0 for convex h
            (O(1/sqrt t)).
        gamma: Weight `gamma t**gamma_power` of a proximal term `||x||^2 / 2`: positive for convex h; 0 (default) is
            sufficient for strongly convex h.
        gamma_power: See `gamma`; 0.5 for convex h.
        active_fraction: Expected fraction of active nodes in a round, `network.active_fraction`; 1 by default.
        inactive: Computation of x at a node that was inactive: `"lazy"` (default) uses the current weights, as in the
            paper's proof; `"literal"` uses the weights of the node's last active round, as in the paper's printed
            algorithm.

    Returns:
        The strategy. It starts at the minimiser of h; the clients' initial parameters are not used.

    Raises:
        ConfigError: If gamma is 0 though h is not strongly convex, or an argument is out of range.

    Examples:
        >>> import fedpriv, networkx
        >>> ring = fedpriv.Graph(networkx.cycle_graph(4), activity=fedpriv.RandomNodes(0.5))
        >>> strategy = fedpriv.dual_averaging(active_fraction=0.5)
        >>> planned = fedpriv.plan([100] * 4, strategy, fedpriv.Privacy(epsilon=1.0), rounds=5, network=ring)
        >>> planned.spent.epsilon <= 1.0
        True
    """
    dual_map = DualMap(regularizer, weight_power, gamma, gamma_power, active_fraction)
    step = DualStep(dual_map, inactive)
    output = WeightedPrimals(dual_map, inactive)
    return Strategy(step, Duals(), output, "dual_averaging", regularizer)


NAMES = {
    "dual_averaging": RegistryEntry(
        dual_averaging, "dual averaging on a graph, with node subsampling (Liu, Johansson, Shi)"
    )
}
