"""Gradient tracking on a graph: with one exchanged variable (Xie, Liu and Chai, 2025) and with two (their eq 7).

One variable, round k = 1, 2, ..., y_i(0) = 0, only z is sent:

    zbar = W z(k)    (4a)
    y   += beta (z(k) - zbar)    (4b)
    z(k+1) = zbar - alpha_k (y + g~(z(k)))    (4c)

g~ is the private gradient and W the mixing matrix. The paper adds noise xi to z instead of the gradient, which is the
same as noise -xi / alpha_k on the gradient.

Two variables, y_i(0) = g~(x(0)), both sent:

    x(k+1) = W x(k) - alpha y(k)    (7a)
    y(k+1) = W y(k) + g~(x(k+1)) - g~(x(k))    (7b)

This is an interpretation of PP-DOAGT and Diff-TV-AB. Their equations differ in detail: they add independent noise to
both variables, while here the same noised gradient enters both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fedpriv.errors import ConfigError
from fedpriv.settings import NonNegative, RegistryEntry, validate_arguments
from fedpriv.strategies import (
    Average,
    GossipAverage,
    Last,
    Memory,
    MixedRows,
    Oracle,
    Output,
    Peers,
    Rate,
    RunInfo,
    StepSize,
    Strategy,
    choose_output,
    evaluate_rate,
    period_of,
)


@dataclass(frozen=True)
class Tracked:
    """A node's state.

    Attributes:
        sent: The z that the node sent in the last round, `[n, dim]`.
        y: The node's tracking variable, `[n, dim]`.
        t: Number of finished rounds.
    """

    sent: Tensor
    y: Tensor
    t: int


@validate_arguments("strategy")
@dataclass(frozen=True)
class ImplicitTracking:
    """The client update with one exchanged variable.

    Args:
        step_size: `alpha_k`.
        beta: Gain of the tracking variable y; `alpha_k beta <= 1`.
        gradient_at: Where the gradient is computed: `"sent"`, at the node's own z, as published, or `"mixed"`, at zbar,
            in which the noise of neighbours averages out. The privacy cost is the same.
    """

    receives: ClassVar[tuple[str, ...]] = ("mixed_row",)
    sends: ClassVar[tuple[str, ...]] = ("row",)
    memory: ClassVar[Memory] = "private"  # y adds up query results that only the noise of this node protects
    linear: ClassVar[bool] = False  # neighbours see single rows

    step_size: Rate
    beta: NonNegative
    gradient_at: Literal["sent", "mixed"] = "sent"

    def __post_init__(self) -> None:
        self._step(1)

    @property
    def period(self) -> int | None:
        """See `PeriodicQueries`: one gradient a round."""
        return period_of(self.step_size)

    def init(self, params: Tensor) -> Tracked:
        """Starts with z at the initial parameters and y = 0."""
        return Tracked(params.clone(), torch.zeros_like(params), 0)

    def __call__(self, received: Tensor, state: Tracked, oracle: Oracle) -> tuple[Tensor, Tracked]:
        """Computes one round."""
        t = state.t + 1
        step = self._step(t)
        y = state.y + self.beta * (state.sent - received)
        if self.gradient_at == "sent":
            gradient = oracle.gradient(state.sent)
        else:
            gradient = oracle.gradient(received)
        sent = received - step * (y + gradient)
        return sent, Tracked(sent, y, t)

    def advice(self, run: RunInfo) -> list[str]:
        """Warns of geometric steps that fall more slowly than the proof allows, as in the paper's experiments."""
        if isinstance(self.step_size, StepSize):
            ratio = self.step_size.ratio
        else:
            ratio = 1.0
        if run.graph is None or ratio == 1:
            proved = 1.0
        else:
            proved = proven_ratio(run.graph)
        if ratio <= proved:
            return []
        return [
            f"step_size.ratio = {ratio:g}: the paper's proof of convergence needs a ratio of at most {proved:.2g} on "
            "this graph (the experiments in the paper use .92 and more)"
        ]

    def _step(self, t: int) -> float:
        """Returns `alpha_k`, and checks it; for a `StepSize` only the first, which is the largest unless it grows."""
        step = evaluate_rate(self.step_size, t)
        if step * self.beta > 1 and (t == 1 or not isinstance(self.step_size, StepSize)):
            raise ConfigError(
                "strategy.beta", self.beta, f"must be at most {1 / step:g}, since step_size * beta must be at most 1"
            )
        return step


def proven_ratio(graph: Peers) -> float:
    """Returns the largest ratio q1 of geometric steps for which gradient tracking is proved to converge on this graph.

    Theorem 5.18 of the paper with its theta at the limit 1:
    `q1^2 <= (1 - s^2)^4 / (96 (2 + s^2) (3 + s^2) ||W - I||^2)`.

    The norm is the spectral norm. The paper's table of notation has the Frobenius norm, but the proof uses the factor
    only in eq 79, `||(W - I) V||_F <= ||W - I|| ||V||_F` for the deviations V of nodes from their mean, which holds for
    the spectral norm, the smaller of the two. (The proof also uses `||W|| = 1` and
    `||I - 11'/n|| = 1`, which hold for this norm.)

    The paper's s is not the second largest absolute eigenvalue of W but the largest over the matrices
    `c W + (1 - c) I` with `1 - q1 < c <= 1` (for `alpha_1 beta <= 1`), without the eigenvalue 1. An absolute value is
    convex in c, so s is the larger of the value of W and the second largest eigenvalue at `c = 1 - q1`. It increases
    with q1, which is therefore found by bisection.

    Examples:
        >>> import fedpriv, networkx
        >>> from fedpriv.algorithms.tracking import proven_ratio
        >>> 0 < proven_ratio(fedpriv.Graph(networkx.complete_graph(4))) < 1
        True
    """
    eigenvalues = torch.linalg.eigvalsh(torch.from_numpy(graph.weights.toarray())).tolist()  # ascending
    away = max(1 - eigenvalues[0], 1e-12)
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        lazy = middle + (1 - middle) * eigenvalues[-2]
        square = max(1 - graph.spectral_gap, lazy) ** 2
        if middle <= (1 - square) ** 2 / math.sqrt(96 * (2 + square) * (3 + square)) / away:
            low = middle
        else:
            high = middle
    return low


@dataclass(frozen=True)
class TrackedPair:
    """A node's state when two variables are exchanged.

    Attributes:
        y: The node's y, `[n, dim]`.
        gradient: The last query result, `[n, dim]`.
        t: Number of finished rounds.
    """

    y: Tensor
    gradient: Tensor
    t: int


@dataclass(frozen=True)
class TwoVariableTracking:
    """The client update with two exchanged variables, x and y side by side, `[n, 2 dim]`."""

    receives: ClassVar[tuple[str, ...]] = ("mixed_pair",)
    sends: ClassVar[tuple[str, ...]] = ("pair",)
    memory: ClassVar[Memory] = "private"  # the last query result is kept
    linear: ClassVar[bool] = False  # neighbours see single rows

    step_size: Rate

    @property
    def period(self) -> int | None:
        """See `PeriodicQueries`: one gradient a round."""
        return period_of(self.step_size)

    def init(self, params: Tensor) -> TrackedPair:
        """Starts at zeros: the first query result becomes the first y."""
        zeros = torch.zeros_like(params)
        return TrackedPair(zeros, zeros.clone(), 0)

    def __call__(self, received: Tensor, state: TrackedPair, oracle: Oracle) -> tuple[Tensor, TrackedPair]:
        """Computes one round."""
        t = state.t + 1
        mixed_x, mixed_y = received.chunk(2, dim=-1)
        x = mixed_x - evaluate_rate(self.step_size, t) * state.y
        gradient = oracle.gradient(x)
        y = mixed_y + gradient - state.gradient
        return torch.cat([x, y], -1), TrackedPair(y, gradient, t)


@dataclass(frozen=True)
class GossipPair(GossipAverage):
    """`GossipAverage` of x and y side by side."""

    receives: ClassVar[tuple[str, ...]] = ("pair",)
    sends: ClassVar[tuple[str, ...]] = ("mixed_pair",)

    def init(self, params: Tensor) -> tuple[Tensor, MixedRows]:
        """Sends `(x, 0)`."""
        pair = torch.cat([params, torch.zeros_like(params)], -1)
        return pair, MixedRows(pair)


@dataclass(frozen=True)
class FirstOfPair:
    """Reports x of (x, y) through another output."""

    output: Output[Any] = field(default_factory=Last)

    def init(self, received: Tensor) -> Any:  # noqa: ANN401 - whatever the output inside keeps
        """Returns the other output's state."""
        return self.output.init(received.chunk(2, dim=-1)[0])

    def __call__(self, received: Tensor, state: Any) -> tuple[Tensor, Any]:  # noqa: ANN401
        """Returns the other output's models."""
        return self.output(received.chunk(2, dim=-1)[0], state)


@validate_arguments("strategy")
def gradient_tracking(
    step_size: Rate = StepSize(0.1),
    beta: NonNegative | None = None,
    *,
    gradient_at: Literal["sent", "mixed"] = "sent",
    average: Average | None = None,
) -> Strategy:
    """Creates gradient tracking on a graph with one exchanged variable (Xie, Liu and Chai, 2025).

    Args:
        step_size: Step size `alpha_k`, a number or a schedule; 0.1 by default. The paper uses
            `StepSize(gamma, ratio=q1)`.
        beta: Gain of the tracking variable, at most `1 / step_size`; by default 0.1 over the step size of round 1.
        gradient_at: Point at which a node computes its gradient: the model that it `"sent"` (default), as published, or
            the average of its neighbours' models (`"mixed"`), which is less noisy at the same privacy cost.
        average: Reported model: the last mixed model (None, default), for a number p the average of all rounds' models
            with weights `t**p`, or an `Ema()`.

    Returns:
        The strategy. With a constant step size and without noise it converges linearly to the optimum of smooth,
        strongly convex problems, also if the nodes' data differ strongly.

    Raises:
        ConfigError: If `beta` is too large, or an argument is out of range.

    Examples:
        >>> import fedpriv, networkx
        >>> ring = fedpriv.Graph(networkx.cycle_graph(4))
        >>> privacy = fedpriv.Privacy(epsilon=1.0)
        >>> fedpriv.plan([100] * 4, fedpriv.gradient_tracking(0.1), privacy, rounds=5, network=ring).releases
        5
    """
    if beta is None:
        beta = 0.1 / evaluate_rate(step_size, 1)
    local = ImplicitTracking(step_size, beta, gradient_at)
    return Strategy(local, GossipAverage(), choose_output(average), "gradient_tracking")


@validate_arguments("strategy")
def gradient_tracking_pair(step_size: Rate = StepSize(0.1), *, average: Average | None = None) -> Strategy:
    """Creates gradient tracking on a graph with two exchanged variables (Xie, Liu and Chai, 2025, eq 7).

    It sends twice as many bytes as `gradient_tracking`.

    Args:
        step_size: Step size `alpha`, a number or a schedule; 0.1 by default.
        average: Reported model: the last model (None, default), for a number p the average of all rounds' models with
            weights `t**p`, or an `Ema()`.

    Returns:
        The strategy.

    Raises:
        ConfigError: If an argument is out of range.

    Examples:
        >>> import fedpriv, networkx
        >>> ring = fedpriv.Graph(networkx.cycle_graph(4))
        >>> privacy = fedpriv.Privacy(epsilon=1.0)
        >>> fedpriv.plan([100] * 4, fedpriv.gradient_tracking_pair(0.1), privacy, rounds=5, network=ring).releases
        5
    """
    local = TwoVariableTracking(step_size)
    return Strategy(local, GossipPair(), FirstOfPair(choose_output(average)), "gradient_tracking_pair")


NAMES = {
    "gradient_tracking": RegistryEntry(
        gradient_tracking, "gradient tracking on a graph, one exchanged variable (Xie, Liu, Chai)"
    ),
    "gradient_tracking_pair": RegistryEntry(
        gradient_tracking_pair,
        "gradient tracking on a graph, two exchanged variables (the family of PP-DOAGT, Diff-TV-AB)",
    ),
}
