"""An algorithm: a client update and an aggregator, which combines the clients' messages.

Both are pure functions of tensors with one row for each client, `[n, dim]`, and of a state: a dataclass of tensors and
numbers (`fedpriv.strategies.state`) that fedpriv stores and restores. A strategy has no access to data: it queries an
`Oracle`, which returns private results only, so every strategy is private, including a user's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, ClassVar, Literal, Protocol, cast, runtime_checkable

from torch import Tensor

from fedpriv.settings.checks import validate_arguments
from fedpriv.strategies.advice import Advises, RunInfo
from fedpriv.strategies.outputs import Last
from fedpriv.strategies.pair import check_pair
from fedpriv.strategies.proximal import Proximal, Zero
from fedpriv.strategies.state import S

Memory = Literal["none", "private"]
Weighting = Literal["examples", "clients"]


class Oracle(Protocol):
    """Computes private queries on the clients' data. Row i of every tensor belongs to participant i of the round.

    k is the number of participants, n the number of all clients, m_i the number of examples of client i.
    """

    @property
    def n_clients(self) -> int:
        """Number n of clients of the run (public)."""
        ...

    @property
    def numbers(self) -> Tensor:
        """Number of each participant among all clients, `[k]`; as secret as the draw of the participants."""
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
        """Private gradient of each client's unweighted mean loss, on a new batch: `[k, dim] -> [k, dim]`.

        It is `gradient` without the weight, for several local steps with a weighted result.
        """
        ...

    @property
    def noise_variance(self) -> Tensor:
        """Variance of the noise in each entry of the newest gradient's rows, `[k, 1]` (public)."""
        ...

    @property
    def noise_in_mean(self) -> Tensor:
        """Share of each row in the noise variance of the mean of all rows, `[k, 1]` (public).

        The mean of these shares is the variance of the noise in the mean.
        """
        ...

    @property
    def equality(self) -> Tensor:
        """True for constraint values that must be zero, `[k, m]` (public)."""
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
        """`gradient` on all examples, without sampling of batches."""
        ...

    def gradient_difference(self, params: Tensor, anchor: Tensor, bound: float | None = None) -> Tensor:
        """Private difference of the gradients at two points, on a new batch: `[k, dim] -> [k, dim]`.

        Each example's difference is clipped to `bound`, which must be public or computed from received values. By
        default it is twice the clip bound of a gradient, which is also the largest allowed value.
        """
        ...


class Network(Protocol):
    """Exchanges messages between clients and server, which is the only way to combine rows of different clients.

    Rows may be spread over several processes. In that case k and n below count the rows in this process, while sums and
    means are over the rows of all processes. Therefore an aggregator must not combine rows itself (as in
    `rows.mean(0)`). State of shape `[1, dim]` is the same in every process; state of shape `[n, dim]` belongs to the
    clients of this process.
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

    def replace_rows(self, rows: Tensor, others: Tensor) -> Tensor:
        """The participants' `rows`, and rows of `others` for the other clients: `[k, dim], [n, dim] -> [n, dim]`."""
        ...

    def gather(self, rows: Tensor) -> Tensor:
        """The clients' messages, if the server may see single ones: `[k, dim] -> [k, dim]`."""
        ...

    def total(self, rows: Tensor) -> Tensor:
        """Sum of rows that the server has: `[k, dim] -> [1, dim]`. Nothing is sent."""
        ...

    def largest(self, rows: Tensor) -> Tensor:
        """Largest entry of each column of rows that the server has: `[k, dim] -> [1, dim]`. Nothing is sent."""
        ...

    def scatter(self, row: Tensor) -> Tensor:
        """Sends a row from the server to all clients: `[1, dim] -> [n, dim]`."""
        ...


class LocalStep(Protocol[S]):
    """A client's computation in a round; S is the type of its state.

    Attributes:
        receives: Names of the values it receives, e.g. `("model",)`. They must equal the aggregator's `sends`.
        sends: Names of the values it sends, e.g. `("gradient",)`. They must equal the aggregator's `receives`.
        memory: `"none"` if a message depends only on the received row and on this round's query results; else
            `"private"`. Noise on messages (`noise_on: message`) needs `"none"`.
        linear: True if messages are linear in the query results of this and earlier rounds, with the same public
            coefficients for every client, and a round has a single query, at the received row. In this case sums of
            messages depend only on sums of query results, which secure aggregation needs.
    """

    receives: ClassVar[tuple[str, ...]]
    sends: ClassVar[tuple[str, ...]]
    memory: ClassVar[Memory]
    linear: ClassVar[bool]

    def init(self, params: Tensor) -> S:
        """Returns the state before round 0, from the initial parameters `[n, dim]`."""
        ...

    def __call__(self, received: Tensor, state: S, oracle: Oracle) -> tuple[Tensor, S]:
        """Computes one round: from `received [k, dim]` to messages `[k, dim]` and the new state."""
        ...


@runtime_checkable
class PeriodicQueries(Protocol):
    """A client update with periodic queries, for which a plan records one period. This protocol is optional.

    A query that is not in the plan raises an error. So a wrong period can end a run early, but does not weaken privacy.
    """

    @property
    def period(self) -> int | None:
        """Number of rounds after which the queries repeat, for any query results and participants.

        None if a plan must test every round, e.g. because a user's schedule may fail in a later round.
        """
        ...


class Aggregator(Protocol[S]):
    """Combines the clients' messages; S is the type of its state.

    Attributes:
        receives: Names of the values it receives. They must equal the client update's `sends`.
        sends: Names of the values it sends. They must equal the client update's `receives`.
        is_sum: True if the aggregator uses only the (weighted) sum of the messages, which secure aggregation needs.
    """

    receives: ClassVar[tuple[str, ...]]
    sends: ClassVar[tuple[str, ...]]
    is_sum: ClassVar[bool]

    def init(self, params: Tensor) -> tuple[Tensor, S]:
        """Returns the broadcast of round 0, `[n, dim]`, and the state, from the initial parameters."""
        ...

    def __call__(self, message: Tensor, network: Network, state: S) -> tuple[Tensor, S]:
        """Returns the next broadcast, `[n, dim]`, and the new state, from messages `[k, dim]`."""
        ...


@runtime_checkable
class Ends(Protocol):
    """An aggregator's state that can end a run."""

    @property
    def done(self) -> bool:
        """True if this round was the last."""
        ...


class Output(Protocol[S]):
    """Computes the models that a run reports from the broadcasts; S is the type of its state."""

    def init(self, received: Tensor) -> S:
        """Returns the state before round 0."""
        ...

    def __call__(self, received: Tensor, state: S) -> tuple[Tensor, S]:
        """Returns the reported models `[n, dim]` after this round, and the new state."""
        ...


@validate_arguments("strategy")
@dataclass(frozen=True)
class Strategy:
    """An algorithm: a client update and an aggregator with matching messages.

    Args:
        local_step: The client update: each client's computation in a round.
        aggregator: Combines the messages. If its state has a true `done`, the run ends (`Ends`).
        output: Computes the reported model: `Last()` (default), `Averaged()` or `Ema()`.
        name: Name in reports; `"custom"` by default.
        regularizer: The regulariser h of the objective, for reports; none by default.
        monitor: Names of numbers in the aggregator's state, which a run shows after each round.
        message_norm: Largest l2 norm that a message has by construction. With `noise_on: message` the clip bound must
            equal this norm.

    Raises:
        ConfigError: If the client update or the aggregator lacks an attribute, or returns another type or shape (the
            message contains the line to write), or if the values that one of them sends differ from the values that the
            other one receives.

    Examples:
        >>> import fedpriv
        >>> own = fedpriv.fedavg(0.1)
        >>> fedpriv.Strategy(own.local_step, own.aggregator, output=fedpriv.Averaged(), name="averaged").name
        'averaged'
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
        """Returns this strategy for a run of `rounds` rounds: fills in the fields `rounds` that are None."""
        halves = {"local_step": self.local_step, "aggregator": self.aggregator}
        filled = {
            name: replace(cast("Any", value), rounds=rounds) for name, value in halves.items() if _lacks_rounds(value)
        }
        if filled:
            return replace(self, **filled)
        return self

    def is_done(self, server: object) -> bool:
        """Returns True if the run is over, from the aggregator's state `server`."""
        return bool(getattr(server, "done", False))  # the attribute of `Ends`: a check of the protocol is slow

    def monitored(self, server: object) -> dict[str, float]:
        """Returns the numbers in the aggregator's state that `monitor` names, without those that are not a number."""
        values = {name: float(getattr(server, name)) for name in self.monitor}
        return {name: value for name, value in values.items() if not math.isnan(value)}

    def advice(self, run: RunInfo) -> list[str]:
        """Returns warnings of the client update about this run; see `Advises`."""
        if isinstance(self.local_step, Advises):
            return self.local_step.advice(run)
        return []


def _lacks_rounds(value: object) -> bool:
    """Returns True if a client update or aggregator has a field `rounds` that is None."""
    if not is_dataclass(value):
        return False
    names = [field.name for field in fields(value)]
    return "rounds" in names and vars(value)["rounds"] is None
