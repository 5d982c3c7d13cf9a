"""DP-SVRG and DP-SVRG++: variance reduction on private query results (Wang, Ye, Xu, 2017, algorithms 1 and 2).

Problem: min_x F(x) + h(x), F the mean loss of all examples of all clients. Epoch s = 1, 2, ... of m_s inner steps:

    v~  = private full gradient at x~    (released once an epoch)
    x_1 = prox_{eta h}(x_0 - eta v~)     (SVRG starts at x_0 = x~, where the difference below is zero)
    v   = d~ + v~,  d~ = private difference of the gradients at x_{t-1} and x~, on a fresh batch
    x_t = prox_{eta h}(x_{t-1} - eta v),  t = 2, ..., m_s
    x~  = mean of x_1 .. x_{m_s}

SVRG: m_s = m, x_0 = x~. SVRG++: m_s = 2^s m, x_0 is the last inner iterate, and the first inner step also needs a d~.
With Barzilai-Borwein steps eta is computed from two anchors and their private gradients, which is post-processing.

Each private query, for v~ or d~, takes one round. The difference of one example is clipped to twice the bound of a
gradient or, for an L-smooth loss, to L ||x_{t-1} - x~||, which bounds it and which shrinks near the anchor x~. The
paper adds noise to v at every inner step, for batches of one, with an unspecified constant: docs/papers/erm.md
gives the cost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, cast

import torch
from torch import Tensor

from fedpriv.errors import ConfigError
from fedpriv.settings import Bound, Count, NonNegative, Positive, validate_arguments
from fedpriv.strategies import Memory, Network, Oracle, Proximal, Rate, Rounds, RunInfo, Strategy, Zero, evaluate_rate


@dataclass(frozen=True)
class OneOrMore(Bound):
    """A number in the interval, or a sequence of such numbers."""

    def describe_error(self, kind: object, value: object) -> str | None:
        """See `Bound`."""
        if isinstance(value, list | tuple):
            items = cast("Sequence[object]", value)
            if items and all(super(OneOrMore, self).describe_error(int, item) is None for item in items):
                return None
            return self.words
        return super().describe_error(int, value)


Lengths = Annotated[
    int | tuple[int, ...], OneOrMore("must be a whole number, at least 1, or a list of such numbers", 1, math.inf, "[)")
]
"""Number of inner steps of every epoch, or of epochs 1, 2, ...; epochs after the last of these have its length."""


@validate_arguments("strategy.epochs")
@dataclass(frozen=True)
class Epochs:
    """The division of rounds into epochs of SVRG.

    An epoch has one round for the full gradient and one round for each inner step except the first, where the
    difference of gradients is zero. With `doubling` the first inner step also needs a round.

    Args:
        length: Number of inner steps of an epoch, or a tuple with the numbers of epochs 1, 2, ...; epochs after the
            last of these have its length. With `doubling`, epoch s has `length 2^s` inner steps.
        doubling: True if epochs double in length, as in SVRG++; False by default.

    Raises:
        ConfigError: If a length is not a positive whole number, or a tuple of lengths is to be doubled.

    Examples:
        >>> import fedpriv
        >>> epochs = fedpriv.Epochs(length=5)
        >>> epochs.rounds(3), [epochs.is_anchor(k) for k in range(6)]
        (15, [True, False, False, False, False, True])
        >>> fedpriv.Epochs(length=(2, 3)).rounds(3)
        8
    """

    length: Lengths
    doubling: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.length, list):
            object.__setattr__(self, "length", tuple(self.length))
        if self.doubling and not isinstance(self.length, int):
            fix = "must be one number if epochs double: pass one number, or use dp_svrg with the doubled lengths"
            raise ConfigError("strategy.epoch_length", self.length, fix)

    def inner_steps(self, epoch: int) -> int:
        """Returns `m_s` of epoch s = 1, 2, ..."""
        if not isinstance(self.length, int):
            return self.length[min(epoch, len(self.length)) - 1]
        if self.doubling:
            return self.length * 2**epoch
        return self.length

    def rounds_of(self, epoch: int) -> int:
        """Returns the number of rounds of that epoch."""
        if self.doubling:
            return self.inner_steps(epoch) + 1
        return self.inner_steps(epoch)

    def rounds(self, epochs: int) -> int:
        """Returns the number of rounds of the first `epochs` epochs."""
        return sum(self.rounds_of(epoch) for epoch in range(1, epochs + 1))

    def whole(self, rounds: int) -> int:
        """Returns the number of epochs that end within `rounds` rounds."""
        return self._whole_and_rest(rounds)[0]

    def is_anchor(self, round_index: int) -> bool:
        """Returns True if round `round_index` (from 0) queries the full gradient: the first round of an epoch."""
        return self._whole_and_rest(round_index)[1] == 0

    def _whole_and_rest(self, rounds: int) -> tuple[int, int]:
        """Returns the number of whole epochs in a number of rounds, and the number of remaining rounds."""
        epoch = 1
        if isinstance(self.length, int):
            last = math.inf if self.doubling else 1
        else:
            last = len(self.length)
        while rounds >= self.rounds_of(epoch):
            if epoch >= last:  # all later epochs are equally long
                more, rest = divmod(rounds, self.rounds_of(epoch))
                return epoch - 1 + more, rest
            rounds -= self.rounds_of(epoch)
            epoch += 1
        return epoch - 1, rounds


@validate_arguments("privacy.schedule")
@dataclass(frozen=True)
class AnchorBudget:
    """Budget schedule for SVRG, with different shares for full gradients and differences.

    Args:
        epochs: The rounds that query a full gradient.
        anchor: Share of a full gradient, 1 by default; a difference has share 1.

    Examples:
        >>> import fedpriv
        >>> schedule = fedpriv.AnchorBudget(fedpriv.Epochs(length=3), anchor=2.0)
        >>> [schedule.share(k) for k in range(4)]
        [2.0, 1.0, 1.0, 2.0]
    """

    epochs: Epochs
    anchor: Positive = 1.0

    def share(self, round_index: int) -> float:
        """Returns the share of round `round_index` (from 0)."""
        if self.epochs.is_anchor(round_index):
            return self.anchor
        return 1.0


@dataclass(frozen=True)
class SendDifference:
    """Sends the full gradient at a new anchor, else the difference of the gradients at x and at the anchor x~.

    Receives `(x, x~)` side by side, `[k, 2 dim]`; where they are equal, the full gradient is queried.
    """

    receives: ClassVar[tuple[str, ...]] = ("point", "anchor")
    sends: ClassVar[tuple[str, ...]] = ("gradient",)
    memory: ClassVar[Memory] = "none"  # the count of rounds is public
    linear: ClassVar[bool] = True  # the query result itself

    epochs: Epochs
    smoothness: float | None = None

    def init(self, params: Tensor) -> Rounds:
        """Returns the number of rounds, 0."""
        return Rounds(0)

    def __call__(self, received: Tensor, state: Rounds, oracle: Oracle) -> tuple[Tensor, Rounds]:
        """Makes one private query."""
        t = state.t
        point, anchor = received.chunk(2, 1)
        if self.epochs.is_anchor(t):
            answer = oracle.full_gradient(anchor)
        else:
            answer = oracle.gradient_difference(point, anchor, self._bound(point, anchor))
        return answer, Rounds(t + 1)

    def advice(self, run: RunInfo) -> list[str]:
        """Warns of rounds after the last whole epoch; they are lost, since the reported anchor moves at epoch ends."""
        whole = self.epochs.whole(run.rounds)
        used = self.epochs.rounds(whole)
        following = self.epochs.rounds(whole + 1)
        if used == run.rounds:
            return []
        last = run.rounds - used
        if used:
            lost = (
                f"epochs end after round {used} and after round {following}, so the last {last} rounds have a privacy "
                f"cost but do not change the reported model; use {used} or {following} rounds"
            )
        else:
            lost = (
                f"the first epoch ends after round {following}, so the reported model stays at its initial values; use "
                f"{following} rounds"
            )
        return [f"rounds = {run.rounds}: {lost}"]

    def _bound(self, point: Tensor, anchor: Tensor) -> float | None:
        """Returns `L ||x - x~||`, equal for all clients, since they have the same points; positive for equal points."""
        if self.smoothness is None:
            return None
        distance = float((point[:1] - anchor[:1]).double().norm())
        # the norm above was rounded; and a bound of zero would leave the query result without noise
        return self.smoothness * max(distance * (1 + 1e-6), 1e-9)


@dataclass(frozen=True)
class Secant:
    """State of Barzilai-Borwein steps: the last anchor with its gradient, `[1, dim]`, and the step size."""

    anchor: Tensor
    gradient: Tensor
    rate: float


@dataclass(frozen=True)
class EpochState:
    """The server's state.

    Attributes:
        point: The iterate x, `[1, dim]`.
        anchor: x~, `[1, dim]`.
        anchor_gradient: v~, `[1, dim]`.
        sum: Sum of the epoch's iterates so far, `[1, dim]`.
        round: Rounds so far.
        steps: Inner steps of the epoch so far.
        epoch: s, from 1; 0 before the first.
        secant: Of the current epoch; None without Barzilai-Borwein steps, and before the first epoch.
    """

    point: Tensor
    anchor: Tensor
    anchor_gradient: Tensor
    sum: Tensor
    round: int
    steps: int
    epoch: int
    secant: Secant | None = None


@dataclass(frozen=True)
class VarianceReducedStep:
    """The server's equations, see the module, on means of the messages."""

    receives: ClassVar[tuple[str, ...]] = ("gradient",)
    sends: ClassVar[tuple[str, ...]] = ("point", "anchor")
    is_sum: ClassVar[bool] = True

    epochs: Epochs
    learning_rate: Rate
    regularizer: Proximal = field(default_factory=Zero)
    barzilai_borwein: bool = False
    smoothness: float | None = None  # bounds the curvature of Barzilai-Borwein steps

    def __post_init__(self) -> None:
        if self.barzilai_borwein and not self.regularizer.strong_convexity > 0:
            fix = "noise may hide the curvature of the loss: use a strongly convex regularizer such as l2, or false"
            raise ConfigError("strategy.barzilai_borwein", True, fix)

    def init(self, params: Tensor) -> tuple[Tensor, EpochState]:
        """Starts all clients from the first client's model, projected onto the domain of h."""
        x = self.regularizer.prox(params[:1].clone(), 0.0)
        return _broadcast_rows(x, x, len(params)), EpochState(x, x, 0 * x, 0 * x, 0, 0, 0)

    def __call__(self, message: Tensor, network: Network, state: EpochState) -> tuple[Tensor, EpochState]:
        """Makes one step; at the end of an epoch the anchor moves."""
        mean = network.mean(message)
        t = state.round
        x = state.point
        anchor = state.anchor
        full = state.anchor_gradient
        total = state.sum
        steps = state.steps
        epoch = state.epoch
        secant = state.secant
        is_anchor = self.epochs.is_anchor(t)
        if is_anchor:
            # the message is the full gradient, with which an epoch begins
            full = mean[:1].clone()
            total = 0 * x
            steps = 0
            epoch += 1
            direction = full
            if self.barzilai_borwein:
                secant = self._next_secant(secant, anchor, full, t, epoch)
        else:
            direction = mean[:1] + full
        if not (is_anchor and self.epochs.doubling):
            if secant is None:
                rate = evaluate_rate(self.learning_rate, t + 1)
            else:
                rate = secant.rate
            x = self.regularizer.prox(x - rate * direction, rate)
            total = total + x
            steps += 1
        if steps == self.epochs.inner_steps(epoch):
            anchor = self.regularizer.prox(total / steps, 0.0)  # a mean may round to a point outside of a set
            if not self.epochs.doubling:
                x = anchor
        state = EpochState(x, anchor, full, total, t + 1, steps, epoch, secant)
        return _broadcast_rows(x, anchor, len(mean)), state

    def _next_secant(self, last: Secant | None, anchor: Tensor, gradient: Tensor, t: int, epoch: int) -> Secant:
        """Returns `eta_s = ||dx||^2 / (m_s <dx, dg>)`, g the released gradient plus `mu x`.

        The curvature of the mean loss is between 0 and its smoothness; noise can take the quotient out of these bounds.
        """
        if last is None:
            return Secant(anchor, gradient, evaluate_rate(self.learning_rate, t + 1))
        moved = (anchor - last.anchor).double()
        square = float(moved.square().sum())
        if square == 0:
            return replace(last, gradient=gradient)
        curvature = float((moved * (gradient - last.gradient).double()).sum()) / square
        curvature = min(max(curvature, 0.0), math.inf if self.smoothness is None else self.smoothness)
        steps = self.epochs.inner_steps(epoch)
        return Secant(anchor, gradient, 1 / (steps * (curvature + self.regularizer.strong_convexity)))


@dataclass(frozen=True)
class ReportAnchor:
    """Reports the anchor, which is the mean of the last whole epoch's iterates."""

    def init(self, received: Tensor) -> None:
        """Has no state."""

    def __call__(self, received: Tensor, state: None) -> tuple[Tensor, None]:
        """Returns the second half of the server's row."""
        return received.chunk(2, 1)[1], state


@validate_arguments("strategy")
def svrg(
    learning_rate: Rate,
    epoch_length: Lengths,
    regularizer: Proximal = Zero(),
    *,
    smoothness: Positive | None = None,
    doubling: bool = False,
    barzilai_borwein: bool = False,
) -> Strategy:
    """Creates DP-SVRG or DP-SVRG++: variance-reduced private gradients, with a server (Wang, Ye, Xu, 2017).

    Args:
        learning_rate: Step size, a number or a schedule of rounds. The paper uses `fedpriv.algorithms.svrg.proven` for
            SVRG and 1 / (13 L) for SVRG++.
        epoch_length: Number m of inner steps of an epoch (of half the first epoch with SVRG++), or a tuple of the
            numbers of epochs 1, 2, ... (see `Epochs`). `proven` returns the paper's value for SVRG.
        regularizer: h; none by default. Pass an l2 term here: as a part of the loss it would be clipped with the
            gradients.
        smoothness: Smoothness L of each example's loss, if known; it is 1/4 for the logistic loss of rows of norm 1.
            Differences of gradients are then clipped to L times the distance between the points, so they need less
            noise. Too small a value reduces accuracy but not privacy.
        doubling: True for SVRG++: epochs double in length. False by default.
        barzilai_borwein: True for SVRG-BB (Tan, Ma, Dai and Qian, 2016): `learning_rate` is used in the first epoch;
            after that it is `||dx||^2 / (m <dx, dg>)` of the last two anchors and their private gradients, which costs
            no privacy. It needs a strongly convex regulariser. False by default.

    Returns:
        The strategy. A run of S epochs has `Epochs(epoch_length, doubling).rounds(S)` rounds.

    Raises:
        ConfigError: If a number is out of range, or `barzilai_borwein` has no strongly convex regulariser.

    Examples:
        >>> import fedpriv
        >>> strategy = fedpriv.svrg(0.1, epoch_length=5, smoothness=0.25)
        >>> fedpriv.plan([100] * 4, strategy, fedpriv.Privacy(epsilon=1.0), rounds=10).releases
        10
    """
    epochs = Epochs(epoch_length, doubling)
    local = SendDifference(epochs, smoothness)
    if doubling:
        name = "dp_svrg_plus_plus"
    else:
        name = "dp_svrg"
    server = VarianceReducedStep(epochs, learning_rate, regularizer, barzilai_borwein, smoothness)
    return Strategy(local, server, ReportAnchor(), name, regularizer)


@validate_arguments("strategy")
def proven(
    smoothness: Positive,
    strong_convexity: NonNegative,
    *,
    learning_rate: Positive | None = None,
    epoch_length: Count | None = None,
) -> tuple[float, int]:
    """Returns a step size and epoch length of DP-SVRG for which an epoch provably halves the suboptimality.

    With eta = a / L and k = L / mu the theorem needs `k / (a (1 - 8a) m) + 8a (m + 1) / (m (1 - 8a)) < 1/2`. The epoch
    is shortest for a = 1/48: m above 192 k + 2/3. Source: Wang, Ye, Xu, 2017, theorem 4.2, equation 4.

    Args:
        smoothness: L of each example's loss.
        strong_convexity: mu of the objective, at least the regulariser's.
        learning_rate: eta, if given; by default 1 / (48 L).
        epoch_length: m, if given (it is not checked); by default the smallest m that the theorem allows.

    Returns:
        eta and m.

    Raises:
        ConfigError: If `epoch_length` is not given and no length is sufficient, because mu is zero or eta is at least
            1 / (24 L).

    Examples:
        >>> from fedpriv.algorithms.svrg import proven
        >>> eta, epoch_length = proven(smoothness=0.25, strong_convexity=0.01)
        >>> round(eta, 4), epoch_length
        (0.0833, 4801)
    """
    eta = learning_rate or 1 / (48 * smoothness)
    if epoch_length is not None:
        return eta, epoch_length
    if not strong_convexity > 0:
        fix = (
            "is required here, because the paper's formula for it (L / mu) needs a strongly convex regularizer: set "
            "epoch_length, or use a regularizer such as l2, or SVRG++"
        )
        raise ConfigError("strategy.epoch_length", None, fix)
    a = eta * smoothness
    k = smoothness / strong_convexity
    room = 0.5 - 12 * a  # (1/2 - 8a / (1 - 8a)) (1 - 8a)
    if not room > 0:
        fix = (
            f"is required, because no epoch is long enough for theorem 4.2 at learning rate {eta:g}: set epoch_length, "
            "or use a learning rate below 1 / (24 smoothness)"
        )
        raise ConfigError("strategy.epoch_length", None, fix)
    return eta, math.floor((k / a + 8 * a) / room) + 1


def _broadcast_rows(point: Tensor, anchor: Tensor, n: int) -> Tensor:
    """Returns the broadcast rows: point and anchor side by side, `[n, 2 dim]`."""
    return torch.cat([point, anchor], 1).expand(n, -1)
