"""Decentralised gradient descent, adapt-then-combine (Lian et al., 2017, D-PSGD; Chen and Sayed, 2012).

    x_i <- sum_j W_ij (x_j - alpha_t g~_j(x_j))

g~_j is the private gradient of node j and W the mixing matrix. With a constant step, nodes with different data do not
reach the common optimum (heterogeneity bias); with a decaying one they do. With a geometric step and a geometric noise
schedule it is DPOP (Huang, Mitra and Vaidya, 2015), whose Laplace noise on x is alpha_t times noise on the gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedpriv.checks import NonNegative, checked
from fedpriv.plugins import Entry
from fedpriv.strategies.base import Memory, Oracle, Strategy
from fedpriv.strategies.gossip import Gossip
from fedpriv.strategies.outputs import last_or_average
from fedpriv.strategies.schedules import Rate, StepSize, in_round
from fedpriv.strategies.state import Rounds


@dataclass(frozen=True)
class Descend:
    """The local part of a round: a gradient step from the mixed model."""

    hears: ClassVar[tuple[str, ...]] = ("mixed_row",)
    says: ClassVar[tuple[str, ...]] = ("row",)
    memory: ClassVar[Memory] = "none"  # it keeps the round's number only
    linear: ClassVar[bool] = False  # neighbours see single rows

    step_size: Rate

    def init(self, params: Tensor) -> Rounds:
        """None yet."""
        return Rounds(0)

    def __call__(self, received: Tensor, state: Rounds, oracle: Oracle) -> tuple[Tensor, Rounds]:
        """One round."""
        t = state.t + 1
        return received - in_round(self.step_size, t) * oracle.gradient(received), Rounds(t)


@checked("strategy")
def decentralized_sgd(step_size: Rate = StepSize(0.1), *, average: NonNegative | None = None) -> Strategy:
    """Decentralised (stochastic) gradient descent on a graph (D-PSGD; Lian et al., 2017).

    Args:
        step_size: Step size `alpha_t` of each round.
        average: None reports the last model; a number p the average of all rounds' models, weighted by `t**p`.

    Returns:
        The strategy. Each round every active node computes one private gradient.

    Raises:
        ConfigError: an argument is out of range.
    """
    return Strategy(Descend(step_size), Gossip(), last_or_average(average), "decentralized_sgd")


NAMES = {
    "decentralized_sgd": Entry(decentralized_sgd, "decentralised gradient descent on a graph (Lian et al., D-PSGD)")
}
