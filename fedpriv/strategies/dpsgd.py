"""Decentralised gradient descent, adapt-then-combine (Lian et al., 2017, D-PSGD; Chen and Sayed, 2012).

    x_i <- sum_j W_ij (x_j - alpha_t g~_j(x_j))

With a decaying step it converges; with a constant one each node's data pull it away from the common optimum (the
heterogeneity bias). With a geometric step and the geometric schedule of the budget it is DPOP (Huang, Mitra and Vaidya,
2015): its Laplace noise on x is noise on the gradient, divided by alpha_t.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedpriv.checks import NonNegative, checked
from fedpriv.strategies.base import Averaged, Last, Memory, Oracle, Output, State, Strategy
from fedpriv.strategies.gossip import Gossip, StepSize


@dataclass(frozen=True)
class Descend:
    """The local part of a round: a gradient step from the mixed model."""

    hears: ClassVar[tuple[str, ...]] = ("mixed_row",)
    says: ClassVar[tuple[str, ...]] = ("row",)
    memory: ClassVar[Memory] = "none"  # it keeps the round's number only
    linear: ClassVar[bool] = False  # neighbours see single rows

    step_size: StepSize

    def init(self, params: Tensor) -> State:
        """The round."""
        return {"t": torch.zeros((), dtype=torch.long)}

    def __call__(self, received: Tensor, state: State, oracle: Oracle) -> tuple[Tensor, State]:
        """One round."""
        t = int(state["t"]) + 1
        return received - self.step_size(t) * oracle.gradient(received), {"t": torch.tensor(t)}


@checked("strategy")
def decentralized_sgd(step_size: StepSize = StepSize(0.1), *, average: NonNegative | None = None) -> Strategy:
    """Decentralised (stochastic) gradient descent.

    Args:
        step_size: `alpha_t`.
        average: None reports the last model; a power p its average weighted by `t**p`.

    Returns:
        The strategy.
    """
    output: Output = Last() if average is None else Averaged(average)
    return Strategy(Descend(step_size), Gossip(), output, "decentralized_sgd")
