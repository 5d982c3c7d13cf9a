"""FedAvg, FedProx and FedOpt.

Each participant p starts at the server's model w, makes `local_steps` steps on its own mean loss plus
`mu / 2 ||x - w||^2`, and sends the weighted change; the server steps along the mean change:

    x_p = w;  x_p -= lr (g~_p(x_p) + mu (x_p - w))  (local_steps times);  u_p = omega_p (x_p - w)
    w  <- server(w, mean_p(u_p))

g~_p is the private gradient. omega_p = n m_p / sum(m) for m_p examples (McMahan et al.), or 1 (Li et al.). The sum is
over all n clients, so the expected mean change of a random cohort is the mean change of all clients.

* FedAvg (McMahan et al., 2017, algorithm 1): mu = 0, `w += server_lr mean(u)`. With one local step it is FedSGD.
* FedProx (Li et al., 2020, algorithm 2): mu > 0.
* FedOpt (Reddi et al., 2021, algorithm 2): the server's step is one of momentum, Adagrad, Adam or Yogi.

With `Privacy(noise_on="message", unit="client")`, which clips and noises u_p, FedAvg is DP-FedAvg (McMahan et al.,
2018).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from torch import Tensor

from fedpriv.settings.checks import Count, Fraction, NonNegative, Positive, validate_arguments
from fedpriv.settings.plugins import RegistryEntry
from fedpriv.strategies.base import Memory, Network, Oracle, Strategy, Weighting
from fedpriv.strategies.optimizers import ClientOptimizerState, Optimizer, Sgd
from fedpriv.strategies.outputs import Average, Ema, choose_output
from fedpriv.strategies.schedules import Rate, evaluate_rate
from fedpriv.strategies.server_optimizers import ServerAdaptive, ServerOptimizer, ServerSgd

OptimizerState = Literal["reset", "keep"]


@validate_arguments("strategy")
@dataclass(frozen=True)
class LocalSteps:
    """Makes gradient steps from the received model; the message is the weighted change.

    With `noise_on: message`, the weighted change is clipped. With `noise_on: gradient`, `unit: client` and several
    steps, each unweighted gradient is clipped, and the change is weighted afterwards.

    Args:
        learning_rate: Step size of the clients, the same for all steps of a round.
        local_steps: Gradient steps per round; each step queries one private gradient.
        proximal: `mu` of FedProx.
        weighting: `"examples"` if all examples have equal weights in the mean, `"clients"` if all clients have.
        optimizer: Makes the steps.
        optimizer_state: `"reset"`: the optimiser is reset in every round. `"keep"`: each client keeps its optimiser
            state.
    """

    receives: ClassVar[tuple[str, ...]] = ("model",)
    sends: ClassVar[tuple[str, ...]] = ("update",)

    learning_rate: Rate
    local_steps: Count = 1
    proximal: NonNegative = 0.0
    weighting: Weighting = "examples"
    optimizer: Optimizer[Any] = Sgd()
    optimizer_state: OptimizerState = "reset"

    @property
    def linear(self) -> bool:
        """True for a single plain step, whose message is a multiple of the query result."""
        return self.local_steps == 1 and isinstance(self.optimizer, Sgd)

    @property
    def memory(self) -> Memory:
        """`"none"`, unless the optimiser's state, which depends on query results, is kept between rounds."""
        if self.optimizer_state == "reset" or isinstance(self.optimizer, Sgd):
            return "none"
        return "private"

    def init(self, params: Tensor) -> ClientOptimizerState | None:
        """Returns the optimiser's state and the round; None if neither is needed."""
        if self.optimizer_state == "keep":
            optimizer_state = self.optimizer.init(params)
        else:
            optimizer_state = None
        if callable(self.learning_rate) or optimizer_state is not None:
            return ClientOptimizerState(0, optimizer_state)
        return None

    def __call__(
        self, received: Tensor, state: ClientOptimizerState | None, oracle: Oracle
    ) -> tuple[Tensor, ClientOptimizerState | None]:
        """Computes one round."""
        ask, weights = self._query_and_weights(oracle)
        if state is None:
            t = 1
            optimizer_state = None
        else:
            t = state.t + 1
            optimizer_state = state.optimizer
        if optimizer_state is None:
            optimizer_state = self.optimizer.init(received)
        rate = evaluate_rate(self.learning_rate, t)
        x = received
        for _ in range(self.local_steps):
            gradient = ask(x)
            if self.proximal:
                gradient = gradient + self.proximal * (x - received)
            if self.optimizer.corrects:
                variance = oracle.noise_variance
            else:
                variance = None
            x, optimizer_state = self.optimizer.step(x, gradient, rate, optimizer_state, variance)
        message = x - received
        if weights is not None:
            message = weights * message
        if state is None:
            return message, None
        if self.optimizer_state == "reset":
            optimizer_state = None
        return message, ClientOptimizerState(t, optimizer_state)

    def _query_and_weights(self, oracle: Oracle) -> tuple[Callable[[Tensor], Tensor], Tensor | None]:
        """Returns the oracle's query, and the weights of the changes, `[k, 1]`; None if all are 1."""
        if self.weighting == "clients":
            return oracle.client_gradient, None
        if self.linear:
            # the same change, weighted by the oracle: then sums of messages are multiples of sums of query results
            return oracle.gradient, None
        return oracle.client_gradient, oracle.weights.unsqueeze(1)


@dataclass(frozen=True)
class Served:
    """The server's state.

    Attributes:
        model: w, `[1, dim]`.
        optimizer: State of the server's optimiser, rows `[1, dim]`.
    """

    model: Tensor
    optimizer: Any


@dataclass(frozen=True)
class AddMeanUpdate:
    """Adds the mean update by a server optimiser: `w <- server(w, mean(u))`."""

    receives: ClassVar[tuple[str, ...]] = ("update",)
    sends: ClassVar[tuple[str, ...]] = ("model",)
    is_sum: ClassVar[bool] = True

    server: ServerOptimizer[Any] = field(default_factory=ServerSgd)

    def init(self, params: Tensor) -> tuple[Tensor, Served]:
        """Starts all clients from the first client's model."""
        model = params[:1].clone()
        return model.expand_as(params), Served(model, self.server.init(model))

    def __call__(self, message: Tensor, network: Network, state: Served) -> tuple[Tensor, Served]:
        """Steps along the mean update."""
        mean = network.mean(message)
        model, optimizer = self.server(state.model, mean[:1], state.optimizer)
        return model.expand_as(mean), Served(model, optimizer)


@validate_arguments("strategy")
def fedavg(
    learning_rate: Rate,
    local_steps: Count = 1,
    *,
    optimizer: Optimizer[Any] = Sgd(),
    optimizer_state: OptimizerState = "reset",
    weighting: Weighting = "examples",
    server_learning_rate: Positive = 1.0,
    server_momentum: Fraction = 0.0,
    average: Average | None = None,
) -> Strategy:
    """Creates federated averaging (FedAvg) with a server (McMahan et al., 2017).

    Args:
        learning_rate: Step size of the clients: a number, a schedule such as `Cosine(0.5, rounds=100)`, or a function
            of the round number 1, 2, ...
        local_steps: Gradient steps per round; 1 by default. With noise on gradients each step spends privacy budget.
        optimizer: Optimiser of the local steps: `Sgd()` (default), `Momentum()`, `Adam()` or `AdamW()`. With noise on
            gradients, `Momentum()`, `Adam()` and `AdamW()` need `trust: local`.
        optimizer_state: `"reset"` (default) resets the optimiser in every round, which suits several local steps. With
            `"keep"` each client keeps its optimiser state; noise on messages (`noise_on: message`) does not allow this.
        weighting: `"examples"` (default, as in the paper) if all examples have equal weights in the mean update,
            `"clients"` if all clients have.
        server_learning_rate: Step size of the server along the mean update; 1 by default.
        server_momentum: Momentum of the server, in [0, 1); 0 (default) is FedAvg, other values are FedAvgM.
        average: Reported model: the last model (None, default), for a number p the average of all rounds' models with
            weights `t**p`, or an `Ema()`.

    Returns:
        The strategy.

    Raises:
        ConfigError: If an option is out of range.

    Examples:
        >>> import fedpriv, torch
        >>> from torch import nn
        >>> x, y = torch.linspace(-1, 1, 40)[:, None], torch.arange(40) // 20
        >>> data = [torch.utils.data.TensorDataset(x[i::2], y[i::2]) for i in range(2)]
        >>> clients = fedpriv.make_clients(nn.Linear(1, 2), nn.CrossEntropyLoss(), data)
        >>> privacy = fedpriv.Privacy(epsilon=2.0, sampling=fedpriv.Poisson(0.5))
        >>> result = fedpriv.train(clients, fedpriv.fedavg(0.5), privacy, rounds=5)
        >>> result.rounds, result.spent.epsilon <= 2.0
        (5, True)
    """
    local = LocalSteps(learning_rate, local_steps, 0.0, weighting, optimizer, optimizer_state)
    return _star(local, ServerSgd(server_learning_rate, server_momentum), average, "fedavg")


@validate_arguments("strategy")
def fedprox(
    learning_rate: Rate,
    proximal_mu: NonNegative,
    local_steps: Count = 1,
    *,
    optimizer: Optimizer[Any] = Sgd(),
    optimizer_state: OptimizerState = "reset",
    weighting: Weighting = "examples",
    server_learning_rate: Positive = 1.0,
    average: Average | None = None,
) -> Strategy:
    """Creates FedProx: `fedavg` with the term `proximal_mu / 2 ||x - w||^2` in the local loss; w is the received model.

    The paper uses `weighting="clients"`, and draws clients with a probability proportional to their number of examples.

    Args:
        learning_rate: Step size of the clients, as for `fedavg`.
        proximal_mu: Weight mu of the proximal term, at least 0.
        local_steps: Gradient steps per round; 1 by default.
        optimizer: As for `fedavg`.
        optimizer_state: As for `fedavg`.
        weighting: As for `fedavg`.
        server_learning_rate: As for `fedavg`.
        average: As for `fedavg`.

    Returns:
        The strategy.

    Source: Li et al., 2020.

    Raises:
        ConfigError: If an option is out of range.

    Examples:
        >>> import fedpriv
        >>> privacy = fedpriv.Privacy(epsilon=2.0, noise_on="message", unit="client")
        >>> fedpriv.plan([100] * 4, fedpriv.fedprox(0.1, proximal_mu=0.01, local_steps=5), privacy, rounds=5).releases
        5
    """
    local = LocalSteps(learning_rate, local_steps, proximal_mu, weighting, optimizer, optimizer_state)
    return _star(local, ServerSgd(server_learning_rate), average, "fedprox")


@validate_arguments("strategy")
def fedopt(
    learning_rate: Rate,
    local_steps: Count = 1,
    *,
    optimizer: Optimizer[Any] = Sgd(),
    optimizer_state: OptimizerState = "reset",
    weighting: Weighting = "examples",
    server_optimizer: Literal["adagrad", "adam", "yogi"] = "adam",
    server_learning_rate: Positive = 0.01,
    beta1: Fraction = 0.9,
    beta2: Fraction = 0.99,
    tau: Positive = 1e-3,
    average: Average | None = None,
) -> Strategy:
    """Creates FedOpt: `fedavg` with Adagrad, Adam or Yogi as the server's optimiser (Reddi et al., 2021, algorithm 2).

    Args:
        learning_rate: Step size of the clients, as for `fedavg`.
        local_steps: Gradient steps per round; 1 by default.
        optimizer: As for `fedavg`.
        optimizer_state: As for `fedavg`.
        weighting: As for `fedavg`.
        server_optimizer: The server's optimiser: `"adagrad"`, `"adam"` (default) or `"yogi"`.
        server_learning_rate: Step size of the server; 0.01 by default.
        beta1: Decay of the first moment, in [0, 1); 0.9 by default.
        beta2: Decay of the second moment, in [0, 1); 0.99 by default.
        tau: Degree of adaptivity, added to the root of the second moment; 1e-3 by default. See `ServerAdaptive`.
        average: As for `fedavg`.

    Returns:
        The strategy.

    Raises:
        ConfigError: If an option is out of range.

    Examples:
        >>> import fedpriv
        >>> privacy = fedpriv.Privacy(epsilon=2.0, noise_on="message", unit="client")
        >>> strategy = fedpriv.fedopt(0.1, local_steps=5, server_optimizer="yogi")
        >>> fedpriv.plan([100] * 4, strategy, privacy, rounds=5).releases
        5
    """
    local = LocalSteps(learning_rate, local_steps, 0.0, weighting, optimizer, optimizer_state)
    return _star(local, ServerAdaptive(server_optimizer, server_learning_rate, beta1, beta2, tau), average, "fedopt")


def _star(local: LocalSteps, server: ServerOptimizer[Any], average: float | Ema | None, name: str) -> Strategy:
    return Strategy(local, AddMeanUpdate(server), choose_output(average), name)  # pyright: ignore[reportArgumentType] - linear and memory are properties


NAMES = {
    "fedavg": RegistryEntry(fedavg, "federated averaging (McMahan et al.); with one local step, FedSGD"),
    "fedprox": RegistryEntry(fedprox, "FedAvg with local steps held near the received model (Li et al.)"),
    "fedopt": RegistryEntry(fedopt, "FedAvg with an adaptive server: Adagrad, Adam or Yogi (Reddi et al.)"),
}
