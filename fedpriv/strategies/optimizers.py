"""Optimisers, which make a step from a private gradient: plain, with momentum, Adam or AdamW.

Optimisers post-process query results with public hyper-parameters, so they do not increase epsilon. With gradient g at
x and step a:

    Momentum  u = b u + g;                 x -= a u           (Nesterov: x -= a (g + b u))
    Adam      m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;   x -= a m^ / (sqrt(v^) + eps)
              m^ = m / (1 - b1^s),  v^ = v / (1 - b2^s) after s steps (Kingma and Ba, 2015)
    AdamW     x *= 1 - a weight_decay, then Adam (Loshchilov and Hutter, 2019)
    WeightDecay   g += weight_decay x, as in torch's SGD and Adam, or the shrinking of AdamW; then another optimiser

The variance of the noise of g is added to v^, so DP-Adam divides all coordinates by about the same number. DP-AdamBC
(Tang, Shpilevskiy and Lécuyer, 2024) subtracts this variance: `x -= a m^ / sqrt(max(v^ - variance, noise_floor))`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from fedpriv.settings.checks import Fraction, NonNegative, Positive, validate_arguments
from fedpriv.strategies.state import S


class Optimizer(Protocol[S]):
    """Makes steps from gradients; S is the type of its state, with rows `[n, ...]`."""

    @property
    def corrects(self) -> bool:
        """True if the optimiser subtracts the noise variance; a step then needs `variance`."""
        ...

    def init(self, x: Tensor) -> S:
        """Returns the state before the first step from `x [n, dim]`."""
        ...

    def step(self, x: Tensor, gradient: Tensor, size: float, state: S, variance: Tensor | None) -> tuple[Tensor, S]:
        """Makes one step.

        Args:
            x: Start of the step, `[n, dim]`.
            gradient: A private gradient at x, `[n, dim]`.
            size: Step size.
            state: The state after the last step.
            variance: Variance of the noise in each entry of a gradient, `[n, 1]`; None unless `corrects`.

        Returns:
            The next x, and the new state.
        """
        ...


@validate_arguments("strategy.optimizer")
@dataclass(frozen=True)
class Sgd:
    """Plain gradient step: `x - size gradient`.

    Examples:
        >>> import fedpriv
        >>> fedpriv.fedavg(0.1, optimizer=fedpriv.Sgd()).name
        'fedavg'
    """

    @property
    def corrects(self) -> bool:
        """False."""
        return False

    def init(self, x: Tensor) -> None:
        """Has no state."""

    def step(
        self, x: Tensor, gradient: Tensor, size: float, state: None, variance: Tensor | None
    ) -> tuple[Tensor, None]:
        """Makes one step."""
        return x - size * gradient, None


@validate_arguments("strategy.optimizer")
@dataclass(frozen=True)
class Momentum:
    """Gradient descent with momentum, as in `torch.optim.SGD`. Over all later steps, a gradient moves x by `1 / (1 -
    beta)` times its step.

    Args:
        beta: Weight of the last direction in the next one, in [0, 1); 0.9 by default.
        nesterov: True for Nesterov's momentum; False by default.

    Examples:
        >>> import fedpriv
        >>> strategy = fedpriv.gradient_descent(0.1, optimizer=fedpriv.Momentum(beta=0.9))
        >>> fedpriv.plan([100], strategy, fedpriv.Privacy(epsilon=1.0), rounds=5).releases
        5
    """

    beta: Fraction = 0.9
    nesterov: bool = False

    @property
    def corrects(self) -> bool:
        """False."""
        return False

    def init(self, x: Tensor) -> Tensor:
        """Returns the direction u = 0."""
        return torch.zeros_like(x)

    def step(
        self, x: Tensor, gradient: Tensor, size: float, state: Tensor, variance: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Makes one step."""
        direction = self.beta * state + gradient
        if self.nesterov:
            return x - size * (gradient + self.beta * direction), direction
        return x - size * direction, direction


@dataclass(frozen=True)
class Moments:
    """Adam's state.

    Attributes:
        m: Moving average of gradients, `[n, dim]`.
        v: Moving average of their squares, `[n, dim]`.
        steps: Number of steps of each client so far, `[n, 1]` float64.
        variance: Moving average of the noise variance, `[n, 1]` float64; None if the variance is not subtracted.
    """

    m: Tensor
    v: Tensor
    steps: Tensor
    variance: Tensor | None = None


@validate_arguments("strategy.optimizer")
@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba, 2015), as in `torch.optim.Adam`; with `noise_floor` it is DP-AdamBC (Tang et al., 2024).

    Args:
        beta1: Decay of the first moment, in [0, 1); 0.9 by default.
        beta2: Decay of the second moment, in [0, 1); 0.999 by default.
        eps: Number that is added to the root of the second moment, 1e-8 by default; not used with `noise_floor`.
        noise_floor: If given, the known variance of the noise is subtracted from the second moment, down to this value
            (the paper's gamma'). None (default) subtracts nothing.

    Examples:
        >>> import fedpriv
        >>> strategy = fedpriv.gradient_descent(0.1, optimizer=fedpriv.Adam(noise_floor=1e-8))
        >>> fedpriv.plan([100], strategy, fedpriv.Privacy(epsilon=1.0), rounds=5).releases
        5
    """

    beta1: Fraction = 0.9
    beta2: Fraction = 0.999
    eps: NonNegative = 1e-8
    noise_floor: Positive | None = None

    @property
    def corrects(self) -> bool:
        """True with a noise floor."""
        return self.noise_floor is not None

    def init(self, x: Tensor) -> Moments:
        """Returns zeros."""
        zeros = torch.zeros(len(x), 1, dtype=torch.float64, device=x.device)
        return Moments(torch.zeros_like(x), torch.zeros_like(x), zeros, zeros if self.corrects else None)

    def step(
        self, x: Tensor, gradient: Tensor, size: float, state: Moments, variance: Tensor | None
    ) -> tuple[Tensor, Moments]:
        """Makes one step."""
        m = self.beta1 * state.m + (1 - self.beta1) * gradient
        v = self.beta2 * state.v + (1 - self.beta2) * gradient.square()
        steps = state.steps + 1
        noise = state.variance
        # corrections for the start at zero
        first = (1 - self.beta1**steps).to(x)
        second = (1 - self.beta2**steps).to(x)
        if noise is None or variance is None or self.noise_floor is None:
            scale = (v / second).sqrt() + self.eps
        else:
            noise = self.beta2 * noise + (1 - self.beta2) * variance.to(noise)
            scale = ((v - noise.to(v)) / second).clamp_min(self.noise_floor).sqrt()
        return x - size * (m / first) / scale, Moments(m, v, steps, noise)


@validate_arguments("strategy.optimizer")
@dataclass(frozen=True)
class AdamW:
    """`Adam` with decoupled weight decay: each step first shrinks x by `size weight_decay` (Loshchilov and Hutter,
    2019).

    Args:
        beta1: As for `Adam`.
        beta2: As for `Adam`.
        eps: As for `Adam`.
        weight_decay: Weight decay per unit of step size; 0.01 by default.
        noise_floor: As for `Adam`.

    Examples:
        >>> import fedpriv
        >>> strategy = fedpriv.gradient_descent(0.1, optimizer=fedpriv.AdamW(weight_decay=0.1))
        >>> fedpriv.plan([100], strategy, fedpriv.Privacy(epsilon=1.0), rounds=5).releases
        5
    """

    beta1: Fraction = 0.9
    beta2: Fraction = 0.999
    eps: NonNegative = 1e-8
    weight_decay: NonNegative = 0.01
    noise_floor: Positive | None = None

    @property
    def corrects(self) -> bool:
        """True with a noise floor."""
        return self.noise_floor is not None

    @property
    def decayed(self) -> WeightDecay:
        """Adam after the shrinking."""
        adam = Adam(self.beta1, self.beta2, self.eps, self.noise_floor)
        return WeightDecay(self.weight_decay, adam, is_decoupled=True)

    def init(self, x: Tensor) -> Moments:
        """Returns Adam's state."""
        return self.decayed.init(x)

    def step(
        self, x: Tensor, gradient: Tensor, size: float, state: Moments, variance: Tensor | None
    ) -> tuple[Tensor, Moments]:
        """Makes one step."""
        return self.decayed.step(x, gradient, size, state, variance)


@dataclass(frozen=True)
class DecayGroups:
    """The weight decay of each parameter, as in parameter groups of torch; biases often have none.

    Attributes:
        groups: For each parameter, in the order of a row, its number of entries and its weight decay.
    """

    groups: tuple[tuple[int, float], ...]

    def like(self, x: Tensor) -> Tensor:
        """Returns the weight decay of each entry of a row, `[dim]`, of the type of x."""
        return torch.cat([x.new_full((entries,), decay) for entries, decay in self.groups])


@validate_arguments("strategy.optimizer")
@dataclass(frozen=True)
class WeightDecay:
    """Adds `weight_decay x` to the gradient, after clipping and noise, as torch's `SGD(weight_decay=...)` and `Adam`.

    Args:
        weight_decay: One value for all parameters, or a value for each parameter.
        optimizer: Makes the step.
        is_decoupled: True if a step first shrinks x by `size weight_decay` instead, as in AdamW.
    """

    weight_decay: NonNegative | DecayGroups
    optimizer: Optimizer[Any] = Sgd()
    is_decoupled: bool = False

    @property
    def corrects(self) -> bool:
        """True if the other optimiser subtracts the noise variance."""
        return self.optimizer.corrects

    def init(self, x: Tensor) -> Any:  # noqa: ANN401 - the state of any optimiser
        """Returns the other optimiser's state."""
        return self.optimizer.init(x)

    def step(
        self,
        x: Tensor,
        gradient: Tensor,
        size: float,
        state: Any,  # noqa: ANN401 - the state of any optimiser
        variance: Tensor | None,
    ) -> tuple[Tensor, Any]:
        """Makes one step."""
        decay = self.weight_decay
        if isinstance(decay, DecayGroups):
            decay = decay.like(x)
        if self.is_decoupled:
            x = x * (1 - size * decay)
        else:
            gradient = gradient + decay * x
        return self.optimizer.step(x, gradient, size, state, variance)


@dataclass(frozen=True)
class ClientOptimizerState:
    """State of a client update with an optimiser.

    Attributes:
        t: Rounds so far.
        optimizer: State of the optimiser, rows `[n, ...]`.
    """

    t: int
    optimizer: Any = None
