"""What decentralised strategies share: nodes send a row each, and keep what they make of their neighbours' rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedpriv.checks import Finite, Positive, checked
from fedpriv.strategies.base import Network, State


@dataclass(frozen=True)
class Gossip:
    """`rows <- W rows` on the round's active nodes; whoever is inactive keeps its row.

    On a star W = 11'/n, and the same strategy is the centralised method.
    """

    hears: ClassVar[tuple[str, ...]] = ("row",)
    says: ClassVar[tuple[str, ...]] = ("mixed_row",)
    is_sum: ClassVar[bool] = False

    def init(self, params: Tensor) -> tuple[Tensor, State]:
        """Each node starts from its own row."""
        return params, {"rows": params}

    def __call__(self, message: Tensor, network: Network, state: State) -> tuple[Tensor, State]:
        """Mix what was sent."""
        rows = network.fill(network.mix(message), state["rows"])
        return rows, {"rows": rows}


@checked("strategy.step_size")
@dataclass(frozen=True)
class StepSize:
    """`scale * ratio**(t - 1) / t**power` for round `t` = 1, 2, ...: constant, polynomial or geometric decay."""

    scale: Positive = 1.0
    power: Finite = 0.0
    ratio: Positive = 1.0

    def __call__(self, t: int) -> float:
        """Step of round `t`."""
        return self.scale * self.ratio ** (t - 1) / t**self.power
