"""SCAFFOLD: control variates against client drift (Karimireddy et al., 2020, algorithm 1, option II).

Participant i starts at the server's model x and makes K local steps on its own mean loss, corrected by the difference
of the control variates c (the weighted mean of all clients) and c_i (the client's). With weights w_i = n m_i / sum(m),
or 1:

    y = x;  y -= lr (g~_i(y) + c - c_i)  (K times);  u_i = y - x
    x += server_lr mean_i(w_i u_i)
    c_i += control_rate (c_i+ - c_i),  c_i+ = c_i - c - u_i / (K lr);  c = mean_i(w_i c_i)

In the paper each client keeps c_i. Here the server keeps `w_i c_i` and sends it together with c and x; a client sends

    v_i = w_i (u_i + K lr c):   w_i c_i -= control_rate v_i / (K lr);   x += server_lr (mean_i(v_i) - K lr c)

This gives the same iterates, and clients keep no state, so everything is computed from the private messages v_i.
Clients send half as much as in the paper and receive 1.5 times as much. (Where weights or cohort sizes vary, the
expected ones multiply c: unbiased, with less variance.) The server needs each single v_i, so secure aggregation is
impossible. Noise on v_i enters c_i; `control_rate < 1` smooths it (1 in the paper). DP local steps: Noble, Bellet,
Dieuleveut (2022).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedpriv.settings import Count, Positive, Probability, RegistryEntry, validate_arguments
from fedpriv.strategies import (
    Average,
    Memory,
    Network,
    Oracle,
    Output,
    Rate,
    Rounds,
    Strategy,
    Weighting,
    advance_round,
    choose_output,
    evaluate_rate,
    init_round_counter,
)


@dataclass(frozen=True)
class CorrectedSteps:
    """Makes local steps along the corrected gradient; receives `(x, c, w_i c_i)` side by side, `[k, 3 dim]`."""

    receives: ClassVar[tuple[str, ...]] = ("model", "mean_control", "control")
    sends: ClassVar[tuple[str, ...]] = ("control_change",)
    memory: ClassVar[Memory] = "none"  # the server keeps the control variates

    linear: ClassVar[bool] = False  # not if clients have different weights

    learning_rate: Rate
    local_steps: int
    weighting: Weighting = "examples"

    def init(self, params: Tensor) -> Rounds | None:
        """Returns the round, if the step size depends on it."""
        return init_round_counter(self.learning_rate)

    def __call__(self, received: Tensor, state: Rounds | None, oracle: Oracle) -> tuple[Tensor, Rounds | None]:
        """Computes one round."""
        t, state = advance_round(state)
        rate = evaluate_rate(self.learning_rate, t)
        if self.weighting == "examples":
            weights = oracle.weights.unsqueeze(1)
        else:
            weights = 1.0
        x, mean, control = received.chunk(3, 1)
        correction = mean - control / weights
        y = x
        for _ in range(self.local_steps):
            y = y - rate * (oracle.client_gradient(y) + correction)
        return weights * (y - x + self.local_steps * rate * mean), state


@dataclass(frozen=True)
class Controls:
    """The server's state.

    Attributes:
        model: x, `[1, dim]`.
        controls: `w_i c_i` of each client, `[n, dim]`.
        clock: The round, if the step size depends on it.
    """

    model: Tensor
    controls: Tensor
    clock: Rounds | None = None


@dataclass(frozen=True)
class ControlVariates:
    """The server: the model and the weighted control variates `w_i c_i` of all clients, `[n, dim]`."""

    receives: ClassVar[tuple[str, ...]] = ("control_change",)
    sends: ClassVar[tuple[str, ...]] = ("model", "mean_control", "control")
    is_sum: ClassVar[bool] = False

    learning_rate: Rate
    local_steps: int
    server_learning_rate: float = 1.0
    control_rate: float = 1.0

    def init(self, params: Tensor) -> tuple[Tensor, Controls]:
        """Starts all clients from the first client's model, with control variates of zero."""
        model = params[:1].clone()
        controls = torch.zeros_like(params)
        return _broadcast_rows(model, torch.zeros_like(model), controls), Controls(
            model, controls, init_round_counter(self.learning_rate)
        )

    def __call__(self, message: Tensor, network: Network, state: Controls) -> tuple[Tensor, Controls]:
        """Moves the model along the mean update and the participants' control variates to their last gradients."""
        t, next_clock = advance_round(state.clock)
        controls = state.controls
        length = self.local_steps * evaluate_rate(self.learning_rate, t)
        update = network.mean(message)[:1] - length * network.total(controls) / network.n_clients
        model = state.model + self.server_learning_rate * update
        change = network.replace_rows(message, torch.zeros_like(controls))
        controls = controls - self.control_rate / length * change
        mean = network.total(controls) / network.n_clients
        return _broadcast_rows(model, mean, controls), Controls(model, controls, next_clock)


@dataclass(frozen=True)
class ReportModel:
    """Reports the model, the first third of each row that the server sends, through another output."""

    output: Output[Any]

    def init(self, received: Tensor) -> Any:  # noqa: ANN401 - whatever the other output keeps
        """Returns the other output's state."""
        return self.output.init(_model_of(received))

    def __call__(self, received: Tensor, state: Any) -> tuple[Tensor, Any]:  # noqa: ANN401
        """Returns the other output's models."""
        return self.output(_model_of(received), state)


@validate_arguments("strategy")
def scaffold(
    learning_rate: Rate,
    local_steps: Count = 1,
    *,
    control_rate: Probability = 1.0,
    weighting: Weighting = "examples",
    server_learning_rate: Positive = 1.0,
    average: Average | None = None,
) -> Strategy:
    """Creates SCAFFOLD: federated averaging with control variates (Karimireddy et al., 2020).

    The control variates correct the drift of clients with different data.

    Args:
        learning_rate: Step size of the clients: a number or a schedule.
        local_steps: Gradient steps per round; 1 by default. With noise on gradients each step spends privacy budget.
        control_rate: Relative distance that a control variate moves towards its newest estimate, in (0, 1]; 1
            (default), as in the paper.
        weighting: Weights in the mean update, as for `fedavg`: `"examples"` (default), or `"clients"` as in the paper.
        server_learning_rate: Step size of the server along the mean update; 1 by default.
        average: Reported model, as for `fedavg`; None (default) is the last model.

    Returns:
        The strategy. It cannot run with secure aggregation, because the server needs each client's message.

    Raises:
        ConfigError: If an option is out of range.

    Examples:
        >>> import fedpriv
        >>> strategy = fedpriv.scaffold(0.1, local_steps=2)
        >>> privacy = fedpriv.Privacy(epsilon=1.0, noise_on="message", unit="client")
        >>> fedpriv.plan([100] * 4, strategy, privacy, rounds=5).releases
        5
    """
    server = ControlVariates(learning_rate, local_steps, server_learning_rate, control_rate)
    output = ReportModel(choose_output(average))
    return Strategy(CorrectedSteps(learning_rate, local_steps, weighting), server, output, "scaffold")


def _model_of(received: Tensor) -> Tensor:
    """Returns the model, the same for all clients: the first third of any row."""
    return received[:1].chunk(3, 1)[0].expand(len(received), -1)


def _broadcast_rows(model: Tensor, mean: Tensor, controls: Tensor) -> Tensor:
    """Returns each client's broadcast row: model, mean control variate, the client's control variate: `[n, 3 dim]`."""
    return torch.cat([model.expand_as(controls), mean.expand_as(controls), controls], 1)


NAMES = {"scaffold": RegistryEntry(scaffold, "FedAvg with control variates against client drift (Karimireddy et al.)")}
