"""An algorithm: a local step, what each client does, and an aggregator, what becomes of the clients' messages.

Both are pure functions of tensors with one row for each client, `[n, dim]`, and of a state: a dataclass of tensors and
numbers (`fedpriv.strategies.state`) that fedpriv stores and restores. A strategy sees no data: it asks an `Oracle`,
whose answers are already private, so every strategy is private, also a user's own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, ClassVar, Literal, Protocol, cast, runtime_checkable

from torch import Tensor

from fedpriv.settings.checks import checked
from fedpriv.strategies.advice import Advises, Outlook
from fedpriv.strategies.outputs import Last
from fedpriv.strategies.pair import check_pair
from fedpriv.strategies.proximal import Proximal, Zero
from fedpriv.strategies.state import S

Memory = Literal["none", "private"]
Weighting = Literal["examples", "clients"]


class Oracle(Protocol):
    """Private answers about the clients' data. Row i of every tensor belongs to participant i of the round.

    k is the number of participants, n that of all clients, m_i the number of examples of client i.
    """

    @property
    def n_clients(self) -> int:
        """Number n of clients of the run (public)."""
        ...

    @property
    def weights(self) -> Tensor:
        """Weight of each participant, `n m_i / sum(m)`, `[k]` (public).

        The sum is over all n clients, so a weighted mean over a random cohort is, in expectation, the mean over all
        examples.
        """
        ...

    def gradient(self, params: Tensor) -> Tensor:
        """Private gradient of each client's objective at its row, on a new batch: `[k, dim] -> [k, dim]`.

        Client i's objective F_i is `n m_i / sum(m)` times its mean loss, so the mean of all F_i is the mean loss of all
        examples.
        """
        ...

    def client_gradient(self, params: Tensor) -> Tensor:
        """Private gradient of each client's own mean loss, on a new batch: `[k, dim] -> [k, dim]`.

        It is `gradient` without the weight, for several local steps whose result is weighted.
        """
        ...

    @property
    def noise_variance(self) -> Tensor:
        """Variance of the noise in each entry of the newest gradient's rows, `[k, 1]` (public)."""
        ...

    @property
    def noise_in_mean(self) -> Tensor:
        """Each row's part in the noise of the mean of all rows, `[k, 1]` (public): their mean is its variance."""
        ...

    @property
    def equality(self) -> Tensor:
        """Which constraint values must be zero, `[k, m]` boolean (public)."""
        ...

    def exact(self, params: Tensor) -> tuple[Tensor, Tensor]:
        """Objective `[k]` and constraints `[k, m]`, differentiable row by row; only without privacy.

        The objectives of all clients add up to the run's objective.
        """
        ...

    def statistic(self, params: Tensor, name: str) -> Tensor:
        """Private statistic of each client at its row; for the name `"constraints"`, constraint values `[k, m]`."""
        ...

    def lagrangian_gradient(self, params: Tensor, multipliers: Tensor) -> Tensor:
        """Private gradient of `f_i + <multipliers_i, c_i>` with public multipliers: `[k, dim], [k, m] -> [k, dim]`."""
        ...

    def full_gradient(self, params: Tensor) -> Tensor:
        """`gradient` on all examples, however batches are drawn."""
        ...

    def gradient_difference(self, params: Tensor, anchor: Tensor, bound: float | None = None) -> Tensor:
        """Private difference of the gradients at two points, on a new batch: `[k, dim] -> [k, dim]`.

        Each example's difference is clipped to `bound`, which must be public or computed from what was received; by
        default, and at most, twice the clip bound of a gradient.
        """
        ...


class Network(Protocol):
    """Exchanges between clients: the only way to combine rows of different clients.

    Rows may be spread over several processes; k and n below then count those in this one, while sums and means are over
    all. So an aggregator must not combine rows itself (`rows.mean(0)`). State of shape `[1, dim]` is the same in every
    process; state of shape `[n, dim]` belongs to the clients of this one.
    """

    @property
    def n_clients(self) -> int:
        """Number of clients of the run, in all processes (public)."""
        ...

    def mean(self, rows: Tensor) -> Tensor:
        """Mean of the participants' messages, sent to all clients: `[k, dim] -> [n, dim]`."""
        ...

    def mix(self, rows: Tensor) -> Tensor:
        """Weighted means over neighbours, by the round's mixing matrix: `[k, dim] -> [k, dim]`."""
        ...

    def fill(self, rows: Tensor, others: Tensor) -> Tensor:
        """The participants' `rows`, and rows of `others` for the other clients: `[k, dim], [n, dim] -> [n, dim]`."""
        ...

    def gather(self, rows: Tensor) -> Tensor:
        """The single messages, where the server may see them: `[k, dim] -> [k, dim]`."""
        ...

    def total(self, rows: Tensor) -> Tensor:
        """Sum of rows that the server has: `[k, dim] -> [1, dim]`. Nothing is sent."""
        ...

    def largest(self, rows: Tensor) -> Tensor:
        """Largest entry of each column of rows that the server has: `[k, dim] -> [1, dim]`. Nothing is sent."""
        ...

    def scatter(self, row: Tensor) -> Tensor:
        """Send a row from the server to all clients: `[1, dim] -> [n, dim]`."""
        ...


class LocalStep(Protocol[S]):
    """What each client does in a round; S is the type of its state.

    Attributes:
        receives: Names of what it receives, e.g. `("model",)`; must be what the aggregator `sends`.
        sends: Names of what it sends, e.g. `("gradient",)`; must be what the aggregator `receives`.
        memory: `"none"` if a message depends only on what was received and on this round's answers, which noise on
            messages (`at: message`) needs; else `"private"`.
        linear: Whether messages are linear in the answers of this and earlier rounds, with the same public
            coefficients for every client, and the only question of a round is asked at what was received. Then sums
            of messages depend on sums of answers only, which secure aggregation needs.
    """

    receives: ClassVar[tuple[str, ...]]
    sends: ClassVar[tuple[str, ...]]
    memory: ClassVar[Memory]
    linear: ClassVar[bool]

    def init(self, params: Tensor) -> S:
        """State before round 0 from the initial parameters `[n, dim]`."""
        ...

    def __call__(self, received: Tensor, state: S, oracle: Oracle) -> tuple[Tensor, S]:
        """One round: from `received [k, dim]` to messages `[k, dim]` and the new state."""
        ...


@runtime_checkable
class PeriodicQueries(Protocol):
    """A local step whose questions repeat, so that a plan asks them once. This is optional.

    A run is refused what its plan did not pay for, so a wrong number costs rounds, and never privacy.
    """

    @property
    def period(self) -> int:
        """After so many rounds the same questions come again, whatever was answered, and whoever takes part."""
        ...


class Aggregator(Protocol[S]):
    """What becomes of the messages; S is the type of its state.

    Attributes:
        receives: Names of what it receives; must be what the local step `sends`.
        sends: Names of what it sends; must be what the local step `receives`.
        is_sum: Whether it uses messages only through their (weighted) sum, which secure aggregation needs.
    """

    receives: ClassVar[tuple[str, ...]]
    sends: ClassVar[tuple[str, ...]]
    is_sum: ClassVar[bool]

    def init(self, params: Tensor) -> tuple[Tensor, S]:
        """What clients receive in round 0, `[n, dim]`, and the state."""
        ...

    def __call__(self, message: Tensor, network: Network, state: S) -> tuple[Tensor, S]:
        """From messages `[k, dim]` to what clients receive next, `[n, dim]`, and the new state."""
        ...


@runtime_checkable
class Ends(Protocol):
    """An aggregator's state that can end a run."""

    @property
    def done(self) -> bool:
        """Whether this round was the last."""
        ...


class Output(Protocol[S]):
    """Which model a run reports, computed from what clients receive; S is the type of its state."""

    def init(self, received: Tensor) -> S:
        """State before round 0."""
        ...

    def __call__(self, received: Tensor, state: S) -> tuple[Tensor, S]:
        """The reported models `[n, dim]` after this round."""
        ...


@checked("strategy")
@dataclass(frozen=True)
class Strategy:
    """An algorithm: a local step and an aggregator that fit together.

    Args:
        local_step: What each client does in a round.
        aggregator: What becomes of the messages. If its state has a true `done`, the run ends (`Ends`).
        output: Which model is reported, e.g. `Last()` or `Averaged()`.
        name: Name in reports.
        regularizer: The regulariser h of the objective, for reports.
        monitor: Names of numbers of the aggregator's state that a run shows after each round.
        message_norm: l2 norm that messages have at most by themselves; with `at: message` the clip must be this one.

    Raises:
        ConfigError: a part lacks something, or returns another type or shape (says which line to write), or what one
            part sends is not what the other receives.
    """

    local_step: LocalStep[Any]
    aggregator: Aggregator[Any]
    output: Output[Any] = field(default_factory=Last)
    name: str = "custom"
    regularizer: Proximal = field(default_factory=Zero)
    monitor: tuple[str, ...] = ()
    message_norm: float | None = None

    def __post_init__(self) -> None:
        check_pair(self.local_step, self.aggregator)

    def for_rounds(self, rounds: int) -> Strategy:
        """This strategy for a run of so many rounds: parts whose field `rounds` is None have that number."""
        parts = {"local_step": self.local_step, "aggregator": self.aggregator}
        filled = {
            name: replace(cast("Any", part), rounds=rounds) for name, part in parts.items() if _lacks_rounds(part)
        }
        if filled:
            return replace(self, **filled)
        return self

    def is_done(self, server: object) -> bool:
        """Whether the aggregator's state says that the run is over."""
        return isinstance(server, Ends) and bool(server.done)

    def shown(self, server: object) -> dict[str, float]:
        """The numbers of the aggregator's state that `monitor` names, as far as they are known."""
        values = {name: float(getattr(server, name)) for name in self.monitor}
        return {name: value for name, value in values.items() if not math.isnan(value)}

    def advice(self, run: Outlook) -> list[str]:
        """The local step's warnings before this run; see `Advises`."""
        if isinstance(self.local_step, Advises):
            return self.local_step.advice(run)
        return []


def _lacks_rounds(part: object) -> bool:
    return is_dataclass(part) and any(one.name == "rounds" for one in fields(part)) and vars(part)["rounds"] is None
