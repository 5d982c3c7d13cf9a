"""SCAFFOLD: control variates against client drift (Karimireddy et al., 2020, algorithm 1, option II).

Participant i starts at the server's model x and makes K local steps on its objective, corrected by the difference of
the control variates c (everyone's mean) and c_i (its own):

    y = x;  y -= lr (g~_i(y) + c - c_i)  (K times);  u_i = y - x
    c_i += control_rate (c_i+ - c_i),  c_i+ = c_i - c - u_i / (K lr);  c = mean of all c_i
    x += server_lr mean_i(u_i)

In the paper c_i is the client's memory. It is a function of u_i and of what the server knows, so here the server keeps
it and tells each participant its own `c - c_i`: then a client keeps nothing, half as much is sent up, and whatever
privacy the messages u_i have, all of it has. Single messages are needed, so secure aggregation cannot serve it. Noise
on u_i enters c_i; `control_rate < 1` smooths it (1 in the paper). DP local steps: Noble, Bellet, Dieuleveut (2022).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedpriv.errors import ConfigError
from fedpriv.strategies.base import Averaged, Last, Memory, Network, Oracle, Output, State, Strategy


@dataclass(frozen=True)
class CorrectedSteps:
    """Local steps along the corrected gradient; hears `(x, c - c_i)` side by side, `[k, 2 dim]`."""

    hears: ClassVar[tuple[str, ...]] = ("model", "correction")
    says: ClassVar[tuple[str, ...]] = ("update",)
    memory: ClassVar[Memory] = "none"  # the server keeps the control variates

    learning_rate: float
    local_steps: int

    @property
    def linear(self) -> bool:
        """A single step is a multiple of its answer."""
        return self.local_steps == 1

    def init(self, params: Tensor) -> State:
        """No state."""
        return {}

    def __call__(self, received: Tensor, state: State, oracle: Oracle) -> tuple[Tensor, State]:
        """One round."""
        x, correction = received.chunk(2, 1)
        y = x
        for _ in range(self.local_steps):
            y = y - self.learning_rate * (oracle.gradient(y) + correction)
        return y - x, state


@dataclass(frozen=True)
class ControlVariates:
    """The server: the model and everyone's control variates `[n, dim]`."""

    hears: ClassVar[tuple[str, ...]] = ("update",)
    says: ClassVar[tuple[str, ...]] = ("model", "correction")
    is_sum: ClassVar[bool] = False

    learning_rate: float
    local_steps: int
    server_learning_rate: float = 1.0
    control_rate: float = 1.0

    def init(self, params: Tensor) -> tuple[Tensor, State]:
        """All start from the first client's model, with control variates zero."""
        model, controls = params[:1].clone(), torch.zeros_like(params)
        return torch.cat([model.expand_as(params), controls], 1), {"model": model, "controls": controls}

    def __call__(self, message: Tensor, network: Network, state: State) -> tuple[Tensor, State]:
        """Move the model along the mean update and the participants' control variates to their last gradients."""
        controls = state["controls"]
        mean = controls.mean(0, keepdim=True)
        length = self.local_steps * self.learning_rate
        # a client that took no part counts as if it had sent what leaves its control variate as it is
        update = network.fill(message, (-length * mean).expand_as(controls))
        controls = controls - self.control_rate * (mean + update / length)
        model = state["model"] + self.server_learning_rate * network.mean(message)[:1]
        correction = controls.mean(0, keepdim=True) - controls
        return torch.cat([model.expand_as(controls), correction], 1), {"model": model, "controls": controls}


@dataclass(frozen=True)
class ReportModel:
    """Report the model, the first half of what was said, through another output."""

    output: Output

    def init(self, received: Tensor) -> State:
        """Of the other output."""
        return self.output.init(_model(received))

    def __call__(self, received: Tensor, state: State) -> tuple[Tensor, State]:
        """The first half of any row."""
        return self.output(_model(received), state)


def scaffold(
    learning_rate: float,
    local_steps: int = 1,
    *,
    server_learning_rate: float = 1.0,
    control_rate: float = 1.0,
    average: float | None = None,
) -> Strategy:
    """SCAFFOLD on a star.

    Args:
        learning_rate: Step of the clients.
        local_steps: K; each asks the oracle once.
        server_learning_rate: Step of the server along the mean update.
        control_rate: In (0, 1]: how far a control variate moves towards its newest estimate; 1 in the paper.
        average: None reports the last model; a power p the average weighted by `t**p`.

    Raises:
        ConfigError: an option is out of range.
    """
    if local_steps < 1:
        raise ConfigError("strategy.local_steps", local_steps, "a client makes at least one step")
    for name, value in (("learning_rate", learning_rate), ("server_learning_rate", server_learning_rate)):
        if not value > 0:
            raise ConfigError(f"strategy.{name}", value, "must be positive")
    if not 0 < control_rate <= 1:
        raise ConfigError("strategy.control_rate", control_rate, "lies in (0, 1]")
    server = ControlVariates(learning_rate, local_steps, server_learning_rate, control_rate)
    output = ReportModel(Last() if average is None else Averaged(average))
    local = CorrectedSteps(learning_rate, local_steps)
    return Strategy(local, server, output, "scaffold")  # pyright: ignore[reportArgumentType] - linear is a property: it depends on local_steps


def _model(received: Tensor) -> Tensor:
    return received[:1].chunk(2, 1)[0].expand(len(received), -1)
