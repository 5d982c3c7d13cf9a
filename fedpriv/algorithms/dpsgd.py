"""Decentralised gradient descent, adapt-then-combine (Lian et al., 2017, D-PSGD; Chen and Sayed, 2012).

    x_i <- sum_j W_ij (x_j - alpha_t g~_j(x_j))

g~_j is the private gradient of node j and W the mixing matrix. With a constant step size,
nodes with different data do not reach the common optimum (heterogeneity bias); with a decaying step size they do. With
a geometric step size and a geometric noise schedule the algorithm is DPOP (Huang, Mitra and Vaidya, 2015); DPOP's
Laplace noise on x is alpha_t times noise on the gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from fedpriv.settings import RegistryEntry, validate_arguments
from fedpriv.strategies import (
    Average,
    ClientOptimizerState,
    GossipAverage,
    Memory,
    Optimizer,
    Oracle,
    Rate,
    Sgd,
    StepSize,
    Strategy,
    choose_output,
    evaluate_rate,
    period_of,
)


@dataclass(frozen=True)
class Descend:
    """Makes a gradient step from the mixed model."""

    receives: ClassVar[tuple[str, ...]] = ("mixed_row",)
    sends: ClassVar[tuple[str, ...]] = ("row",)
    linear: ClassVar[bool] = False  # neighbours see single rows

    step_size: Rate
    optimizer: Optimizer[Any] = Sgd()

    @property
    def memory(self) -> Memory:
        """`"none"` for plain steps; other optimisers' state depends on query results."""
        if isinstance(self.optimizer, Sgd):
            return "none"
        return "private"

    @property
    def period(self) -> int | None:
        """See `PeriodicQueries`: one gradient a round."""
        return period_of(self.step_size)

    def init(self, params: Tensor) -> ClientOptimizerState:
        """Returns the optimiser's state."""
        return ClientOptimizerState(0, self.optimizer.init(params))

    def __call__(
        self, received: Tensor, state: ClientOptimizerState, oracle: Oracle
    ) -> tuple[Tensor, ClientOptimizerState]:
        """Computes one round."""
        t = state.t + 1
        gradient = oracle.gradient(received)
        if self.optimizer.corrects:
            variance = oracle.noise_variance
        else:
            variance = None
        size = evaluate_rate(self.step_size, t)
        x, optimizer_state = self.optimizer.step(received, gradient, size, state.optimizer, variance)
        return x, ClientOptimizerState(t, optimizer_state)


@validate_arguments("strategy")
def decentralized_sgd(
    step_size: Rate = StepSize(0.1), *, optimizer: Optimizer[Any] = Sgd(), average: Average | None = None
) -> Strategy:
    """Decentralised (stochastic) gradient descent on a graph (D-PSGD; Lian et al., 2017).

    Args:
        step_size: Step size `alpha_t` of each round: a number or a schedule; 0.1 by default.
        optimizer: Optimiser of each node: `Sgd()` (default), `Momentum()`, `Adam()` or `AdamW()`. Its state stays at
            the node and is not mixed.
        average: Reported model: the last one (None, default), for a number p the average of all rounds' models with
            weights `t**p`, or an `Ema()`.

    Returns:
        The strategy. Each round every active node computes one private gradient.

    Raises:
        ConfigError: If an argument is out of range.

    Examples:
        >>> import fedpriv, networkx
        >>> ring = fedpriv.Graph(networkx.cycle_graph(4))
        >>> strategy = fedpriv.decentralized_sgd(fedpriv.StepSize(0.5, power=0.5))
        >>> fedpriv.plan([100] * 4, strategy, fedpriv.Privacy(epsilon=1.0), rounds=5, network=ring).releases
        5
    """
    local = Descend(step_size, optimizer)
    return Strategy(local, GossipAverage(), choose_output(average), "decentralized_sgd")  # pyright: ignore[reportArgumentType] - memory is a property: it depends on the optimiser


NAMES = {
    "decentralized_sgd": RegistryEntry(
        decentralized_sgd, "decentralised gradient descent on a graph (Lian et al., D-PSGD)"
    )
}
