"""What an algorithm is: a local step and an aggregator that speak to each other, on rows `[n, dim]`.

Both are pure: state in, state out. State is a dataclass of tensors and numbers (`fedpriv.strategies.state`), so it can
be stored, sent, resumed and restricted to a cohort. A strategy never sees data: it asks an `Oracle`, whose answers are
already private, so any strategy, ours or a user's, is private by construction.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from torch import Tensor

from fedpriv.checks import NonNegative, checked
from fedpriv.errors import ConfigError
from fedpriv.strategies.proximal import Proximal, Zero
from fedpriv.strategies.state import S

Memory = Literal["none", "private"]
Weighting = Literal["examples", "clients"]


class Oracle(Protocol):
    """Private answers about the clients' data; row i is client i of the round's cohort."""

    @property
    def n_clients(self) -> int:
        """Number of clients in the population (public)."""
        ...

    @property
    def weights(self) -> Tensor:
        """Weight of each client, `n m_i / sum(m)`, in the rows' type, `[k]` (public).

        The sum is over all n clients, not over the round's: then the mean over a cohort that was drawn at random, on
        average, is the mean over all examples.
        """
        ...

    def gradient(self, params: Tensor) -> Tensor:
        """Private gradient of each client's objective at its row, on a fresh batch: `[k, dim] -> [k, dim]`.

        Client i's objective is `F_i = n m_i / sum(m)` times its mean loss: `mean_i F_i` is the mean loss of all
        examples.
        """
        ...

    def client_gradient(self, params: Tensor) -> Tensor:
        """Private gradient of each client's own mean loss, on a fresh batch: `[k, dim] -> [k, dim]`.

        It is `gradient` without the client's weight: for several local steps, whose outcome is weighted.
        """
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
        """Private statistic; `"constraints"` are the constraint values `[k, m]`."""
        ...

    def lagrangian_gradient(self, params: Tensor, multipliers: Tensor) -> Tensor:
        """Private gradient of `f_i + <multipliers_i, c_i>` with public multipliers: `[k, dim], [k, m] -> [k, dim]`."""
        ...

    def full_gradient(self, params: Tensor) -> Tensor:
        """The same on all examples, however batches are drawn."""
        ...

    def gradient_difference(self, params: Tensor, anchor: Tensor, bound: float | None = None) -> Tensor:
        """Private difference of the gradients at two points, on a fresh batch: `[k, dim] -> [k, dim]`.

        Each example's difference is clipped to `bound`, which must be public or a function of what was received; at
        most, and by default, twice the clip bound of a gradient.
        """
        ...


class Network(Protocol):
    """The only exchanges between clients, and the only place where rows of different clients meet.

    An engine may hold the rows of some clients here and of others elsewhere; then k and n below count those here, and
    what is made of several rows is made of all, wherever they are. So an aggregator never reduces rows by itself
    (`rows.mean(0)`): what it keeps of shape `[1, dim]` is the same everywhere, and what it keeps of shape `[n, dim]`
    belongs to the clients here.
    """

    @property
    def n_clients(self) -> int:
        """Number of clients of the run, wherever their rows are (public)."""
        ...

    def mean(self, rows: Tensor) -> Tensor:
        """Mean of messages over the round's participants, given to all: `[k, dim] -> [n, dim]`."""
        ...

    def mix(self, rows: Tensor) -> Tensor:
        """Gossip among the round's participants, with the round's mixing matrix: `[k, dim] -> [k, dim]`."""
        ...

    def fill(self, rows: Tensor, others: Tensor) -> Tensor:
        """The participants' rows, and those of `others` for the rest: `[k, dim], [n, dim] -> [n, dim]`."""
        ...

    def gather(self, rows: Tensor) -> Tensor:
        """The single messages, for a server that may see them: `[k, dim] -> [k, dim]`."""
        ...

    def total(self, rows: Tensor) -> Tensor:
        """Sum of all rows that the server has, gathered or kept: `[k, dim] -> [1, dim]`. Nothing is sent."""
        ...

    def largest(self, rows: Tensor) -> Tensor:
        """Largest entry of each column of all rows that the server has: `[k, dim] -> [1, dim]`. Nothing is sent."""
        ...

    def scatter(self, row: Tensor) -> Tensor:
        """What the server says to all: `[1, dim] -> [n, dim]`."""
        ...


class LocalStep(Protocol[S]):
    """What each client does in a round; S is the state that it keeps.

    Attributes:
        hears: Names of what it takes from the aggregator.
        says: Names of what it sends.
        memory: What a client keeps between rounds: `"none"`, its message is a function of what it received and of this
            round's answers; or `"private"`, anything else.
        linear: Its messages are linear in its answers of this and earlier rounds, with public coefficients that are
            the same for every client, and it asks once a round, at what it received. Then sums of messages are
            functions of sums of answers, which is what secure aggregation needs.
    """

    hears: ClassVar[tuple[str, ...]]
    says: ClassVar[tuple[str, ...]]
    memory: ClassVar[Memory]
    linear: ClassVar[bool]

    def init(self, params: Tensor) -> S:
        """State before round 0 from the initial parameters `[n, dim]`."""
        ...

    def __call__(self, received: Tensor, state: S, oracle: Oracle) -> tuple[Tensor, S]:
        """One round: `received [k, dim]` to a message `[k, dim]` and the new state."""
        ...


class Aggregator(Protocol[S]):
    """What becomes of the messages; S is the state that it keeps.

    Attributes:
        is_sum: It uses the messages only through their (weighted) sum, so secure aggregation can serve it.
    """

    hears: ClassVar[tuple[str, ...]]
    says: ClassVar[tuple[str, ...]]
    is_sum: ClassVar[bool]

    def init(self, params: Tensor) -> tuple[Tensor, S]:
        """What clients receive in round 0, `[n, dim]`, and the state."""
        ...

    def __call__(self, message: Tensor, network: Network, state: S) -> tuple[Tensor, S]:
        """Messages `[k, dim]` to what clients receive next `[n, dim]` and the new state."""
        ...


@runtime_checkable
class Ends(Protocol):
    """An aggregator's state that can end a run."""

    @property
    def done(self) -> bool:
        """Whether this round was the last."""
        ...


class Output(Protocol[S]):
    """The model that a run reports, from what was received (released values only); S is the state that it keeps."""

    def init(self, received: Tensor) -> S:
        """State before round 0."""
        ...

    def __call__(self, received: Tensor, state: S) -> tuple[Tensor, S]:
        """The reported models `[n, dim]` after this round."""
        ...


class Peers(Protocol):
    """The graph of a run without a server."""

    @property
    def spectral_gap(self) -> float:
        """One minus the second largest absolute eigenvalue of W."""
        ...

    @property
    def weights(self) -> Any:  # noqa: ANN401 - scipy is not typed
        """W, sparse `[n, n]`."""
        ...


@dataclass(frozen=True)
class ConstraintNoise:
    """What is known beforehand of private constraint values.

    Attributes:
        deviation: Standard deviation of their noise, where it is largest.
        reach: Half of the most that one example changes a value by; None where it is too late to change the budget.
        examples: Of the client with the fewest.
        dim: Numbers in a gradient.
    """

    deviation: float
    reach: float | None = None
    examples: int = 1
    dim: int = 1


@dataclass(frozen=True)
class Outlook:
    """What is public of a run before it begins, for a strategy to say what its settings will do.

    Attributes:
        rounds: Number of rounds.
        graph: Who hears whom; None with a server.
        constraints: Noise of constraint values; None where none are asked for, or their noise is not known yet.
    """

    rounds: int
    graph: Peers | None = None
    constraints: ConstraintNoise | None = None


@runtime_checkable
class Advises(Protocol):
    """A local step that looks at its settings before a run. A step need not."""

    def advice(self, run: Outlook) -> list[str]:
        """What the user should know of these settings in this run, a sentence or two each, with its numbers."""
        ...


@dataclass(frozen=True)
class Last:
    """Report the last iterate."""

    def init(self, received: Tensor) -> None:
        """Nothing is kept."""

    def __call__(self, received: Tensor, state: None) -> tuple[Tensor, None]:
        """Return what was received."""
        return received, state


@dataclass(frozen=True)
class RunningAverage:
    """A weighted average so far.

    Attributes:
        average: `[n, dim]`, or `[1, dim]` where all rows are one.
        weight: Sum of the weights, `[]`.
        round: Rounds averaged, `[]`.
    """

    average: Tensor
    weight: Tensor
    round: Tensor


@checked("strategy.average")
@dataclass(frozen=True)
class Averaged:
    """Report the weighted average of the iterates, weight `t**power` for round `t` = 1, 2, ...

    Averaging released iterates is post-processing and costs no privacy. `power = 0` is Polyak-Ruppert averaging;
    larger powers forget the first rounds faster (Shamir and Zhang, 2013, polynomial-decay averaging).
    """

    power: NonNegative = 0.0

    def init(self, received: Tensor) -> RunningAverage:
        """Nothing averaged yet."""
        return RunningAverage(received[:1] * 0, received.new_zeros(()), received.new_zeros(()))

    def __call__(self, received: Tensor, state: RunningAverage) -> tuple[Tensor, RunningAverage]:
        """Fold the round in. Rows that are all one (a star's) stay one."""
        received = received[:1] if received.stride(0) == 0 else received
        round_number = state.round + 1
        share = round_number**self.power
        weight = state.weight + share
        average = state.average + (share / weight) * (received - state.average)
        return average, RunningAverage(average, weight, round_number)


@dataclass(frozen=True)
class Strategy:
    """An algorithm: a local step and an aggregator that fit, which model is reported, and under which name.

    A true `done` of the aggregator's state ends the run (`Ends`). `monitor` names numbers of that state that a run
    shows as it goes; like all that an aggregator knows they are functions of messages. `regularizer` is the h of the
    objective, for reports. `message_norm` is the l2 norm to which the local step keeps its messages itself, as its
    aggregator relies on: another clip of messages is refused.

    Raises:
        ConfigError: what one says is not what the other hears.
    """

    local_step: LocalStep[Any]
    aggregator: Aggregator[Any]
    output: Output[Any] = field(default_factory=Last)
    name: str = "custom"
    regularizer: Proximal = field(default_factory=Zero)
    monitor: tuple[str, ...] = ()
    message_norm: float | None = None

    def __post_init__(self) -> None:
        step, aggregator = self.local_step, self.aggregator
        for speaker, says, listener, hears in (
            (step, step.says, aggregator, aggregator.hears),
            (aggregator, aggregator.says, step, step.hears),
        ):
            if says != hears:
                raise ConfigError(
                    "strategy",
                    f"{type(step).__name__} + {type(aggregator).__name__}",
                    f"{type(speaker).__name__} says {says} but {type(listener).__name__} hears {hears}",
                )

    def is_done(self, server: object) -> bool:
        """Whether the aggregator's state says that the run is over."""
        return isinstance(server, Ends) and bool(server.done)

    def shown(self, server: object) -> dict[str, float]:
        """What a run shows of the aggregator's state after a round: the numbers of `monitor` that are known."""
        values = {name: float(getattr(server, name)) for name in self.monitor}
        return {name: value for name, value in values.items() if not math.isnan(value)}

    def advice(self, run: Outlook) -> list[str]:
        """What the local step has to say of its settings before this run; see `Advises`."""
        return self.local_step.advice(run) if isinstance(self.local_step, Advises) else []
